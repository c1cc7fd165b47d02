"""byov.check: does the posterior have any effect? It returns numbers, and a warning for each problem found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import Dataset

from byov.evaluation.scores import main_scores
from byov.posterior import BayesianModule, Gaussian
from byov.posterior.family import precise
from byov.posterior.module import lock_of
from byov.posthoc.labelled import IGNORED, align_labels, labels_of
from byov.prediction import Serving
from byov.prediction.inputs import (
    Batch,
    InputSpec,
    batches_of,
    call,
    device_of,
    inputs_from_batch,
    posterior_of,
    ready,
    unwrap,
    without_labels,
)
from byov.prediction.outputs import CLASSES, Output, OutputSpec, Task, class_dim
from byov.prediction.resident import evaluating
from byov.prediction.result import entropy
from byov.runs.run import NO_NETWORK, mean_is_no_network
from byov.train.loop import LOW_SNR

MOVED = log(1.25)
"""The least median |log σ − log σ₀| at which σ counts as moved. Adam at 1e-3 moves log σ by 0.05 in a hundred steps;
when σ is learning, noise alone moves it by a third or more."""
DIFFER = 0.02
"""The least share of the entropy that must be mutual information; a single network could express the rest."""
FAR = 0.05
"""How far the accuracy at μ may fall below the accuracy under draws."""
POINT, NATS = 0.001, 0.01
"""The precision required of an accuracy and an NLL, unless there are too few inputs to reach it."""
RESAMPLED = 40
"""The number of bootstrap resamples of the draws, for standard errors."""
LAYER_SCALE = log(2.0)
"""How far the log of a layer's scale may have changed since `Gaussian(relative=…)` read it."""


@dataclass(frozen=True)
class Check:
    """The result of `byov.check`. It prints as one or two lines of numbers, and one line for each of `sentences`.

    Attributes:
        inputs: the number of inputs.
        samples: the number of draws.
        moved: the median |log σ − log σ₀| of the Gaussians; None if there are none, or if σ was not trained.
        snr: the median |μ|/σ of all weights with σ > 0.
        entropy: the entropy of the mean over draws, in nats, averaged over the inputs.
        mutual_information: the part of the entropy that comes from differences between the draws, in nats.
        at_mean: `top1`, `nll` and `ece` at μ; None without labels.
        under_draws: the same under draws.
        error: the Monte-Carlo standard error of `top1` and `nll` under draws, by a bootstrap over draws.
        sentences: the problems found, one sentence each.
    """

    inputs: int
    samples: int
    moved: float | None
    snr: float
    entropy: float
    mutual_information: float
    at_mean: dict[str, float] | None
    under_draws: dict[str, float] | None
    error: dict[str, float] | None
    sentences: tuple[str, ...]

    @property
    def share(self) -> float:
        """Return the mutual information as a share of the entropy."""
        return self.mutual_information / max(self.entropy, 1e-12)

    def __str__(self) -> str:
        lines = []
        if self.at_mean is not None and self.under_draws is not None:
            at_mean, drawn = formatted(self.at_mean), formatted(self.under_draws)
            lines.append(f"{self.inputs:,} inputs: at μ {at_mean}; under {self.samples} draws {drawn}")
        moved = "" if self.moved is None else f"; |log σ − log σ₀| {self.moved:.2f}"
        share = f"{self.mutual_information:.2g} nats ({100 * self.share:.1f} % of the entropy)"
        lines.append(f"mutual information {share}; median |μ|/σ {self.snr:.3g}{moved}")
        return "\n".join([*lines, *(f"warning: {sentence}" for sentence in self.sentences)])


def formatted(scores: Mapping[str, float]) -> str:
    """Format accuracy, NLL and ECE with the digits that `check` verifies."""
    return f"accuracy {100 * scores['top1']:.1f} %, NLL {scores['nll']:.3f}, ECE {100 * scores['ece']:.1f} %"


def check(
    model: nn.Module,
    loader_or_x: Any,
    y: Tensor | None = None,
    samples: int = 20,
    generator: Generator | None = None,
    *,
    task: Task | None = None,
    output: Output | None = None,
) -> Check:
    """Check whether a classifier's posterior has any effect: `print(byov.check(model, x, y))`.

    Returns numbers, and a warning if σ has not moved, the draws hardly differ, the posterior is wide, there are too few
    draws for the digits shown, or the mean is not a usable network. The model is not changed.

    Args:
        model: a BayesianModule that classifies, or a module containing one.
        loader_or_x: a batch (a tensor, or a mapping of keyword arguments), a pair (x, y), or a loader of either.
        y: the labels of a batch. With labels, scores at μ are compared with scores under draws.
        samples: the number of draws; the same draws are used for every batch of a loader.
        generator: the random generator of the draws; by default a new one seeded by torch's global generator.
        task: as in `byov.predict`, but limited to tasks with classes. Token labels of -100 are ignored.
        output: as in `byov.predict`.
    """
    inner = posterior_of(outer := unwrap(model))
    if inner is None:
        raise TypeError(
            f"check needs a posterior, and {type(outer).__name__} has none: call byov.bayesianize on it first."
        )
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 2:
        raise ValueError(f"check compares draws, so it needs at least two, not samples={samples!r}.")
    if generator is None:
        generator = Generator(device_of(inner)).manual_seed(int(torch.randint(1 << 62, ())))
    seen, reading = _Accumulated(samples), OutputSpec(task, output, inner.net)
    serving, start = Serving(outer, samples, keep=True, task=task, output=output), generator.get_state()
    for x, labels in _pairs(loader_or_x, y, inner.net if outer is inner else outer):
        generator.set_state(start)  # the same draws for every batch
        found = serving(x if isinstance(x, Tensor | Mapping) else [(x,)], generator)
        if found.task not in CLASSES:
            raise ValueError(f"check needs class probabilities: the task must be one of {CLASSES}, not {found.task!r}.")
        labels = None if labels is None else align_labels(labels, serving.reading)
        seen.update(_at_mean(outer, inner, x, reading), found.draws, labels, class_dim(found.task, found.mean, draws=0))
    return seen.compute(inner)


def sigma_movement(model: BayesianModule) -> tuple[float | None, tuple[str, ...]]:
    """Return the median distance of log σ from its start, and a warning if σ has hardly moved."""
    if not model.sigma_is_trained:
        return None, ()
    parts = [moved for factor in model.factors if isinstance(factor.family, Gaussian) for moved in [_moved(factor)]]
    if not parts:
        return None, ()
    value = float(torch.cat(parts).median())
    if value >= MOVED:
        return value, ()
    by = f"half of the weights' σ are within {100 * (exp(value) - 1):.0f} % of where they started"
    return value, (
        f"σ has hardly moved: {by}. Train for longer; in a loop of your own, byov.parameter_groups(model, lr, steps)"
        " gives ρ = log σ² its own learning rate.",
    )


@torch.no_grad()
def _moved(factor: Any) -> Tensor:
    """Return |log σ − log σ₀| of each weight of a Gaussian.

    With `relative`, σ₀ is a share of the layer's scale when training began, which is not stored. All σ of a layer were
    equal then. So this takes the larger of two distances: from the layer's median log σ, and from the σ₀ that the
    layer's present scale would give, less LAYER_SCALE.
    """
    log_std = 0.5 * precise(factor.get_parameter("log_var"))
    start = factor.family.layer_roles(factor.layout, factor.flat_mean()).get("log_var")
    if start is None:
        return (log_std - 0.5 * factor.family.log_var).abs()
    layer = factor.layout.layer_cells().to(log_std.device)
    middle = torch.stack([log_std[layer == i].median() for i in range(factor.layout.layers)])
    parted = (log_std - middle[layer]).abs()
    return torch.maximum(parted, (log_std - 0.5 * precise(start)).abs() - LAYER_SCALE)


@torch.no_grad()
def _snr(model: BayesianModule) -> float:
    """Return the median |μ|/σ of the weights with σ > 0; infinity if there are none."""
    mean, std = (torch.cat([getattr(f, name)() for f in model.factors]) for name in ("flat_mean", "flat_std"))
    varies = std > 0
    return float((mean[varies].abs() / std[varies]).median()) if bool(varies.any()) else float("inf")


def _pairs(loader_or_x: Any, y: Tensor | None, net: nn.Module) -> Iterator[tuple[Batch, Tensor | None]]:
    """Yield each batch of inputs with its labels, or None."""
    if _is_pair(loader_or_x) and y is None:
        loader_or_x, y = loader_or_x
    if not isinstance(loader_or_x, Iterable | Dataset):
        kinds = "a tensor, a mapping, a dataset, a pair (x, y) or a loader"
        raise TypeError(f"check takes {kinds}, not {type(loader_or_x).__name__}.")
    takes, (one, batches) = InputSpec.of(net), batches_of(loader_or_x, net)
    if one is not None:
        x = without_labels(one, takes)
        yield x, _tensor(labels_of(one, x)) if y is None and isinstance(one, Mapping) else y
        return
    if y is not None:
        raise ValueError("Pass labels y only with a single batch x; a loader must yield (x, y) pairs.")
    for batch in batches:
        x = inputs_from_batch(batch, takes)
        yield x, _tensor(labels_of(batch, x))


def _tensor(labels: Any) -> Tensor | None:
    """Return labels if they are a tensor, else None: a loader may yield other things, such as file names."""
    return labels if isinstance(labels, Tensor) else None


def _is_pair(batch: Any) -> bool:
    """Tell an (x, y) pair from a tuple of two batches: labels are integers."""
    return (
        isinstance(batch, tuple)
        and len(batch) == 2
        and isinstance(batch[0], Tensor | Mapping)
        and isinstance(batch[1], Tensor)
        and not batch[1].is_floating_point()
        and batch[1].ndim == 1
    )


@torch.no_grad()
def _at_mean(outer: nn.Module, model: BayesianModule, x: Batch, reading: OutputSpec) -> Tensor:
    with torch.inference_mode(False), lock_of(model), evaluating(outer), model.at_mean():
        outputs = precise(call(outer, ready(x, model), reading.tensor))[None]
        return reading.values(reading.shaped(outputs))[0]


def _rows(probs: Tensor, dim: int) -> Tensor:
    """Reshape class probabilities (N, C, …) to (rows, C), on the CPU."""
    return probs.movedim(dim, -1).flatten(0, -2).cpu()


class _Accumulated:
    """Predictions and labels of the batches so far, and their scores under resampled draws."""

    def __init__(self, samples: int) -> None:
        self.samples, self.inputs = samples, 0
        self.mean: list[Tensor] = []
        self.drawn: list[Tensor] = []
        self.labels: list[Tensor] | None = []
        self.expected = 0.0
        again = torch.randint(samples, (RESAMPLED, samples), generator=Generator().manual_seed(0))
        self.weights = torch.nn.functional.one_hot(again, samples).float().mean(1)
        self.correct = torch.zeros(RESAMPLED, dtype=torch.float64)
        self.nll = torch.zeros(RESAMPLED, dtype=torch.float64)

    def update(self, at_mean: Tensor, draws: Tensor | None, labels: Tensor | None, dim: int) -> None:
        assert draws is not None
        self.inputs += len(at_mean)
        rows, each = _rows(at_mean, dim), torch.stack([_rows(draw, dim) for draw in draws])
        if labels is not None and labels.numel() == len(rows) and bool((ignored := labels == IGNORED).any()):
            keep = ~ignored.cpu().flatten()
            rows, each, labels = rows[keep], each[:, keep], labels.cpu().flatten()[keep]
        self.mean.append(rows)
        self.drawn.append(each.mean(0))
        self.expected += float(entropy(each.flatten(0, 1)).double().sum()) / self.samples
        if labels is None or self.labels is None:
            self.labels = None
            return
        if labels.is_floating_point() or labels.numel() != each.shape[1]:
            got = f"{labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"check needs a class index for each of {each.shape[1]} predictions, not labels of {got}.")
        labels = labels.cpu().long().flatten()
        self.labels.append(labels)
        for i, weights in enumerate(self.weights):  # one at a time, to save memory
            mean = torch.tensordot(weights.to(each.dtype), each, 1)
            self.nll[i] += _losses(mean, labels).sum()
            self.correct[i] += (mean.argmax(1) == labels).sum()

    def compute(self, model: BayesianModule) -> Check:
        if not self.mean:
            raise ValueError("The loader is empty.")
        at_mean, drawn = torch.cat(self.mean), torch.cat(self.drawn)
        total = float(entropy(drawn).double().mean())
        information = max(total - self.expected / len(drawn), 0.0)
        scores: tuple[Any, Any, Any] = (None, None, None)
        labels = None if self.labels is None else torch.cat(self.labels)
        if labels is not None:
            error = {"top1": float((self.correct / len(drawn)).std()), "nll": float((self.nll / len(drawn)).std())}
            scores = (main_scores(at_mean, labels), main_scores(drawn, labels), error)
        moved, sentences = sigma_movement(model)
        found = Check(self.inputs, self.samples, moved, _snr(model), total, information, *scores, sentences)
        sentences += _differ(found) + _wide(found) + _few(found, drawn, labels) + _no_network(found, model)
        return replace(found, sentences=sentences)


def _losses(probs: Tensor, labels: Tensor) -> Tensor:
    """Return −log of the probability of each label (N, 1)."""
    return -probs.gather(1, labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny).double().log()


def _differ(found: Check) -> tuple[str, ...]:
    if found.mutual_information >= DIFFER * found.entropy:
        return ()
    information = f"{found.mutual_information:.2g} nats, {100 * found.share:.1f} % of the entropy"
    return (
        f"The draws hardly differ: their mutual information is {information}, below {100 * DIFFER:.0f} %. A plain"
        " network would predict the same.",
    )


def _wide(found: Check) -> tuple[str, ...]:
    """Warn of a wide posterior, unless the labels show that its draws predict no worse than its mean."""
    at_mean, drawn = found.at_mean, found.under_draws
    if found.snr >= LOW_SNR or (at_mean is not None and drawn is not None and drawn["nll"] <= at_mean["nll"]):
        return ()
    return (
        f"The posterior is wide: the median |μ|/σ is {found.snr:.2g}, below {LOW_SNR:g}, so most weights are noise."
        " Try a smaller β, a narrower start, or more steps.",
    )


def _few(found: Check, drawn: Tensor, labels: Tensor | None) -> tuple[str, ...]:
    """Warn if the error from the draws exceeds both the last digit shown and half the error from the inputs."""
    samples, error = found.samples, found.error
    if error is None or labels is None:
        return ()
    right = (drawn.argmax(1) == labels).double()
    point, nats = (0.5 * float(each.std(correction=0)) / len(labels) ** 0.5 for each in (right, _losses(drawn, labels)))
    needed = ceil(samples * max(error["top1"] / max(point, POINT), error["nll"] / max(nats, NATS)) ** 2)
    if needed <= samples:
        return ()
    known = f"the accuracy to ± {100 * error['top1']:.2f} points and the NLL to ± {error['nll']:.3f}"
    return (f"Too few draws for the digits shown: {samples} give {known}; use about {float(f'{needed:.1g}'):,.0f}.",)


def _no_network(found: Check, model: BayesianModule) -> tuple[str, ...]:
    if mean_is_no_network(model):
        return (NO_NETWORK,)
    at_mean, drawn = found.at_mean, found.under_draws
    if at_mean is None or drawn is None or drawn["top1"] - at_mean["top1"] < FAR:
        return ()
    lower = f"{100 * at_mean['top1']:.1f} % at μ, {100 * drawn['top1']:.1f} % under draws"
    return (f"The mean network disagrees with the draws (accuracy {lower}): predict with byov.predict.",)
