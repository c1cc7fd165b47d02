"""Train the regression network on every split of a table, with every family, at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Any, overload

import torch
from torch import Generator, Tensor

from byov.data.tables import as_numbers
from byov.device import choose_device
from byov.posterior import Ensemble, Family
from byov.posterior.random import stream
from byov.train.diverged import Diverged
from byov.train.regression import families as of
from byov.train.regression.fitted import Fitted, Split, finite
from byov.train.regression.group import Data, Group, minibatches
from byov.train.regression.run import Chunk, runner

CHUNK = 128
"""About how many steps' minibatches and noise are drawn ahead; on a GPU they are one graph."""

LONG = 512
"""The most: an epoch of more steps than this is cut into chunks."""

HELD = 1 << 11
"""The stream that holds rows out."""

TRIAL_DRAWS = 200
"""Draws that a trial's error is measured with."""

Rows = Sequence[Tensor] | Sequence[int] | Tensor
"""Each split's training rows; numbers alone are one split's."""


@dataclass(frozen=True)
class Settings:
    """Appendix D.7 of the patching paper: one hidden layer, Adam at its defaults, L2 on every variational parameter."""

    hidden: int = 50
    epochs: int = 4000
    batch: int = 100
    """At most this many rows a step: an epoch is cut into ⌈n/batch⌉ minibatches of equal size."""
    lr: float = 1e-3
    weight_decay: float | tuple[float, ...] = 0.01
    """λ, as torch's Adam has it. Of several, each split and family gets its own, by a held-out part of its rows."""
    held: float = 0.2
    """The share of a split's training rows that λ is chosen on."""
    trial: float = 0.25
    """The share of the epochs that every λ is tried for."""
    gamma: float = 0.2

    @property
    def grid(self) -> tuple[float, ...]:
        return self.weight_decay if isinstance(self.weight_decay, tuple) else (self.weight_decay,)

    def __post_init__(self) -> None:
        if min(self.hidden, self.epochs, self.batch) < 1:
            raise ValueError(
                f"hidden, epochs and batch are at least 1, not {self.hidden}, {self.epochs}, {self.batch}."
            )
        if not (isfinite(self.lr) and self.lr > 0 and self.grid and all(isfinite(d) and d >= 0 for d in self.grid)):
            raise ValueError(f"lr is above 0 and weight_decay at least 0, not {self.lr} and {self.weight_decay}.")
        if not (0 < self.held < 1 and 0 < self.trial <= 1):
            raise ValueError(f"held and trial are shares, above 0 and at most 1, not {self.held} and {self.trial}.")

    def cut(self, rows: int) -> tuple[int, int]:
        """Minibatches an epoch, and rows in each; the rows left over, fewer than there are minibatches, sit it out."""
        steps = ceil(rows / self.batch)
        return steps, rows // steps


@overload
def fit(
    X: Any,
    y: Any,
    families: Family,
    rows: Rows | None = ...,
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
    rows: Rows | None = ...,
    numbers: Sequence[int] | None = ...,
    settings: Settings | None = ...,
    seed: int = ...,
    device: str | torch.device = ...,
) -> dict[str, Fitted]: ...
def fit(
    X: Any,
    y: Any,
    families: Family | Mapping[str, Family],
    rows: Rows | None = None,
    numbers: Sequence[int] | None = None,
    settings: Settings | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Fitted | dict[str, Fitted]:
    """A posterior over the regression network from a table of numbers, for every split and family at once.

    Args:
        X: features (N, D), an array or tensor of finite numbers; standardised by the training rows' moments.
        y: targets (N,) or (N, T), likewise.
        families: `EMP(5)`, `ECMP(5)`, `Dropout(0.005)` or `Ensemble(5)`; or several by name. Patches all start alike,
            an ensemble's members each from a seed of its own; σ, a spread or learned probabilities are refused.
        rows: the training rows of each split, as indices; numbers alone, such as a 1-D tensor, are one split's. All of
            X by default.
        numbers: each split's number, which names its random streams; 0, 1, … by default. A split's result depends on
            its rows, its number and the seed, never on the splits and families that are trained beside it.
        device: "cpu", "cuda", or "auto" for a GPU where there is one.

    Example:
        >>> fitted = fit(X, y, byov.EMP(5))
        >>> draws = fitted.predict(X_new)  # (10000, N, 1), at the scale of y
    """
    settings = settings or Settings()
    several: Mapping[str, Family] = families if isinstance(families, Mapping) else {"": families}
    X, y = as_numbers(X, "X"), as_numbers(y, "y")
    y = y[:, None] if y.ndim == 1 else y
    parts = [torch.arange(len(X))] if rows is None else _splits(rows)
    numbers = list(range(len(parts))) if numbers is None else list(numbers)
    _check(X, y, several, parts, numbers, settings)
    place = choose_device(str(device))
    decay = {name: [settings.grid[0]] * len(parts) for name in several}
    if len(settings.grid) > 1:
        decay = choose(X, y, several, parts, numbers, settings, seed, place)
    splits = [Data.of(X, y, index, stream(seed, number), place) for index, number in zip(parts, numbers, strict=True)]
    fitted = train(splits, several, decay, settings)
    return fitted if isinstance(families, Mapping) else fitted[""]


def choose(
    X: Tensor,
    y: Tensor,
    families: Mapping[str, Family],
    rows: Sequence[Tensor],
    numbers: Sequence[int],
    settings: Settings,
    seed: int,
    device: torch.device,
) -> dict[str, list[float]]:
    """Every family's and split's λ: all are trained at once on a part of the split's training rows.

    The strongest that is not clearly worse than the best on the other part is taken, by the squared error; the split's
    test rows are never looked at.
    """
    splits, rest = [], []
    for index, number in zip(rows, numbers, strict=True):
        own = stream(seed, number)
        order = index[torch.randperm(len(index), generator=Generator().manual_seed(stream(own, HELD)))]
        held = max(1, round(settings.held * len(index)))
        rest.append(order[:held])
        splits.append(Data.of(X, y, order[held:], own, device))
    tried = [(name, decay) for name in families for decay in settings.grid]
    # Two members tell an ensemble's decay as well as all of them, and are most of the work where there are many.
    few = {name: replace(f, k=2, probs=None) if isinstance(f, Ensemble) else f for name, f in families.items()}
    named = {f"{name} {decay}": few[name] for name, decay in tried}
    epochs = max(1, round(settings.trial * settings.epochs))
    decays = {f"{name} {decay}": [decay] * len(rows) for name, decay in tried}
    fitted = train(splits, named, decays, replace(settings, epochs=epochs))

    def errors(name: str, decay: float, split: int) -> Tensor:
        posterior, held = fitted[f"{name} {decay}"], rest[split]
        mean = posterior.predict(X[held], split, TRIAL_DRAWS).mean(0).cpu()
        return ((mean - y[held]) / posterior.splits[split].y_std.cpu()).square().mean(1)

    return {
        name: [_least({d: errors(name, d, i) for d in settings.grid}) for i in range(len(rows))] for name in families
    }


def _least(errors: Mapping[float, Tensor]) -> float:
    """The strongest decay that is not clearly worse than the best: by no more than one standard error, row by row."""
    best = min(errors.values(), key=lambda e: float(e.mean()))
    for decay in sorted(errors, reverse=True):
        worse = errors[decay] - best
        if float(worse.mean()) <= float(worse.std(correction=0)) / len(worse) ** 0.5:
            return decay
    raise AssertionError("the best is not worse than itself")


def _splits(rows: Rows) -> list[Tensor]:
    parts = [torch.as_tensor(index, device="cpu") for index in rows]
    if parts and all(part.ndim == 0 for part in parts):
        parts = [torch.stack(parts)]
    for part in parts:
        whole = not (part.is_floating_point() or part.is_complex() or part.dtype == torch.bool)
        if part.ndim != 1 or (len(part) and not whole):
            got = f"{part.dtype} {tuple(part.shape)}"
            raise ValueError(f"A split's rows are indices, a list or 1-D tensor of whole numbers, not {got}.")
    return [part.long() for part in parts]


def _check(
    X: Tensor, y: Tensor, families: Mapping[str, Family], rows: list[Tensor], numbers: list[int], settings: Settings
) -> None:
    if X.ndim != 2 or y.ndim != 2 or len(X) != len(y) or not X.numel() or not y.numel():
        raise ValueError(f"A table has X (N, D) and y (N,) or (N, T), not {tuple(X.shape)} and {tuple(y.shape)}.")
    finite(torch.cat([X, y], 1))
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


def train(
    splits: Sequence[Data], families: Mapping[str, Family], decay: Mapping[str, Sequence[float]], settings: Settings
) -> dict[str, Fitted]:
    """Every family on every split; splits whose epochs are cut alike are trained together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, split in enumerate(splits):
        alike.setdefault(settings.cut(len(split.x)), []).append(i)
    done: dict[str, dict[int, Split]] = {name: {} for name in families}
    for some in alike.values():
        groups = _groups(
            [splits[i] for i in some], families, {n: [d[i] for i in some] for n, d in decay.items()}, settings
        )
        _run(groups, [splits[i] for i in some], settings)
        for group in groups:
            for name, parts in group.result().items():
                done[name] |= dict(zip(some, parts, strict=True))
    for name, found in done.items():
        if not all(
            bool(torch.isfinite(part.first).all() & torch.isfinite(part.second).all()) for part in found.values()
        ):
            raise Diverged(f"The weights of {name or 'the network'} became infinite: try a smaller learning rate.")
    return {name: Fitted(families[name], tuple(found[i] for i in range(len(splits)))) for name, found in done.items()}


def _groups(
    splits: Sequence[Data], families: Mapping[str, Family], decay: Mapping[str, Sequence[float]], settings: Settings
) -> list[Group]:
    """As few stacks as there are shapes of networks."""
    shapes: dict[int, dict[str, Family]] = {}
    for name, family in families.items():
        shapes.setdefault(family.k if of.normed(family) else 0, {})[name] = family  # type: ignore[attr-defined]
    return [Group(splits, several, decay, settings) for several in shapes.values()]


def _run(groups: Sequence[Group], splits: Sequence[Data], settings: Settings) -> None:
    """All epochs, a chunk at a time."""
    order = [split.generator(0) for split in splits]
    steps, size = settings.cut(len(splits[0].x))
    epochs = next(e for e in range(max(1, CHUNK // steps), 0, -1) if settings.epochs % e == 0)
    length = CHUNK if steps > LONG else epochs * steps
    runners: dict[int, Callable[[Chunk], None]] = {}
    for _ in range(settings.epochs // epochs):
        xs, ys = minibatches(splits, order, epochs, steps, size)
        for x, y in zip(xs.split(length), ys.split(length), strict=True):
            chunk = y, [group.chunk(x) for group in groups]
            if len(y) not in runners:
                runners[len(y)] = runner(groups, chunk)
            runners[len(y)](chunk)
