"""The network of a run, as pruning takes it: what is pruned of it, on what images it was trained, how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from byov.data import ImageSet
from byov.data.config import DataConfig
from byov.data.labelled import in_memory
from byov.evaluation.predictors import Classifier
from byov.posterior.module import BayesianModule
from byov.pruning.blocks import Block
from byov.pruning.unstructured import weights
from byov.ssl import pretrain
from byov.ssl.classifiers import LinearProbe, linear_probe
from byov.ssl.features import features
from byov.ssl.probe import ProbeSettings
from byov.train import checkpoint, supervised

Probing = Literal["fixed", "refitted"]
Read = Callable[[nn.Module], Tensor]
"""From a pruned network to its class probabilities (N, C) of the test images."""


@dataclass(frozen=True, eq=False)
class Prunable:
    """A run of `byov pretrain`, of which the encoder is pruned, or of `byov train`, of which all is."""

    kind: Literal["pretrain", "train"]
    model: nn.Module
    network: str
    data: DataConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]
    recipe: Any

    @property
    def posterior(self) -> bool:
        return isinstance(self.model, BayesianModule)

    @property
    def prefix(self) -> str:
        return "encoder." if self.kind == "pretrain" else ""

    def where(self, name: str, module: nn.Module, parameter: Tensor) -> bool:
        return name.startswith(self.prefix) and weights(name, module, parameter)

    def blocks(self, block: Block) -> bool:
        return block.name.startswith(self.prefix)

    def plain(self, net: nn.Module) -> nn.Module:
        """Of a pruned network what is kept: the encoder, or all of it."""
        return net.get_submodule("encoder") if self.kind == "pretrain" else net

    def images(self, split: str, root: str | None = None, device: torch.device | str = "cpu") -> ImageSet:
        """A split of the images that it was trained on, with labels."""
        data = replace(self.data, root=root or self.data.root).load(split)
        return in_memory(data, split).to(device)


def open_run(run: Path, device: torch.device | str = "cpu") -> Prunable:
    """The network of a run, by its folder or its checkpoint."""
    file = run / "checkpoint.safetensors" if run.is_dir() else run
    if not file.is_file():
        raise ValueError(f"There is no run at {file}: name a run's folder or its checkpoint.")
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    kind = about.get("kind") if isinstance(about, dict) else None
    if kind == "train":
        classifier, of = supervised.restore(file, device)
        augment = classifier.augment
        return Prunable(kind, classifier.net, of.model.name, of.data, augment.mean or (), augment.std or (), of)
    if kind == "pretrain":
        module, to = pretrain.restore(file, device)
        views = module.views
        return Prunable(kind, module.student, to.model.encoder, to.data, views.mean or (), views.std or (), to)
    raise ValueError(f"{file} is a checkpoint of kind {kind!r}; those that can be pruned are pretrain and train.")


def reader(
    run: Prunable, train: ImageSet | None, test: ImageSet, probing: Probing = "fixed", seed: int = 0
) -> tuple[Read, dict[str, Any]]:
    """How pruned versions of a run's network are read, and what a protocol should say about it.

    A supervised network has an output layer of its own. On an encoder a linear probe is fitted to the training images:
    "fixed" once, on the encoder as it was before pruning, so that nothing at all is retrained; or "refitted" to each.
    """
    normalised: dict[str, Any] = {"mean": run.mean or None, "std": run.std or None}
    if run.kind == "train":

        def read_classifier(net: nn.Module) -> Tensor:
            return Classifier(net, **normalised)(test.images.float() / 255).mean

        return read_classifier, {"head": "the network's own output layer"}
    assert train is not None
    s = ProbeSettings(seed=seed)

    def fit(net: nn.Module) -> LinearProbe:
        assert train.labels is not None
        fitted = features(net, train.images, **normalised)
        return linear_probe(
            fitted,
            train.labels.to(fitted.device),
            classes=len(train.class_names),
            l2=s.l2,
            holdout=s.holdout,
            max_iter=s.max_iter,
            seed=s.seed,
        )

    before = fit(run.model) if probing == "fixed" else None

    def read_probe(net: nn.Module) -> Tensor:
        head = before or fit(net)
        return head.probabilities(features(net, test.images, **normalised))

    chosen = ("l2", "holdout", "max_iter", "seed")
    return read_probe, {
        "head": "linear probe at μ",
        "probe": probing,
        "settings": {key: value for key, value in asdict(s).items() if key in chosen},
        "train": {"name": train.name, "digest": train.digest, "images": len(train)},
    }
