"""BYOV, Table 1 (Appendix G): should the whole network be Bayesian? Parts of it stay points; read at μ.

"No conv" leaves normalisation layers and the patch embedding's convolution as points, "linear only" makes only linear
layers Bayesian. At scale "quick" the encoder is a small ViT, because on a convolutional network the two are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from byov.report.drawing import COLOURS, MARKERS, canvas, plain, styled, subscripted
from byov.reproduce.byov_figure2 import gained, measured, verdict
from byov.reproduce.byov_runs import PRIORS, own_beta, pretrained
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS: tuple[tuple[str, str, bool, float | None, float | None], ...] = (
    ("all", "normal", True, 75.57, 92.18),
    ("no-norm-no-conv", "normal", True, 73.68, 91.43),
    ("no-norm-no-conv", "teacher-mean", True, 73.97, 91.52),
    ("no-norm-no-conv", "teacher-normal", True, 69.73, 88.74),
    ("linear-only", "normal", True, 73.62, 91.12),
    ("linear-only", "teacher-mean", True, 74.23, 91.48),
    ("linear-only", "normal", False, 72.60, 90.92),
    ("linear-only", "teacher-mean", False, 72.69, 91.03),
)
"""What is Bayesian, the prior, whether β rises from 0, and the paper's top-1 and top-5; the first row is Figure 2's."""
PAPER_BYOL = (75.97, 92.40)
WORDS = {"all": "all", "no-norm-no-conv": "no conv", "linear-only": "linear only"}


@experiment("byov/table1", "Which parts of the network are Bayesian")
def table1(context: Context) -> Outcome:
    """Compare top-1 and top-5 at μ of partly Bayesian students with BYOL's."""
    byol = measured(context, "byol", _train(context, "byol", "posterior.family=none"))["mean"]
    beta, rows, comparisons = own_beta(context.scale), [], []
    for covered, prior, rising, top1, top5 in ROWS:
        name = f"{covered}_{prior}_{'rising' if rising else 'constant'}"
        changes = [f"posterior.coverage={covered}", f"posterior.prior={prior}"]
        changes += [] if rising else [f"posterior.beta_start={beta}", "posterior.beta_schedule=constant"]
        scores = measured(context, name, _train(context, name, *changes))["mean"]
        label = f"{WORDS[covered]}, {PRIORS[prior]}, β {'0' if rising else f'{beta:g}'} → {beta:g}"
        paper = {"top1": top1, "top5": top5}
        rows.append({"label": label, "paper": paper, "scores": scores})
        for score, base in zip(("top1", "top5"), PAPER_BYOL, strict=True):
            gain, error = gained(scores, byol, score)
            theirs = paper[score]
            against = None if theirs is None else round(theirs - base, 2)
            told = verdict(gain, error, against)
            comparisons.append(Comparison(f"{label}: {score} above BYOL", gain, against, error, told))
    data: dict[str, Any] = {"byol": byol, "paper_byol": PAPER_BYOL, "rows": rows, "beta_end": beta}
    note = (
        "Points of accuracy above BYOL's, at μ; errors: bootstraps over test images, one training seed. The paper's"
        " β is 1; its first row is the best of Figure 2."
    )
    return Outcome(data, comparisons, table_figure(data), note)


def _train(context: Context, name: str, *changes: str) -> Path:
    """Return the run of a row; at scale quick of a small ViT, on which it matters what is Bayesian."""
    if context.scale == "quick" and not context.runs:
        return pretrained(context, f"vit_{name}", *changes, recipe="digits_vit_byov")
    shared = {"byol": "byol", "all_normal_rising": "byov"}  # the runs of the other figures
    return pretrained(context, shared.get(name, name), *([] if name == "all_normal_rising" else changes))


@styled
def table_figure(data: dict[str, Any]) -> Figure:
    """Draw top-1 and top-5 of each row with errors, BYOL as a line; the paper's distance to BYOL as open diamonds."""
    made, [panels] = canvas(8.0, 3.6, 1, 2, sharey=True)
    rows, byol = data["rows"], data["byol"]
    places = list(range(len(rows)))
    for axes, score, base in zip(panels, ("top1", "top5"), data["paper_byol"], strict=True):
        value, error = (100 * x for x in byol[score])
        axes.axvline(value, color="0.25", linewidth=1.1, linestyle="--", label="BYOL")
        axes.axvspan(value - error, value + error, color="0.87", linewidth=0)
        points = [[100 * x for x in row["scores"][score]] for row in rows]
        axes.errorbar(
            [v for v, _ in points],
            places,
            xerr=[e for _, e in points],
            fmt=MARKERS[0],
            color=COLOURS[0],
            markersize=5,
            elinewidth=0.9,
            label="ours",
        )
        paper = [value + row["paper"][score] - base for row in rows]
        style: dict[str, Any] = {"color": "0.45", "markersize": 5, "label": "the paper's, from BYOL"}
        axes.plot(paper, places, MARKERS[3], markerfacecolor="none", **style)
        axes.set_xlabel(f"{'top-1' if score == 'top1' else 'top-5'} %")
        plain(axes)
    panels[0].set_yticks(places, [subscripted(row["label"]) for row in rows])
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3)
    return made
