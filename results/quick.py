"""BYOV's figures and table at scale quick, on digits: paper, ours, verdict, as the tables of byov/README.md.

byov reproduce 'byov/*' --scale quick --device cpu --out results
python results/quick.py
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "byov"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main() -> None:
    for file in sorted(FOLDER.glob("*/result.json")):
        found = json.loads(file.read_text())
        rows = [row for row in found["comparisons"] if row["verdict"] or row["paper"] is not None]
        print(f"\n**{found['name']}**: {found['title']}\n\n| quantity | paper | ours | verdict |\n|---|---:|---:|---|")
        for row in rows:
            error = f" ± {number(row['error'])}" if row["error"] else ""
            quantity = row["quantity"].replace("|", "\\|")
            print(f"| {quantity} | {number(row['paper'])} | {number(row['ours'])}{error} | {row['verdict'] or ''} |")


if __name__ == "__main__":
    main()
