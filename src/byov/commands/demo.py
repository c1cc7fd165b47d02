"""`byov demo`: the main job in three minutes, on two cores and no download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from byov.commands.options import plain


def command(
    out: Annotated[
        Path | None,
        plain("Keep the runs and the results in this folder; without it only the results are kept, in runs/demo."),
    ] = None,
    epochs: Annotated[int, plain("Pretrain each of the two for this many epochs.")] = 40,
) -> None:
    """Pretrain BYOL and BYOV on digits without labels, probe both, and show what the posterior bought."""
    from byov.demo import demo

    demo(out, epochs)
