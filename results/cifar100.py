"""Every method of the patching paper on CIFAR-100, three seeds each: train in pieces, read once, print the tables.

python results/cifar100.py --root DATA --minutes 9            as far as nine minutes go; call it again to go on
python results/cifar100.py --root DATA --minutes 9 --methods vanilla,ecmp --seeds 0
python results/cifar100.py --root DATA --status               what is done
python results/cifar100.py --tables --out results/cifar100    tables and figures of the methods that are read

Runs and readings lie under --out, where `byov reproduce 'patching/*' --scale full --out OUT` finds them: when all
are done, that command only writes the tables and figures. A reading (OUT/patching/runs/full/parts, a few kilobytes)
outlives its run: the checkpoint may be removed, or left on another machine. Order: for each seed all methods, the
paper's first.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from time import monotonic

from byov.reproduce.results import run as execute

from byov.device import choose_device
from byov.reproduce.experiment import Context, discover
from byov.reproduce.patching_runs import COMMON, EPOCHS, FEWER, METHODS, folder, is_read, reading, seeds, trained
from byov.train import checkpoint

READING = 2.0
"""Minutes that must be left before a network is read: reading is kept whole or not at all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="")
    parser.add_argument("--network", default="", help="another one than ResNet-18, such as pyramidnet110_a84")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's; both want an --out of their own")
    parser.add_argument("--scale", default="full", choices=("quick", "full"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--status", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--train-only", action="store_true")
    words = parser.parse_args()
    if words.network:
        others = [change for change in COMMON[words.scale] if not change.startswith("model.name=")]
        COMMON[words.scale] = (*others, f"model.name={words.network}")
    EPOCHS[words.scale] = words.epochs or EPOCHS[words.scale]
    device = str(choose_device(words.device))
    context = Context(words.out / "patching" / "table4", words.scale, device=device, root=words.root)
    chosen = [int(s) for s in words.seeds.split(",") if s] or list(seeds(context))
    paper = [m for m in words.methods.split(",") if not METHODS[m].beyond]
    beyond = [m for m in words.methods.split(",") if METHODS[m].beyond]
    jobs = [(m, s) for methods in (paper, beyond) for s in chosen for m in methods]
    if words.status:
        for method, seed in jobs:
            print(f"{method:12} seed {seed}: {status(context, method, seed)}")
        return
    if words.tables:
        tables(words.out, context)
        return
    deadline = monotonic() + 60 * words.minutes
    for method, seed in jobs:
        left = (deadline - monotonic()) / 60
        if left < 0.2:
            break
        if not is_read(context, method, seed):
            run = trained(context, method, seed, None if left == float("inf") else left)
            if run is None or words.train_only or (deadline - monotonic()) / 60 < READING:
                continue
        scores = list(reading(context, method, seed)["by_draws"].values())[-1]
        shown = "  ".join(f"{key} {100 * scores[key]:.2f}" for key in ("top1", "top5", "ece", "mce"))
        print(f"{METHODS[method].label:26} seed {seed}  {shown}  nll {scores['nll']:.3f}", flush=True)
    done = sum(status(context, *job).startswith("read") for job in jobs)
    print(f"{done} of {len(jobs)} are trained and read" + ("" if done == len(jobs) else "; call again to go on"))


def tables(out: Path, context: Context) -> None:
    """Write the tables and figures of what is read: of some methods the first seeds only, and others not at all."""
    base = _read(context, "vanilla")
    for name, method in list(METHODS.items()):
        read = min(base, _read(context, name))  # corruption errors are by seed, against the vanilla network of the same
        if read == 0:
            print(f"{METHODS.pop(name).label} is left out: it is not read.")
        elif read < len(seeds(context)):
            FEWER[name] = read
            METHODS[name] = replace(method, label=f"{method.label} [{read} seed{'s' * (read > 1)}]")
    by_draws = {"table9": "emp", "table10": "ecmp", "table11": "dropout"}
    names = ["table4", "table5", "table6", "table7", "table8", "figure4", "figure5", "figure7"]
    names += [name for name, method in by_draws.items() if method in METHODS]
    names += ["figure6"] if set(by_draws.values()) <= set(METHODS) else []
    for name in names:
        execute(discover()[f"patching/{name}"], replace(context, out=out / "patching" / name))
        print(f"written: {out / 'patching' / name}")


def _read(context: Context, method: str) -> int:
    """How many of its first seeds are read."""
    return len(list(takewhile(lambda seed: is_read(context, method, seed), seeds(context))))


def status(context: Context, method: str, seed: int) -> str:
    """How far one run is."""
    if is_read(context, method, seed):
        return "read"
    file = folder(context) / f"{method}_seed{seed}" / "checkpoint.safetensors"
    if not file.exists():
        return "not begun"
    state = checkpoint.peek(file)
    return f"step {state['step']} of {state['total']}"


if __name__ == "__main__":
    main()
