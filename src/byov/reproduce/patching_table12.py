"""Patching paper, Tables 12 and 13: test RMSE and log predictive density on the regression benchmark, Appendix D.7.

The paper's settings: one hidden layer of 50 ReLU units (Protein and Year: 100), patched BatchNorm after the input and
the hidden layer (γ₀ = 0.2; dropout has masks in their place, the explicit ensemble neither), 4000 epochs of Adam at its
defaults, batch 100, K = 5, dropout 0.005, τ_output = 0.1 at the target's own scale, 10,000 draws, the standard splits.

The weight decay is the only tuned setting. The paper gives two values (0.01 in D.7, 0.001/batch = 10⁻⁵ in C.1) but not
the scale of the targets. Here each split and family chooses 10⁻², 10⁻³ or 10⁻⁴ on a held-out fifth of its training rows
after a quarter of the epochs: the largest that is within a standard error of the best. Where the paper is silent,
inputs and targets are standardised by the training rows; the decay is added to the gradient, as torch's Adam does; the
minibatches of an epoch have equal size, at most 100; every member of the explicit ensemble is trained for all epochs,
on the same minibatches.

Energy and Naval have two targets, as in the paper: one network with two outputs, RMSE over all entries, and the log
density per target, averaged.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import mean
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from byov.data.tables import Table, uci
from byov.evaluation.regressions import Predicted
from byov.posterior import ECMP, EMP, Dropout, Ensemble, Family
from byov.report.drawing import COLOURS, canvas, styled
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment, standard_error
from byov.train.regression import Settings, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES: dict[str, Family] = {"ECMP": ECMP(5), "EMP": EMP(5), "Dropout": Dropout(0.005), "Ensemble": Ensemble(5)}
TAU, DRAWS = 0.1, 10_000
DECAYS = (1e-2, 1e-3, 1e-4)
JUDGED = ("ECMP", "EMP")
CLAIMED = {"rmse": 8, "lpd": 9}
"""The number of the ten sets where EMP or ECMP is best according to D.7. By its own Table 13 it is 8, with ties."""
HALF_DIGIT = 0.005
"""Half of the last digit, since the paper prints two decimals."""

Score = Literal["rmse", "lpd"]
Numbers = tuple[tuple[float, float | None], ...]
"""Mean and standard error over splits, for each family."""


@dataclass(frozen=True)
class Entry:
    """A row of both tables, with the paper's numbers."""

    title: str
    file: str
    rmse: Numbers
    lpd: Numbers
    hidden: int = 50
    last: bool = False
    """Whether the last feature is the target, and the usual target a feature."""

    def paper(self, score: Score, method: str) -> tuple[float, float | None]:
        return getattr(self, score)[list(FAMILIES).index(method)]


PAPER = """
boston    3.48±0.18  3.56±0.22   3.97±0.26   4.29±0.27  -2.65±0.05  -2.70±0.07   -2.92±0.11  -2.81±0.07
concrete  5.61±0.14  5.64±0.15   7.06±0.19   8.81±0.15  -3.46±0.07  -3.59±0.08   -4.60±0.14  -5.09±0.13
energy    1.35±0.06  1.24±0.04   2.63±0.05   3.40±0.31  -2.19±0.01  -2.15±0.01   -2.42±0.01  -2.58±0.03
kin8nm    0.08±0.00  0.08±0.00   0.08±0.00   0.08±0.00  -2.07±0.00  -2.07±0.00   -2.07±0.00  -2.07±0.00
naval     0.00±0.00  0.00±0.00   0.01±0.00   0.01±0.00  -2.07±0.00  -2.07±0.00   -2.07±0.00  -2.07±0.00
power     4.24±0.05  4.29±0.05   4.07±0.04   4.04±0.04  -2.95±0.02  -2.99±0.02   -2.90±0.01  -2.87±0.01
protein   1.95±0.06  2.00±0.07   2.01±0.07   2.24±0.06  -2.26±0.01  -2.27±0.01   -2.27±0.01  -2.33±0.01
wine_red  0.60±0.02  0.62±0.02   0.63±0.01   0.88±0.06  -2.09±0.00  -2.09±0.00   -2.09±0.00  -2.14±0.01
yacht     1.59±0.23  1.60±0.28  12.90±1.26  29.48±5.14  -2.25±0.02  -2.22±0.05  -10.79±1.66  -5.24±0.36
year      10.27      12.50       8.47        8.69       -5.70       -6.66        -5.66       -4.47
"""
"""RMSE of ECMP, EMP, dropout and the ensemble, followed by their log densities."""


def _entry(line: str) -> Entry:
    file, *cells = line.split()
    pairs = [[float(number) for number in cell.split("±")] for cell in cells]
    numbers = tuple((pair[0], pair[1] if len(pair) > 1 else None) for pair in pairs)
    title = {"wine_red": "WineRed"}.get(file, file.capitalize())
    return Entry(title, file, numbers[:4], numbers[4:], hidden=100 if file in ("protein", "year") else 50)


ENTRIES = [_entry(line) for line in PAPER.strip().splitlines()]
_protein = next(i for i, entry in enumerate(ENTRIES) if entry.file == "protein")
ENTRIES.insert(_protein + 1, replace(ENTRIES[_protein], title="Protein, F9", last=True))
QUICK = ("boston", "yacht", "energy")


def _table(context: Context, score: Score) -> Outcome:
    sets = measure(context)
    comparisons = [compare(entry, method, score, sets[entry.title]) for entry in _shown(sets) for method in FAMILIES]
    counted = [e.title for e in _shown(sets) if not e.last]
    missed = {c.quantity for c in comparisons if c.verdict == "missed"}
    best = {title: best_of(entry_means(sets[title], score), score) for title in counted}
    comparisons.append(claim({e.title: e for e in ENTRIES}, best, score))
    reached = [title for title in counted if not missed & {f"{title}, {method}" for method in JUDGED}]
    data = {
        "score": score,
        "tau_output": TAU,
        "draws": DRAWS,
        "families": {name: str(family) for name, family in FAMILIES.items()},
        "sets": {title: {k: v for k, v in part.items() if k != "seconds"} for title, part in sets.items()},
        "reached": reached,
        "best": best,
    }
    note = (
        f"EMP and ECMP reach the paper on {len(reached)} of {len(counted)} sets: not worse by more than two standard"
        " errors of the difference (plus half of the paper's last digit). ± is the standard error over splits."
    )
    if any(e.last for e in _shown(sets)):
        note += (
            " The paper's numbers on Protein match the last column of its file (F9) as the target, not the usual one"
            " (RMSD); both are shown."
        )
    return Outcome(data, comparisons, draw(sets, score), note)


def entry_means(part: dict[str, Any], score: Score) -> dict[str, float]:
    """Return the mean of each method over splits."""
    return {method: mean(part["methods"][method][score]) for method in FAMILIES}


def best_of(means: dict[str, float], score: Score) -> list[str]:
    """Return the best methods after rounding to two decimals, as in the paper; several if they tie."""
    rounded = {method: round(value, 2) for method, value in means.items()}
    best = min(rounded.values()) if score == "rmse" else max(rounded.values())
    return [method for method, value in rounded.items() if value == best]


def claim(entries: dict[str, Entry], best: dict[str, list[str]], score: Score) -> Comparison:
    """Compare the number of sets where EMP or ECMP is best with D.7, judged by the paper's table on the same sets."""
    ours = [title for title, methods in best.items() if set(methods) & set(JUDGED)]
    printed = {title: {m: entries[title].paper(score, m)[0] for m in FAMILIES} for title in best}
    theirs = [title for title, means in printed.items() if set(best_of(means, score)) & set(JUDGED)]
    words = "lowest RMSE" if score == "rmse" else "highest log density"
    verdict = f"{'holds' if len(ours) >= len(theirs) else 'does not hold'}: {len(theirs)} in the paper's table"
    verdict += f"; it says {CLAIMED[score]} of 10"
    return Comparison(f"EMP or ECMP has the {words}: sets of {len(best)}", len(ours), len(theirs), verdict=verdict)


def _shown(sets: dict[str, Any]) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.title in sets]


def compare(entry: Entry, method: str, score: Score, part: dict[str, Any]) -> Comparison:
    """Compare our score with the paper's; a lower RMSE and a higher log density are better."""
    values = part["methods"][method][score]
    ours, error = mean(values), standard_error(values)
    paper, spread = entry.paper(score, method)
    worse = (ours - paper) * (1 if score == "rmse" else -1)
    margin = 2 * ((error or 0.0) ** 2 + (spread or 0.0) ** 2) ** 0.5 + HALF_DIGIT
    verdict = "reached" if worse <= margin else "missed"
    return Comparison(f"{entry.title}, {method}", ours, paper, error, verdict)


def measure(context: Context) -> dict[str, Any]:
    """Return the scores of every set and split, which both tables share and cache."""
    shared = replace(context, out=context.out.parent / "regression")
    sets: dict[str, Any] = {}
    for file in dict.fromkeys(entry.file for entry in ENTRIES):
        if context.scale == "quick" and file not in QUICK:
            continue
        entries = [entry for entry in ENTRIES if entry.file == file]
        try:
            data = uci(file, context.root)
        except ValueError:
            if file == "year":  # too large to be included
                continue
            raise
        count = 5 if context.scale == "quick" else len(data.splits)
        settings = Settings(hidden=entries[0].hidden, weight_decay=DECAYS)
        protocol = {
            "data": file,
            "digest": data.digest,
            "splits": count,
            "settings": asdict(settings),
            "families": {name: str(family) for name, family in FAMILIES.items()},
            "targets": [entry.title for entry in entries],
            "tau_output": TAU,
            "draws": DRAWS,
        }
        make = partial(_scores, context, data, entries, count, settings)
        part = shared.kept(file, protocol, make)
        print(f"{file}: {part['seconds']:.0f} s to train and score", file=sys.stderr, flush=True)
        sets |= part["sets"]
    return sets


def _scores(context: Context, data: Table, entries: list[Entry], count: int, settings: Settings) -> dict[str, Any]:
    """Train all splits of a set together, for each choice of its target, and score them."""
    start = monotonic()
    tables = [columns(data, entry) for entry in entries]
    X, y = (torch.cat(parts) for parts in zip(*tables, strict=True))
    splits = data.splits[:count]
    rows = [train + number * len(data) for number in range(len(entries)) for train, _ in splits]
    fitted = fit(X, y, FAMILIES, rows, list(range(count)) * len(entries), settings, context.seed, context.device)
    sets = {}
    for number, (entry, (inputs, targets)) in enumerate(zip(entries, tables, strict=True)):
        methods: dict[str, dict[str, list[float]]] = {}
        for name, posterior in fitted.items():
            parts = []
            for i, (_, test) in enumerate(splits):
                draws = posterior.predict(inputs[test], number * count + i, DRAWS)
                parts.append(scores(draws, targets[test].to(draws.device)))
            chosen = [posterior.splits[number * count + i].weight_decay for i in range(count)]
            methods[name] = {key: [part[key] for part in parts] for key in parts[0]} | {"weight_decay": chosen}
        sets[entry.title] = {"rows": len(data), "splits": count, "targets": targets.shape[1], "methods": methods}
    return {"sets": sets, "seconds": monotonic() - start}


def columns(data: Table, entry: Entry) -> tuple[Tensor, Tensor]:
    """Return X (N, D) and y (N, T) for a row of the table."""
    if entry.last:
        return torch.cat([data.y[:, None], data.X[:, :-1]], 1), data.X[:, -1:]
    return data.X, data.all_targets


def scores(draws: Tensor, target: Tensor) -> dict[str, float]:
    """Return the RMSE over all entries, and the log density per target, averaged."""
    found = Predicted(draws, draws.new_full((target.shape[1],), TAU, dtype=torch.float64)).scores(target)
    return {"rmse": found["rmse"], "lpd": found["log_density"]}


@styled
def draw(sets: dict[str, Any], score: Score) -> Figure:
    """Draw the ratio of our RMSE to the paper's, or the difference of the log densities, for every set."""
    entries = _shown(sets)
    figure, [[axes]] = canvas(7.2, 0.9 + 0.5 * len(entries))
    for offset, (method, colour, marker) in enumerate(zip(FAMILIES, COLOURS, "osD^", strict=False)):
        for row, entry in enumerate(entries):
            got = compare(entry, method, score, sets[entry.title])
            paper, error = entry.paper(score, method)[0], 2 * (got.error or 0.0)
            if score == "rmse" and paper < HALF_DIGIT:
                continue  # no ratio to the paper's 0.00
            value, width = (got.ours / paper, error / paper) if score == "rmse" else (got.ours - paper, error)
            style: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 4.5, "linewidth": 1}
            label = method if row == 0 else None
            axes.errorbar(value, row + 0.16 * (offset - 1.5), xerr=width, label=label, **style)
    axes.axvline(1.0 if score == "rmse" else 0.0, color="0.4", linewidth=0.8)
    axes.set_yticks(range(len(entries)), [entry.title for entry in entries])
    axes.invert_yaxis()
    if score == "rmse":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        words = "our test RMSE / the paper's (left is better"
    else:
        axes.set_xscale("symlog", linthresh=0.5)
        words = "our log predictive density − the paper's, nats (right is better"
    axes.set_xlabel(f"{words}; bars: two standard errors of ours)")
    axes.margins(x=0.06)
    figure.legend(ncols=4, loc="outside upper center")
    return figure


for _name, _score, _title in (
    ("table12", "rmse", "Root mean squared error on the regression sets"),
    ("table13", "lpd", "Log predictive density on the regression sets"),
):
    experiment(f"patching/{_name}", _title)(partial(_table, score=_score))  # type: ignore[arg-type]
