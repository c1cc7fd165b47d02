"""BYOL and BYOV on digits, three seeds each: pretrain, evaluate under shift, print the numbers of results/README.md.

python results/digits.py            about ten minutes on one core; what is there already is not made again
python results/digits.py --temper   the same runs, each reading with a temperature
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import mean

from byov.reproduce.experiment import standard_error
from byov.runs import read_header

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)


def byov(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "byov", *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def make(recipe: str, run: str, out: str, settings: list[str], read: list[str]) -> None:
    """Pretrain a run, or resume it; evaluate it when it is finished, unless its results are there."""
    if (ROOT / out).exists():
        return
    begun = (ROOT / run / "checkpoint.safetensors").exists()
    if not begun or not read_header(ROOT / run).finished:
        words = [word for setting in settings for word in ("--set", setting)]
        byov("pretrain", f"recipes/{recipe}.toml", "--run", run, *["--resume"] * begun, *words)
    if read_header(ROOT / run).finished:
        byov("evaluate", run, "--shift", "augmentations", *read, "--out", out)


def show(label: str, paths: list[str]) -> None:
    """Print clean scores, and their mean over all shifts and severities, at μ and under draws; mean over files."""
    files = [json.loads((ROOT / path).read_text())["rows"] for path in paths if (ROOT / path).exists()]
    for reading, key, shifted in product(("at_mean", "under_draws"), ("top1", "ece", "nll", "reliability"), (0, 1)):
        chosen = [[r[reading] for r in rows if r.get(reading) and (r["shift"] != "clean") == shifted] for rows in files]
        if values := [mean(scores[key] for scores in each) for each in chosen if each]:
            name = f"{label} {reading} {'shifted ' * shifted}{key}"
            error = standard_error(values)
            print(f"{name:44} {mean(values):8.4f} {'one run' if error is None else f'± {error:.4f}'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temper", action="store_true", help="each reading with a temperature")
    temper = parser.parse_args().temper
    folder, read = f"results/digits/{'tempered/' * temper}", ["--samples", "30", "--device", "cpu"]
    for name in ("byol", "byov"):
        for seed in SEEDS:
            run, out = f"runs/digits/{name}_{seed}", f"{folder}{name}_seed{seed}.json"
            make(f"digits_{name}", run, out, [f"train.seed={seed}"], [*read, *["--temper"] * temper])
        show(name, [f"{folder}{name}_seed{seed}.json" for seed in SEEDS])


if __name__ == "__main__":
    main()
