"""Which of the settings read by settings.toml goes on to other data: python results/plans/choose.py OUT PLAN.toml

The rule was written before the readings: of the posteriors whose top-1 at μ on the held-out images is at most one point
below BYOL's, the one whose top-1 is highest after SNR pruning of 70 % of each layer; if none is, the most accurate one.
Prints the name, and writes a copy of setting.toml to PLAN.toml whose `byov` has that setting.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

SPARSITY, MARGIN = 0.7, 0.01


def top1(out: Path, name: str) -> float:
    return json.loads((out / f"{name}.probe.json").read_text())["scores"]["linear/top1"]


def pruned(out: Path, name: str) -> float:
    curves = json.loads((out / f"{name}.prune.json").read_text())["curves"]
    (curve,) = (c for c in curves if (c["by"], c["scope"], c["probe"]) == ("snr", "layer", "fixed"))
    return curve["top1"][curve["sparsity"].index(SPARSITY)]


def main() -> None:
    out, plan = Path(sys.argv[1]), tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
    posteriors = [name for name in plan["runs"] if name != "byol" and (out / f"{name}.prune.json").exists()]
    good = [name for name in posteriors if top1(out, name) >= top1(out, "byol") - MARGIN]
    best = max(good, key=lambda name: pruned(out, name)) if good else max(posteriors, key=lambda name: top1(out, name))
    setting, run = Path(__file__).with_name("setting.toml").read_text(), "[runs.byov]\n"
    Path(sys.argv[2]).write_text(setting.replace(run, f"{run}set = {json.dumps(plan['runs'][best].get('set', []))}\n"))
    print(best)


if __name__ == "__main__":
    main()
