"""Regression tables: the UCI benchmark with its standard splits, and your own tables."""

import csv
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from byov.data.arrays import Arrays
from byov.data.sources import data_root

COMMAS = " Commas separate the columns, so the decimal sign has to be a point."
LARGEST = 1e37
YEAR_TRAIN = 463_715  # the authors' split of YearPredictionMSD: the songs after these are by other artists


class Scale(NamedTuple):
    """Mean and standard deviation of every column; the standard deviation of a constant column is set to 1."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, columns: Tensor, name: str = "The table") -> "Scale":
        """Return the scale of every column; raise if a column's values are out of the range of float32."""
        largest = columns.abs().amax(0)
        odd = ((largest > LARGEST) | ((largest > 0) & (largest < 1 / LARGEST))).nonzero()
        if len(odd):
            at = int(odd[0])
            size = f"column {at} holds nothing larger than {float(largest[at]):.3g}"
            raise ValueError(f"{name}: {size}, which is out of the range of float32: choose another unit.")
        mean, std = columns.mean(0), columns.std(0, correction=0)
        # Rounding can leave a constant column a std of about 1e-16 of its size instead of 0.
        constant = std <= 1e-12 * largest
        return cls(mean, torch.where(constant, torch.ones_like(std), std))

    def standardise(self, columns: Tensor) -> Tensor:
        return (columns - self.mean) / self.std

    def restore(self, columns: Tensor) -> Tensor:
        """Transform standardised columns back to their original scale."""
        return columns * self.std + self.mean


@dataclass(frozen=True, eq=False)
class Fold:
    """One split, standardised by its training part: z = (x − mean) / std, for both features and targets.

    Columns that are constant in the training part are divided by 1. `y_mean` and `y_std` undo the standardisation:
    multiply an RMSE by `y_std` to get it in the target's unit.
    """

    X_train: Tensor
    y_train: Tensor
    X_test: Tensor
    y_test: Tensor
    y_mean: Tensor
    y_std: Tensor


@dataclass(frozen=True, eq=False)
class Table:
    """Features X (N, D), target y (N,), further targets y_other (N, k) or None, and splits as (train, test) indices.

    `columns` are the features' names and `target` is the target's, if the file has unique column names.
    """

    name: str
    X: Tensor
    y: Tensor
    splits: tuple[tuple[Tensor, Tensor], ...]
    y_other: Tensor | None = None
    columns: tuple[str, ...] = ()
    target: str | None = None

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or self.y.shape != self.X.shape[:1] or not len(self.X) or not self.X.shape[1]:
            got = f"X {tuple(self.X.shape)} and y {tuple(self.y.shape)}"
            raise ValueError(f"{self.name}: a table has X (N, D) and y (N,), not {got}.")
        if self.y_other is not None and (self.y_other.ndim != 2 or len(self.y_other) != len(self.y)):
            raise ValueError(f"{self.name}: y_other is (N, k), not {tuple(self.y_other.shape)}.")
        for key, values in (("X", self.X), ("y", self.y), ("y_other", self.y_other)):
            if values is not None:
                refuse_gaps(values, f"{self.name}: {key}")
        for number, parts in enumerate(self.splits):
            check_split(*parts, len(self), f"{self.name}: split {number}")

    def __len__(self) -> int:
        return len(self.X)

    @cached_property
    def digest(self) -> str:
        """Return the first 12 hex digits of the SHA-256 of features and target."""
        return hashlib.sha256(self.X.numpy().tobytes() + self.y.numpy().tobytes()).hexdigest()[:12]

    def fold(
        self, index: int = 0, targets: Literal["first", "all"] = "first", dtype: torch.dtype = torch.float32
    ) -> Fold:
        """Return split `index`, standardised; y is (n, 1), or (n, 1 + k) with targets="all"."""
        train, test = self.split(index)
        y = self.all_targets if targets == "all" else self.y[:, None]
        x_scale, y_scale = Scale.of(self.X[train], f"{self.name}: X"), Scale.of(y[train], f"{self.name}: y")
        X, y = x_scale.standardise(self.X), y_scale.standardise(y)
        parts = (X[train], y[train], X[test], y[test], *y_scale)
        return Fold(*(part.to(dtype) for part in parts))

    def split(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the training and the test rows of a split."""
        if not 0 <= index < len(self.splits):
            raise ValueError(f"{self.name} has the splits 0 to {len(self.splits) - 1}, not {index}.")
        return self.splits[index]

    @property
    def all_targets(self) -> Tensor:
        """Return the target and any further targets, (N, 1 + k)."""
        return torch.cat([self.y[:, None], *([] if self.y_other is None else [self.y_other])], 1)


@dataclass(frozen=True, eq=False)
class Rows:
    """The training rows of a split with the interface of an image set: `images` are features, `labels` targets (n, T).

    Both are standardised; `mean` and `std` are the features' moments, `y_mean` and `y_std` the targets'.
    """

    name: str
    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    y_mean: tuple[float, ...]
    y_std: tuple[float, ...]
    digest: str
    columns: tuple[str, ...] = ()
    target: str | None = None
    image_size: ClassVar[int] = 1
    unit: ClassVar[str] = "rows"

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "Rows":
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def training_rows(data: Table, split: int = 0) -> Rows:
    """Return the training part of a split, standardised by its own moments."""
    fold = data.fold(split, dtype=torch.float64)
    moments = (*Scale.of(data.X[data.splits[split][0]]), fold.y_mean, fold.y_std)
    mean, std, y_mean, y_std = (tuple(part.tolist()) for part in moments)
    names = (data.columns, data.target)
    return Rows(data.name, fold.X_train.float(), fold.y_train.float(), mean, std, y_mean, y_std, data.digest, *names)


def as_numbers(values: Any, name: str) -> Tensor:
    """Convert a tensor, an array, a data frame or lists to a float64 CPU tensor; raise on anything but numbers."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise ValueError(f"{name} must hold real numbers, not {values.dtype}.")
        return values.detach().double().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be a table whose rows have the same length.") from error
    if array.dtype == object:  # columns of several types, as in data frames
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            word = next((v for v in array.flat if not isinstance(v, int | float | np.number)), None)
            raise ValueError(f"{name} must hold numbers, but has {word!r}.") from None
    if array.dtype.kind not in "fiub":
        example = f", such as {str(array.flat[0])!r}" if array.size else ""
        raise ValueError(f"{name} must hold numbers, not {array.dtype}{example}.")
    return torch.from_numpy(array.astype(np.float64))


def refuse_gaps(values: Tensor, name: str) -> None:
    """Raise on missing or infinite values; the error names the first such row, counting from 1."""
    rows = 1 + torch.atleast_1d(~values.isfinite()).nonzero()[:, 0].unique()
    if len(rows) == 1:
        raise ValueError(f"{name} has a missing or infinite value in row {int(rows[0])}.")
    if len(rows):
        raise ValueError(f"{name} has missing or infinite values in {len(rows)} rows, the first is row {int(rows[0])}.")


def check_split(train: Tensor, test: Tensor, rows: int, name: str) -> None:
    """Raise on indices that are not rows of the table, and on rows in both training and test."""
    for part, indices in (("training", train), ("test", test)):
        if indices.is_floating_point() or indices.ndim != 1 or not len(indices):
            got = f"{indices.dtype} of shape {tuple(indices.shape)}"
            raise ValueError(f"{name} must have a list of whole numbers as its {part} rows, not {got}.")
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= rows:
            raise ValueError(f"{name} has the {part} row {low if low < 0 else high}, of rows 0 to {rows - 1}.")
    both = torch.isin(test, train)
    if both.any():
        raise ValueError(f"{name} has {int(both.sum())} of its test rows in training too, such as row {test[both][0]}.")


def random_splits(
    rows: int, count: int = 20, test: float = 0.1, seed: int = 0, name: str = "The table"
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return `count` random splits, each a pure function of (rows, seed, its index); errors mention `name`."""
    if rows < 2:
        raise ValueError(f"{name} has {rows} row{'' if rows == 1 else 's'}: splits need at least two.")
    if count < 1 or not 0.0 < test < 1.0:
        raise ValueError(f"{name}: splits are one or more with a test fraction in (0, 1), not {count} and {test}.")
    held = min(rows - 1, max(1, round(test * rows)))
    orders = [np.random.default_rng((seed, index)).permutation(rows) for index in range(count)]
    return tuple((torch.from_numpy(order[held:]), torch.from_numpy(order[:held])) for order in orders)


def uci(name: str, root: str | Path | None = None) -> Table:
    """Load a set of the regression benchmark from ROOT/uci/NAME.npz, with its standard splits (20; Protein 5, Year 1).

    Year can also be read from the original YearPredictionMSD.txt.
    """
    place = data_root(root) / "uci"
    path, text = place / f"{name.replace('-', '_')}.npz", place / "YearPredictionMSD.txt"
    if path.is_file():
        return _npz(path, name)
    if name == "year" and text.is_file():
        rows = torch.from_numpy(np.loadtxt(text, delimiter=",", dtype=np.float64))
        order = torch.arange(len(rows))
        return Table(name, rows[:, 1:], rows[:, 0], ((order[:YEAR_TRAIN], order[YEAR_TRAIN:]),))
    here = ", ".join(sorted(file.stem for file in place.glob("*.npz"))) or "nothing"
    raise ValueError(f"{path} is missing; {place} has {here}. Set BYOV_DATA or root to the folder above uci/.")


def table(path: str | Path, target: str | int = -1, splits: int = 20, seed: int = 0) -> Table:
    """Load your own table: an .npz with X and y, or a .csv whose target column is `target`, a name or an index.

    A .csv may start with a line of column names, none of which is a number. If the file has no split_train and
    split_test, `splits` random 90:10 splits are made.
    """
    path = Path(path).expanduser()
    if path.suffix == ".npz":
        return _npz(path, path.stem, splits, seed)
    names, rows = _csv(path)
    place = _place(path, names, rows.shape[1], target)
    X = torch.from_numpy(np.delete(rows, place, axis=1))
    made = random_splits(len(rows), splits, seed=seed, name=str(path))
    found = Table(path.stem, X, torch.from_numpy(rows[:, place].copy()), made)
    if len(set(names)) < rows.shape[1]:  # no names, or duplicate ones
        return found
    return replace(found, columns=(*names[:place], *names[place + 1 :]), target=names[place])


def features(
    path: str | Path, count: int, target: str | int = -1, columns: Sequence[str] = (), name: str | None = None
) -> Tensor:
    """Read the `count` features of the rows to predict, from a .csv or from X in an .npz.

    If file and model both have column names, the features are `columns`, in that order; the file may also contain the
    target, called `name`. Otherwise the number of columns must match, with or without the one at `target`.
    """
    path = Path(path).expanduser()
    if path.suffix == ".npz":
        X = as_numbers(Arrays(path)["X"], f"{path}: X")
        refuse_gaps(X, f"{path}: X")
    else:
        names, rows = _csv(path)
        if names and columns:
            return torch.from_numpy(rows.take(column_indices(names, columns, name, path), axis=1))
        if rows.shape[1] == count + 1:
            rows = np.delete(rows, _place(path, names, count + 1, target), axis=1)
        X = torch.from_numpy(rows)
    if X.ndim != 2 or X.shape[1] != count:
        raise ValueError(f"{path} has rows of {X.shape[-1]} numbers, where the model takes {count} features.")
    return X


def column_indices(names: Sequence[str], columns: Sequence[str], target: str | None, where: str | Path) -> list[int]:
    """Return the indices of `columns` in `names`; raise if they differ by more than order and the target."""
    missing = [column for column in columns if column not in names]
    extra = [name for name in names if name not in (*columns, target)]
    twice = sorted({name for name in names if names.count(name) > 1})
    faults = (("lacks", missing), ("also has", extra), ("has twice", twice))
    said = "; it ".join(f"{fault} {', '.join(map(repr, some))}" for fault, some in faults if some)
    if said:
        raise ValueError(f"The columns of {where} are not those the model was trained on: it {said}.")
    return [names.index(column) for column in columns]


def _place(path: Path, names: Sequence[str], count: int, target: str | int) -> int:
    """Return the index of the target's column."""
    if isinstance(target, int):
        if not -count <= target < count or count < 2:
            raise ValueError(f"{path} has {count} columns, so none can be the target at {target}.")
        return target % count
    if names.count(target) > 1:
        raise ValueError(f"{path} has {names.count(target)} columns {target!r}: count to the target's instead.")
    if target not in names:
        raise ValueError(f"{path} has no column {target!r}; it has {', '.join(names) or f'{count} without names'}.")
    return names.index(target)


def _csv(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Return a file's column names, if it has any, and its rows."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file.")
    if path.suffix != ".csv":
        raise ValueError(f"A table is a .csv or an .npz file, not {path.name}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel starts files with a byte-order mark
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: save it as UTF-8 ({error.reason} at byte {error.start})."
        ) from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a .csv file: {error}.") from None
    if not lines:
        raise ValueError(f"{path} is empty.")
    first = [cell.strip() for cell in lines[0][1]]
    names = tuple(first) if all(_number(cell) is None for cell in first) else ()
    width = len(first)
    if "" in names or (width > 2 and first == [str(i) for i in range(width)]):  # pandas writes such headers
        what = (
            f"a column without a name, number {names.index('')}" if names else "the columns' numbers in its first line"
        )
        raise ValueError(f"{path} has {what}: leave an index out, name every column, or leave out that line.")
    rows = []
    for number, line in lines[1:] if names else lines:
        if len(line) != width:
            hint = COMMAS if len(line) > width else ""
            raise ValueError(f"{path}, line {number}: {len(line)} cells where {width} were expected.{hint}")
        cells = zip(names or range(width), line, strict=True)
        rows.append([_finite(cell, f"{path}, line {number}: {cell!r} in column {str(name)!r}") for name, cell in cells])
    if not rows:
        raise ValueError(f"{path} has column names but no rows.")
    return names, np.array(rows, dtype=np.float64)


def _finite(cell: str, where: str) -> float:
    value = _number(cell)
    if value is None:
        raise ValueError(f"{where} is not a number.{COMMAS if set(cell) & set(',;') else ''}")
    if not math.isfinite(value):
        raise ValueError(f"{where} is a missing or infinite value.")
    return value


def _number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None  # Python reads 1_5 as 15
    except ValueError:
        return None


def _npz(path: Path, name: str, splits: int = 20, seed: int = 0) -> Table:
    file = Arrays(path)
    X, y = (as_numbers(file[key], f"{path}: {key}") for key in ("X", "y"))
    other = as_numbers(file["y_other"], f"{path}: y_other") if "y_other" in file else None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if "split_train" not in file and "split_test" not in file:
        return Table(name, X, y, random_splits(len(X), splits, seed=seed, name=str(path)), other)
    train, test = file["split_train"], file["split_test"]
    if (
        train.ndim != 2
        or test.ndim != 2
        or not len(train) == len(test) > 0
        or {train.dtype.kind, test.dtype.kind} - {*"iu"}
    ):
        got = f"{train.dtype} {train.shape} and {test.dtype} {test.shape}"
        raise ValueError(f"{path}: split_train and split_test hold whole numbers, a line per split, not {got}.")
    pairs = zip(train.astype(np.int64), test.astype(np.int64), strict=True)
    return Table(name, X, y, tuple((torch.from_numpy(a), torch.from_numpy(b)) for a, b in pairs), other)
