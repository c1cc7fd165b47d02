"""README.md's tables, from the parts that `byov reproduce defaults` kept: python results/defaults/tables.py [FOLDER]"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean

from byov.reproduce.defaults import DEFAULT, METHODS, difference, worded
from byov.reproduce.defaults_scores import averaged
from byov.reproduce.experiment import standard_error

SCORES = ("error", "nll", "ece")
COLUMNS = {
    **{f"test_{score}": score for score in SCORES},
    **{f"shifted_{score}": f"shifted {score}" for score in SCORES},
    "auroc_entropy": "AUROC, entropy",
    "auroc_information": "AUROC, information",
}

Readings = dict[str, list[dict[str, float]]]


def kept(folder: Path) -> dict[str, Readings]:
    """Collect the parts by set; the tables are averaged, split by split."""
    sets: dict[str, dict[int, dict]] = {}
    for path in sorted((folder / "parts").glob("*_seed*.json")):
        name, _, seed = path.stem.rpartition("_seed")
        sets.setdefault(name, {})[int(seed)] = json.loads(path.read_text())["result"]
    tables = [sets.pop(name) for name in list(sets) if name.startswith("uci-")]
    if tables:
        seeds = set.intersection(*(set(table) for table in tables))
        sets["five small tables"] = {
            seed: {m: averaged([table[seed][m] for table in tables]) for m in METHODS} for seed in sorted(seeds)
        }
    return {name: {m: [seeds[s][m] for s in sorted(seeds)] for m in METHODS} for name, seeds in sets.items()}


def cell(values: list[float], percent: bool) -> str:
    scale, digits = (100, 1) if percent else (1, 3)
    error = standard_error(values)
    return f"{scale * mean(values):.{digits}f}" + (f" ± {scale * error:.{digits}f}" if error is not None else "")


def main() -> None:
    sets = kept(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent)
    for name, found in sets.items():
        tables = name == "five small tables"
        print(f"| {name}, {len(found[DEFAULT])} seeds | {' | '.join(COLUMNS.values())} |")
        print("|---|" + "---:|" * len(COLUMNS))
        for method, rows in found.items():
            percent = {score: score.endswith("ece") or (score.endswith("error") and not tables) for score in COLUMNS}
            cells = [cell([row[score] for row in rows], percent[score]) for score in COLUMNS]
            label = f"**{method}**" if method == DEFAULT else method
            print(f"| {label} | {' | '.join(cells)} |")
        print()
    print("| difference, seed by seed | set | " + " | ".join(list(COLUMNS.values())[:6]) + " |")
    print("|---|---|" + "---:|" * 6)
    for method, other in ((DEFAULT, "plain"), (DEFAULT, "plain, averaged"), ("Gaussian", "plain"), ("EMP", "plain")):
        for name, found in sets.items():
            cells = []
            for score in list(COLUMNS)[:6]:
                gain, error = difference(found, method, other, score)
                cells.append(f"{gain:+.4f} ± {error:.4f} {worded(gain, error)}".replace(" ± nan", ""))
            print(f"| {method} − {other} | {name} | {' | '.join(cells)} |")
    for name, found in sets.items():
        gain, error = difference(found, DEFAULT, "plain + temperature", "shifted_nll")
        print(f"{name}: shifted NLL, {DEFAULT} − temperature: {gain:+.3f} ± {error:.3f}, {worded(gain, error)}")


if __name__ == "__main__":
    main()
