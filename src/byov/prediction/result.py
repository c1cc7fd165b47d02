"""The result of a Monte-Carlo prediction, and the running moments it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from math import e, log, pi
from typing import Any

import torch
from torch import Tensor

from byov.prediction.outputs import CLASSES, OutputSpec, Task, class_dim

OptionalTensor = Tensor | None


@dataclass(eq=False)  # not frozen: Lightning moves what predict_step returns field by field
class Prediction:
    """The posterior predictive of a batch or a data set.

    Attributes:
        mean: the predictive mean: class probabilities (N, C, …), for tokens (B, L, C), for a single logit those of both
            classes; the probability of each label (N, C); or the output of a regression.
        std: the standard deviation over draws (the patching paper's B.3); for a regression including the noise.
        entropy: total uncertainty: the entropy of the predictive mean, in nats. For labels, of each one separately
            (N, C); for a regression, that of a Gaussian with this mean and std for each number, or None without noise.
        expected_entropy: aleatoric uncertainty: the mean entropy of the draws.
        mutual_information: epistemic uncertainty: the difference of the two.
        samples: the number of draws used; with a tolerance, one number per input.
        strategy: the strategy used: "loop", "vmap" or "head".
        draws: (S, N, C, …), the prediction of each draw, with `keep=True`; for "gaussian" means and log-variances.
        task: the task as given, or as decided from the outputs.
        aleatoric: for a regression the variance of the noise, 1/τ or the mean over the draws; None without noise.
        epistemic: for a regression the variance of the draws' means; together with the aleatoric variance it is std².
    """

    mean: Tensor
    std: Tensor
    entropy: Tensor | None
    expected_entropy: Tensor | None
    mutual_information: Tensor | None
    samples: int | Tensor
    strategy: str
    draws: Tensor | None = None
    task: Task = "classification"
    aleatoric: Tensor | None = None
    epistemic: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        used = self.samples if isinstance(self.samples, int) else f"{self.samples.float().mean():.1f} on average"
        return f"Prediction({self.task}: mean {tuple(self.mean.shape)}, draws: {used}, strategy: {self.strategy})"

    def to(self, device: torch.device | str, **options: Any) -> Prediction:
        """Return a copy with its tensors on this device."""
        return self._mapped(lambda tensor: tensor.to(device, **options))

    def cpu(self) -> Prediction:
        """Return a copy with its tensors on the CPU."""
        return self.to("cpu")

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Prediction:
        moved: dict[str, Any] = {k: function(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    @classmethod
    def cat(cls, parts: list[Prediction]) -> Prediction:
        """Join the predictions of several batches, on the CPU."""
        if not parts:
            raise ValueError("The loader is empty: there is nothing to predict.")
        if len(shapes := sorted({tuple(part.mean.shape[1:]) for part in parts})) > 1:
            raise ValueError(f"Predictions of batches need the same shape after dimension 0, not {shapes}: pad them.")
        joined: dict[str, Any] = {}
        for name in (field.name for field in fields(cls)):
            values = [getattr(part, name) for part in parts]
            tensors = isinstance(values[0], Tensor)
            joined[name] = torch.cat([v.cpu() for v in values], dim=int(name == "draws")) if tensors else values[0]
        return cls(**joined)

    def to_pandas(self, classes: Sequence[str] | None = None) -> Any:
        """Return a pandas table: class, confidence and entropies of every input, or the mean and its spread.

        Each row is an input, a position in it (a token, a pixel), or one of its labels or outputs, as given by the
        index. `classes` names the classes, labels or outputs.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas.") from error
        mean, std = (each[:, None] if each.ndim == 1 else each for each in (self.mean, self.std))
        dim = class_dim(self.task, mean, draws=0)
        if classes is not None and len(classes) != mean.shape[dim]:
            raise ValueError(f"The prediction has {mean.shape[dim]} classes or outputs, not {len(classes)}.")
        columns: dict[str, Any] = {"probability" if self.task == "multilabel" else "mean": mean, "std": std}
        if self.task in CLASSES:
            confidence, best = mean.max(dim)
            columns = {
                "class": best,
                "confidence": confidence,
                "std": std.gather(dim, best[None].movedim(0, dim)).sum(dim),
            }
        for name in ("aleatoric", "epistemic", "entropy", "expected_entropy", "mutual_information"):
            if (value := getattr(self, name)) is not None:
                columns[name] = value
        levels: list[Sequence[Any]] = [range(size) for size in next(iter(columns.values())).shape]
        rows = {name: value.reshape(-1).cpu().numpy() for name, value in columns.items()}
        if classes is not None and "class" in rows:
            rows["class"] = [classes[i] for i in rows["class"]]
        elif classes is not None:
            levels[1] = classes
        if self.task not in CLASSES and len(levels) == 2 and len(levels[1]) == 1:
            levels.pop()
        names = ["input", *PLACES.get(self.task, ("output",)), *(f"axis {i}" for i in range(3, 9))][: len(levels)]
        several = len(levels) > 1
        index = (
            pandas.MultiIndex.from_product(levels, names=names)
            if several
            else pandas.RangeIndex(len(self), name="input")
        )
        return pandas.DataFrame(rows, index)


PLACES = {"token": ("token",), "segmentation": ("row", "column"), "multilabel": ("label",)}
"""Names of the dimensions after the first one, in a table's index."""


def entropy(probs: Tensor, dim: int = 1) -> Tensor:
    """Compute −Σ p log p over the classes (dimension 1), with 0 log 0 = 0."""
    return torch.special.entr(probs).sum(dim)


class Moments:
    """Mean, spread and expected entropy over draws, as running sums: memory does not grow with the draws.

    It uses Chan's update for a chunk of draws: the same for any chunking, and stable where E[f²] − E[f]² is not.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.count = task, 0
        self.mean = self.square = self.entropies = self.noise = torch.zeros(())

    def update(self, values: Tensor) -> None:
        """Add draws of the predicted values (K, N, …): probabilities, a regression's outputs, or (μ, log σ²)."""
        if self.task == "gaussian":
            values, log_var = values.chunk(2, 2)
            self.noise = self.noise + log_var.exp().sum(0)
            self.entropies = self.entropies + 0.5 * (log(2 * pi * e) + log_var).sum(0)
        new, total = len(values), self.count + len(values)
        variance, mean = torch.var_mean(values, 0, correction=0)
        delta = mean - self.mean
        self.mean = self.mean + delta * (new / total)
        self.square = self.square + variance * new + delta.square() * (self.count * new / total)
        if self.task in CLASSES:
            self.entropies = self.entropies + torch.special.entr(values).sum((0, class_dim(self.task, values)))
        elif self.task == "multilabel":
            self.entropies = self.entropies + _label_entropy(values).sum(0)
        self.count = total

    def take(self, keep: Tensor) -> None:
        """Keep only the inputs in the mask `keep`."""
        self.mean, self.square = self.mean[keep], self.square[keep]
        self.entropies, self.noise = (each[keep] if each.ndim else each for each in (self.entropies, self.noise))

    def standard_error(self) -> Tensor:
        """Compute the Monte-Carlo standard error of each input's predictive mean (N,), the maximum over its outputs."""
        variance = self.square / max(self.count - 1, 1)
        return (variance / self.count).sqrt().reshape(len(variance), -1).amax(1)

    def result(self, precision: float | None) -> dict[str, Any]:
        """Compute the fields of a `Prediction` from the moments."""
        variance, expected = self.square / self.count, self.entropies / self.count
        if self.task in CLASSES:
            total = entropy(self.mean, class_dim(self.task, self.mean, draws=0))
            return prediction_fields(self.mean, variance, total, expected, self.task)
        if self.task == "multilabel":
            return prediction_fields(self.mean, variance, _label_entropy(self.mean), expected, self.task)
        if self.task == "gaussian":
            noise = self.noise / self.count
        elif precision is None:
            return {**prediction_fields(self.mean, variance, None, None, self.task), "epistemic": variance}
        else:
            noise = torch.full_like(variance, 1.0 / precision)
            expected = torch.full_like(variance, 0.5 * log(2 * pi * e / precision))
        total = 0.5 * (log(2 * pi * e) + (variance + noise).log())  # of a Gaussian
        found = prediction_fields(self.mean, variance + noise, total, expected, self.task)
        return {**found, "aleatoric": noise, "epistemic": variance}


def _label_entropy(probs: Tensor) -> Tensor:
    """Compute the binary entropy of each label."""
    return torch.special.entr(probs) + torch.special.entr(1 - probs)


def prediction_fields(
    mean: Tensor, variance: Tensor, total: OptionalTensor, expected: OptionalTensor, task: Task = "classification"
) -> dict[str, Any]:
    """Compute the fields of a `Prediction` from the mean, the variance and the two entropies."""
    found = {"mean": mean, "std": variance.sqrt(), "entropy": total, "expected_entropy": expected, "task": task}
    return {**found, "mutual_information": None if expected is None else (total - expected).clamp_min(0.0)}  # type: ignore[operator]


class BatchState:
    """The state of one batch during the draws: the moments so far, and the inputs that have stopped."""

    def __init__(self, size: int, reading: OutputSpec, precision: float | None, keep: bool) -> None:
        self.size, self.reading, self.precision, self.keep = size, reading, precision, keep
        self.moments, self.open = Moments(reading.task or "classification"), torch.arange(size)
        self._rows: OptionalTensor = None
        self._kept: list[Tensor] = []
        self._stopped: list[tuple[Tensor, Moments]] = []

    def take(self, outputs: Tensor) -> None:
        """Add the network's outputs under some draws (K, N, …)."""
        if outputs.shape[1:2] != (len(self.open),):
            raise ValueError(
                f"The network returns a tensor of shape {tuple(outputs.shape[1:])} for {len(self.open)} inputs."
            )
        outputs = self.reading.shaped(outputs)
        if (rows := self.reading.are_probabilities(outputs)) is not None:
            self._rows = rows if self._rows is None else self._rows & rows
        values = self.reading.values(outputs)
        self.moments.task = self.reading.task or "classification"
        self.moments.update(values)
        if self.keep:
            self._kept.append(values)

    def stop(self, tolerance: float) -> Tensor:
        """Stop the inputs whose standard error is below the tolerance; return which of the open ones continue."""
        going_on = self.moments.standard_error() >= tolerance
        if not bool(going_on.all()):
            stopped = copy(self.moments)
            stopped.take(~going_on)
            self._stopped.append((self.open[~going_on.cpu()], stopped))
            self.open = self.open[going_on.cpu()]
            self.moments.take(going_on)
        return going_on

    def result(self, strategy: str, each: bool) -> Prediction:
        """Return the prediction in the order of the inputs; `samples` is one number per input if `each` is true."""
        parts = self._stopped + ([(self.open, self.moments)] if len(self.open) else [])
        order = torch.cat([index for index, _ in parts]).argsort()
        fields, *others = (moments.result(self.precision) for _, moments in parts)
        for name, value in fields.items() if others else ():  # reordering makes the host wait for a GPU
            if isinstance(value, Tensor):
                fields[name] = torch.cat([value, *(part[name] for part in others)])[order.to(value.device)]
        sure = fields["mean"] if self.moments.task != "gaussian" else fields["mean"] + fields["aleatoric"]
        bad = (~sure.isfinite()).reshape(self.size, -1).any(1).sum()
        counts = torch.stack(
            [bad, bad if self._rows is None else self._rows.to(bad)]
        ).tolist()  # the one wait for a GPU
        if counts[0]:
            raise ValueError(f"The network's outputs are not finite for {counts[0]} of {self.size} inputs.")
        self.reading.confirm_task(None if self._rows is None else bool(counts[1]))
        used = torch.cat([torch.full((len(index),), moments.count) for index, moments in parts])[order]
        draws = torch.cat(self._kept) if self._kept else None
        return Prediction(**fields, samples=used if each else self.moments.count, strategy=strategy, draws=draws)
