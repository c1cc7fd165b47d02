"""BYOL and BYOV with ResNet-18 on CIFAR-10: settings chosen on held-out images, 200 epochs, probes, all shifts.

python results/cifar10_resnet.py trial --root DIR      short runs on 45,000 images, read on the 5,000 held out
python results/cifar10_resnet.py train --root DIR --minutes 9 [--only byol]     call it again to go on; what is finished
                                                       is read at once: kNN and linear probes, then all shifts
python results/cifar10_resnet.py                       prints what lies in results/cifar10

Every step leaves out what is there already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from cifar10 import HALF, READ
from digits import ROOT, byov, summarise

from byov.train import checkpoint

TRIALS: dict[str, tuple[str, ...]] = {
    "byol": (),
    "14": ("posterior.log_var=-14",),
    "13": ("posterior.log_var=-13",),
    "12": ("posterior.log_var=-12",),
}
ANCHOR = ("train.lr=0.015", "train.weight_decay=2e-3", "train.decay=all", "train.log_var_lr=0.1")
"""The public anchor has a quarter of BYOL's loss: its rate and decay in BYOL's units, of all parameters as torch's SGD
has it; ρ still moves by 0.003 a step."""
SHORT = ("data.holdout=0.1", "train.epochs=20", "train.warmup=2")
"""The same recipe, a tenth as long."""
OUT = ROOT / "results" / "cifar10"


def trial(name: str, root: str) -> None:
    """Train a short run and probe it on the images held out."""
    out = OUT / f"resnet_trial_{name}.probe.json"
    if not out.exists():
        recipe = "byol" if name == "byol" else "byov"
        run = f"runs/resnet_trial_{name}"
        train(recipe, run, [*ANCHOR, *SHORT, *TRIALS[name], f"data.root={root}"])
        samples = () if name == "byol" else ("--samples", "20")
        byov("probe", run, "--root", root, "--split", "holdout", *samples, "--out", str(out))


def train(recipe: str, run: str, settings: list[str]) -> None:
    """Begin a run, or go on with it."""
    file, words = ROOT / run / "checkpoint.safetensors", [word for s in settings for word in ("--set", s)]
    byov("pretrain", f"recipes/cifar10_resnet_{recipe}.toml", "--run", run, *(["--resume"] * file.exists()), *words)


def train_and_read(name: str, root: str, settings: list[str]) -> None:
    """A run as far as its time goes; read in the same call when it is finished, for a lent machine may go away."""
    train(name, f"runs/resnet_{name}", settings)
    state = checkpoint.peek(ROOT / f"runs/resnet_{name}" / "checkpoint.safetensors")
    if state["step"] == state["total"]:
        read(name, root)


def read(name: str, root: str) -> None:
    """Both probes of a finished run on the test images; then its linear probe under every shift."""
    run, out = f"runs/resnet_{name}", OUT / f"resnet_{name}"
    if not out.with_suffix(".probe.json").exists():
        byov("probe", run, "--root", root, "--samples", "20", "--out", str(out.with_suffix(".probe.json")))
    if not finished(out.with_suffix(".json")):  # one that was interrupted goes on where it stopped
        byov("evaluate", run, "--root", root, *READ, *HALF, "--out", str(out.with_suffix(".json")))
    tempered = OUT / f"resnet_{name}_tempered.probe.json"
    if not tempered.exists():
        byov("probe", run, "--root", root, "--samples", "20", "--temper", "--out", str(tempered))


def finished(path: Path) -> bool:
    """Whether an evaluation has all of its rows."""
    return path.exists() and json.loads(path.read_text())["finished"]


def show() -> None:
    """What there is, in per cent."""
    for path in sorted(OUT.glob("resnet_*.probe.json")):
        scores = json.loads(path.read_text())["scores"]
        keys = [key for key in scores if key.endswith(("top1", "ece"))]
        print(f"{path.name:32}", "  ".join(f"{key} {100 * scores[key]:.2f}" for key in keys))
    for name in ("byol", "byov"):
        if finished(path := OUT / f"resnet_{name}.json"):
            numbers = summarise(json.loads(path.read_text()))
            print(f"{path.name:32}", "  ".join(f"{key} {value:.4f}" for key, value in numbers.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("trial", "train"))
    parser.add_argument("--root", default="data", help="the folder of cifar10.npz")
    parser.add_argument("--only", default="", help="some of them, by commas")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--set", action="append", default=[], help="of BYOV's recipe, such as posterior.log_var=-13")
    words = parser.parse_args()
    chosen = words.only.split(",") if words.only else [*TRIALS] if words.what == "trial" else ["byol", "byov"]
    limit = [] if words.minutes is None else [f"train.minutes={words.minutes}"]
    jobs = []
    for name in chosen:
        if words.what == "train":
            own = words.set if name == "byov" else []
            jobs.append(partial(train_and_read, name, words.root, [*ANCHOR, f"data.root={words.root}", *limit, *own]))
        elif words.what == "trial":
            jobs.append(partial(trial, name, words.root))
    with ThreadPoolExecutor(len(jobs) or 1) as pool:  # a GPU has room for several such runs
        for done in [pool.submit(job) for job in jobs]:
            try:
                done.result()
            except subprocess.CalledProcessError as error:
                print(f"failed: {' '.join(map(str, error.cmd[3:]))}")
    show()


if __name__ == "__main__":
    main()
