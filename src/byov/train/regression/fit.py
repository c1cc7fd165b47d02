"""Train the regression network on every split of a table, with every family, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, overload

import torch
from torch import Tensor

from byov.data.tables import as_numbers
from byov.posterior import Family
from byov.posterior.random import stream
from byov.train.diverged import Diverged
from byov.train.regression import families as of
from byov.train.regression.fitted import Fitted, Split
from byov.train.regression.group import Data, Group, minibatches
from byov.train.regression.run import Chunk, runner

CHUNK = 128
"""About how many steps' minibatches and noise are drawn ahead; on a GPU they are one graph."""

LONG = 1024
"""An epoch of more steps than this is cut into chunks."""


@dataclass(frozen=True)
class Settings:
    """Appendix D.7 of the patching paper: one hidden layer, Adam at its defaults, L2 on every variational parameter."""

    hidden: int = 50
    epochs: int = 4000
    batch: int = 100
    """At most this many rows a step: an epoch is cut into ⌈n/batch⌉ minibatches of equal size."""
    lr: float = 1e-3
    weight_decay: float = 0.01
    gamma: float = 0.2

    def __post_init__(self) -> None:
        if min(self.hidden, self.epochs, self.batch) < 1:
            raise ValueError(
                f"hidden, epochs and batch are at least 1, not {self.hidden}, {self.epochs}, {self.batch}."
            )
        if not (isfinite(self.lr) and self.lr > 0 and isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"lr is above 0 and weight_decay at least 0, not {self.lr} and {self.weight_decay}.")

    def cut(self, rows: int) -> tuple[int, int]:
        """Minibatches an epoch, and rows in each; the rows left over, fewer than there are minibatches, sit it out."""
        steps = ceil(rows / self.batch)
        if steps > LONG:
            steps = ceil(steps / CHUNK) * CHUNK
        return steps, rows // steps


@overload
def fit(
    X: Any,
    y: Any,
    families: Family,
    rows: Sequence[Tensor] | None = ...,
    numbers: Sequence[int] | None = ...,
    settings: Settings | None = ...,
    seed: int = ...,
    device: str | torch.device = ...,
) -> Fitted: ...
@overload
def fit(
    X: Any,
    y: Any,
    families: Mapping[str, Family],
    rows: Sequence[Tensor] | None = ...,
    numbers: Sequence[int] | None = ...,
    settings: Settings | None = ...,
    seed: int = ...,
    device: str | torch.device = ...,
) -> dict[str, Fitted]: ...
def fit(
    X: Any,
    y: Any,
    families: Family | Mapping[str, Family],
    rows: Sequence[Tensor] | None = None,
    numbers: Sequence[int] | None = None,
    settings: Settings | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Fitted | dict[str, Fitted]:
    """A posterior over the regression network from a table of numbers, for every split and family at once.

    Args:
        X: features (N, D), an array or tensor of finite numbers; standardised by the training rows' moments.
        y: targets (N,) or (N, T), likewise.
        families: `EMP(5)`, `ECMP(5)`, `Dropout(0.005)` or `Ensemble(5)`; or several by name.
        rows: the training rows of each split, as indices; all of X by default.
        numbers: each split's number, which names its random streams; 0, 1, … by default. A split's result depends on
            its rows, its number and the seed, never on the splits and families that are trained beside it.

    Example:
        >>> fitted = fit(X, y, byov.EMP(5))
        >>> draws = fitted.predict(X_new)  # (10000, N, 1), at the scale of y
    """
    settings = settings or Settings()
    several: Mapping[str, Family] = families if isinstance(families, Mapping) else {"": families}
    X, y = as_numbers(X, "X"), as_numbers(y, "y")
    y = y[:, None] if y.ndim == 1 else y
    rows = [torch.arange(len(X))] if rows is None else [torch.as_tensor(index) for index in rows]
    numbers = list(range(len(rows))) if numbers is None else list(numbers)
    _check(X, y, several, rows, numbers, settings)
    place = torch.device(device)
    splits = [Data.of(X, y, index, stream(seed, number), place) for index, number in zip(rows, numbers, strict=True)]
    alike: dict[tuple[int, int], list[int]] = {}
    for i, index in enumerate(rows):
        alike.setdefault(settings.cut(len(index)), []).append(i)
    done: dict[str, dict[int, Split]] = {name: {} for name in several}
    for numbers_alike in alike.values():
        for name, parts in _train([splits[i] for i in numbers_alike], several, settings).items():
            done[name] |= dict(zip(numbers_alike, parts, strict=True))
    fitted = {name: Fitted(several[name], tuple(parts[i] for i in range(len(rows)))) for name, parts in done.items()}
    return fitted if isinstance(families, Mapping) else fitted[""]


def _check(
    X: Tensor, y: Tensor, families: Mapping[str, Family], rows: list[Tensor], numbers: list[int], settings: Settings
) -> None:
    if X.ndim != 2 or y.ndim != 2 or len(X) != len(y) or not X.numel() or not y.numel():
        raise ValueError(f"A table has X (N, D) and y (N,) or (N, T), not {tuple(X.shape)} and {tuple(y.shape)}.")
    bad = (~torch.cat([X, y], 1).isfinite()).any(1).nonzero()[:, 0]
    if len(bad):
        raise ValueError(f"{len(bad)} rows have a missing or infinite value, the first is row {int(bad[0])}.")
    if not families or not rows or len(numbers) != len(rows):
        raise ValueError("fit needs a family, a split, and as many numbers as splits.")
    for family in families.values():
        of.check(family)
    for index in rows:
        if not len(index) or int(index.min()) < 0 or int(index.max()) >= len(X):
            raise ValueError(f"A split's rows are some of the numbers 0 to {len(X) - 1}.")
        if len(index) < settings.batch:
            raise ValueError(
                f"{len(index)} training rows are fewer than the batch of {settings.batch}: choose a smaller batch."
            )
        if settings.cut(len(index))[1] < 2 and any(of.normed(family) for family in families.values()):
            raise ValueError("BatchNorm needs at least 2 rows in a minibatch, not 1: choose a larger batch.")


def _train(splits: list[Data], families: Mapping[str, Family], settings: Settings) -> dict[str, list[Split]]:
    """Splits that are cut alike, with all families: as few stacks as there are shapes of networks."""
    shapes: dict[int, dict[str, Family]] = {}
    for name, family in families.items():
        shapes.setdefault(family.k if of.normed(family) else 0, {})[name] = family  # type: ignore[attr-defined]
    groups = [Group(splits, several, settings) for several in shapes.values()]
    order = [split.generator(0) for split in splits]
    steps, size = settings.cut(len(splits[0].x))
    epochs = next(e for e in range(max(1, CHUNK // steps), 0, -1) if settings.epochs % e == 0)
    length = CHUNK if steps > LONG else epochs * steps
    run: Callable[[Chunk], None] | None = None
    for _ in range(settings.epochs // epochs):
        xs, ys = minibatches(splits, order, epochs, steps, size)
        for x, y in zip(xs.split(length), ys.split(length), strict=True):
            chunk = y, [group.chunk(x) for group in groups]
            run = run or runner(groups, chunk)
            run(chunk)
    done = {name: parts for group in groups for name, parts in group.result().items()}
    for name, parts in done.items():
        if not all(bool(torch.isfinite(part.first).all() & torch.isfinite(part.second).all()) for part in parts):
            raise Diverged(f"The weights of {name or 'the network'} became infinite: try a smaller learning rate.")
    return {name: done[name] for name in families}
