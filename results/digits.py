"""BYOL and BYOV on digits, three seeds each: pretrain, evaluate under shift, print the numbers of results/README.md.

python results/digits.py            about ten minutes on one core; what is there already is not made again
python results/digits.py --temper   the same runs, each reading with a temperature
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (0, 1, 2)


def byov(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "byov", *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def make(name: str, seed: int, *more: str) -> dict[str, float]:
    """The numbers of one run, made where they are missing."""
    run, out = f"runs/digits/{name}_{seed}", f"results/digits/{'tempered/' * bool(more)}{name}_seed{seed}.json"
    if not (ROOT / out).exists():
        if not (ROOT / run).exists():
            byov("pretrain", f"recipes/digits_{name}.toml", "--run", run, "--set", f"train.seed={seed}")
        byov("evaluate", run, "--shift", "augmentations", "--samples", "30", "--device", "cpu", "--out", out, *more)
    return summarise(json.loads((ROOT / out).read_text()))


def summarise(result: dict) -> dict[str, float]:
    """Clean scores, and the mean over all shifts and severities, at μ and under draws."""
    numbers: dict[str, float] = {}
    for reading in ("at_mean", "under_draws"):
        rows = [row for row in result["rows"] if row.get(reading)]
        clean = [row[reading] for row in rows if row["shift"] is None or row["shift"] == "clean"]
        moved = [row[reading] for row in rows if not (row["shift"] is None or row["shift"] == "clean")]
        if clean:
            for key in ("top1", "ece", "nll", "reliability"):
                numbers[f"{reading} {key}"] = clean[0][key]
                numbers[f"{reading} shifted {key}"] = mean(row[key] for row in moved)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temper", action="store_true", help="each reading with a temperature")
    more = ["--temper"] * parser.parse_args().temper
    table = {name: [make(name, seed, *more) for seed in SEEDS] for name in ("byol", "byov")}
    for name, runs in table.items():
        for key in runs[0]:
            values = [run[key] for run in runs]
            print(f"{name:5} {key:34} {mean(values):8.4f} ± {stdev(values) / len(values) ** 0.5:.4f}")


if __name__ == "__main__":
    main()
