"""Data shifts at five severities: the common contract of corruptions and augmentations.

A shift is a pure function `f(images, severity, generator)`. Images are floating-point tensors (N, C, H, W) in [0, 1]
with one or three channels; the result has the same shape, dtype and device, lies in [0, 1], and depends only on the
three arguments. The input is never modified.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byov.data.image_ops import gaussian_blur

SEVERITIES = (1, 2, 3, 4, 5)
SMALL_SIDE = 64  # images whose shorter side is at most this get the CIFAR-10-C parameters

Strength = tuple[float, ...]


@dataclass(frozen=True)
class Shift:
    """A named shift and its strength at each severity.

    `apply(images, generator, *strength)` does the work; `tables` holds five strengths under each name. A shift with the
    tables "imagenet" and "cifar" uses "cifar" for images whose shorter side is at most 64 pixels, unless `table` is
    given.
    """

    name: str
    apply: Callable[..., Tensor]
    tables: Mapping[str, tuple[Strength, ...]]
    rgb_only: bool = False

    def __call__(
        self,
        images: Tensor,
        severity: int = 1,
        generator: torch.Generator | None = None,
        *,
        table: str | None = None,
    ) -> Tensor:
        check_severity(severity)
        check_images(images)
        if self.rgb_only and images.shape[1] != 3:
            raise ValueError(f"{self.name} needs three colour channels, but the images have {images.shape[1]}.")
        strength = self.strength(severity, min(images.shape[-2:]), table)
        if images.shape[0] == 0:
            return images.clone()
        # Half precision has fewer steps than eight bits near 1, so the work is done in single precision or better.
        work = images if images.dtype in (torch.float32, torch.float64) else images.float()
        return self.apply(work, generator, *strength).clamp(0.0, 1.0).to(images.dtype)

    def strength(self, severity: int, side: int, table: str | None = None) -> Strength:
        """Return the parameters of `apply` for an image whose shorter side is `side` pixels."""
        if table is None:
            table = next(iter(self.tables)) if len(self.tables) == 1 else "cifar" if side <= SMALL_SIDE else "imagenet"
        if table not in self.tables:
            raise ValueError(f"{self.name} has no table {table!r}; it has {', '.join(self.tables)}.")
        return self.tables[table][severity - 1]


def shift(*, rgb_only: bool = False, **tables: Sequence[float | Strength]) -> Callable[[Callable[..., Tensor]], Shift]:
    """Decorate `apply(images, generator, *strength)` with its tables of five strengths, which makes it a `Shift`."""
    strengths = {
        name: tuple(row if isinstance(row, tuple) else (row,) for row in rows) for name, rows in tables.items()
    }
    if not strengths or any(len(rows) != len(SEVERITIES) for rows in strengths.values()):
        raise ValueError("A shift needs at least one table, and each table five strengths.")

    def decorate(apply: Callable[..., Tensor]) -> Shift:
        made = Shift(apply.__name__, apply, strengths, rgb_only)
        object.__setattr__(made, "__doc__", apply.__doc__)  # help(gaussian_noise) shows its equation
        return made

    return decorate


def find(registry: Mapping[str, Shift], name: str, kind: str) -> Shift:
    """Return the shift called `name`, or raise a `ValueError` that lists the nearest names."""
    if name in registry:
        return registry[name]
    near = difflib.get_close_matches(str(name), registry, n=3, cutoff=0.4) or list(registry)
    raise ValueError(f"There is no {kind} called {name!r}; the nearest are {', '.join(near)}.")


def check_severity(severity: int) -> None:
    """Raise unless `severity` is one of 1, 2, 3, 4 and 5."""
    if isinstance(severity, bool) or not isinstance(severity, int):
        raise TypeError(f"The severity must be a whole number from 1 to 5, not {severity!r}.")
    if severity not in SEVERITIES:
        raise ValueError(f"The severity must be a whole number from 1 to 5, not {severity}.")


def check_images(images: Tensor) -> None:
    """Raise unless `images` is a floating-point tensor (N, 1 or 3, H, W) with values in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(f"Images must be a torch tensor, not {type(images).__name__}.")
    if not images.is_floating_point():
        raise TypeError(f"Images must be floating point in [0, 1], not {images.dtype}: divide 8-bit images by 255.")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ValueError(f"Images must have shape (N, 1 or 3, H, W), not {tuple(images.shape)}.")
    if images.numel() > 0:
        low, high = (float(value) for value in images.aminmax())
        if not (low >= 0.0 and high <= 1.0):  # written so that NaN fails too
            raise ValueError(f"Image values must lie in [0, 1], but they run from {low:.4g} to {high:.4g}.")


def _source(like: Tensor, generator: torch.Generator | None) -> torch.device:
    return like.device if generator is None else generator.device


def uniform(
    shape: Sequence[int], low: float, high: float, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Draw U(low, high) on the generator's device in the dtype of `like`, and move it to the device of `like`."""
    draw = torch.rand(tuple(shape), generator=generator, dtype=like.dtype, device=_source(like, generator))
    return draw.mul_(high - low).add_(low).to(like.device)


def integers(
    shape: Sequence[int], low: int, high: int, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Draw whole numbers low, …, high − 1 with equal probability, on the device of `like`."""
    draw = torch.randint(low, high, tuple(shape), generator=generator, device=_source(like, generator))
    return draw.to(like.device)


def signs(shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw −1 or +1 with equal probability, in the dtype and on the device of `like`."""
    return integers(shape, 0, 2, like, generator).to(like.dtype).mul_(2).sub_(1)


def poisson(rates: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw Poisson counts with the given rates, on the generator's device."""
    return torch.poisson(rates.to(_source(rates, generator)), generator=generator).to(rates.device)


def smooth_noise(like: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw two fields (2, N, H, W) of U(−1, 1) noise, blurred by a Gaussian cut at 3σ with symmetric borders."""
    count, _, height, width = like.shape
    noise = uniform((2, count, height, width), -1.0, 1.0, like, generator)
    return gaussian_blur(noise, sigma, truncate=3.0, border="symmetric")
