"""Prune a run: the part of its network to prune, how to score the result, and the file to write."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from byov.data import ImageSet
from byov.evaluation.rows import which_images
from byov.evaluation.scores import main_scores
from byov.files import check_out
from byov.metrics import functional as metrics
from byov.pruning import Block, prune, prune_gradually, prune_groups, save_sparse, weights
from byov.pruning.unstructured import By, Ranking, Scope
from byov.runs import Run
from byov.runs.header import checkpoint_of
from byov.ssl.classifiers import LinearProbe, linear_probe
from byov.ssl.features import features
from byov.ssl.probe import ProbeSettings
from byov.train.supervised import FineTune

SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
BINS = 15
PROBE_SETTINGS = ("l2", "holdout", "max_iter", "seed")

Probing = Literal["fixed", "refitted"]
Curve = dict[str, Any]
Read = Callable[[nn.Module], Tensor]
"""Returns the class probabilities (N, C) of a pruned network on the test images."""


class Prunable:
    """The part of a run's network that is pruned: the encoder of a pretraining run, all of a supervised network."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.prefix = "encoder." if run.kind == "pretrain" else ""
        self.name = run.recipe.model.encoder if run.kind == "pretrain" else run.recipe.model.name

    def where(self, name: str, module: nn.Module, parameter: Tensor) -> bool:
        """Return whether a parameter may be pruned, for `byov.prune`."""
        return name.startswith(self.prefix) and weights(name, module, parameter)

    def blocks(self, block: Block) -> bool:
        """Return whether a block may lose groups, for `byov.pruning.prune_groups`."""
        return block.name.startswith(self.prefix)

    def kept(self, network: nn.Module) -> nn.Module:
        """Return the part of a pruned network to keep: the encoder, or all of it."""
        return network.get_submodule("encoder") if self.prefix else network


def reader(
    run: Run, train: ImageSet | None, test: ImageSet, probing: Probing = "fixed", seed: int = 0
) -> tuple[Read, dict[str, Any]]:
    """Return a function that scores pruned versions of a run's network, and its entry in the protocol.

    A supervised network has its own output layer. For an encoder, a linear probe is fitted to the training images:
    "fixed" fits it once before pruning, so nothing is retrained; "refitted" fits it to each pruned encoder.
    """
    if run.kind == "train":
        pixels = test.images.float() / 255
        return lambda net: run.predictor.read(net, pixels), {"head": "the network's own output layer"}
    assert train is not None
    chosen = {key: value for key, value in asdict(ProbeSettings(seed=seed)).items() if key in PROBE_SETTINGS}

    def fit(net: nn.Module) -> LinearProbe:
        assert train.labels is not None
        fitted = features(net, train.images, **run.normalisation)
        return linear_probe(fitted, train.labels.to(fitted.device), classes=len(train.class_names), **chosen)

    before = fit(run.network) if probing == "fixed" else None

    def read_probe(net: nn.Module) -> Tensor:
        return (before or fit(net)).probabilities(features(net, test.images, **run.normalisation))

    about = {"head": "linear probe at μ", "probe": probing, "settings": chosen, "train": which_images(train)}
    return read_probe, about


def curve(
    run: Run,
    read: Read,
    labels: Tensor,
    by: Ranking,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope = "layer",
    bins: int = BINS,
) -> Curve:
    """Prune a run's network to each sparsity and score the result."""
    found: Curve = {"by": by, "sparsity": list(sparsities), "top1": [], "ece": [], "nll": []}
    where = Prunable(run).where
    for sparsity in sparsities:
        probs = read(prune(run.network, sparsity, by, scope, where).eval())
        for name, value in main_scores(probs, labels, bins).items():
            found[name].append(value)
    return found


def rankings_of(run: Run) -> tuple[By, ...]:
    """Return the rankings that a run allows; SNR needs a posterior."""
    return ("magnitude",) if run.q is None else ("snr", "magnitude")


def check_file(out: Path, run: Path, force: bool) -> None:
    """Raise if a pruned network cannot be written to this file, or if it is the run's own checkpoint."""
    file = checkpoint_of(run)
    if out.is_file() and file.exists() and out.samefile(file):
        raise ValueError(f"{out} is the run's own checkpoint: choose another --out.")
    check_out(out, force)


def prune_run(
    run: Run,
    out: Path,
    sparsity: float,
    by: Ranking,
    scope: Scope,
    groups: bool = False,
    rounds: int = 0,
    epochs: int = 1,
    lr: float = 1e-3,
    log: Callable[[str], Any] = print,
) -> nn.Module:
    """Prune a run's network, at once or in rounds of fine-tuning, write the result to a file, and return it."""
    part = Prunable(run)
    about = {"kind": run.kind, "network": part.name, "run": run.name, "sparsity": sparsity, "by": by, "scope": scope}
    if rounds:
        net = _prune_in_rounds(run, sparsity, rounds, by, scope, epochs, lr, log)  # type: ignore[arg-type]
        about |= {"rounds": rounds, "epochs": epochs, "lr": lr, "seed": run.reading.seed}
    elif groups:
        net = part.kept(prune_groups(run.network, sparsity, sparsity, by, scope, part.blocks))  # type: ignore[arg-type]
        about |= {"groups": True}
    else:
        net = part.kept(prune(run.network, sparsity, by, scope, part.where, run.reading.seed))
        about |= {"seed": run.reading.seed} if by == "random" else {}
    save_sparse(net, out, about)
    return net


def sweep_line(run: Path, out: Path, sparsity: float, by: str, scope: str, seed: int) -> str:
    """Return the line with the command that scores a pruned network beside the dense one, into the run's folder."""
    file = checkpoint_of(run).parent / f"{out.stem}_sweep.json"
    how = f"--sparsities 0,{sparsity} --by {by} --scope {scope}" + f" --seed {seed}" * (by == "random")
    return f"Next: byov prune {shlex.quote(str(run))} --sweep {how} --out {shlex.quote(str(file))}"


def _prune_in_rounds(
    run: Run, sparsity: float, rounds: int, by: By, scope: Scope, epochs: int, lr: float, log: Callable[[str], Any]
) -> nn.Module:
    if run.kind != "train":
        raise ValueError("Fine-tuning needs an output layer: only runs of byov train can be pruned in rounds.")
    r, test = run.reading, run.load_own("test")
    fine_tune = FineTune(
        run.recipe, run.load_own("train"), **run.normalisation, epochs=epochs, lr=lr, seed=r.seed, device=r.device
    )
    read, _ = reader(run, None, test)

    def report(step: float, net: nn.Module) -> None:
        assert test.labels is not None
        top1 = metrics.accuracy(read(net), test.labels).item()
        log(f"{100 * step:5.1f} % zeros, fine-tuned: top-1 {100 * top1:.2f} %")

    where = Prunable(run).where
    return prune_gradually(run.network, fine_tune, sparsity, rounds, by, scope, where, report=report).cpu()
