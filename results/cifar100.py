"""The tables of the patching paper on CIFAR-100 from the readings at hand, or of some methods and seeds more.

byov reproduce 'patching/*' --scale full --data-root DATA --out OUT --minutes 9     all; call it again to go on
python results/cifar100.py --root DATA --minutes 9 --methods vanilla,ecmp --seeds 0         some, into the same folder
python results/cifar100.py --tables --out results/cifar100         tables and figures of the methods that are read

A reading (OUT/patching/runs/full/parts, a few kilobytes) outlives its run: the checkpoint may be removed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from time import monotonic

from byov.device import choose_device
from byov.reproduce.experiment import Context, OutOfTime, discover, run
from byov.reproduce.patching_runs import METHODS, reading, seeds

NAMES = [f"table{n}" for n in (4, 5, 6, 7, 8, 9, 10, 11)] + [f"figure{n}" for n in (4, 5, 6, 7)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("reproduced"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="wants an --out of its own")
    parser.add_argument("--tables", action="store_true")
    words = parser.parse_args()
    folder, deadline = words.out / "patching", monotonic() + 60 * words.minutes
    context = Context(folder / "table4", "full", 0, str(choose_device("auto")), words.root, changes=tuple(words.set))
    if words.tables:
        for name in NAMES:
            try:
                run(discover()[f"patching/{name}"], replace(context, out=folder / name, partial=True))
            except ValueError as error:
                print(f"{name} is left out: {error}")
        return
    context = context if words.minutes == float("inf") else replace(context, deadline=deadline)
    for seed in [int(s) for s in words.seeds.split(",") if s] or seeds(context):
        for method in words.methods.split(","):
            try:
                scores = list(reading(context, method, seed)["by_draws"].values())[-1]
            except OutOfTime:
                print("The time is up: call again to go on.")
                return
            shown = "  ".join(f"{key} {100 * scores[key]:.2f}" for key in ("top1", "top5", "ece", "mce"))
            print(f"{METHODS[method].label:26} seed {seed}  {shown}  nll {scores['nll']:.3f}", flush=True)


if __name__ == "__main__":
    main()
