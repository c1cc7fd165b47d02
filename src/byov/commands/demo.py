"""`byov demo`: the whole workflow in three minutes, on two cores and without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from byov.commands.options import plain


def command(
    out: Annotated[
        Path | None,
        plain("Keep the runs and the results in this folder. By default only the results are kept, in runs/demo."),
    ] = None,
    epochs: Annotated[int, plain("Pretrain each model for this many epochs.")] = 40,
) -> None:
    """Pretrain BYOL and BYOV on digits without labels, probe both, and compare them."""
    from byov.demo import demo

    demo(out, epochs)
