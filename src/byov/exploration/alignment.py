"""Whether two models are unsure of the same images: predictive std against predictive std (BYOV's Figure 1b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from byov.exploration.drawing import COLOURS, canvas, plain, styled
from byov.exploration.ranks import bootstrap_error, pearson, spearman

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVELS = (0.5, 0.8, 0.95)
GRID = 64


@dataclass(frozen=True)
class GaussianFit:
    """A two-dimensional Gaussian by moments, and how well it fits.

    `coverage` is the share of images inside the ellipses that should hold 50, 80 and 95 %; `skewness` and `kurtosis`
    are Mardia's, 0 and 8 for a Gaussian.
    """

    mean: list[float]
    covariance: list[list[float]]
    coverage: dict[str, float]
    skewness: float
    kurtosis: float


@dataclass(frozen=True)
class Density:
    """A Gaussian kernel density estimate on a grid, `density[row of y][column of x]`."""

    x: list[float]
    y: list[float]
    density: list[list[float]]


@dataclass(frozen=True)
class Alignment:
    """Two predictive standard deviations of the same images, and how they go together.

    Errors are bootstrap standard errors over images. The fit and the density are of log₁₀ std where `log` is set.
    """

    first: list[float]
    second: list[float]
    pearson: float
    pearson_error: float
    spearman: float
    spearman_error: float
    log: bool
    fit: GaussianFit
    kde: Density


def predictive_std(std: Tensor) -> Tensor:
    """One number for each image from the std of its class probabilities (N, C): √Σ_c σ_c²."""
    return std.square().sum(1).sqrt()


def alignment(first: Tensor, second: Tensor, log: bool = False, bootstraps: int = 200, seed: int = 0) -> Alignment:
    """Compare two predictive standard deviations (N,) of the same N images."""
    a, b = (x.detach().double().cpu().numpy() for x in (first, second))
    if a.ndim != 1 or a.shape != b.shape or len(a) < 8:
        raise ValueError(f"Alignment is of two numbers for each of at least 8 images, not {a.shape} and {b.shape}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("Alignment is of finite numbers.")
    if a.std() == 0 or b.std() == 0:
        raise ValueError("One of the two models has the same std for every image: there is nothing to align.")
    if log and min(a.min(), b.min()) <= 0:
        raise ValueError("The logarithm of a std needs one above 0 for every image.")
    a, b = (_short(x) for x in (a, b))
    x, y = (np.log10(a), np.log10(b)) if log else (a, b)
    return Alignment(
        a.tolist(),
        b.tolist(),
        pearson(x, y),
        bootstrap_error(pearson, x, y, bootstraps, seed),
        spearman(x, y),
        bootstrap_error(spearman, x, y, bootstraps, seed),
        log,
        gaussian_fit(x, y),
        _kde(x, y),
    )


def gaussian_fit(x: np.ndarray, y: np.ndarray) -> GaussianFit:
    """The Gaussian with the points' moments, the shares in its ellipses, and Mardia's measures."""
    points = np.stack([x, y], axis=1)
    mean, covariance = points.mean(0), np.cov(points.T, bias=True)
    centred = points - mean
    # White coordinates: distances are their norms, and Mardia's skewness is the sum of their squared third moments.
    white = np.linalg.solve(np.linalg.cholesky(covariance + 1e-12 * np.trace(covariance) * np.eye(2)), centred.T)
    distance = (white**2).sum(0)
    inside = {f"{level:g}": float((distance <= -2 * np.log(1 - level)).mean()) for level in LEVELS}
    third = np.einsum("in,jn,kn->ijk", white, white, white) / len(x)
    return GaussianFit(mean.tolist(), covariance.tolist(), inside, float((third**2).sum()), float((distance**2).mean()))


def _kde(x: np.ndarray, y: np.ndarray) -> Density:
    from scipy.stats import gaussian_kde

    grids = []
    for values in (x, y):
        low, high = np.quantile(values, (0.002, 0.998))
        margin = 0.15 * (high - low) + 1e-12
        grids.append(np.linspace(low - margin, high + margin, GRID))
    across, up = np.meshgrid(*grids)
    try:
        density = gaussian_kde(np.stack([x, y]))(np.stack([across.ravel(), up.ravel()])).reshape(GRID, GRID)
    except np.linalg.LinAlgError:
        raise ValueError("The two models' std lie on a line: a density of them has no meaning.") from None
    return Density(_short(grids[0]).tolist(), _short(grids[1]).tolist(), _short(density).tolist())


def _short(values: np.ndarray) -> np.ndarray:
    """Six digits: what is computed is computed from what is recorded."""
    return np.array([float(f"{v:.6g}") for v in values.ravel()]).reshape(values.shape)


@styled
def alignment_figure(found: Sequence[Alignment], first: str = "BYOV", second: str = "supervised BBB") -> Figure:
    """A panel for each: a point per image, the kernel density's contours, and the ellipses of the Gaussian fit."""
    made, [panels] = canvas(4.2 * len(found), 4.2, 1, len(found))
    for axes, one in zip(panels, found, strict=True):
        _panel(axes, one)
        what = "log₁₀ predictive std" if one.log else "predictive std"
        axes.set(xlabel=f"{what}, {first}", ylabel=f"{what}, {second}")
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3 if len(found) > 1 else 1)
    return made


def _panel(axes: Axes, found: Alignment) -> None:
    a, b = torch.tensor(found.first), torch.tensor(found.second)
    x, y = (a.log10(), b.log10()) if found.log else (a, b)
    alpha, many = min(0.6, 400 / len(a) + 0.1), len(a) > 3000
    axes.scatter(x, y, s=5, color="0.45", alpha=alpha, linewidths=0, rasterized=many, label=f"{len(a):,} images")
    kde = found.kde
    peak = max(map(max, kde.density))
    levels = [share * peak for share in (0.05, 0.15, 0.3, 0.5, 0.7, 0.9)]
    axes.contour(kde.x, kde.y, kde.density, levels=levels, colors=COLOURS[0], linewidths=0.9)
    centre, covariance = np.array(found.fit.mean), np.array(found.fit.covariance)
    turn = np.linspace(0, 2 * np.pi, 200)
    circle = np.linalg.cholesky(covariance) @ np.stack([np.cos(turn), np.sin(turn)])
    for level in LEVELS:
        ellipse = centre[:, None] + np.sqrt(-2 * np.log(1 - level)) * circle
        axes.plot(*ellipse, color=COLOURS[1], linewidth=1.1, linestyle="--")
    axes.plot([], [], color=COLOURS[0], label="kernel density")
    axes.plot([], [], color=COLOURS[1], linestyle="--", label="Gaussian fit: 50, 80, 95 %")
    low = [0.0, 0.0] if not found.log else [kde.x[0], kde.y[0]]
    axes.set(xlim=(low[0], kde.x[-1]), ylim=(low[1], kde.y[-1]))
    pearson = f"Pearson {found.pearson:.2f} ± {found.pearson_error:.2f}"
    axes.set_title(f"{pearson}, Spearman {found.spearman:.2f} ± {found.spearman_error:.2f}")
    plain(axes)
