"""BYOV, Figure 2 and Table 1: accuracy and calibration compared with BYOL, by an L-BFGS probe of the encoder at μ.

Figure 2: the three priors over a range of β. As in the paper, the best BYOV is chosen separately for each score, on the
test set. That favours BYOV, so the comparison for the recipe's own setting is shown too.

Table 1 (Appendix G): should the whole network be Bayesian? Parts of it stay deterministic. "No conv", as we read the
appendix, keeps normalisation layers and the patch embedding's convolution deterministic; "linear only" makes only
linear layers Bayesian. At scale "quick" the encoder is a small ViT, because on a convolutional network the two would be
the same.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from byov.evaluation.probing import probe_run
from byov.report.drawing import COLOURS, MARKERS, add_grid, canvas, log_labels, styled, subscripted
from byov.reproduce.byov_runs import BETAS, PRIORS, RECENTRED, byol_run, byov_run, given_runs, own_beta, pretrained
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment
from byov.runs import read_header
from byov.ssl.probe import Scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = {
    "top1": ("top-1 %", True),
    "top5": ("top-5 %", True),
    "ece": ("ECE %", False),
    "reliability": ("reliability × 100", False),
    "resolution": ("resolution × 100", True),
}
"""By score: its name, and whether higher is better."""
PAPER = {"top1": -0.4, "top5": -0.22, "ece": 2.83, "reliability": 1.03, "resolution": -0.57}
"""The paper's best BYOV against BYOL in points; BYOV is better above 0."""
MC_GAIN = 0.34
"""The paper's gain from draws in points of top-1, for N(0, I) and β = 0.3."""
DRAWS, BOOTSTRAPS = 30, 100

Measured = dict[str, list[float]]
"""By score: its value and its bootstrap error over the test images, as shares."""


@experiment("byov/figure2", "Prior ablation: accuracy, calibration and Brier parts over β")
def figure2(context: Context) -> Outcome:
    """Compare top-1, top-5, ECE, reliability and resolution of each prior and β with BYOL."""
    byol = measured(context, "byol", byol_run(context))["mean"]
    grid: dict[str, dict[str, Measured]] = {}
    drawn, own, beta_own = None, None, own_beta(context.scale)
    for prior, by_beta in _grid(context).items():
        grid[prior] = {}
        for beta, run in by_beta.items():
            mine = prior == "normal" and (beta == beta_own or bool(context.runs and own is None))
            part = measured(context, f"{prior}_{beta:g}", run, DRAWS if mine else 0)
            grid[prior][f"{beta:g}"] = part["mean"]
            if mine:
                own, drawn = part["mean"], part["draws"]
    data = {"byol": byol, "byov": grid, "byov_draws": drawn, "draws": DRAWS, "scores": "a linear probe at μ, 15 bins"}
    note = (
        "Points in per cent; BYOV is better above 0. Errors are bootstraps over test images, for one training seed."
        f" {sum(map(len, grid.values()))} runs of BYOV. The paper uses ImageNet, a ViT, and its own list of β."
        " The linear probe is fitted by L-BFGS, and BYOL has no weight decay here. The paper's remark that N(μ_T, Σ_T)"
        " is unstable is not judged."
    )
    return Outcome(data, compare(byol, grid, own, drawn), ablation_figure(byol, grid), note)


def compare(
    byol: Measured, grid: dict[str, dict[str, Measured]], own: Measured | None = None, drawn: Measured | None = None
) -> list[Comparison]:
    """Compare the best of a grid, and the recipe's own setting at μ and under draws, with BYOL and the paper."""
    everything = [scores for by_beta in grid.values() for scores in by_beta.values()]
    rows = []
    for score, (name, more) in SHOWN.items():
        sign = 1 if more else -1
        best = max(everything, key=lambda scores: sign * scores[score][0])
        rows.append(_row(f"best, {name}: better than BYOL by", best, byol, score, PAPER[score]))
        if own:
            rows.append(_row(f"N(0, I), {name}: better than BYOL by", own, byol, score))
    best_of = {prior: max(by_beta.values(), key=lambda scores: scores["top1"][0]) for prior, by_beta in grid.items()}
    if {"normal", "teacher-normal"} <= best_of.keys():
        gain, error = gained(best_of["teacher-normal"], best_of["normal"], "top1")
        words = "worse, as in the paper" if gain < -2 * error else "not clearly worse, unlike in the paper"
        rows.append(Comparison("N(μ_T, Σ_T), top-1 %: better than N(0, I) by", gain, None, error, words))
    if {"normal", "teacher-mean"} <= best_of.keys():
        gain, error = gained(best_of["normal"], best_of["teacher-mean"], "top1")
        words = (
            "a clear difference, unlike in the paper" if abs(gain) > 2 * error else "little difference, as in the paper"
        )
        rows.append(Comparison("N(0, I), top-1 %: better than N(μ_T, I) by", gain, None, error, words))
    if own and drawn:
        rows.append(_row(f"N(0, I): top-1 gained by {DRAWS} draws (the paper: β = 0.3)", drawn, own, "top1", MC_GAIN))
    return rows


def _row(quantity: str, mine: Measured, other: Measured, score: str, paper: float | None = None) -> Comparison:
    gain, error = gained(mine, other, score)
    return Comparison(quantity, gain, paper, error, verdict(gain, error, paper))


def _grid(context: Context) -> dict[str, dict[float, Path]]:
    """Return runs by prior and β, the user's or ours."""
    if not context.runs:
        return {prior: {beta: byov_run(context, prior, beta) for beta in BETAS[context.scale]} for prior in PRIORS}
    grid: dict[str, dict[float, Path]] = {}
    for run in given_runs(context).values():
        posterior = read_header(run).config["posterior"]
        grid.setdefault(posterior["prior"], {})[posterior["beta_end"]] = run
    return grid


def gained(mine: Measured, other: Measured, score: str) -> tuple[float, float]:
    """Return by how many points `mine` is better than `other`, and the error of the difference."""
    sign, difference = 1 if SHOWN[score][1] else -1, mine[score][0] - other[score][0]
    return 100 * sign * difference, 100 * (mine[score][1] ** 2 + other[score][1] ** 2) ** 0.5


def verdict(gain: float, error: float, paper: float | None) -> str:
    """Describe a difference, given its error and the paper's value."""
    if abs(gain) <= 2 * error:
        return "no clear difference"
    if paper is None:
        return "better" if gain > 0 else "worse"
    return "as in the paper" if (gain > 0) == (paper > 0) else "opposite to the paper"


def measured(context: Context, name: str, run: Path, draws: int = 0) -> dict[str, Measured]:
    """Return the scores of a run's linear probe: "mean" at μ and, if requested, "draws" under draws."""
    recipe = {part: settings for part, settings in read_header(run).config.items() if part != "data"}
    protocol = {"draws": draws, "bootstraps": BOOTSTRAPS, "recipe": recipe, **(RECENTRED if draws else {})}
    return context.kept(name, protocol, partial(_measure, context, run, draws))


def _measure(context: Context, run: Path, draws: int) -> dict[str, Any]:
    probed = probe_run(
        run, samples=draws, seed=context.seed, root=context.root, device=context.device, trust=context.trust
    )
    labels = probed.run.load_own("test").labels
    assert labels is not None
    labels = labels.cpu()
    readings = {"mean": "linear", **({"draws": "linear_draws"} if draws else {})}
    return {key: _with_errors(probed.result.predictions[name].mean.cpu(), labels) for key, name in readings.items()}


def _with_errors(probs: torch.Tensor, labels: torch.Tensor) -> Measured:
    whole = Scores.of(probs, labels)
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(labels), (BOOTSTRAPS, len(labels)), generator=generator)
    again = [Scores.of(probs[pick], labels[pick]) for pick in picks]
    found = {}
    for score in SHOWN:
        spread = torch.tensor([getattr(scores, score) for scores in again], dtype=torch.float64).std().item()
        found[score] = [getattr(whole, score), spread]
    return found


@styled
def ablation_figure(byol: Measured, grid: dict[str, dict[str, Measured]]) -> Figure:
    """Draw a panel per score over β, with a line per prior, and BYOL as a line with a band of one error."""
    made, [panels] = canvas(12.0, 2.9, 1, len(SHOWN))
    asked = sorted({float(beta) for by_beta in grid.values() for beta in by_beta})
    for axes, (score, (name, more)) in zip(panels, SHOWN.items(), strict=True):
        value, error = (100 * x for x in byol[score])
        axes.axhline(value, color="0.25", linewidth=1.1, linestyle="--", label="BYOL")
        axes.axhspan(value - error, value + error, color="0.85", linewidth=0)
        for i, (prior, by_beta) in enumerate(grid.items()):
            betas = [float(beta) * 1.05 ** (i - 1) for beta in by_beta]  # side by side
            values, errors = zip(*([100 * x for x in scores[score]] for scores in by_beta.values()), strict=True)
            style: dict[str, Any] = {"color": COLOURS[i], "marker": MARKERS[i], "markersize": 4, "linewidth": 1.2}
            style |= {"elinewidth": 0.8, "label": subscripted(PRIORS[prior])}
            axes.errorbar(betas, values, errors, **style)
        axes.set_xscale("log")
        axes.set(xlabel="β at the end", title=f"{name} ({'higher' if more else 'lower'} is better)")
        add_grid(axes)
        if len(asked) > 1:
            log_labels(axes.xaxis)
        else:
            axes.set(xlim=(asked[0] / 1.2, asked[0] * 1.2))
            axes.set_xticks(asked, [f"{asked[0]:g}"])
            axes.minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=4)
    return made


# Table 1

ROWS: tuple[tuple[str, str, bool, float, float], ...] = (
    ("all", "normal", True, 75.57, 92.18),
    ("no-norm-no-conv", "normal", True, 73.68, 91.43),
    ("no-norm-no-conv", "teacher-mean", True, 73.97, 91.52),
    ("no-norm-no-conv", "teacher-normal", True, 69.73, 88.74),
    ("linear-only", "normal", True, 73.62, 91.12),
    ("linear-only", "teacher-mean", True, 74.23, 91.48),
    ("linear-only", "normal", False, 72.60, 90.92),
    ("linear-only", "teacher-mean", False, 72.69, 91.03),
)
"""The Bayesian part, the prior, whether β rises from 0, and the paper's top-1 and top-5; row 1 is from Figure 2."""
PAPER_BYOL = (75.97, 92.40)
WORDS = {"all": "all", "no-norm-no-conv": "no conv", "linear-only": "linear only"}


@experiment("byov/table1", "Which parts of the network are Bayesian")
def table1(context: Context) -> Outcome:
    """Compare top-1 and top-5 at μ of partly Bayesian students with BYOL."""
    byol = measured(context, "byol", _train(context, "byol", "posterior.family=none"))["mean"]
    beta, rows, comparisons = own_beta(context.scale), [], []
    for covered, prior, rising, top1, top5 in ROWS:
        name = f"{covered}_{prior}_{'rising' if rising else 'constant'}"
        changes = [f"posterior.coverage={covered}", f"posterior.prior={prior}"]
        changes += [] if rising else [f"posterior.beta_start={beta}", "posterior.beta_schedule=constant"]
        scores = measured(context, name, _train(context, name, *changes))["mean"]
        label = f"{WORDS[covered]}, {PRIORS[prior]}, β {'0' if rising else f'{beta:g}'} → {beta:g}"
        rows.append({"label": label, "paper": {"top1": top1, "top5": top5}, "scores": scores})
        for score, theirs, base in zip(("top1", "top5"), (top1, top5), PAPER_BYOL, strict=True):
            comparisons.append(_row(f"{label}: {score} above BYOL", scores, byol, score, round(theirs - base, 2)))
    comparisons += _statements(rows)
    data: dict[str, Any] = {"byol": byol, "paper_byol": PAPER_BYOL, "rows": rows, "beta_end": beta}
    note = (
        "Points of accuracy above BYOL, at μ; errors are bootstraps over test images, for one training seed. The"
        " paper's β is 1; its first row is the best of Figure 2."
    )
    return Outcome(data, comparisons, table_figure(data), note)


def _statements(rows: list[dict[str, Any]]) -> list[Comparison]:
    """Compare two statements on top-1 (appendices C, G): Bayesian everywhere is best; β from 0 beats a constant β."""
    by = {of[:3]: row for of, row in zip(ROWS, rows, strict=True)}
    found, whole = [], by.pop(("all", "normal", True), None)
    if whole is not None:
        ours = max(by.values(), key=lambda row: row["scores"]["top1"][0])
        theirs = max(row["paper"]["top1"] for row in by.values())
        found.append(("Bayesian everywhere: top-1 above the best part", whole, ours, whole["paper"]["top1"] - theirs))
    for (covered, prior, rising), row in by.items():
        constant = by.get((covered, prior, False))
        if rising and constant is not None:
            name = f"{WORDS[covered]}, {PRIORS[prior]}: top-1 of β from 0 above a constant β"
            found.append((name, row, constant, row["paper"]["top1"] - constant["paper"]["top1"]))
    return [_row(name, one["scores"], other["scores"], "top1", round(gain, 2)) for name, one, other, gain in found]


def _train(context: Context, name: str, *changes: str) -> Path:
    """Return the run of a row; at scale quick a small ViT, for which the Bayesian parts differ."""
    if context.scale == "quick" and not context.runs:
        return pretrained(context, f"vit_{name}", *changes, recipe="digits_vit_byov")
    shared = {"byol": "byol", "all_normal_rising": "byov"}  # the runs of the other figures
    return pretrained(context, shared.get(name, name), *([] if name == "all_normal_rising" else changes))


@styled
def table_figure(data: dict[str, Any]) -> Figure:
    """Draw top-1 and top-5 of each row with errors, BYOL as a line, and the paper's differences as open diamonds."""
    made, [panels] = canvas(8.0, 3.6, 1, 2, sharey=True)
    rows, byol = data["rows"], data["byol"]
    places = list(range(len(rows)))
    for axes, score, base in zip(panels, ("top1", "top5"), data["paper_byol"], strict=True):
        value, error = (100 * x for x in byol[score])
        axes.axvline(value, color="0.25", linewidth=1.1, linestyle="--", label="BYOL")
        axes.axvspan(value - error, value + error, color="0.87", linewidth=0)
        values, errors = zip(*([100 * x for x in row["scores"][score]] for row in rows), strict=True)
        shown: dict[str, Any] = {"fmt": MARKERS[0], "color": COLOURS[0], "markersize": 5, "elinewidth": 0.9}
        axes.errorbar(values, places, xerr=errors, label="ours", **shown)
        paper = [value + row["paper"][score] - base for row in rows]
        style: dict[str, Any] = {"color": "0.45", "markersize": 5, "label": "paper, relative to BYOL"}
        axes.plot(paper, places, MARKERS[3], markerfacecolor="none", **style)
        axes.set_xlabel(f"{'top-1' if score == 'top1' else 'top-5'} %")
        add_grid(axes)
    panels[0].set_yticks(places, [subscripted(row["label"]) for row in rows])
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3)
    return made
