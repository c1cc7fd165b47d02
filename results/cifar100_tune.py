"""How far apart patches should start: one seed each, read on the held-out images.

python results/cifar100_tune.py --root DATA --minutes 9 --spreads 0.1,0.2
python results/cifar100_tune.py --root DATA --methods ecmp --recipe recipes/cifar100_resnet18.toml --spreads 0.1,0.2
python results/cifar100_tune.py --root DATA --methods ecmp --spreads 0.1 --set train.epochs=100 --set posterior.apart=1

Test images are not looked at. Call again to go on; what is finished is only read. The choice goes into `_PATCHES` of
src/byov/reproduce/patching_runs.py and into recipes/cifar100_paper.toml.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic

from byov.data import ImageSet
from byov.device import choose_device
from byov.reproduce.patching_reading import _standard, running_means, scores
from byov.reproduce.patching_runs import METHODS, recipe
from byov.train import checkpoint
from byov.train.config import load_config
from byov.train.supervised import Supervised, restore, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar100_tune"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--methods", default="vanilla,ecmp")
    parser.add_argument("--spreads", default="0.1,0.2,0.4")
    parser.add_argument("--recipe", type=Path, help="another one than the tables'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--scale", default="full", choices=("quick", "full"))
    parser.add_argument("--device", default="auto")
    words = parser.parse_args()
    device, deadline = choose_device(words.device), monotonic() + 60 * words.minutes
    for method in words.methods.split(","):
        for spread in words.spreads.split(",") if "mp" in method else ["0.0"]:
            left = (deadline - monotonic()) / 60
            if left < 0.2:
                return
            changes = [f"posterior.spread={spread}", f"train.minutes={left}"]
            changes += [f"train.accelerator={device.type}", "train.devices=1", *words.set]
            changes += [] if words.root is None else [f"data.root={words.root}"]
            if words.recipe is None:
                wanted = recipe(method, words.scale, 0, *changes)
            else:
                alone = [] if "mp" in method else ["posterior.apart=none", "posterior.gain=1"]
                wanted = load_config(Supervised, words.recipe, [*METHODS[method].changes, *alone, *changes])
            named = [] if words.recipe is None else [words.recipe.stem]
            named += [method, f"spread{spread}"]
            named += [change.partition("=")[0].rpartition(".")[2] + change.partition("=")[2] for change in words.set]
            run = words.out / "_".join(named)
            state = checkpoint.peek(run / "checkpoint.safetensors") if run.exists() else None
            done = state is not None and state["step"] == state["total"]
            if not done and not start(wanted, run, resume=state is not None):
                return
            module, _ = restore(run, device)
            held = wanted.data.load("holdout")
            assert isinstance(held, ImageSet)
            assert held.labels is not None
            means = running_means(module.net, _standard(held.images, module, device), words.draws, ())
            found = scores(means[max(means)], held.labels.to(device))
            shown = "  ".join(f"{key} {100 * found[key]:.2f}" for key in ("top1", "ece", "mce"))
            print(f"{run.name:40} {shown}  nll {found['nll']:.3f}", flush=True)


if __name__ == "__main__":
    main()
