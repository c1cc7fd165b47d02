"""What a Monte-Carlo prediction returns, and the running moments it is made from."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from math import e, log, pi
from typing import Any, Literal

import torch
from torch import Tensor

Task = Literal["classification", "regression"]
Maybe = Tensor | None


@dataclass(frozen=True)
class Prediction:
    """The posterior predictive of a batch or a data set.

    Attributes:
        mean: the predictive mean: class probabilities (N, C, …), or for regression the network's output.
        std: the standard deviation over draws (the patching paper's B.3), with a precision τ that of the noise too.
        entropy: of the predictive mean, in nats: total. For regression the Gaussian's, None without a precision.
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
        if not parts:
            raise ValueError("The loader is empty: there is nothing to predict.")
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            values = [getattr(part, name) for part in parts]
            tensors = isinstance(values[0], Tensor)
            joined[name] = torch.cat([v.cpu() for v in values], dim=int(name == "draws")) if tensors else values[0]
        return cls(**joined)


def entropy(probs: Tensor) -> Tensor:
    """−Σ p log p over the classes (dimension 1), with 0 log 0 = 0."""
    return torch.special.entr(probs).sum(1)


class Moments:
    """Mean, spread and expected entropy over draws, as running sums: memory does not grow with the draws.

    By Chan's update for a chunk of draws: the same for any chunking, stable where E[f²] − E[f]² is not."""

    def __init__(self, task: Task) -> None:
        self.task, self.count = task, 0
        self.mean = self.square = self.entropies = torch.zeros(())

    def update(self, values: Tensor) -> None:
        """Take in draws of the predicted values (K, N, …): probabilities, or a regression's outputs."""
        new, total = len(values), self.count + len(values)
        variance, mean = torch.var_mean(values, 0, correction=0)
        delta = mean - self.mean
        self.mean = self.mean + delta * (new / total)
        self.square = self.square + variance * new + delta.square() * (self.count * new / total)
        if self.task == "classification":
            self.entropies = self.entropies + torch.special.entr(values).sum((0, 2))
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
            return prediction_fields(self.mean, variance, entropy(self.mean), self.entropies / self.count)
        if precision is None:
            return prediction_fields(self.mean, variance, None, None)
        variance = variance + 1.0 / precision
        total = 0.5 * (log(2 * pi * e) + variance.log())  # a Gaussian's
        return prediction_fields(self.mean, variance, total, torch.full_like(total, 0.5 * log(2 * pi * e / precision)))


def prediction_fields(mean: Tensor, variance: Tensor, total: Maybe, expected: Maybe) -> dict[str, Maybe]:
    """The fields of a `Prediction`, from the mean, the variance and the two entropies."""
    found = {"mean": mean, "std": variance.sqrt(), "entropy": total, "expected_entropy": expected}
    return {**found, "mutual_information": None if expected is None else (total - expected).clamp_min(0.0)}  # type: ignore[operator]


class Running:
    """A batch on its way through the draws: the moments of those it has seen, and which of its inputs have stopped."""

    def __init__(self, size: int, task: Task, precision: float | None, keep: bool) -> None:
        self.size, self.task, self.precision, self.keep = size, task, precision, keep
        self.moments, self.open = Moments(task), torch.arange(size)
        self._kept: list[Tensor] = []
        self._stopped: list[tuple[Tensor, Moments]] = []

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
            stopped = copy(self.moments)
            stopped.take(~going_on)
            self._stopped.append((self.open[~going_on.cpu()], stopped))
            self.open = self.open[going_on.cpu()]
            self.moments.take(going_on)
        return going_on

    def result(self, strategy: str, each: bool) -> Prediction:
        """The prediction, in the order of the inputs; with one number of draws for `each` of them, or one for all."""
        parts = self._stopped + ([(self.open, self.moments)] if len(self.open) else [])
        order = torch.cat([index for index, _ in parts]).argsort()
        fields, *others = (moments.result(self.precision) for _, moments in parts)
        for name, value in fields.items() if others else ():  # to put them in order makes the host wait for a GPU
            if value is not None:
                fields[name] = torch.cat([value, *(part[name] for part in others)])[order.to(value.device)]  # type: ignore[list-item]
        if bad := int((~fields["mean"].isfinite()).reshape(self.size, -1).any(1).sum()):  # type: ignore[union-attr]
            raise ValueError(f"The network's outputs are not finite for {bad} of {self.size} inputs.")
        used = torch.cat([torch.full((len(index),), moments.count) for index, moments in parts])[order]
        draws = torch.cat(self._kept) if self._kept else None
        return Prediction(**fields, samples=used if each else self.moments.count, strategy=strategy, draws=draws)  # type: ignore[arg-type]
