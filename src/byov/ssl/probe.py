"""Probes: how well an encoder's features predict labels it never saw, at the posterior mean and under draws.

A head for prediction under draws is also fitted under draws: its training features come from separate draws, each
example once per draw, and its probabilities are averaged over the draws at prediction.

A draw moves the features of all images together, by a vector that can be longer than the features' own spread: BYOL's
projector has a BatchNorm, which removes it, so nothing in pretraining keeps it short. A probe has no BatchNorm.
So each draw's features are moved back, by their mean difference from μ over training images (`shift`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol, Unpack
from warnings import warn

import torch
from torch import Generator, Tensor, nn

from byov.data.datasets import ImageSet
from byov.metrics.functional import accuracy, brier_decomposition, brier_score, calibration_error, nll
from byov.posterior.random import stream
from byov.posthoc.temperature import Temperature, fit_temperature
from byov.prediction.result import Moments, Prediction
from byov.ssl.classifiers import FOLDS, KNN, L2, LinearProbe, folds, linear_probe
from byov.ssl.features import Encoder, ImageOptions, feature_draws, features, grouped_draws

Labelled = tuple[Tensor, Tensor]
"""Images and their labels."""

REFERENCE = 512
"""The number of training images that determine the shift of a draw: differences vary little between images."""
FIT, READ, TEMPER = 0, 1, 2
"""Random streams of the draws for fitting heads, for reading them (prediction) and for fitting temperatures."""


class Head(Protocol):
    """Maps features (N, D) to class probabilities (N, C), such as `LinearProbe` and `KNN`."""

    def probabilities(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ProbeSettings:
    """How probes are fitted and evaluated.

    Attributes:
        k: the number of neighbours of the nearest-neighbour head.
        temperature: the temperature of the neighbours' votes.
        l2: the strengths from which the linear head's is chosen, or a single one.
        holdout: fraction of the training examples held out for this choice.
        max_iter: of L-BFGS, for the linear head.
        draws_fit: number of draws of each example for fitting a head under draws.
        groups: number of groups of examples with separate draws, which makes `draws_fit` × `groups` draws in all.
        draws_read: number of draws at prediction; 0 skips the reading under draws.
        recentre: remove the shift that is common to all images from each draw's features; see `shift`.
        temper: number of training examples for fitting the linear head's temperature, at μ and under draws; with 0 the
            temperature is 1. See `byov.posthoc.temperature`.
        bins: of the calibration error.
        seed: for the held-out part and the draws.
    """

    k: int = 200
    temperature: float = 0.1
    l2: tuple[float, ...] = L2
    holdout: float = 0.1
    max_iter: int = 500
    draws_fit: int = 8
    groups: int = 10
    draws_read: int = 30
    recentre: bool = True
    temper: int = 0
    bins: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws_fit < 1 or self.draws_read < 0:
            given = f"draws_fit={self.draws_fit} and draws_read={self.draws_read}"
            raise ValueError(f"A probe is fitted under at least one draw and read under none or more, not {given}.")
        if self.temper < 0:
            raise ValueError(f"A temperature is fitted on 0 examples or more, not {self.temper}.")
        if self.groups < 2:
            raise ValueError(f"Examples are cut into at least two groups, one to choose on, not {self.groups}.")


def shift(drawn: Tensor, at_mean: Tensor) -> Tensor:
    """Return how far a draw moves the features of all images together: the mean difference from μ, (…, 1, D)."""
    return (drawn - at_mean).mean(-2, keepdim=True)


def some_images(images: Tensor, seed: int) -> Tensor:
    """Return images for measuring shifts, chosen at random: a set may be sorted by class."""
    return images[torch.randperm(len(images), generator=Generator().manual_seed(seed))[:REFERENCE].to(images.device)]


def fit_heads(
    train: Tensor, labels: Tensor, classes: int | None, s: ProbeSettings, groups: Tensor | None = None
) -> dict[str, Head]:
    """Fit a "linear" and a "knn" head on features (N, D), or under draws on (S, N, D): each example once per draw."""
    fit = {"l2": s.l2, "holdout": s.holdout, "max_iter": s.max_iter, "seed": s.seed}
    return {
        "linear": linear_probe(train, labels, classes=classes, groups=groups, **fit),  # type: ignore[arg-type]
        "knn": KNN(train, labels, s.k, s.temperature, classes),
    }


class Probe:
    """An encoder with heads, for predicting images.

    Args:
        model: as for `Encoder.of`.
        at_mean: the heads by name, fitted on features at μ.
        under_draws: the heads fitted on features under draws, if the encoder has a posterior.
        seed: for the draws of `predict`, which are the same at every call.
        temperatures: of the linear head's probabilities "at_mean" and "under_draws"; 1 if missing.
        reference: images on which the features' mean under each draw is made that at μ; None leaves draws as they are.
        options: how images are passed to the encoder; see `byov.ssl.features.ImageOptions`.
    """

    def __init__(
        self,
        model: nn.Module | Encoder,
        at_mean: Mapping[str, Head],
        under_draws: Mapping[str, Head] | None = None,
        seed: int = 0,
        temperatures: Mapping[str, float] | None = None,
        reference: Tensor | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        self.encoder, self.reference = Encoder.of(model), reference
        self._shifts: dict[int, list[Tensor]] = {}
        self.at_mean, self.under_draws = dict(at_mean), dict(under_draws or {})
        self.seed, self.temperatures, self.options = seed, dict(temperatures or {}), options

    @classmethod
    def fit(
        cls,
        model: nn.Module | Encoder,
        images: Tensor,
        labels: Tensor,
        classes: int | None = None,
        settings: ProbeSettings | None = None,
        **options: Unpack[ImageOptions],
    ) -> Probe:
        """Fit heads at μ and, if the encoder has a posterior, also under draws; see `grouped_draws`."""
        s = settings or ProbeSettings()
        encoder = Encoder.of(model)
        at_mean = features(encoder, images, **options)
        probe = cls(encoder, fit_heads(at_mean, labels, classes, s), None, s.seed, **options)
        if s.temper:
            probe.temperatures["at_mean"] = probe._fit_temperature(images, labels, at_mean[None], None, s)
        if encoder.posterior is None or not s.draws_read:
            return probe
        groups = min(s.groups, len(images))
        drawn = grouped_draws(encoder, images, s.draws_fit, groups, probe._generator(FIT), **options)
        if s.recentre:
            probe.reference = some_images(images, s.seed)
            for group in range(groups):
                drawn[:, group::groups] -= shift(drawn[:, group::groups], at_mean[group::groups])
        probe.under_draws = fit_heads(drawn, labels, classes, s, torch.arange(len(images)) % groups)
        if s.temper:
            probe.temperatures["under_draws"] = probe._fit_temperature(images, labels, drawn, s.draws_read, s)
        return probe

    def _fit_temperature(
        self, images: Tensor, labels: Tensor, fitted: Tensor, draws: int | None, s: ProbeSettings
    ) -> float:
        """Fit the temperature of the linear head's probabilities, at μ or under separate draws.

        Each fold of the examples is predicted by a head fitted on the features `fitted` (S, N, D) of the other folds,
        with the strength chosen on all examples.
        """
        fold = folds(labels, FOLDS, s.seed)
        count = int(fold.max()) + 1
        if count < 2:
            warn("A class has a single example, so no temperature can be fitted: it stays at 1.", stacklevel=4)
            return 1.0
        linear = (self.at_mean if draws is None else self.under_draws)["linear"]
        assert isinstance(linear, LinearProbe)
        fit = {"l2": linear.l2, "max_iter": s.max_iter, "classes": len(linear.bias)}
        order = torch.randperm(len(labels), generator=Generator().manual_seed(s.seed))  # a set may be sorted by class
        probs, read = [], []
        for held in range(count):
            there = (fold != held).nonzero()[:, 0].to(fitted.device)
            head = linear_probe(fitted[:, there], labels.to(fitted.device)[there], **fit)  # type: ignore[arg-type]
            here = order[fold[order] == held][: max(1, s.temper // count)]
            probs.append(self._predict(images[here.to(images.device)], draws, {"held": head}, TEMPER)["held"].mean)
            read.append(here)
        return fit_temperature(torch.cat(probs), labels[torch.cat(read).to(labels.device)])

    def predict(self, images: Tensor, draws: int | None = None, head: str = "linear") -> Prediction:
        """Predict with one head; `.mean` holds the probabilities (N, C). See `predict_heads`."""
        heads, state = (self.at_mean, "at the posterior mean") if draws is None else (self.under_draws, "under draws")
        if head not in heads:
            raise ValueError(f"The probe has no head {head!r} fitted {state}; it has {sorted(heads)}.")
        return self._predict(images, draws, {head: heads[head]})[head]

    def predict_heads(self, images: Tensor, draws: int | None = None) -> dict[str, Prediction]:
        """Predict with every head from the same features: at μ, or averaged over `draws` draws of the encoder.

        As in `byov.predict`, `entropy` is the total and `mutual_information` the epistemic uncertainty (0 at μ). The
        draws do not depend on the images, so that clean and shifted images are predicted by the same networks.
        """
        if draws is not None and not self.under_draws:
            raise ValueError(
                "The probe has no heads fitted under draws: the encoder has no posterior, or `draws_read` was 0."
            )
        return self._predict(images, draws, self.at_mean if draws is None else self.under_draws)

    def features(self, images: Tensor, draws: int | None = None, draws_from: int = READ) -> Iterator[Tensor]:
        """Yield the features (N, D) for prediction: once at μ, or draw by draw, the same at every call."""
        if draws is None:
            return iter([features(self.encoder, images, **self.options)])
        drawn = feature_draws(self.encoder, images, draws, self._generator(draws_from), **self.options)
        return drawn if self.reference is None else map(torch.sub, drawn, self._shifts_of(draws, draws_from))

    def _shifts_of(self, draws: int, draws_from: int) -> list[Tensor]:
        """Return the shift of each draw; they are the same at every call, and computed once."""
        known = self._shifts.get(draws_from, [])
        if len(known) < draws:
            assert self.reference is not None
            at_mean = features(self.encoder, self.reference, **self.options)
            drawn = feature_draws(self.encoder, self.reference, draws, self._generator(draws_from), **self.options)
            known = self._shifts[draws_from] = [shift(found, at_mean) for found in drawn]
        return known[:draws]

    def _generator(self, draws_from: int) -> Generator:
        """Return a generator on the weights' device, for fast draws; other device types give other draws."""
        return Generator(self.encoder.device or "cpu").manual_seed(stream(self.seed, draws_from))

    def _predict(
        self, images: Tensor, draws: int | None, heads: Mapping[str, Head], draws_from: int = READ
    ) -> dict[str, Prediction]:
        moments = {name: Moments("classification") for name in heads}
        for x in self.features(images, draws, draws_from):
            for name, head in heads.items():
                moments[name].update(head.probabilities(x)[None])
        found = {
            name: Prediction(**moment.result(None), samples=moment.count, strategy="loop")
            for name, moment in moments.items()
        }
        temperature = self.temperatures.get("at_mean" if draws is None else "under_draws", 1.0)
        if "linear" in found and temperature != 1.0:
            found["linear"] = Temperature(temperature)(found["linear"])
        return found


@dataclass(frozen=True)
class Scores:
    """Scores of class probabilities as fractions, not per cent; the last four decompose the Brier score."""

    top1: float
    top5: float
    ece: float
    nll: float
    brier: float
    uncertainty: float
    resolution: float
    reliability: float
    within_bin: float

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor, bins: int = 15) -> Scores:
        """Score probabilities (N, C); with fewer than five classes top-5 is 1."""
        labels = labels.to(probs.device)
        parts = brier_decomposition(probs, labels)
        return cls(
            top1=accuracy(probs, labels).item(),
            top5=accuracy(probs, labels, top_k=min(5, probs.shape[1])).item(),
            ece=calibration_error(probs, labels, bins=bins).item(),
            nll=nll(probs, labels).item(),
            brier=brier_score(probs, labels).item(),
            **{name: part.item() for name, part in parts._asdict().items()},
        )


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The results of `evaluate_probe`: "linear" and "knn" at μ, "linear_draws" and "knn_draws" under draws."""

    scores: dict[str, Scores]
    predictions: dict[str, Prediction]
    probe: Probe
    settings: ProbeSettings

    def numbers(self) -> dict[str, float]:
        """Flatten the scores for a table or a JSON file: "linear_draws/ece" and so on."""
        return {f"{name}/{score}": value for name, s in self.scores.items() for score, value in asdict(s).items()}


def evaluate_probe(
    model: nn.Module | Encoder,
    train: ImageSet | tuple[Tensor, Tensor],
    test: ImageSet | tuple[Tensor, Tensor],
    settings: ProbeSettings | None = None,
    **options: Unpack[ImageOptions],
) -> ProbeResult:
    """Fit probes on the training images and score them on the test images, at μ and under draws.

    A pure function of its arguments: the model is left as it was, and the draws come from `settings.seed`.

    Args:
        model: as for `Encoder.of`; without a posterior there are no results under draws.
        train: an image set, or (images, labels).
        test: likewise, with the same classes.
        settings: how probes are fitted and evaluated.
        options: how images are passed to the encoder; see `byov.ssl.features.ImageOptions`.
    """
    s = settings or ProbeSettings()
    (images, labels, classes), (test_images, test_labels) = labelled_images(train, test)
    probe = Probe.fit(model, images, labels, classes, s, **options)
    predictions = probe.predict_heads(test_images)
    if probe.under_draws:
        drawn = probe.predict_heads(test_images, s.draws_read)
        predictions |= {f"{name}_draws": prediction for name, prediction in drawn.items()}
    scores = {name: Scores.of(prediction.mean, test_labels, s.bins) for name, prediction in predictions.items()}
    return ProbeResult(scores, predictions, probe, s)


def labelled_images(
    train: ImageSet | Labelled, test: ImageSet | Labelled
) -> tuple[tuple[Tensor, Tensor, int], Labelled]:
    """Return images, labels and the number of classes of the training set, and images and labels of the test set."""
    found = []
    for name, data in (("train", train), ("test", test)):
        images, labels = (data.images, data.labels) if isinstance(data, ImageSet) else data
        if labels is None or len(labels) != len(images) or not len(labels):
            raise ValueError(f"A probe needs a label for every {name} image.")
        found.append((images, labels))
    classes = len(train.class_names) if isinstance(train, ImageSet) else int(found[0][1].max()) + 1
    if (most := int(found[1][1].max())) >= classes:
        raise ValueError(f"The test labels reach {most}, but the training set has {classes} classes.")
    return (*found[0], classes), found[1]
