"""How far apart patches should start, and how fast they should learn: one seed each, read on the held-out images.

python results/cifar100_tune.py --root DATA --minutes 9 --spreads 0.1,0.15,0.2
python results/cifar100_tune.py --root DATA --methods ecmp --spreads 0.1 --set train.epochs=100 --set posterior.apart=1

Test images are not looked at. Call again to go on; what is finished is only read. The choice goes into `_PATCHES` and
`COMMON` of src/byov/reproduce/patching_runs.py and into recipes/cifar100_resnet18.toml.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from time import monotonic

from byov.data import ImageSet
from byov.device import choose_device
from byov.reproduce.patching_reading import _standard, running_means, scores
from byov.reproduce.patching_runs import recipe
from byov.train import checkpoint
from byov.train.supervised import restore, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar100_tune"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--methods", default="vanilla,ecmp")
    parser.add_argument("--spreads", default="0.1,0.15,0.2")
    parser.add_argument("--gains", default="5.0")
    parser.add_argument("--stds", default="0.14")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--scale", default="full", choices=("quick", "full"))
    parser.add_argument("--device", default="auto")
    words = parser.parse_args()
    device, deadline = choose_device(words.device), monotonic() + 60 * words.minutes
    for std in words.stds.split(","):
        for method in words.methods.split(","):
            patched = "mp" in method
            pairs = product(words.spreads.split(","), words.gains.split(",")) if patched else [("0.0", "1.0")]
            for spread, gain in pairs:
                left = (deadline - monotonic()) / 60
                if left < 0.2:
                    return
                changes = [f"posterior.prior_std={std}", f"posterior.spread={spread}", f"train.minutes={left}"]
                changes += [f"posterior.gain={gain}", f"train.accelerator={device.type}", "train.devices=1"]
                changes += [] if words.root is None else [f"data.root={words.root}"]
                wanted = recipe(method, words.scale, 0, *changes, *words.set)
                named = [f"{method}_spread{spread}_gain{gain}_std{std}"]
                named += [change.rpartition(".")[2].replace("=", "") for change in words.set]
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
