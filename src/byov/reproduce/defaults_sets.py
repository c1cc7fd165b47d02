"""The data of `byov reproduce defaults`: small sets a CPU can do, each with its shifts and its network.

| set | network | shifted | where |
|---|---|---|---|
| digits | convnet16 | five image shifts at severity 3 | scikit-learn |
| fashion-mnist, 4,000 of its images | convnet16 | the same | ROOT/fashion_mnist.npz, or torchvision's copy |
| newsgroups, TF-IDF of 5,000 words | one hidden layer of 100 | half of the words are missing | ROOT/20newsgroups.npz |
| uci: five small tables | one hidden layer of 50 | noise, half a deviation of each feature | ROOT/uci |

A tenth of the training rows is held out, and only a temperature is fitted on it. What other data look like is the same
for every set: each feature of an input is that of another test input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize

from byov.data import load
from byov.data.arrays import Arrays
from byov.data.augmentations import augment
from byov.data.sources import data_root
from byov.data.tables import uci
from byov.models.registry import create

SHIFTS = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
SEVERITY = 3
TABLES = ("yacht", "boston", "energy", "concrete", "wine_red")
FASHION = (4000, 1000)
"""How many of Fashion-MNIST's images are trained on, and read: drawn once, the same for all methods and seeds."""
WORDS, TEXTS = 5000, 2000
"""How many words a text is told by, and how many test texts are read."""
MISSING, NOISE, HELD = 0.5, 0.5, 0.1


@dataclass(frozen=True, eq=False)
class Task:
    """One set, cut into what is trained on, held out and tested, and the network that learns it."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    test_x: Tensor
    test_y: Tensor
    shifted: tuple[Tensor, ...]
    network: Callable[[], nn.Module]
    regression: bool = False

    @property
    def other(self) -> Tensor:
        """Return inputs whose every feature is that of another test input: each is likely, all together are not."""
        flat = self.test_x.flatten(1)
        order = torch.rand(flat.shape, generator=Generator().manual_seed(0)).argsort(0)
        return flat.gather(0, order).view_as(self.test_x)


def names() -> list[str]:
    """Return the sets in the order in which they are measured, the short ones first."""
    return ["digits", *(f"uci-{table}" for table in TABLES), "newsgroups", "fashion-mnist"]


@lru_cache(maxsize=1)
def task(name: str, split: int, root: str | None) -> Task:
    """Load a set; of a table a split, of the others a split of the training rows into trained on and held out."""
    if name.startswith("uci-"):
        return _table(name.removeprefix("uci-"), split, root)
    x, y, test_x, test_y = _texts(root) if name == "newsgroups" else _images(name, root)
    if name == "newsgroups":
        keep = torch.rand(test_x.shape, generator=Generator().manual_seed(0)) >= MISSING
        moved: tuple[Tensor, ...] = (normalize(test_x * keep),)
    else:
        moved = tuple(augment(test_x, shift, SEVERITY, Generator().manual_seed(0)) for shift in SHIFTS)
    classes = int(max(y.max(), test_y.max())) + 1
    return _cut(x, y, split, test_x, test_y, moved, lambda: _network(x, classes))


def _cut(
    x: Tensor,
    y: Tensor,
    split: int,
    test_x: Tensor,
    test_y: Tensor,
    moved: tuple[Tensor, ...],
    network: Callable[[], nn.Module],
    regression: bool = False,
) -> Task:
    order = torch.randperm(len(x), generator=Generator().manual_seed(split))
    held, own = order.tensor_split([round(HELD * len(x))])
    return Task(x[own], y[own], x[held], y[held], test_x, test_y, moved, network, regression)


def _network(x: Tensor, outputs: int) -> nn.Module:
    if x.ndim == 4:
        return create("convnet16", outputs, x.shape[1])
    hidden = 100 if x.shape[1] >= WORDS else 50
    return nn.Sequential(
        nn.Linear(x.shape[1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def _images(name: str, root: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts: list[Tensor] = []
    for split, count in zip(("train", "test"), FASHION, strict=True):
        data = load(name, split, root)
        chosen = torch.randperm(len(data), generator=Generator().manual_seed(0))
        chosen = chosen if name == "digits" else chosen[:count]
        parts += [data.images[chosen].float() / 255, data.labels[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


def _texts(root: str | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the sparse rows that results/defaults/newsgroups.py makes."""
    path = data_root(root) / "20newsgroups.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing: results/defaults/newsgroups.py makes it.")
    file, parts = Arrays(path), []
    for split in ("train", "test"):
        starts = torch.from_numpy(file[f"{split}_indptr"]).long()
        indices, values = (torch.from_numpy(file[f"{split}_{kind}"]) for kind in ("indices", "data"))
        rows = torch.sparse_csr_tensor(starts, indices.long(), values, (len(starts) - 1, WORDS)).to_dense()
        parts += [rows, torch.from_numpy(file[f"{split}_labels"]).long()]
    chosen = torch.randperm(len(parts[2]), generator=Generator().manual_seed(0))[:TEXTS]
    return parts[0], parts[1], parts[2][chosen], parts[3][chosen]


def _table(name: str, split: int, root: str | None) -> Task:
    fold = uci(name, root).fold(split)
    x, y, test_x, test_y = (part.float() for part in (fold.X_train, fold.y_train, fold.X_test, fold.y_test))
    noise = torch.randn(test_x.shape, generator=Generator().manual_seed(0))
    return _cut(
        x, y, split, test_x, test_y, (test_x + NOISE * noise,), lambda: _network(x, 1), regression=True
    )
