"""The data of `byov reproduce defaults`: small sets for a CPU, each with its shifts and network.

| set | network | shifted |
|---|---|---|
| digits | convnet16 | five image shifts at severity 3 |
| fashion-mnist: 2,000 images, 14×14 | convnet16 | the same |
| cifar10-small, cifar100-small: 5,000 images, 16×16 | convnet16, convnet32 | the same |
| flowers: 3,000 images, 96×96 | EfficientNet-Lite0, pretrained on ImageNet | the same |
| newsgroups: 2,000 texts, TF-IDF of 5,000 words | one hidden layer of 100 | half of the words removed |
| uci: five small tables | one hidden layer of 50 | noise of half a standard deviation of each feature |

The files in ROOT are fashion_mnist.npz, cifar10.npz, cifar100.npz (or torchvision's copies), flowers102.npz,
20newsgroups.npz and uci/; digits come with scikit-learn. The pretrained weights are those of timm, from
ROOT/tf_efficientnet_lite0.safetensors if it exists. A tenth of the training rows is held out for fitting a temperature
and for choosing the default. "Other" data are made in the same way for every set: each feature of an input comes from
another test input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import timm
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, normalize

from byov.data import ImageSet, load
from byov.data.arrays import Arrays
from byov.data.augmentations import augment
from byov.data.sources import data_root
from byov.data.tables import uci
from byov.models.registry import create

SHIFTS = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
SEVERITY = 3
TABLES = ("yacht", "boston", "energy", "concrete", "wine_red")
COUNTS = {"cifar10-small": (5000, 1000), "cifar100-small": (5000, 1000), "flowers": (3000, 500)}
USUAL_COUNTS = (2000, 1000)
"""The training and test sizes of the sets that are larger, the same for all methods; digits are used whole."""
SIDES = {"fashion-mnist": 14, "cifar10-small": 16, "cifar100-small": 16, "flowers": 96}
EFFICIENTNET = "tf_efficientnet_lite0"
WORDS = 5000
"""The size of the vocabulary."""
MISSING, NOISE, HELD = 0.5, 0.5, 0.1


Move = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """One set, split into training, held-out and test rows, and its network."""

    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    test_x: Tensor
    test_y: Tensor
    moves: tuple[Move, ...]
    network: Callable[[], nn.Module]
    regression: bool = False
    pretrained: bool = False

    def shifted(self, x: Tensor) -> list[Tensor]:
        """Return the inputs under each of the set's shifts."""
        return [move(x, Generator().manual_seed(0)) for move in self.moves]

    @property
    def other(self) -> Tensor:
        """Return test inputs with each feature shuffled between them: likely values in unlikely combinations."""
        flat = self.test_x.flatten(1)
        order = torch.rand(flat.shape, generator=Generator().manual_seed(0)).argsort(0)
        return flat.gather(0, order.to(flat.device)).view_as(self.test_x)


def names() -> list[str]:
    """Return the sets in the order of measurement, short ones first."""
    tables = (f"uci-{table}" for table in TABLES)
    return ["digits", *tables, "newsgroups", "fashion-mnist", "cifar10-small", "cifar100-small", "flowers"]


@dataclass(frozen=True)
class Place:
    """The source of a task: the name of a set, the split of a table, and the data folder."""

    name: str
    split: int
    root: str | Path | None

    def task(self) -> Task:
        """Load the task; the last one is cached."""
        return _task(self)


@lru_cache(maxsize=1)
def _task(place: Place) -> Task:
    if place.name.startswith("uci-"):
        return _table(place.name.removeprefix("uci-"), place.split, place.root)
    texts = place.name == "newsgroups"
    x, y, test_x, test_y = _texts(place.root) if texts else _images(place.name, place.root)
    moves: tuple[Move, ...] = (_without_words,) if texts else IMAGE_MOVES
    classes = int(max(y.max(), test_y.max())) + 1
    if place.name == "flowers":
        network = partial(EfficientNet, classes, data_root(place.root))
        network()  # raises without its weights, before any training
        return _cut(x, y, place.split, Task(x, y, x, y, test_x, test_y, moves, network, pretrained=True))
    return _cut(x, y, place.split, Task(x, y, x, y, test_x, test_y, moves, lambda: _network(x, classes)))


def _cut(x: Tensor, y: Tensor, split: int, task: Task) -> Task:
    """Split off held-out rows from the training rows."""
    order = torch.randperm(len(x), generator=Generator().manual_seed(split))
    count = round(HELD * len(x))
    held, own = order[:count], order[count:]
    return replace(task, x=x[own], y=y[own], held_x=x[held], held_y=y[held])


def _moved(shift: str, x: Tensor, generator: Generator) -> Tensor:
    return augment(x, shift, SEVERITY, generator)


IMAGE_MOVES: tuple[Move, ...] = tuple(partial(_moved, shift) for shift in SHIFTS)


def _without_words(x: Tensor, generator: Generator) -> Tensor:
    return normalize(x * (torch.rand(x.shape, generator=generator) >= MISSING))


def _noisy(x: Tensor, generator: Generator) -> Tensor:
    return x + NOISE * torch.randn(x.shape, generator=generator)


def _network(x: Tensor, outputs: int) -> nn.Module:
    if x.ndim == 4:
        return create("convnet16" if outputs <= 10 else "convnet32", outputs, x.shape[1])
    hidden = 100 if x.shape[1] >= WORDS else 50
    return nn.Sequential(
        nn.Linear(x.shape[1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def _images(name: str, root: str | Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts: list[Tensor] = []
    source = f"npz:{data_root(root) / 'flowers102.npz'}" if name == "flowers" else name.removesuffix("-small")
    for split, count in zip(("train", "test"), COUNTS.get(name, USUAL_COUNTS), strict=True):
        data = load(source, split, root)
        assert isinstance(data, ImageSet)
        assert data.labels is not None
        chosen = _some(len(data), len(data) if name == "digits" else count)
        images = data.images[chosen].float() / 255
        parts += [adaptive_avg_pool2d(images, SIDES[name]) if name in SIDES else images, data.labels[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


class EfficientNet(nn.Module):
    """EfficientNet-Lite0 with ImageNet's weights and a new output layer, for pixels in [0, 1]."""

    def __init__(self, classes: int, root: Path) -> None:
        super().__init__()
        file = root / f"{EFFICIENTNET}.safetensors"
        if file.is_file():
            source = {"file": str(file)}
            net = timm.create_model(EFFICIENTNET, pretrained=True, pretrained_cfg_overlay=source, num_classes=classes)
        else:
            net = create(f"timm:{EFFICIENTNET}", classes, pretrained=True)
        self.net = net.to(memory_format=torch.channels_last)  # faster on a CPU, too

    def forward(self, x: Tensor) -> Tensor:
        return self.net((2 * x - 1).contiguous(memory_format=torch.channels_last))


def _texts(root: str | Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read the sparse rows written by results/defaults/newsgroups.py."""
    path = data_root(root) / "20newsgroups.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing: run results/defaults/newsgroups.py to create it.")
    file, parts = Arrays(path), []
    for split, count in zip(("train", "test"), USUAL_COUNTS, strict=True):
        starts = torch.from_numpy(file[f"{split}_indptr"]).long()
        indices, values = (torch.from_numpy(file[f"{split}_{kind}"]) for kind in ("indices", "data"))
        rows = torch.zeros(len(starts) - 1, WORDS)
        rows[torch.arange(len(rows)).repeat_interleave(starts.diff()), indices.long()] = values
        chosen = _some(len(rows), count)
        parts += [rows[chosen], torch.from_numpy(file[f"{split}_labels"]).long()[chosen]]
    return parts[0], parts[1], parts[2], parts[3]


def _some(rows: int, count: int) -> Tensor:
    return torch.randperm(rows, generator=Generator().manual_seed(0))[:count]


def _table(name: str, split: int, root: str | Path | None) -> Task:
    fold = uci(name, root).fold(split)
    x, y, test_x, test_y = (part.float() for part in (fold.X_train, fold.y_train, fold.X_test, fold.y_test))
    whole = Task(x, y, x, y, test_x, test_y, (_noisy,), lambda: _network(x, 1), regression=True)
    return _cut(x, y, split, whole)
