"""Are two models uncertain about the same images? BYOV's Figure 1b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from byov.evaluation.resampling import pearson, spearman, with_error

LEVELS = (0.5, 0.8, 0.95)
GRID = 64
FLOOR = 1e-7
"""The least std whose logarithm is taken, about the precision of float32 for probabilities near 1."""


@dataclass(frozen=True)
class GaussianFit:
    """A two-dimensional Gaussian fitted by moments, and how well it fits.

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
    """A Gaussian kernel density estimate on a grid, indexed as `density[y][x]`."""

    x: list[float]
    y: list[float]
    density: list[list[float]]


@dataclass(frozen=True)
class Alignment:
    """Two predictive standard deviations for the same images, and how they are related.

    Errors are bootstrap standard errors over images. With `log`, the fit and the density are of log₁₀ std.
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
    """Return one number for each image from the std of its class probabilities (N, C): √Σ_c σ_c²."""
    return std.square().sum(1).sqrt()


def alignment(first: Tensor, second: Tensor, log: bool = False, bootstraps: int = 200, seed: int = 0) -> Alignment:
    """Compare two predictive standard deviations (N,) of the same N images."""
    a, b = (x.detach().double().cpu().numpy() for x in (first, second))
    if a.ndim != 1 or a.shape != b.shape or len(a) < 8:
        raise ValueError(f"Alignment needs two numbers for each of at least 8 images, not {a.shape} and {b.shape}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("Alignment needs finite numbers.")
    if a.std() == 0 or b.std() == 0:
        raise ValueError("One of the two models has the same std for every image: there is nothing to align.")
    if log and min(a.min(), b.min()) <= 0:
        raise ValueError("Alignment of logarithms needs a std above 0 for every image.")
    a, b = (_short(x) for x in (a, b))
    x, y = (np.log10(a), np.log10(b)) if log else (a, b)
    (r, r_error), (rank, rank_error) = (with_error(which, x, y, bootstraps, seed) for which in (pearson, spearman))
    fit, kde = gaussian_fit(x, y), _kde(x, y)
    return Alignment(a.tolist(), b.tolist(), r, r_error, rank, rank_error, log, fit, kde)


def gaussian_fit(x: np.ndarray, y: np.ndarray) -> GaussianFit:
    """Fit a Gaussian by moments; also compute the coverage of its ellipses, and Mardia's measures."""
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
        raise ValueError("The two models' std lie on a line, so they have no density.") from None
    return Density(_short(grids[0]).tolist(), _short(grids[1]).tolist(), _short(density).tolist())


def _short(values: np.ndarray) -> np.ndarray:
    """Round to six digits, so that everything is computed from the recorded values."""
    return np.array([float(f"{v:.6g}") for v in values.ravel()]).reshape(values.shape)


def both_scales(first: Tensor, second: Tensor, seed: int) -> list[Alignment]:
    """Align two predictive std as in the paper, and their logarithms."""
    logarithms = alignment(first.clamp_min(FLOOR), second.clamp_min(FLOOR), log=True, seed=seed)
    return [alignment(first, second, seed=seed), logarithms]


def read_alignment(values: dict[str, Any]) -> Alignment:
    """Return an `Alignment` from its JSON."""
    return Alignment(**{**values, "fit": GaussianFit(**values["fit"]), "kde": Density(**values["kde"])})
