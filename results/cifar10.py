"""BYOL and BYOV with a small ViT on CIFAR-10, three seeds each: pretrain, evaluate under shift, prune, print it all.

python results/cifar10.py        prints what lies in results/cifar10
python results/cifar10.py --make --root DIR     makes what is missing first: a minute a run on an H200, then evaluations
python results/cifar10.py --make --temper …     the same runs, each reading with a temperature, and not pruned
"""

from __future__ import annotations

import argparse

from digits import ROOT, SEEDS, byov, make, show

READ = ["--severities", "1,3,5", "--samples", "20", "--batch-size", "2500", "--precision", "bf16-mixed"]
SPARSITIES = "0,0.3,0.5,0.6,0.7,0.8,0.9"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="make what is missing; wants a GPU")
    parser.add_argument("--root", default="data", help="the folder of cifar10.npz")
    parser.add_argument("--temper", action="store_true", help="readings with a temperature")
    options = parser.parse_args()
    folder = f"results/cifar10/{'tempered/' * options.temper}"
    read = ["--root", options.root, *READ, *["--temper"] * options.temper]
    for name in ("byol", "byov"):
        for seed in SEEDS if options.make else ():
            run, out = f"runs/vit_{name}_{seed}", f"{folder}vit_{name}_{seed}"
            settings = ["train.epochs=55", "train.warmup=6", f"train.seed={seed}", f"data.root={options.root}"]
            make(f"cifar10_vit_{name}", run, f"{out}.json", settings, read)
            if name == "byov" and not options.temper and not (ROOT / f"{out}.prune.json").exists():
                twin = ("--sweep", "--twin", f"runs/vit_byol_{seed}", "--sparsities", SPARSITIES)
                byov("prune", run, *twin, "--root", options.root, "--out", f"{out}.prune.json")
        show(name, [f"{folder}vit_{name}_{seed}.json" for seed in SEEDS])


if __name__ == "__main__":
    main()
