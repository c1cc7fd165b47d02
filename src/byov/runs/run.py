"""A run of `byov pretrain` or `byov train`, or your own network, opened for evaluation."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Generator, Tensor, nn

import byov
from byov.data import ImageSet
from byov.data.labelled import in_memory, labelled
from byov.data.printable import reason
from byov.models.registry import resolve
from byov.posterior.module import BayesianModule
from byov.prediction import Prediction
from byov.runs.header import Header, read_header
from byov.runs.predictor import Classifier, Predictor, Probed
from byov.runs.reading import Reading
from byov.ssl import pretrain
from byov.ssl.classifiers import EXAMPLES
from byov.ssl.features import Encoder
from byov.ssl.learner import Learner
from byov.ssl.probe import Probe, ProbeSettings
from byov.train import supervised


class Run:
    """A network with its images, its predictor, and the protocol that its numbers depend on.

    Created by `open_run`. Data and predictor are loaded and fitted once, on first access.
    """

    kind: str
    """"pretrain", "train", or "python" for your own network."""
    weights: nn.Module
    """The module whose weights the digest covers."""
    network: nn.Module
    """The network with the parameters: the student of a pretraining run, or the classifier."""
    recipe: Any = None
    """The recipe of its training; None for your own network."""
    class_names: tuple[str, ...] | None = None

    def __init__(self, name: str, reading: Reading, header: Header | None = None) -> None:
        self.name, self.reading, self.header = name, reading, header
        channels, size = (reading.channels, reading.image_size) if header is None else header.about["shape"]
        if header is not None and (reading.channels not in (None, channels) or reading.image_size not in (None, size)):
            raise ValueError(
                f"The run takes images of {channels} channels and {size} pixels: leave out --channels and --image-size."
            )
        native = header is not None and header.config["data"].get("image_size") is None
        self.shape: tuple[int | None, int | None, bool] = (channels, size, native)
        self.data: str | None = reading.data

    # The network

    @property
    def posterior(self) -> bool:
        """Return True if predictions can use draws from a posterior."""
        return isinstance(self.network, BayesianModule)

    @property
    def q(self) -> BayesianModule | None:
        """Return the posterior over the network, if there is one."""
        return self.network if isinstance(self.network, BayesianModule) else None

    @cached_property
    def digest(self) -> str:
        """Return the first 12 hex digits of the SHA-256 of the weights."""
        return digest(self.weights)

    @property
    def normalisation(self) -> dict[str, Any]:
        """Return the per-channel `mean` and `std` for standardising images; None if they are not standardised."""
        raise NotImplementedError

    # The data

    @property
    def needs_train(self) -> bool:
        """Return True if the predictor needs the training split."""
        return False

    def load(self, split: str, limit: int | None = None) -> ImageSet:
        """Load a labelled split of the evaluation data, in the size that the network takes."""
        if self.data is None:
            raise ValueError("Say which images to evaluate on: --data NAME.")
        return labelled(self.data, split, self.reading.root, *self.shape, limit, self.reading.seed)

    def load_own(self, split: str) -> ImageSet:
        """Load a split of its training data, without the part held out by its recipe, on the reading's device."""
        config, root = self.recipe.data, self.reading.root
        data, size = replace(config, root=config.root if root is None else str(root)).load(split), self.shape[1]
        if size not in (None, data.image_size):  # it was trained on crops of another size
            data = data.resized(size)
        return in_memory(data, split).to(self.reading.device)

    @cached_property
    def images(self) -> ImageSet:
        """Return the labelled images for evaluation."""
        return self.load(self.reading.split, self.reading.limit)

    @property
    def labels(self) -> Tensor:
        assert self.images.labels is not None
        return self.images.labels

    @property
    def places(self) -> Tensor:
        """Return the indices of the evaluation images in the whole split."""
        limit, total = self.reading.limit, len(self.load(self.reading.split))
        order = torch.randperm(total, generator=Generator().manual_seed(self.reading.seed))
        return order[:limit].sort().values

    @cached_property
    def pixels(self) -> Tensor:
        """Return the evaluation images as floats in [0, 1]."""
        return (self.images.images.float() / 255).to(self.reading.device)

    @cached_property
    def train(self) -> ImageSet | None:
        """Return the training images if the predictor needs them, otherwise None."""
        return self.load("train", self.reading.train_limit) if self.needs_train else None

    # What it predicts

    def check(self, data: ImageSet) -> None:
        """Raise if the network does not fit the images or their classes."""

    @cached_property
    def predictor(self) -> Predictor:
        """Return the predictor of class probabilities, fitted if needed."""
        raise NotImplementedError

    @cached_property
    def at_mean(self) -> Prediction:
        """Return the predictions of the images at μ."""
        return self.predictor(self.pixels)

    @cached_property
    def under_draws(self) -> Prediction | None:
        """Return the predictions of the images under draws; None without a posterior."""
        return self.predictor(self.pixels, self.reading.samples) if self.posterior else None

    @property
    def prediction(self) -> Prediction:
        """Return the best predictions: under draws if there is a posterior, otherwise at μ."""
        return self.under_draws or self.at_mean

    def draws(self, pixels: Tensor) -> Tensor:
        """Return the class probabilities (S, N, C) of images in [0, 1] under each draw, the same at every call."""
        return self.predictor.draws(pixels, self.reading.samples)

    # What its numbers depend on

    def protocol(self) -> dict[str, Any]:
        """Return the model, data and software that the numbers come from, in the format of every result file."""
        data, train = self.images, self.train
        weights = {"name": self.name, "kind": self.kind, "digest": self.digest, "posterior": self.posterior}
        return {
            "data": {
                "name": data.name,
                "split": self.reading.split,
                "digest": data.digest,
                "images": len(data),
                "shape": list(data.images.shape[1:]),
            },
            "train": None if train is None else {"digest": train.digest, "images": len(train)},
            "model": {**weights, **self.settings()},
            "device": torch.device(self.reading.device).type,
            "versions": versions(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the settings, besides the weights, that the numbers depend on."""
        return self.normalisation


class Pretrained(Run):
    """A pretraining run: a linear probe is fitted on its frozen encoder."""

    kind, needs_train = "pretrain", True
    module: Learner

    def __init__(self, name: str, reading: Reading, header: Header) -> None:
        super().__init__(name, reading, header)
        if reading.strategy == "vmap":
            raise ValueError("A probe predicts one draw at a time: its strategy is loop, not vmap.")
        if reading.tolerance is not None:
            raise ValueError("A probe predicts all images under the same draws: leave out --tolerance.")
        self.module, self.recipe = header.restored(pretrain.restore, reading.device)
        self.weights, self.network = self.module, self.module.student
        self.encoder = Encoder.of(self.module, reading.network)
        self.data = reading.data or self.recipe.data.name

    @property
    def posterior(self) -> bool:
        return self.encoder.posterior is not None

    @property
    def normalisation(self) -> dict[str, Any]:
        return {"mean": self.module.views.mean, "std": self.module.views.std}

    @cached_property
    def predictor(self) -> Predictor:
        assert self.train is not None
        assert self.train.labels is not None
        self.class_names, classes = self.train.class_names, len(self.train.class_names)
        options = {**self.probe_options, "batch_size": self.reading.batch_size}
        images, labels = self.train.images, self.train.labels
        return Probed(Probe.fit(self.encoder, images, labels, classes, self._probe_settings(), **options))

    @property
    def probe_options(self) -> dict[str, Any]:
        """Return how images are passed to the encoder: device, precision and normalisation."""
        place, autocast = torch.device(self.reading.device), self.reading.autocast
        return {**self.normalisation, "device": place, "channels_last": place.type == "cuda", "autocast": autocast}

    def settings(self) -> dict[str, Any]:
        settings = asdict(self._probe_settings())
        if not settings["temper"]:  # as in files that are older than this setting
            del settings["temper"]
        # The student is not mentioned, as in older files.
        network = {"network": "teacher"} if self.reading.network == "teacher" else {}
        return {"probe": {**settings, "head": "linear"}, **network, **self.normalisation}

    def _probe_settings(self) -> ProbeSettings:
        assert self.train is not None
        r = self.reading
        # The neighbours are not used, but there must be at least that many images.
        k, temper = min(200, len(self.train)), EXAMPLES if r.temper else 0
        return ProbeSettings(k=k, draws_fit=r.fit_samples, draws_read=r.samples, seed=r.seed, temper=temper)


class Network(Run):
    """A classifier that returns logits: your own, or that of a supervised run."""

    kind = "python"

    def __init__(self, name: str, reading: Reading, network: nn.Module, header: Header | None = None) -> None:
        super().__init__(name, reading, header)
        if reading.temper:
            raise ValueError("A temperature is for the probe of a pretraining run; this is a classifier.")
        if reading.network == "teacher":
            raise ValueError("A pretraining run has a teacher; this is a classifier.")
        self.weights = self.network = network.to(reading.device)

    @property
    def needs_train(self) -> bool:
        return self.reading.normalise

    @property
    def normalisation(self) -> dict[str, Any]:
        return {"mean": None, "std": None} if self.train is None else {"mean": self.train.mean, "std": self.train.std}

    def check(self, data: ImageSet) -> None:
        shape = "×".join(map(str, data.images.shape[1:]))
        try:
            outputs = Classifier(self.network)(data.images[:2].float() / 255).mean.shape[1]
        except (RuntimeError, AssertionError, IndexError) as error:
            said = reason(error)
            raise ValueError(f"The network cannot take images of {shape}: {said}") from error
        if outputs != len(data.class_names):
            raise ValueError(f"The network has {outputs} outputs, but {data.name} has {len(data.class_names)} classes.")

    @cached_property
    def predictor(self) -> Predictor:
        r = self.reading
        return Classifier(
            self.network, **self.normalisation, strategy=r.strategy, seed=r.seed, batch_size=r.batch_size,
            autocast=r.autocast, tolerance=r.tolerance,
        )  # fmt: skip


class Trained(Network):
    """The network of a supervised run."""

    kind, needs_train = "train", False

    def __init__(self, name: str, reading: Reading, header: Header) -> None:
        module, self.recipe = header.restored(supervised.restore, reading.device)
        super().__init__(name, reading, module.net, header)
        self.data = reading.data or self.recipe.data.name
        self.class_names = tuple(header.about["class_names"])

    @property
    def normalisation(self) -> dict[str, Any]:
        assert self.header is not None
        return {"mean": self.header.about["data"]["mean"], "std": self.header.about["data"]["std"]}


KINDS: dict[str, type[Pretrained] | type[Trained]] = {"pretrain": Pretrained, "train": Trained}
"""The class for each kind of checkpoint. A new kind of run is a new entry."""


def open_run(path: str | Path, reading: Reading | None = None, name: str | None = None) -> Run:
    """Open a run's folder, its checkpoint, or `python:module:function` that returns a network.

    Opening a run imports no code named in its files, unless `reading.trust` is set.
    """
    reading = reading or Reading()
    if str(path).startswith("python:"):
        return Network(name or str(path), reading, _call_entry(str(path), reading.seed))
    header = read_header(path, tuple(KINDS)).trusted(reading.trust)
    return KINDS[header.kind](name or str(path), reading, header)


def _call_entry(name: str, seed: int) -> nn.Module:
    function = resolve(name.removeprefix("python:"))
    if not callable(function) or isinstance(function, nn.Module):
        raise ValueError(f"{name} is a {type(function).__name__}, not a function that returns a network.")
    torch.manual_seed(seed)  # a network with random weights must be the same when the evaluation is resumed
    net = function()
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} returns {type(net).__name__}, not a torch.nn.Module that gives logits.")
    return net


def digest(weights: nn.Module) -> str:
    """Return the first 12 hex digits of the SHA-256 of a module's state, by name, dtype, shape and bytes."""
    content = hashlib.sha256()
    for name, tensor in sorted(weights.state_dict().items()):
        if isinstance(tensor, torch.Tensor):  # a module may have other state besides its tensors
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if tensor.numel():
                content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the software versions for a protocol."""
    return {"byov": byov.__version__, "torch": str(torch.__version__), "torchvision": str(torchvision.__version__)}


NO_NETWORK = "An ensemble of components that started apart has no mean network: use draws, not μ."


def mean_is_no_network(weights: nn.Module) -> bool:
    """Return True if the posterior mean averages networks, or layers, that were initialised independently."""
    factors = weights.factors if isinstance(weights, BayesianModule) else ()
    return any(getattr(factor.family, "start", "") == "reset" for factor in factors)
