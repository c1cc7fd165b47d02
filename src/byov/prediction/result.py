"""What a Monte-Carlo prediction returns, and the running moments it is made from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import e, log, pi
from typing import Literal

import torch
from torch import Tensor

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive of a batch or a data set.

    Attributes:
        mean: the predictive mean: class probabilities (N, C, …), or for regression the network's output.
        std: the standard deviation over draws, 1/S Σ f² − mean² as in the patching paper's B.3; for regression with an
            output precision τ the noise is in it: √(var + 1/τ).
        entropy: of the predictive mean: total uncertainty, in nats. For regression the Gaussian's with the predictive
            variance, None without a precision.
        expected_entropy: the mean of the draws' entropies: aleatoric.
        mutual_information: their difference: epistemic.
        samples: how many draws it took; with a tolerance, one number per input.
        strategy: "loop", "vmap" or "head": what `auto` chose.
        draws: (S, N, C, …), what each draw predicted, where `keep=True` asked for it.
    """

    mean: Tensor
    std: Tensor
    entropy: Tensor | None
    expected_entropy: Tensor | None
    mutual_information: Tensor | None
    samples: int | Tensor
    strategy: str
    draws: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        used = self.samples if isinstance(self.samples, int) else f"{self.samples.float().mean():.1f} on average"
        return f"Prediction(mean {tuple(self.mean.shape)}, draws: {used}, strategy: {self.strategy})"

    @classmethod
    def cat(cls, parts: list[Prediction]) -> Prediction:
        """The predictions of several batches as one, on the CPU."""
        first = parts[0]
        joined: dict[str, object] = {"strategy": first.strategy}
        for name in (f.name for f in fields(cls) if f.name != "strategy"):
            values = [getattr(part, name) for part in parts]
            if isinstance(values[0], Tensor):
                joined[name] = torch.cat([v.cpu() for v in values], dim=1 if name == "draws" else 0)
            else:
                joined[name] = values[0]
        return cls(**joined)  # type: ignore[arg-type]


def entropy(probs: Tensor) -> Tensor:
    """−Σ p log p over the classes (dimension 1), with 0 log 0 = 0."""
    return torch.special.entr(probs).sum(1)


class Moments:
    """Mean, spread and expected entropy over draws, kept as running sums: memory does not grow with the draws.

    Chan's update for a chunk of draws (K, N, …): the same for any chunking, stable where E[f²] − E[f]² is not.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.count = 0
        self.mean = torch.empty(0)
        self.square = torch.empty(0)
        self.entropies = torch.empty(0)

    def update(self, values: Tensor) -> None:
        """Take in draws of the predicted values (K, N, …): probabilities, or a regression's outputs."""
        new = len(values)
        variance, mean = torch.var_mean(values, 0, correction=0)
        square = variance * new
        entropies = torch.special.entr(values).sum((0, 2)) if self.task == "classification" else torch.empty(0)
        if self.count == 0:
            self.count, self.mean, self.square, self.entropies = new, mean, square, entropies
            return
        total = self.count + new
        delta = mean - self.mean
        self.mean = self.mean + delta * (new / total)
        self.square = self.square + square + delta.square() * (self.count * new / total)
        self.entropies = self.entropies + entropies
        self.count = total

    def take(self, keep: Tensor) -> None:
        """Go on with some of the inputs only."""
        self.mean, self.square = self.mean[keep], self.square[keep]
        self.entropies = self.entropies[keep] if self.task == "classification" else self.entropies

    def standard_error(self) -> Tensor:
        """The Monte-Carlo standard error of each input's predictive mean, the largest over its outputs (N,)."""
        variance = self.square / max(self.count - 1, 1)
        return (variance / self.count).sqrt().reshape(len(variance), -1).amax(1)

    def result(self, precision: float | None) -> dict[str, Tensor | None]:
        """The fields of a `Prediction` that are made from moments."""
        variance = self.square / self.count
        if self.task == "classification":
            total, expected = entropy(self.mean), self.entropies / self.count
            return {
                "mean": self.mean,
                "std": variance.sqrt(),
                "entropy": total,
                "expected_entropy": expected,
                "mutual_information": (total - expected).clamp_min(0.0),
            }
        if precision is None:
            nothing = {"entropy": None, "expected_entropy": None, "mutual_information": None}
            return {"mean": self.mean, "std": variance.sqrt(), **nothing}
        gaussian = 0.5 * (log(2 * pi * e) + (variance + 1.0 / precision).log())
        aleatoric = torch.full_like(gaussian, 0.5 * (log(2 * pi * e) - log(precision)))
        return {
            "mean": self.mean,
            "std": (variance + 1.0 / precision).sqrt(),
            "entropy": gaussian,
            "expected_entropy": aleatoric,
            "mutual_information": gaussian - aleatoric,
        }


class Running:
    """A batch on its way through the draws: the moments of those it has seen, and which of its inputs have stopped."""

    def __init__(self, size: int, task: Task, precision: float | None, keep: bool) -> None:
        self.size, self.task, self.precision, self.keep = size, task, precision, keep
        self.moments, self.open = Moments(task), torch.arange(size)
        self._kept: list[Tensor] = []
        self._stopped: list[tuple[Tensor, dict[str, Tensor | None], int]] = []

    @property
    def count(self) -> int:
        return self.moments.count

    def take(self, outputs: Tensor) -> None:
        """Take in what the network returns under some draws (K, N, …)."""
        values = self._values(outputs)
        self.moments.update(values)
        if self.keep:
            self._kept.append(values)

    def _values(self, outputs: Tensor) -> Tensor:
        """Probabilities, or a regression's outputs: in float32 at least, and in memory of their own."""
        shape = tuple(outputs.shape[1:])
        if self.task == "classification" and len(shape) < 2:
            raise ValueError(f"A classifier returns logits (N, C), not a tensor of shape {shape}.")
        if shape[:1] != (len(self.open),):
            raise ValueError(f"The network returns a tensor of shape {shape} for {len(self.open)} inputs.")
        dtype = outputs.dtype if outputs.dtype.itemsize >= 4 else torch.float32
        return outputs.softmax(2, dtype=dtype) if self.task == "classification" else outputs.to(dtype, copy=True)

    def stop(self, tolerance: float) -> Tensor:
        """Stop the inputs whose standard error is below the tolerance; which of the open ones go on."""
        going_on = self.moments.standard_error() >= tolerance
        if not bool(going_on.all()):
            here, stopped = going_on.cpu(), Moments(self.task)
            stopped.__dict__.update(self.moments.__dict__)
            stopped.take(~going_on)
            self._stopped.append((self.open[~here], stopped.result(self.precision), stopped.count))
            self.open = self.open[here]
            self.moments.take(going_on)
        return going_on

    def result(self, strategy: str, each: bool) -> Prediction:
        """The prediction, in the order of the inputs; with one number of draws for `each` of them, or one for all."""
        parts = [*self._stopped]
        if len(self.open):
            parts.append((self.open, self.moments.result(self.precision), self.count))
        order = torch.cat([index for index, _, _ in parts]).argsort()
        fields = {name: _joined([found[name] for _, found, _ in parts], order) for name in parts[0][1]}
        used = torch.cat([torch.full((len(index),), count) for index, _, count in parts])[order]
        bad = int((~fields["mean"].isfinite()).reshape(self.size, -1).any(1).sum())  # type: ignore[union-attr]
        if bad:
            raise ValueError(f"The network's outputs are not finite for {bad} of {self.size} inputs.")
        draws = torch.cat(self._kept) if self._kept else None
        return Prediction(**fields, samples=used if each else self.count, strategy=strategy, draws=draws)  # type: ignore[arg-type]


def _joined(parts: list[Tensor | None], order: Tensor) -> Tensor | None:
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    return torch.cat(parts)[order.to(parts[0].device)]  # type: ignore[arg-type]
