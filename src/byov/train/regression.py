"""Regression on a table of numbers: `fit` a posterior on all splits at once, `predict` from its draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Generator, Tensor

from byov.data.tables import as_numbers, refuse_gaps
from byov.device import choose_device
from byov.posterior import ECMP, EMP, BayesianModule, Ensemble, Family
from byov.posterior.random import stream
from byov.prediction import predict
from byov.train.regression_networks import NUMBER, Data, Settings, Split, has_batchnorm, train

__all__ = ["Fitted", "Settings", "Split", "fit"]

HELD = 1 << 11
"""The random stream for holding out rows."""

TRIAL_DRAWS = 200
"""Number of draws for measuring a trial's error."""

Rows = Sequence[Tensor] | Sequence[int] | Tensor
"""The training rows of each split; a flat list of numbers is a single split."""


@dataclass(frozen=True)
class Fitted:
    """A family's posteriors on all splits, in the order given to `fit`."""

    family: Family
    splits: tuple[Split, ...]

    @torch.no_grad()
    def predict(self, X: Any, split: int = 0, samples: int = 10_000, generator: Generator | None = None) -> Tensor:
        """Predict the rows of X under `samples` draws of the weights: (S, N, T), at the target's original scale.

        Without a generator, the draws are determined by the seed of `fit`.
        """
        part = self._part(split)
        X, features = as_numbers(X, "X"), len(part.x_scale.mean)
        if X.ndim != 2 or X.shape[1] != features:
            raise ValueError(f"X is (N, {features}) as in training, not {tuple(X.shape)}.")
        refuse_gaps(X, "X")
        if samples < 1:
            raise ValueError(f"A prediction needs at least one draw, not {samples}.")
        device = part.x_scale.mean.device
        if generator is None:
            generator = Generator(device).manual_seed(stream(part.seed, NUMBER[type(self.family)], 1 << 20))
        x = part.x_scale.standardise(X.to(device)).float()
        found = predict(part.model, x, samples, "vmap", generator=generator, task="regression", keep=True)
        assert found.draws is not None
        return part.y_scale.restore(found.draws)  # in float64: float32 cannot resolve a minute in a date in seconds

    def module(self, split: int = 0) -> BayesianModule:
        """Return a copy of the posterior as a BayesianModule in eval mode, for `byov.predict` and other functions.

        It takes and returns standardised numbers: x_scale.standardise(x) in, y_scale.standardise(y) out.
        """
        return deepcopy(self._part(split).model)

    def _part(self, split: int) -> Split:
        if not 0 <= split < len(self.splits):
            raise ValueError(f"There are the splits 0 to {len(self.splits) - 1}, not {split}.")
        return self.splits[split]


@overload
def fit(X: Any, y: Any, families: Family, *others: Any, **named: Any) -> Fitted: ...
@overload
def fit(X: Any, y: Any, families: Mapping[str, Family], *others: Any, **named: Any) -> dict[str, Fitted]: ...
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
    """Fit a posterior over the regression network to a table of numbers, for all splits and families at once.

    Args:
        X: features (N, D), an array or tensor of finite numbers; standardised by the training rows' moments.
        y: targets (N,) or (N, T), likewise.
        families: `EMP(5)`, `ECMP(5)`, `Dropout(0.005)` or `Ensemble(5)`; or several by name. Patches all start equal,
            the members of an ensemble from separate seeds; σ, a spread and learned probabilities are not supported.
        rows: the training rows of each split, as indices; a flat list or 1-D tensor of numbers is a single split. All
            of X by default.
        numbers: each split's number, which selects its random streams; 0, 1, … by default. A split's result depends on
            its rows, its number and the seed, never on the other splits and families trained with it.
        device: "cpu", "cuda", or "auto" for a GPU if there is one.

    Example:
        >>> fitted = fit(X, y, byov.EMP(5))
        >>> draws = fitted.predict(X_new)  # (10000, N, 1), at the scale of y
    """
    settings = settings or Settings()
    several: Mapping[str, Family] = families if isinstance(families, Mapping) else {"": families}
    X, y = as_numbers(X, "X"), as_numbers(y, "y")
    y = y[:, None] if y.ndim == 1 else y
    parts = [torch.arange(len(X))] if rows is None else _splits(rows)
    seeds = [stream(seed, number) for number in (range(len(parts)) if numbers is None else numbers)]
    _check(X, y, several, parts, seeds, settings)
    place = choose_device(str(device))
    splits = [Data.of(X, y, index, own, place) for index, own in zip(parts, seeds, strict=True)]
    fitted = {}
    for name, family in several.items():
        decays = [settings.grid[0]] * len(parts)
        if len(settings.grid) > 1:
            decays = _choose_decay(X, y, family, parts, seeds, settings, place)
        done = train(family, splits, [[decay] for decay in decays], settings)
        fitted[name] = Fitted(family, tuple(split for (split,) in done))
    return fitted if isinstance(families, Mapping) else fitted[""]


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
    X: Tensor, y: Tensor, families: Mapping[str, Family], rows: list[Tensor], seeds: list[int], settings: Settings
) -> None:
    if X.ndim != 2 or y.ndim != 2 or len(X) != len(y) or not X.numel() or not y.numel():
        raise ValueError(f"A table has X (N, D) and y (N,) or (N, T), not {tuple(X.shape)} and {tuple(y.shape)}.")
    refuse_gaps(X, "X")
    refuse_gaps(y, "y")
    if not families or not rows or len(seeds) != len(rows):
        raise ValueError("fit needs a family, a split, and as many numbers as splits.")
    for family in families.values():
        _check_family(family)
    for index in rows:
        if not len(index) or int(index.min()) < 0 or int(index.max()) >= len(X):
            raise ValueError(f"A split's rows are some of the numbers 0 to {len(X) - 1}.")
        if len(index) < settings.batch:
            few = f"{len(index)} training rows are fewer than the batch of {settings.batch}"
            raise ValueError(f"{few}: choose a smaller batch.")
        if settings.cut(len(index))[1] < 2 and any(map(has_batchnorm, families.values())):
            raise ValueError("BatchNorm needs at least 2 rows in a minibatch, not 1: choose a larger batch.")


def _check_family(family: Family) -> None:
    """Raise on settings that this network does not support, instead of silently ignoring them.

    The members of an explicit ensemble are initialised from separate seeds, whatever its `start`: there is no network
    whose weights "copy", the default, could copy.
    """
    name = type(family).__name__
    if type(family) not in NUMBER:
        raise ValueError(f"The regression network takes EMP, ECMP, Dropout or Ensemble, not {name}.")
    if family.sigma > 0:  # type: ignore[attr-defined]
        raise ValueError(f"The regression network takes families with σ = 0, not {family}.")
    if not isinstance(family, EMP | ECMP | Ensemble):
        return
    starts = "all start at Settings.gamma and 0" if has_batchnorm(family) else "start from separate seeds"
    if family.learn_probs:
        raise ValueError(f"The regression network's mixing probabilities are fixed: {name} takes no learn_probs here.")
    if family.spread:
        raise ValueError(f"The regression network's components {starts}: {name} takes no spread here.")
    if has_batchnorm(family) and family.start != "copy":
        raise ValueError(f"The regression network's components {starts}: {name} takes no start='reset' here.")


def _choose_decay(
    X: Tensor, y: Tensor, family: Family, rows: list[Tensor], seeds: list[int], settings: Settings, device: torch.device
) -> list[float]:
    """Choose λ for each split, by training with all values at once on a part of the split's training rows.

    The strongest λ whose squared error on the other part is not clearly worse than the best is chosen; the test rows
    of the split are never used.
    """
    splits, rest = [], []
    for index, seed in zip(rows, seeds, strict=True):
        order = index[torch.randperm(len(index), generator=Generator().manual_seed(stream(seed, HELD)))]
        held = max(1, round(settings.held * len(index)))
        rest.append(order[:held])
        splits.append(Data.of(X, y, order[held:], seed, device))
    if isinstance(family, Ensemble):  # two members suffice to choose the decay
        family = replace(family, k=2, probs=None)
    epochs = max(1, round(settings.trial * settings.epochs))
    done = train(family, splits, [settings.grid] * len(rows), replace(settings, epochs=epochs))

    def errors(trial: Split, held: Tensor) -> Tensor:
        mean = Fitted(family, (trial,)).predict(X[held], samples=TRIAL_DRAWS).mean(0).cpu()
        return ((mean - y[held]) / trial.y_scale.std.cpu()).square().mean(1)

    return [
        strongest_decay({trial.weight_decay: errors(trial, held) for trial in trials})
        for trials, held in zip(done, rest, strict=True)
    ]


def strongest_decay(errors: Mapping[float, Tensor]) -> float:
    """Return the strongest decay whose mean excess error over the best is at most one standard error of the rows."""
    best = min(errors.values(), key=lambda e: float(e.mean()))
    for decay in sorted(errors, reverse=True):
        worse = errors[decay] - best
        if float(worse.mean()) <= float(worse.std(correction=0)) / len(worse) ** 0.5:
            return decay
    raise AssertionError("the best is not worse than itself")
