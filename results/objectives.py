"""Seven objectives on digits, with and without a posterior: the readings, table and figure of results/objectives.

python results/objectives.py                  all runs, half a minute of one core each; what is there is not made again
python results/objectives.py --minutes 35     stop in time; the same command continues
python results/objectives.py --show           only the table and the figure
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from itertools import product
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import Any

from byov.cli import main as byov
from byov.runs import read_header
from byov.ssl.registry import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent
FOLDER, RUNS = ROOT / "results" / "objectives", ROOT / "runs" / "objectives"
FAMILIES, SEEDS = ("none", "gaussian"), (0, 1, 2)
SCORES = ("top1", "ece", "nll", "brier")


def call(*words: str) -> str:
    """Run a command of byov in this process, which has torch already; return what it prints."""
    said = io.StringIO()
    sys.argv = ["byov", *words]
    with contextlib.redirect_stdout(said):
        try:
            byov()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"byov {' '.join(words)} ended with {end.code}: {said.getvalue()}") from None
    return said.getvalue()


def make(name: str, family: str, seed: int) -> None:
    """Pretrain one run and read it, unless its reading is there."""
    out, run = FOLDER / f"{name}_{family}_seed{seed}.json", RUNS / f"{name}_{family}_{seed}"
    if out.exists():
        return
    begun = (run / "checkpoint.safetensors").exists()
    sets = ["--set", f"posterior.family={family}", "--set", f"train.seed={seed}"]
    recipe = str(ROOT / "recipes" / f"digits_{'byov' if name == 'byol' else name}.toml")
    said = call("pretrain", recipe, "--run", str(run), *["--resume"] * begun, *sets)
    knn = re.search(r"kNN at μ ([\d.]+) %", said)
    assert knn is not None, said
    assert read_header(run).finished
    full = run / "evaluation.json"
    full.unlink(missing_ok=True)
    device = ["--samples", "30", "--device", "cpu"]
    call("evaluate", str(run), "--shift", "augmentations", "--severities", "3", *device, "--out", str(full))
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    found = summary(json.loads(full.read_text())) | {"knn": float(knn[1]), "training": last}
    out.write_text(json.dumps({"recipe": Path(recipe).stem, "family": family, "seed": seed, **found}, indent=1) + "\n")


def summary(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the scores on clean images and their mean over the shifts, at μ and under draws, and R-AUROC."""
    found: dict[str, Any] = {"protocol": evaluation["protocol"], "representation": evaluation["representation"]}
    for reading, shifted in product(("at_mean", "under_draws"), (False, True)):
        rows = [r[reading] for r in evaluation["rows"] if r.get(reading) and (r["shift"] != "clean") == shifted]
        if rows:
            found[f"{reading}{'_shifted' * shifted}"] = {s: mean(row[s] for row in rows) for s in SCORES}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--show", action="store_true")
    words = parser.parse_args()
    deadline = monotonic() + 60 * words.minutes
    for seed, name, family in product(SEEDS, OBJECTIVES, FAMILIES):
        if not words.show and monotonic() < deadline:
            make(name, family, seed)
            print(f"{name} {family} {seed}: {monotonic() - deadline + 60 * words.minutes:.0f} s", flush=True)


if __name__ == "__main__":
    main()
