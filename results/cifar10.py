"""BYOL and BYOV with a small ViT on CIFAR-10, three seeds each: pretrain, evaluate under shift, prune, print it all.

python results/cifar10.py        prints what lies in results/cifar10, and draws its pruning.png
python results/cifar10.py --make --root DIR     makes what is missing first: a minute a run on an H200, then evaluations
python results/cifar10.py --make --temper …     the same runs, each reading with a temperature, and not pruned
"""

from __future__ import annotations

import argparse
import json
from statistics import mean, stdev

from byov.pruning.figure import draw_curves
from digits import ROOT, SEEDS, byov, summarise

SETTINGS = ("train.epochs=55", "train.warmup=6")
READ = ("--shift", "augmentations", "--severities", "1,3,5", "--samples", "20", "--batch-size", "2500")
HALF = ("--precision", "bf16-mixed")
SPARSITIES = "0,0.3,0.5,0.6,0.7,0.8,0.9"


def make(name: str, seed: int, root: str, temper: bool) -> None:
    """Train a run, evaluate it and, of a posterior, prune it beside its deterministic twin; what is there is left."""
    run, out = f"runs/vit_{name}_{seed}", f"results/cifar10/{'tempered/' * temper}vit_{name}_{seed}"
    settings = [word for s in (*SETTINGS, f"train.seed={seed}", f"data.root={root}") for word in ("--set", s)]
    if not (ROOT / run / "checkpoint.safetensors").exists():
        byov("pretrain", f"recipes/cifar10_vit_{name}.toml", "--run", run, *settings)
    if not (ROOT / f"{out}.json").exists():
        byov("evaluate", run, "--root", root, *READ, *HALF, *["--temper"] * temper, "--out", f"{out}.json")
    if name == "byov" and not temper and not (ROOT / f"{out}.prune.json").exists():
        twin = ("--sweep", "--twin", f"runs/vit_byol_{seed}", "--sparsities", SPARSITIES)
        byov("prune", run, *twin, "--root", root, "--out", f"{out}.prune.json")


def show(label: str, values: list[float], unit: float = 1.0) -> None:
    error = stdev(values) / len(values) ** 0.5
    print(f"{label:44} {unit * mean(values):8.4f} ± {unit * error:.4f}   {[round(unit * v, 3) for v in values]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="make what is missing; wants a GPU")
    parser.add_argument("--root", default="data", help="the folder of cifar10.npz")
    parser.add_argument("--temper", action="store_true", help="readings with a temperature")
    options = parser.parse_args()
    folder = ROOT / "results" / "cifar10"
    if options.make:
        for seed in SEEDS:
            for name in ("byol", "byov"):
                make(name, seed, options.root, options.temper)
    read = folder / "tempered" if options.temper else folder
    for name in ("byol", "byov"):
        if not all((read / f"vit_{name}_{seed}.json").exists() for seed in SEEDS):
            print(f"{name}: not made yet, see --make")
            continue
        runs = [summarise(json.loads((read / f"vit_{name}_{seed}.json").read_text())) for seed in SEEDS]
        for key in runs[0]:
            show(f"{name} {key}", [run[key] for run in runs])
    if options.temper or not (folder / f"vit_byov_{SEEDS[-1]}.prune.json").exists():
        return
    pruned = [json.loads((folder / f"vit_byov_{seed}.prune.json").read_text()) for seed in SEEDS]
    sweeps = [content["curves"] for content in pruned]
    named = [{**c, "model": "BYOV" if "byov" in c["model"] else "BYOL"} for curves in sweeps for c in curves]
    draw_curves({**pruned[0], "curves": named}).savefig(folder / "pruning.png", dpi=150)
    for i, sparsity in enumerate(sweeps[0][0]["sparsity"]):
        snr, magnitude, twin = ([curves[c]["top1"][i] for curves in sweeps] for c in range(3))
        for label, values in (("snr", snr), ("magnitude", magnitude), ("BYOL by magnitude", twin)):
            show(f"top-1 % at {100 * sparsity:g} % zeros, {label}", values, 100)
        show(f"  snr − magnitude at {100 * sparsity:g} %", [a - b for a, b in zip(snr, magnitude, strict=True)], 100)


if __name__ == "__main__":
    main()
