"""BYOV, Figure 4. Left: SNR and magnitude pruning. Centre and right: reliability and ECE under shift, against BYOL.

Left, as in section 4.4: the encoder's weights with the least |μ|/σ are set to 0, the same share in every layer, and
nothing is retrained: the linear probe for top-1 was fitted before pruning. A second reading refits the probe
afterwards.

Centre and right: the paper does not define "relative". Here it is BYOL's value minus BYOV's, in points, averaged over
severities, so BYOV is better above 0, as in the "+2.83%" of Figure 2. According to section 4.3 and the poster, BYOV is
better "everywhere except shearing and additive Gaussian noise"; numbers are given only for salt and pepper. The other
augmentations appear only in the figure, so ours are judged by that sentence: each at μ, and their number under draws,
too (the paper does not say whether its figure is at μ or under draws).

"Up to 12% better accuracy with a 25% sparser model" (1.1) is taken as points of top-1 and of zeros: a network pruned by
SNR to s + 25 % zeros, compared with the same network pruned by magnitude to s. (Section 4.4 says "either model".)
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from byov.evaluation import evaluate, summarise
from byov.evaluation.pruning import SPARSITIES, Prunable
from byov.evaluation.rows import shifts_for
from byov.evaluation.sweep import KIND, advantage, sweep_runs
from byov.posterior.layout import occurrences
from byov.report.drawing import COLOURS, add_grid, canvas, styled
from byov.report.figures import plot_curves
from byov.reproduce.byov_runs import RECENTRED, byol_run, byov_run
from byov.reproduce.experiment import Comparison, Context, Outcome, Scale, experiment, standard_error
from byov.reproduce.recipes import settings_of
from byov.runs import Reading, open_run
from byov.runs.run import digest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SEEDS: dict[Scale, int] = {"quick": 1, "full": 3}
SEVERITIES: dict[Scale, tuple[int, ...]] = {"quick": (1, 3, 5), "full": (1, 2, 3, 4, 5)}
REFITTED: dict[Scale, tuple[float, ...]] = {"quick": (0.0, 0.5, 0.7, 0.9), "full": (0.5, 0.7)}
"""The sparsities at which the probe is also refitted; each needs a fit."""
DRAWS, FIT_DRAWS = 10, 8
"""The draws for reading and for fitting the probes."""
AT = 0.7
WANTED = 6.0
"""The wanted lead of SNR pruning at that sparsity, in points of top-1."""
SCORES = ("reliability", "ece", "top1")
SPARSER = 0.25
WORSE = ("shear", "gaussian_noise")
"""The shifts where BYOL is better, according to the paper."""
PAPER = {("clean", "ece"): 2.83, ("clean", "reliability"): 1.03}
PAPER |= {("salt_and_pepper", "ece"): 2.4, ("salt_and_pepper", "reliability"): 1.2}
"""The paper's lead of BYOV in points, from Figure 2 and the abstract, which prints 1.03 and 1.2 as "Brier": in
Figure 2 the first is the reliability, so we read the second likewise."""


@experiment("byov/figure4", "SNR and magnitude pruning; reliability and ECE under shift, compared with BYOL")
def figure4(context: Context) -> Outcome:
    """Evaluate each seed's pair of runs under pruning and shift, and compare the means."""
    curves, protocols, shifts, spreads = [], [], [], []
    for seed, byov, byol in pairs(context):
        made_of = {"byov": weights_of(byov, context), "byol": weights_of(byol, context), "of_seed": seed}
        spreads.append(sigma_spread(byov, context))
        for probe, sparsities in (("fixed", SPARSITIES), ("refitted", REFITTED[context.scale])):
            asked = {**made_of, "probe": probe, "sparsities": list(sparsities)}
            make = partial(_sweep, context, byov, byol, probe, sparsities)
            part = context.kept(f"prune_{probe}_{seed}", asked, make)
            curves += [{**curve, "seed": seed, "probe": probe} for curve in part["curves"]]
            # The paths of the runs are not part of the result; their weights are.
            about = {key: value for key, value in part["protocol"].items() if key != "runs"}
            protocols.append({"seed": seed, "weights": [made_of["byov"], made_of["byol"]], **about})
        for model, run in (("BYOV", byov), ("BYOL", byol)):
            asked = {**made_of, "severities": list(SEVERITIES[context.scale]), "draws": [DRAWS, FIT_DRAWS], **RECENTRED}
            part = context.kept(f"shift_{model}_{seed}", asked, partial(_shifted, context, run))
            shifts += [{"model": model, "seed": seed, **row} for row in part["rows"]]
    sweep = {"kind": KIND, "protocol": {"parts": protocols}, "curves": curves}
    data = {"sweep": sweep, "sigma_spread": spreads, "shifts": shifts, "relative": relative(shifts)}
    data |= {"severities": SEVERITIES[context.scale]}
    seeds = sorted({curve["seed"] for curve in curves})
    note = (
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}; top-1 by a linear probe at μ. Pruned per layer, nothing"
        " retrained. Differences of ECE and reliability: BYOL minus BYOV; BYOV is better above 0. Within a layer log σ"
        f" has a standard deviation of {mean(spreads):.3f}; if it were 0, SNR and magnitude would be equivalent."
    )
    return Outcome(data, compare(data), draw(data), note)


def pairs(context: Context) -> list[tuple[int, Path, Path]]:
    """Return (seed, BYOV's run, BYOL's run): the given runs paired by seed, or runs trained here."""
    if not context.runs:
        each = [replace(context, seed=context.seed + i) for i in range(SEEDS[context.scale])]
        return [(own.seed, byov_run(own), byol_run(own)) for own in each]
    found: dict[str, dict[int, Path]] = {"gaussian": {}, "none": {}}
    for run in context.runs:
        settings = settings_of(run)
        if settings["kind"] == "pretrain":
            found[settings["posterior.family"]].setdefault(settings["train.seed"], run)
    both = sorted(found["gaussian"].keys() & found["none"].keys())
    if not both:
        raise ValueError("Of the runs given, none of BYOV has one of BYOL with the same train.seed.")
    return [(seed, found["gaussian"][seed], found["none"][seed]) for seed in both]


def weights_of(run: Path, context: Context) -> str:
    """Return the digest of a run's weights; cached parts of other weights are not reused."""
    return digest(open_run(run, Reading(trust=context.trust)).network)


def sigma_spread(path: Path, context: Context) -> float:
    """Return the standard deviation of log σ within a pruned tensor, averaged over tensors: what SNR adds to |μ|.

    It grows during training: all σ start equal, and Adam moves log σ² by at most a learning rate per step.
    """
    run = open_run(path, Reading(trust=context.trust))
    assert run.q is not None
    names = {
        places[0][0]
        for parameter, places in occurrences(run.q.point())
        if any(Prunable(run).where(name, module, parameter) for name, module in places)
    }
    return mean(sigma.log().std().item() for name, sigma in run.q.std().items() if name in names)


def _sweep(context: Context, byov: Path, byol: Path, probe: Any, sparsities: Any) -> dict[str, Any]:
    where: dict[str, Any] = {"root": context.root, "device": context.device, "trust": context.trust}
    reading, names = Reading(seed=context.seed, **where), ("BYOV", "BYOL")
    return sweep_runs(byov, byol, sparsities, probing=probe, reading=reading, names=names, by=("snr", "magnitude"))


def _shifted(context: Context, path: Path) -> dict[str, Any]:
    """Score a run's probe on clean and shifted test images, at μ and under draws; average over severities."""
    where: dict[str, Any] = {"seed": context.seed, "device": context.device}
    run = open_run(path, Reading(DRAWS, fit_samples=FIT_DRAWS, root=context.root, trust=context.trust, **where))
    run.train = run.load_own("train")  # without the held-out images
    shifts, _ = shifts_for("augmentations", run.images)
    severities = SEVERITIES[context.scale]
    rows = evaluate(run.predictor, run.images.images, run.labels, shifts, severities, DRAWS, **where)
    kept = []
    for row in (rows[0], *summarise(rows)):
        for reading, scores in (("at_mean", row.at_mean), ("under_draws", row.under_draws)):
            if scores is not None:
                kept.append({"shift": row.shift, "reading": reading, **{name: scores[name] for name in SCORES}})
    return {"rows": kept}


def relative(shifts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return BYOL minus BYOV by shift and by reading of BYOV, in points, averaged over seeds."""
    byol = {(row["seed"], row["shift"]): row for row in shifts if row["model"] == "BYOL"}
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in shifts:
        if row["model"] == "BYOV":
            other = byol[row["seed"], row["shift"]]
            points = {name: 100 * (other[name] - row[name]) for name in SCORES}
            groups.setdefault((row["shift"], row["reading"]), []).append(points)
    return [
        {"shift": shift, "reading": reading, **{name: mean(p[name] for p in points) for name in SCORES}}
        for (shift, reading), points in groups.items()
    ]


def compare(data: dict[str, Any]) -> list[Comparison]:
    """Compare the paper's numbers and statements with ours."""
    curves = data["sweep"]["curves"]
    fixed, refitted = ([c for c in curves if c["probe"] == probe] for probe in ("fixed", "refitted"))
    gains = {sparsity: advantage(fixed, sparsity) for sparsity in SPARSITIES}
    best = max(gains, key=lambda sparsity: gains[sparsity] or -math.inf)
    at, error = _gain(fixed, "BYOV")
    against, other_error = _gain(fixed, "BYOL")
    again, refit_error = _gain(refitted, "BYOV")
    wanted = f"{WANTED:g} wanted: {'reached' if at >= WANTED else 'missed'}"
    sparser, zeros = sparser_by(fixed, SPARSER)
    found = [
        Comparison("SNR over magnitude, best, points of top-1", gains[best] or 0.0, verdict=f"at {best:.0%} zeros"),
        Comparison(f"the same at {AT:.0%} zeros", at, error=error, verdict=wanted),
        Comparison(f"the same, probe refitted, at {AT:.0%}", again, error=refit_error, verdict=_ahead(again)),
        Comparison(
            f"SNR of BYOV over magnitude of BYOL at {AT:.0%}", against, error=other_error, verdict=_ahead(against)
        ),
        Comparison(
            f"SNR over magnitude with {100 * SPARSER:g} points fewer zeros, best", sparser, 12.0,
            verdict=f"{_ahead(sparser)}, at {zeros + SPARSER:.0%} and {zeros:.0%} zeros",
        ),
    ]  # fmt: skip
    return found + signs(data["relative"])


def signs(relative: list[dict[str, Any]]) -> list[Comparison]:
    """Compare the signs of the differences with the paper: every augmentation at μ, and their number under draws."""
    (*rows, at_mean), (*drawn, under_draws) = (_signs(relative, reading) for reading in ("at_mean", "under_draws"))
    known = [row for row in drawn if row.paper is not None or row.quantity.endswith(" mean")]
    renamed = (replace(row, quantity=f"{row.quantity}, under draws") for row in (*known, under_draws))
    return [*rows, at_mean, *(renamed if drawn else ())]


def _signs(relative: list[dict[str, Any]], reading: str) -> list[Comparison]:
    """Compare the signs of the ECE and reliability differences with the paper, for every augmentation."""
    rows, agreeing, count = [], 0, 0
    for row in relative:
        if row["reading"] != reading:
            continue
        better, name = row["shift"] not in WORSE, row["shift"].replace("_", " ")
        for score, words in (("ece", "ECE"), ("reliability", "reliability")):
            same = (row[score] > 0) == better
            verdict = f"paper: {'better' if better else 'worse'}; {'same' if same else 'other'} direction"
            theirs = PAPER.get((row["shift"], score))
            rows.append(Comparison(f"{words} of BYOL minus BYOV, {name}", row[score], theirs, verdict=verdict))
            agreeing, count = agreeing + same, count + 1
    verdict = "all signs as in the paper" if agreeing == count else "not all signs as in the paper"
    return [*rows, Comparison(f"signs that agree, of {count}", agreeing, count, verdict=verdict)]


def sparser_by(curves: list[dict[str, Any]], more: float) -> tuple[float, float]:
    """Return the largest lead of SNR at s + `more` zeros over magnitude at s, in points of top-1, and that s.

    Curves are means over the seeds of BYOV, interpolated linearly between sparsities.
    """
    top1: dict[str, Any] = {}
    for by in ("snr", "magnitude"):
        each = [c for c in curves if c["by"] == by and c["model"] == "BYOV"]
        grid = each[0]["sparsity"]
        top1[by] = partial(np.interp, xp=grid, fp=100 * np.mean([c["top1"] for c in each], axis=0))
    starts = [s for s in grid if s + more <= grid[-1] + 1e-9]
    if not starts:
        return math.nan, math.nan
    return max((float(top1["snr"](s + more) - top1["magnitude"](s)), s) for s in starts)


def _gain(curves: list[dict[str, Any]], over: str) -> tuple[float, float | None]:
    """Return BYOV by SNR minus another model by magnitude at 70 %, in points, with its standard error over seeds."""
    top1 = {
        (c["model"], c["by"], c["seed"]): 100 * dict(zip(c["sparsity"], c["top1"], strict=True))[AT] for c in curves
    }
    seeds = sorted({seed for _, _, seed in top1})
    each = [top1["BYOV", "snr", seed] - top1[over, "magnitude", seed] for seed in seeds]
    return mean(each), standard_error(each)


def _ahead(points: float) -> str:
    return "SNR ahead" if points > 0 else "SNR behind"


@styled
def draw(data: dict[str, Any]) -> Figure:
    """Draw three panels, as in the paper."""
    figure, [[left, centre, right]] = canvas(12.0, 4.2, 1, 3, width_ratios=(1.25, 1, 1))
    plot_curves(left, [curve for curve in data["sweep"]["curves"] if curve["probe"] == "fixed"])
    left.axvline(100 * AT, color="0.7", linewidth=0.8, zorder=0)
    left.legend()
    left.set_title("pruned without retraining")
    names = [row["shift"] for row in data["relative"] if row["reading"] == "at_mean"]
    for axes, what, title in ((centre, "reliability", "Brier reliability"), (right, "ece", "ECE")):
        _bars(axes, data["relative"], names, what)
        axes.set_title(title)
    right.set_yticklabels([])
    centre.legend()
    return figure


def _bars(axes: Axes, rows: list[dict[str, Any]], names: list[str], what: str) -> None:
    """Draw a bar per shift at μ and a dot under draws; the colour shows whether BYOV is better (above 0)."""
    value = {(row["shift"], row["reading"]): row[what] for row in rows}
    places = list(range(len(names)))[::-1]
    bars = [value[name, "at_mean"] for name in names]
    axes.barh(places, bars, color=[COLOURS[0] if bar > 0 else COLOURS[1] for bar in bars], height=0.7)
    pairs = zip(places, names, strict=True)
    drawn = [(place, value[name, "under_draws"]) for place, name in pairs if (name, "under_draws") in value]
    if drawn:
        axes.plot([x for _, x in drawn], [y for y, _ in drawn], "k.", markersize=5, label="under draws (bars: at μ)")
    axes.set_yticks(places, [name.replace("_", " ") for name in names])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("BYOL − BYOV (points; right of 0 BYOV is better)")
    add_grid(axes)
