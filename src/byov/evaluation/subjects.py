"""What is evaluated, by what a user calls it: a run's folder or checkpoint, or `python:module:function`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch
from torch import nn

from byov.data import ImageSet
from byov.evaluation.predictors import Classifier, Predictor, Probed
from byov.models.registry import resolve
from byov.posterior.module import BayesianModule
from byov.prediction.predict import Strategy
from byov.ssl import pretrain
from byov.ssl.byol import BYOL
from byov.ssl.features import Encoder
from byov.ssl.probe import Probe, ProbeSettings
from byov.ssl.temperature import EXAMPLES
from byov.train import checkpoint, supervised

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Reading:
    """How a model is read: draws, their seed and strategy, where and how precisely."""

    samples: int = 30
    strategy: Strategy = "loop"
    seed: int = 0
    fit_samples: int = 8
    """Draws that a probe is fitted under."""
    normalise: bool = False
    """Standardise the images of an entry point's network by the training split's moments."""
    batch_size: int = 512
    device: torch.device | str = "cpu"
    precision: Precision = "32-true"
    """Of the network; probes and probabilities are float32 either way."""
    temper: bool = False
    """Fit a temperature for a probe's probabilities."""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"A precision is {' or '.join(get_args(Precision))}, not {self.precision!r}.")
        for name in ("samples", "fit_samples", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}.")

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16-mixed" else None


class Subject(Protocol):
    """A model before it is read: what it is, what images it takes, and how it becomes a predictor."""

    kind: str
    weights: nn.Module
    shape: tuple[int, int] | None
    """The channels and the size of its images; None where it does not say."""
    data: str | None
    """The set it was made from, if it says."""

    @property
    def posterior(self) -> bool: ...

    @property
    def needs_train(self) -> bool:
        """Whether `predictor` wants the training split."""
        ...

    def about(self, train: ImageSet | None) -> dict[str, Any]:
        """What its numbers depend on beyond its weights."""
        ...

    def check(self, data: ImageSet) -> None:
        """Refuse images or classes that it cannot take."""
        ...

    def predictor(self, train: ImageSet | None) -> Predictor: ...


class Pretrained:
    """A pretraining run: a linear probe is fitted on its frozen encoder."""

    kind, needs_train = "pretrain", True

    def __init__(self, module: BYOL, shape: tuple[int, int], data: str, reading: Reading) -> None:
        if reading.strategy != "loop":
            raise ValueError(f"A probe reads one draw after the other: its strategy is loop, not {reading.strategy}.")
        self.module, self.reading = module, reading
        self.weights: nn.Module = module
        self.shape: tuple[int, int] | None = shape
        self.data: str | None = data

    @property
    def posterior(self) -> bool:
        return Encoder.of(self.module).posterior is not None

    def about(self, train: ImageSet | None) -> dict[str, Any]:
        settings = asdict(self._settings(train))
        if not settings["temper"]:  # which is what files say that are older than it
            del settings["temper"]
        return {"probe": {**settings, "head": "linear"}, **self._normalised()}

    def check(self, data: ImageSet) -> None:
        """Whatever the classes: the probe learns them."""

    def predictor(self, train: ImageSet | None) -> Predictor:
        assert train is not None
        assert train.labels is not None
        r = self.reading
        options: dict[str, Any] = {"device": r.device, "batch_size": r.batch_size, "autocast": r.autocast}
        options["channels_last"] = torch.device(r.device).type == "cuda"
        classes, settings = len(train.class_names), self._settings(train)
        return Probed(
            Probe.fit(self.module, train.images, train.labels, classes, settings, **options, **self._normalised())
        )

    def _settings(self, train: ImageSet | None) -> ProbeSettings:
        assert train is not None
        r = self.reading
        # Of the neighbours nothing is read, but there must not be fewer images than they.
        k, temper = min(200, len(train)), EXAMPLES if r.temper else 0
        return ProbeSettings(k=k, draws_fit=r.fit_samples, draws_read=r.samples, seed=r.seed, temper=temper)

    def _normalised(self) -> dict[str, Any]:
        return {"mean": self.module.views.mean, "std": self.module.views.std}


class Network:
    """A classifier: a network that returns logits, plain or with a posterior.

    `normalised` holds the mean and the deviation, per channel, that its images were standardised by in training;
    without it they are the training split's if `reading.normalise`, else the images stay in [0, 1].
    """

    shape: tuple[int, int] | None = None
    data: str | None = None

    def __init__(
        self,
        net: nn.Module,
        reading: Reading,
        kind: str = "python",
        normalised: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        if reading.temper:
            raise ValueError("A temperature is for the probe of a pretraining run; this is a classifier.")
        self.weights, self.reading, self.kind, self.normalised = net.to(reading.device), reading, kind, normalised

    @property
    def needs_train(self) -> bool:
        return self.reading.normalise and self.normalised is None

    @property
    def posterior(self) -> bool:
        return isinstance(self.weights, BayesianModule)

    def about(self, train: ImageSet | None) -> dict[str, Any]:
        mean, std = self.normalised or ((None, None) if train is None else (train.mean, train.std))
        return {"mean": mean, "std": std}

    def check(self, data: ImageSet) -> None:
        shape = "×".join(map(str, data.images.shape[1:]))
        try:
            outputs = Classifier(self.weights)(data.images[:2].float() / 255).mean.shape[1]
        except (RuntimeError, AssertionError, IndexError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"The network cannot take images of {shape}: {reason}") from error
        if outputs != len(data.class_names):
            raise ValueError(f"The network has {outputs} outputs, but {data.name} has {len(data.class_names)} classes.")

    def predictor(self, train: ImageSet | None) -> Predictor:
        r = self.reading
        how: dict[str, Any] = {
            "strategy": r.strategy,
            "seed": r.seed,
            "batch_size": r.batch_size,
            "autocast": r.autocast,
        }
        return Classifier(self.weights, **self.about(train), **how)


def pretrained(path: Path, about: dict[str, Any], reading: Reading) -> Subject:
    """The encoder of a pretraining run."""
    module, recipe = pretrain.restore(path, reading.device)
    channels, size = about["shape"]
    return Pretrained(module, (channels, size), recipe.data.name, reading)


def trained(path: Path, about: dict[str, Any], reading: Reading) -> Subject:
    """The network of a supervised run."""
    module, recipe = supervised.restore(path, reading.device)
    network = Network(module.net, reading, "train", (about["data"]["mean"], about["data"]["std"]))
    network.shape, network.data = tuple(about["shape"]), recipe.data.name
    return network


RUNS: dict[str, Callable[[Path, dict[str, Any], Reading], Subject]] = {"pretrain": pretrained, "train": trained}
"""How a checkpoint becomes a subject, by the kind that its recipe names. A new kind of run is a new entry."""


def subject(name: str, reading: Reading | None = None) -> Subject:
    """What `name` stands for: a run's folder, its checkpoint, or `python:module:function` that returns a network."""
    reading = reading or Reading()
    if name.startswith("python:"):
        return _entry(name, reading)
    file = _file(name)
    if not file.is_file():
        raise ValueError(f"There is no run at {name}: name a run's folder, its checkpoint, or python:module:function.")
    about = _about(file)
    kind = about.get("kind")
    if kind not in RUNS:
        raise ValueError(f"{name} is a checkpoint of kind {kind!r}; those that can be evaluated are {', '.join(RUNS)}.")
    return RUNS[kind](file, about, reading)


def is_regression(name: str) -> bool:
    """Whether a name is that of a run on a table, which has no images; see `byov.evaluation.regressions`."""
    file = _file(name)
    return not name.startswith("python:") and file.is_file() and _about(file).get("kind") == "table"


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    return path / "checkpoint.safetensors" if path.is_dir() else path


def _about(file: Path) -> dict[str, Any]:
    """What a checkpoint says of its run; nothing, where it is not one of a run."""
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    return about if isinstance(about, dict) else {}


NO_NETWORK = "At μ are averages of components that started anew, which need be no network: read the draws."


def started_anew(weights: nn.Module) -> bool:
    """Whether the posterior mean averages networks, or layers, that have nothing to do with each other."""
    factors = weights.factors if isinstance(weights, BayesianModule) else ()
    return any(getattr(factor.family, "start", "") == "reset" for factor in factors)


def digest(weights: nn.Module) -> str:
    """The first 12 hex digits of the SHA-256 of a module's state, by name, dtype, shape and bytes."""
    content = hashlib.sha256()
    for name, tensor in sorted(weights.state_dict().items()):
        if isinstance(tensor, torch.Tensor):  # a module may keep other state beside its tensors
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            if tensor.numel():
                content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:12]


def _entry(name: str, reading: Reading) -> Subject:
    function = resolve(name.removeprefix("python:"))
    if not callable(function) or isinstance(function, nn.Module):
        raise ValueError(f"{name} is a {type(function).__name__}, not a function that returns a network.")
    torch.manual_seed(reading.seed)  # a network with random weights is the same one when the evaluation goes on
    net = function()
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} returns {type(net).__name__}, not a torch.nn.Module that gives logits.")
    return Network(net, reading)
