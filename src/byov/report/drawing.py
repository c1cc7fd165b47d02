"""The style of figures, reproducible image files, and images inlined in a page."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from PIL import Image
from torch import Tensor

from byov.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")

COLOURS = ("#c2410c", "#0b62a8", "#00795a", "#a8407f", "#8a6500", "#4a5fb0", "#000000", "#777777")
"""One colour per model; the first six match the page (`templates/style.css`) and suit most colour vision."""
ORDERED = "viridis"
"""The colour map for ordered values: depth, or the noise level."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SIDE = 96
"""The longest side of an image on a page; smaller images are stored as they are and enlarged by the page."""
_STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "font.size": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "byov",
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style, without changing the user's."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*args, **kwargs)

    return drawn


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Create a figure with a size in inches, without pyplot's state; return it with its panels by row and column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    panels = made.subplots(rows, columns, squeeze=False, **options)
    return made, [list(row) for row in panels]


def add_grid(*panels: Axes) -> None:
    """Draw a light grid behind the data."""
    for axes in panels:
        axes.grid(color="0.92", linewidth=0.6)
        axes.set_axisbelow(True)


def subscripted(text: str) -> str:
    """Typeset the indices in a label such as N(μ_T, Σ_T) as subscripts."""
    return text.replace("μ_T", r"$\mu_T$").replace("Σ_T", r"$\Sigma_T$")


def log_labels(*axes: Axis) -> None:
    """Label logarithmic axes with plain numbers, as many as fit."""
    from math import log10

    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        low, high = axis.get_view_interval()
        decades = log10(high / low)
        dense = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0) if decades < 0.45 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        subs = dense if decades < 0.8 else (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def save(made: Figure, stem: Path, **options: Any) -> list[Path]:
    """Write STEM.png and STEM.svg, byte-identical for the same figure; `options` go to matplotlib."""
    import matplotlib

    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context(_STYLE), replacing(paths[0]) as png, replacing(paths[1]) as svg:
        made.savefig(png, dpi=200, **options)
        made.savefig(svg, metadata={"Date": None}, **options)
    return paths


def data_uri(image: Tensor) -> str:
    """Return a uint8 image (C, H, W) as an inline PNG, or as WebP if it had to be reduced."""
    pixels = image.cpu().permute(1, 2, 0)
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    picture = Image.fromarray(pixels.contiguous().numpy())
    if max(picture.size) <= SIDE:
        return _inline(picture, "png", optimize=True)
    picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return _inline(picture, "webp", quality=80)


def figure_uri(path: Path, width: int = 1600) -> str | None:
    """Return the figure that a command has drawn, reduced for a page; None if there is none."""
    if not path.is_file():
        return None
    with Image.open(path) as picture:
        picture.thumbnail((width, width), Image.Resampling.LANCZOS)
        return _inline(picture.convert("RGB"), "webp", quality=82)


def _inline(picture: Image.Image, kind: str, **options: Any) -> str:
    content = BytesIO()
    picture.save(content, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
