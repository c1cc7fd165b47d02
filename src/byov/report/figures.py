"""The figures about a posterior, drawn from the numbers of `byov.evaluation` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Generator

from byov.evaluation.alignment import LEVELS, Alignment, read_alignment
from byov.evaluation.convergence import Convergence
from byov.evaluation.gallery import Gallery, Shown
from byov.evaluation.humans import MEASURES, HumanAgreement
from byov.evaluation.layers import PARTS, QUANTITIES, LayerHistory
from byov.evaluation.noise import NoiseVariance
from byov.evaluation.pruning import Curve
from byov.evaluation.representation import MEASURES as WITHOUT_LABELS
from byov.evaluation.sweep import sweep_groups
from byov.report.drawing import COLOURS, MARKERS, ORDERED, add_grid, canvas, log_labels, styled, subscripted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = ("-", "--", ":", "-.")
BELOW: Final = "outside lower center"
ORDER_MEASURES = ("spread_projector", "augmented_spread_projector", "spread_encoder", "augmented_spread_encoder")
"""Measures that order images; the first available is used. BYOL's loss is about the directions of projections."""


@styled
def alignment_figure(found: Sequence[Alignment], first: str = "BYOV", second: str = "supervised BBB") -> Figure:
    """Draw a panel for each alignment: a point per image, density contours, and the ellipses of the Gaussian fit."""
    made, [panels] = canvas(4.2 * len(found), 4.2, 1, len(found))
    for axes, one in zip(panels, found, strict=True):
        _panel(axes, one)
        what = "log₁₀ predictive std" if one.log else "predictive std"
        axes.set(xlabel=f"{what}, {first}", ylabel=f"{what}, {second}")
    made.legend(*panels[0].get_legend_handles_labels(), loc=BELOW, ncols=3 if len(found) > 1 else 1)
    return made


def _panel(axes: Axes, found: Alignment) -> None:
    a, b = torch.tensor(found.first), torch.tensor(found.second)
    x, y = (a.log10(), b.log10()) if found.log else (a, b)
    alpha, many = min(0.6, 400 / len(a) + 0.1), len(a) > 3000
    axes.scatter(x, y, s=5, color="0.45", alpha=alpha, linewidths=0, rasterized=many, label=f"{len(a):,} images")
    kde = found.kde
    levels = np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9]) * np.max(kde.density)
    axes.contour(kde.x, kde.y, kde.density, levels=levels, colors=COLOURS[0], linewidths=0.9)
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(np.array(found.fit.covariance)) @ np.stack([np.cos(turn), np.sin(turn)])
    for level in LEVELS:
        ellipse = np.array(found.fit.mean)[:, None] + np.sqrt(-2 * np.log(1 - level)) * circle
        axes.plot(*ellipse, color=COLOURS[1], linewidth=1.1, linestyle="--")
    axes.plot([], [], color=COLOURS[0], label="kernel density")
    axes.plot([], [], color=COLOURS[1], linestyle="--", label="Gaussian fit: 50, 80, 95 %")
    low = [0.0, 0.0] if not found.log else [kde.x[0], kde.y[0]]
    axes.set(xlim=(low[0], kde.x[-1]), ylim=(low[1], kde.y[-1]))
    pearson = f"Pearson {found.pearson:.2f} ± {found.pearson_error:.2f}"
    axes.set_title(f"{pearson}, Spearman {found.spearman:.2f} ± {found.spearman_error:.2f}")
    add_grid(axes)


@styled
def convergence_figure(found: Mapping[str, Mapping[str, Convergence]]) -> Figure:
    """Draw a row per run: predictive mean, predictive std, and spread of a single image's mean; a line per shift."""

    made, panels = canvas(9.0, 2.5 * len(found) + 0.5, len(found), 3, sharex=True)
    for row, (run, shifts) in zip(panels, found.items(), strict=True):
        for (shift, c), colour in zip(shifts.items(), COLOURS * 3, strict=False):
            k = torch.tensor(c.draws, dtype=torch.float64)
            label = shift.replace("_", " ")
            for axes, middle, spread in ((row[0], c.mean, c.mean_spread), (row[1], c.std, c.std_spread)):
                m, s = torch.tensor(middle), torch.tensor(spread)
                axes.plot(k, m, color=colour, linewidth=1.3, label=label)
                axes.fill_between(k, m - s, m + s, color=colour, alpha=0.2, linewidth=0)
            row[2].plot(k, c.image_spread, color=colour, linewidth=1.3, label=label)
        first = next(iter(shifts.values()))
        guide = [first.image_spread[0] * (first.draws[0] / count) ** 0.5 for count in first.draws]
        row[2].plot(first.draws, guide, color="0.35", linewidth=0.9, linestyle=(0, (1, 2)), label="∝ 1/√K")
        row[2].set_yscale("log")
        row[0].set_ylabel(f"{run}\npredictive mean" if len(found) > 1 else "predictive mean")
        row[1].set_ylabel("predictive std")
        row[2].set_ylabel("std of an image's mean")
        for axes in row:
            axes.set_xscale("log")
            add_grid(axes)
        log_labels(row[2].yaxis)
    for axes in panels[-1]:
        axes.set_xlabel("draws K")
        log_labels(axes.xaxis)
    made.suptitle("Probability of the predicted class", fontsize="medium")
    handles, labels = panels[0][2].get_legend_handles_labels()
    made.legend(handles, labels, loc=BELOW, ncols=len(labels))
    return made


@styled
def gallery_figure(found: Mapping[str, Gallery]) -> Figure:
    """Show the least and the most certain images of each run; wrong predictions are labelled in blue."""

    columns = 12
    bands = [(run, title, shown) for run, g in found.items() for title, shown in _bands(g)]
    rows = sum(-(-len(shown) // columns) + 1 for _, _, shown in bands)
    made, [[axes]] = canvas(9.0, 0.95 * rows - 0.57 * len(bands))
    axes.axis("off")
    y = 0.0
    for run, title, shown in bands:
        name = f"{run}: {title}" if len(found) > 1 else title
        axes.text(-0.5, y, name, fontsize=9, fontweight="bold", va="center", clip_on=False)
        y += 0.48
        for i, item in enumerate(shown):
            row, column = divmod(i, columns)
            top = y + 1.3 * row
            pixels = item.array()
            picture = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
            box = (column - 0.46, column + 0.46, top + 0.72, top - 0.2)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=box, interpolation="nearest")
            right = item.label == item.predicted
            words, ink = (item.label, "0.25") if right else (f"{item.label}→{item.predicted}", COLOURS[1])
            axes.text(column, top + 0.76, words, ha="center", va="top", fontsize=6, color=ink)
        y += 1.3 * -(-len(shown) // columns) + 0.1
    axes.set(xlim=(-0.55, columns - 0.45), ylim=(y - 0.2, -0.25), aspect="equal")
    return made


def _bands(g: Gallery) -> list[tuple[str, list[Shown]]]:
    found = []
    for end, shown, accuracy in (
        ("least", g.least_certain, g.accuracy_least_certain),
        ("most", g.most_certain, g.accuracy_most_certain),
    ):
        low, high = sorted((shown[0].uncertainty, shown[-1].uncertainty))
        about = f"{g.measure} {low:.3g} … {high:.3g} nats; accuracy in this tenth {100 * accuracy:.1f} %"
        found.append((f"{end} certain ({about})", shown))
    return found


@styled
def humans_figure(found: Mapping[str, HumanAgreement]) -> Figure:
    """Draw the rank correlation by measure and model, and people's entropy against each model's uncertainty."""

    measures = [m for m in MEASURES if any(m in agreement.spearman for agreement in found.values())]
    more = 0.75 * max(0, len(measures) - 5)
    made, [[bars, lines]] = canvas(9.0 + more, 3.4, 1, 2, width_ratios=[1.25 + more / 4, 1])
    width = 0.8 / len(found)
    for i, ((run, agreement), colour) in enumerate(zip(found.items(), COLOURS, strict=False)):
        there = [(k, *agreement.spearman[m]) for k, m in enumerate(measures) if m in agreement.spearman]
        at = [k + (i - (len(found) - 1) / 2) * width for k, _, _ in there]
        _, heights, errors = zip(*there, strict=True)
        whiskers = {"elinewidth": 0.9, "ecolor": "0.2"}
        bars.bar(at, heights, 0.92 * width, yerr=errors, color=colour, label=run, error_kw=whiskers)
        best = "entropy" if "entropy" in agreement.curve else next(iter(agreement.curve))
        _plot_tenths(lines, agreement.curve[best], f"{run}, {MEASURES.get(best, best)}", i)
    some = next(iter(found.values()))
    lines.axhline(some.human_entropy, color="0.5", linewidth=0.9, linestyle=":")
    lines.annotate("all images", (2, some.human_entropy), color="0.4", ha="left", va="bottom", fontsize=7.5)
    bars.set_xticks(range(len(measures)), [MEASURES[m].replace(" ", "\n", 1) for m in measures])
    bars.set_ylabel("Spearman with people's entropy")
    bars.axhline(0, color="0.3", linewidth=0.8)
    bars.legend()
    lines.set_ylabel("people's entropy (nats)")
    lines.set_ylim(bottom=0)
    lines.legend()
    for axes in (bars, lines):
        add_grid(axes)
    return made


@styled
def layers_figure(histories: Mapping[str, LayerHistory], quantities: Sequence[str] = tuple(QUANTITIES)) -> Figure:
    """Draw a column per run, a row per quantity on a shared logarithmic axis, and a line per layer."""
    import matplotlib
    from matplotlib.lines import Line2D

    width, height = max(3.6, 2.5 * len(histories) + 0.8), 1.75 * len(quantities) + 0.9
    made, panels = canvas(width, height, len(quantities), len(histories), sharex="col", sharey="row")
    depth = matplotlib.colormaps[ORDERED]
    heads = False
    for row, quantity in zip(panels, quantities, strict=True):
        for axes, (name, history) in zip(row, histories.items(), strict=True):
            encoder = [layer for layer in history.layers if layer.partition(".")[0] not in PARTS]
            for layer, values in zip(history.layers, getattr(history, quantity), strict=True):
                part = layer.partition(".")[0]
                heads |= part in PARTS
                colour, style = PARTS.get(part) or (depth(0.92 * encoder.index(layer) / max(1, len(encoder) - 1)), "-")
                shown = [float("nan") if value is None else value for value in values]
                axes.plot(history.epochs, shown, style, color=colour, linewidth=1.0, alpha=0.85)
            axes.set_yscale("log")
            add_grid(axes)
            log_labels(axes.yaxis)
            if row is panels[0]:
                axes.set_title(subscripted(name))
            if row is panels[-1]:
                axes.set_xlabel("epoch")
        row[0].set_ylabel(QUANTITIES[quantity])
    whose = "encoder, " if heads else ""
    ends = [Line2D([], [], color=depth(x), label=f"{whose}{end} layer") for x, end in ((0.0, "first"), (0.92, "last"))]
    lines = [*ends, *(Line2D([], [], color=c, linestyle=s, label=p) for p, (c, s) in PARTS.items() if heads)]
    made.legend(handles=lines, loc=BELOW, ncols=2 if width < 6 else 4)
    return made


@styled
def noise_figure(found: Mapping[str, NoiseVariance]) -> Figure:
    """Draw a row per run: stages against each other, with a point per image coloured by noise, and means over noise."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    made, panels = canvas(11.0, 2.7 * len(found) + 0.3, len(found), 4)
    for row, (run, n) in zip(panels, found.items(), strict=True):
        variance = torch.tensor(n.variance)
        palette = matplotlib.colormaps["viridis"].resampled(len(n.noise))
        edges = BoundaryNorm(range(len(n.noise) + 1), len(n.noise))
        level = torch.arange(len(n.noise))[:, None].expand(variance.shape[1:]).flatten()
        order = torch.randperm(len(level), generator=Generator().manual_seed(0))  # so that no noise level hides another
        for axes, (i, j) in zip(row, combinations(range(len(n.stages)), 2), strict=False):
            x, y = variance[i].flatten()[order], variance[j].flatten()[order]
            axes.scatter(x, y, c=level[order], cmap=palette, norm=edges, s=5, alpha=0.6, linewidths=0)
            rank = n.correlation[f"{n.stages[i]}, {n.stages[j]}"]
            axes.set(xscale="log", yscale="log", xlabel=f"variance after {n.stages[i]}", ylabel=f"after {n.stages[j]}")
            axes.set_title(f"Spearman {rank:.2f}")
            add_grid(axes)
            log_labels(axes.xaxis, axes.yaxis)
        for axes in row[len(n.correlation) : 3]:
            axes.set_visible(False)
        shade = ScalarMappable(edges, palette)
        bar = made.colorbar(shade, ax=row[:3], pad=0.01, aspect=22, ticks=[i + 0.5 for i in range(len(n.noise))])
        bar.set_label("noise (std of pixels in 0…1)")
        bar.ax.set_yticklabels([f"{s:g}" for s in n.noise])
        last = row[3]
        for stage, values, colour, marker in zip(n.stages, variance, COLOURS, MARKERS, strict=False):
            middle = values.mean(1)
            relative = middle / middle[0]
            low, high = (torch.quantile(values, q, dim=1) / middle[0] for q in (0.25, 0.75))
            last.plot(n.noise, relative, color=colour, marker=marker, markersize=3.5, linewidth=1.2, label=stage)
            last.fill_between(n.noise, low, high, color=colour, alpha=0.15, linewidth=0)
        last.set(xlabel="noise", ylabel="variance, relative to no noise", yscale="log")
        last.set_title("mean and quartiles")
        log_labels(last.yaxis)
        last.legend()
        add_grid(last)
        if len(found) > 1:
            row[0].set_ylabel(f"{run}\n{row[0].get_ylabel()}")
    return made


@styled
def pruning_figure(content: dict[str, Any]) -> Figure:
    """Draw accuracy and calibration after pruning: two panels for each scope and probe."""
    groups, test = sweep_groups(content["curves"]), content["protocol"]["test"]
    made, rows = canvas(8.0, 3.0 * len(groups) + 0.2, len(groups), 2)
    for [left, right], ((scope, how), curves) in zip(rows, groups.items(), strict=True):
        plot_curves(left, curves, "top1")
        plot_curves(right, curves, "ece")
        for axes in (left, right):
            axes.set_title(f"{scope}, {how}")
    rows[0][0].legend(loc="lower left")
    made.suptitle(f"Pruned: {test['name']} {test['split']}", fontsize="medium")
    return made


def plot_curves(axes: Axes, curves: Sequence[Curve], what: str = "top1") -> None:
    """Draw one line per model and ranking, the mean over seeds.

    The band is the range over seeds; for a single seed it is two standard errors over the test images, if known.
    """
    groups: dict[tuple[str, str], list[Curve]] = {}
    for each in curves:
        groups.setdefault((each["model"], each["by"]), []).append(each)
    models, orders = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    for (model, by), members in groups.items():  # a colour for each model, a marker and a line style for each ranking
        colour = COLOURS[models.index(model) % len(COLOURS)]
        marker, line = MARKERS[orders.index(by)], LINES[orders.index(by)]
        x = 100 * np.asarray(members[0]["sparsity"])
        y = 100 * np.asarray([member[what] for member in members])
        label = f"{model}, {'SNR' if by == 'snr' else by}"
        axes.plot(x, y.mean(0), line, color=colour, marker=marker, markersize=4, label=label)
        if len(members) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
        elif "error" in members[0]:
            reach = 200 * np.asarray(members[0]["error"][what])
            axes.fill_between(x, y[0] - reach, y[0] + reach, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("weights removed (%)")
    axes.set_ylabel({"top1": "top-1 accuracy (%)", "ece": "ECE (%)"}[what])
    axes.set_ylim(bottom=0)
    add_grid(axes)


@styled
def representation_figure(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a row for each dataset: R-AUROC by measure and run, and R@1 over certainty or, for other images, AUROC."""
    sets = list(dict.fromkeys(name for run in found.values() for name in run["data"]))
    made, rows = canvas(9.6, 3.3 * len(sets), len(sets), 2, width_ratios=[1.6, 1])
    for (bars, side), data in zip(rows, sets, strict=True):
        here = {name: run["data"][data] for name, run in found.items() if data in run["data"]}
        labels = [f"{name}: R@1 {100 * each['r_at_1'][0]:.1f} %" for name, each in here.items()]
        _dots(bars, [each["r_auroc"] for each in here.values()], labels)
        bars.set(xlabel="R-AUROC", title=data)
        for i, each in enumerate(here.values()):
            measure = next((m for m in ORDER_MEASURES if m in each["curve"]), "negative_norm")
            _plot_tenths(side, [100 * value for value in each["curve"][measure]], WITHOUT_LABELS[measure], i)
        side.set_ylabel("R@1 (%)")
        side.legend()
        add_grid(side)
    foreign = {name: run["ood"] for name, run in found.items() if run["ood"]}
    if foreign:
        for (_, side), data in zip(rows[1:], sets[1:], strict=True):
            side.clear()
            _dots(side, [each[data] for each in foreign.values()], list(foreign))
            side.set(xlabel="AUROC", title=f"{data} against {sets[0]}")
    return made


def _style(i: int) -> dict[str, Any]:
    """Return the colour and the marker of model i."""
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}


def _plot_tenths(axes: Axes, values: Sequence[float], label: str, i: int) -> None:
    """Draw the means of `byov.evaluation.resampling.tenths` for model i."""
    tenths = [100 * (k + 0.5) / len(values) for k in range(len(values))]
    axes.plot(tenths, values, label=label, linewidth=1.3, **_style(i))
    axes.set(xlabel="images from the most to the least certain (%)", xlim=(0, 100))


def _dots(axes: Axes, readings: Sequence[Mapping[str, Sequence[float] | None]], labels: Sequence[str]) -> None:
    """Draw a point with its error for each measure and run; the dotted line is chance."""
    measures = [m for m in WITHOUT_LABELS if any(m in each for each in readings)]
    for i, (each, label) in enumerate(zip(readings, labels, strict=True)):
        there = [(k, *values) for k, m in enumerate(measures) if (values := each.get(m)) is not None]
        at = [k + 0.5 * ((i + 0.5) / len(readings) - 0.5) for k, *_ in there]
        x, error = [v for _, v, _ in there], [e for _, _, e in there]
        axes.errorbar(x, at, xerr=error, linestyle="none", elinewidth=0.9, label=label, **_style(i))
    axes.axvline(0.5, color="0.4", linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(measures)), [WITHOUT_LABELS[m] for m in measures])
    axes.set_ylim(len(measures) - 0.5, -0.5)
    axes.legend()
    add_grid(axes)


def _alignment(result: dict[str, Any]) -> Figure:
    return alignment_figure([read_alignment(a) for a in result["alignment"]], result["first"], result["second"])


def _gallery(result: dict[str, Any]) -> Figure:
    def read(values: dict[str, Any]) -> Gallery:
        ends = {end: [Shown(**shown) for shown in values[end]] for end in ("most_certain", "least_certain")}
        return Gallery(**{**values, **ends})

    return gallery_figure({run: read(values) for run, values in result.items()})


def _convergence(result: dict[str, Any]) -> Figure:
    return convergence_figure({run: {s: Convergence(**c) for s, c in by.items()} for run, by in result.items()})


EXPLORED: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "layers": lambda result: layers_figure({run: LayerHistory(**h) for run, h in result.items()}),
    "convergence": _convergence,
    "noise": lambda result: noise_figure({run: NoiseVariance(**n) for run, n in result.items()}),
    "alignment": _alignment,
    "gallery": _gallery,
    "humans": lambda result: humans_figure({run: HumanAgreement(**h) for run, h in result.items()}),
    "representation": representation_figure,
}
"""For each item of `byov explore`, the function that draws its figure from its numbers."""
