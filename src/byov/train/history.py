"""The history of `byov.fit`, with one row per epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any


@dataclass
class History:
    """The history of `fit`, with one row per epoch; it prints as a table.

    `loss` is the training loss without the KL, and `kl` is the added term β·KL/N. The validation scores are those of
    the posterior predictive. `best` is the epoch, counted from 1, whose weights the model has.
    """

    task: str
    n: float
    rows: list[dict[str, float]] = field(default_factory=list)
    best: int = 0

    def add(self, row: dict[str, float]) -> None:
        """Add an epoch; the best has the lowest validation NLL, or is the last one without validation.

        A validation NLL that is not finite is never the best.
        """
        self.rows.append(row)
        if "nll" not in row or (isfinite(row["nll"]) and row["nll"] <= min(filter(isfinite, self["nll"]))):
            self.best = len(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]

    def __repr__(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        lines = ["".join(f"{name:>10}" for name in names)]
        for row in self.rows:
            mark = " *" if row["epoch"] == self.best else ""
            lines.append("".join(f"{value:>10.4g}" for value in row.values()) + mark)
        return "\n".join([*lines, f"{self.task}, N = {self.n:,.0f}; * the weights that were kept"])

    def to_pandas(self) -> Any:
        """Return the table with the epochs as its index."""
        import pandas

        return pandas.DataFrame(self.rows).astype({"epoch": int}).set_index("epoch")
