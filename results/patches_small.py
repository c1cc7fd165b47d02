"""What the patches' settings do to a small ResNet on 25 classes of CIFAR-100, on a CPU: the table in results/README.md.

python results/patches_small.py --root DATA family=none
python results/patches_small.py --root DATA family=ecmp,on=norm+output,start=copy,spread=0.1,gain=5,apart=0.2
python results/patches_small.py --root DATA --set train.optimizer=adam --set train.lr=1e-3 family=none,penalty=l2
python results/patches_small.py --root DATA --network pyramidnet20_a48 family=none

Each word holds the settings of `posterior` of one run (six minutes on one core). 10,000 images of CIFAR-100's training
set are trained on, 2,500 others of it are read, under 20 draws; its test set is not looked at.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from byov.data import ImageSet, load
from byov.reproduce.patching_reading import _standard, running_means, scores
from byov.train.config import load_config
from byov.train.supervised import Supervised, restore, start

CLASSES, WIDTH = 25, 24


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Identity() if before == after else short

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.short(x))


def network(classes: int) -> nn.Module:
    stem = nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
    blocks = Block(WIDTH, WIDTH, 1), Block(WIDTH, 2 * WIDTH, 2), Block(2 * WIDTH, 4 * WIDTH, 2)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * WIDTH, classes))


def images(root: str | None, out: Path, trained: int) -> str:
    """The 12,500 images, or fewer to train on, as a data set of their own."""
    file = out / f"cifar100_25_{trained}.npz"
    if not file.exists():
        data = load("cifar100", "train", root)
        assert isinstance(data, ImageSet)
        assert data.labels is not None
        x, y = data.images.numpy().transpose(0, 2, 3, 1), data.labels.numpy()
        x, y = x[y < CLASSES], y[y < CLASSES]
        order = np.random.default_rng(0).permutation(len(y))
        parts = {"train": order[:trained], "test": order[10_000:]}
        arrays = {f"{name}_images": x[rows] for name, rows in parts.items()}
        out.mkdir(parents=True, exist_ok=True)
        np.savez(file, **arrays, **{f"{name}_labels": y[rows] for name, rows in parts.items()})
    return f"npz:{file}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="+", help="key=value,key=value,… of [posterior]")
    parser.add_argument("--root", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/patches_small"))
    parser.add_argument("--epochs", type=int, default=36)
    parser.add_argument("--network", default="python:patches_small:network", help="by name; the small ResNet")
    parser.add_argument("--trained", type=int, default=10_000, help="images to train on, of 10,000")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    words = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    name, device = images(words.root, words.out, words.trained), torch.device("cpu")
    common = [f"model.name={words.network}", "augment=crop-flip", f"data.name={name}"]
    common += [
        "posterior.points=true",
        "posterior.beta_schedule=constant",
        "posterior.beta_end=1",
        "posterior.prior_std=0.35",
    ]
    common += ["train.batch=128", "train.optimizer=sgd", "train.lr=0.1", "train.lr_batch=none", "train.warmup=2"]
    common += ["train.accelerator=cpu", "train.devices=1", f"train.epochs={words.epochs}"]
    for settings in words.settings:
        named = [settings.replace(",", "_"), f"epochs{words.epochs}", f"of{words.trained}"]
        named += [] if words.network == parser.get_default("network") else [words.network]
        named += [change.partition("=")[0].rpartition(".")[2] + change.partition("=")[2] for change in words.set]
        run = words.out / "_".join(named)
        own = [f"posterior.{setting}" for setting in settings.split(",")]
        if not run.exists():
            start(load_config(Supervised, None, [*common, *words.set, *own]), run, False)
        module, _ = restore(run, device)
        held = load(name, "test")
        assert isinstance(held, ImageSet)
        assert held.labels is not None
        means = running_means(module.net, _standard(held.images, module, device), 20, ())
        found = scores(means[max(means)], held.labels)
        print(
            f"{settings:70} top1 {100 * found['top1']:.2f}  ece {100 * found['ece']:.2f}  nll {found['nll']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
