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
        strategy: "loop" or "vmap": what `auto` chose.
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
        if new == 1 and self.count > 0:
            self._one(values[0])
            return
        if values.is_cuda:  # one pass over the draws where the other way has five; on a CPU it is the slower one
            variance, mean = torch.var_mean(values, 0, correction=0)
            square = variance * new
        else:
            mean = values.mean(0)
            square = (values - mean).square().sum(0)
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

    def _one(self, value: Tensor) -> None:
        """Welford's update, which Chan's is for a single draw: half of the operations."""
        delta = value - self.mean
        self.mean = self.mean.add(delta, alpha=1 / (self.count + 1))
        self.square = self.square.addcmul(delta, delta, value=self.count / (self.count + 1))
        if self.task == "classification":
            self.entropies = self.entropies + torch.special.entr(value).sum(1)
        self.count += 1

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
