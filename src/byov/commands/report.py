"""`byov report`: compare runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options

Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Show these run folders of pretrain or train, and files of evaluate, probe, prune, explore or reproduce."
    ),
]


def command(
    runs: Runs,
    out: Annotated[Path, options.plain("Write the page to this file.")] = Path("report.html"),
    samples: options.Samples = 30,
    shift: Annotated[
        str, options.plain("Shift the images by few (5), augmentations (15), corruptions (15) or none.")
    ] = "few",
    severities: options.Severities = "1,3,5",
    limit: Annotated[int, options.plain("Use at most this many test images; 0 means all.")] = 2000,
    split: options.Split = "test",
    seed: options.Seed = 0,
    root: options.Root = None,
    cache: Annotated[Path | None, options.plain("Cache measured numbers in this folder (default: RUN/report).")] = None,
    title: Annotated[str | None, options.plain("Set the title of the page.")] = None,
    device: options.Device = "auto",
    compute: Annotated[
        bool, options.plain("Measure missing numbers, or show only recorded ones.", "--compute/--no-compute")
    ] = True,
    renew: Annotated[bool, options.plain("Ignore cached numbers and measure them again.", "--renew")] = False,
    trust: options.Trust = False,
    force: options.Force = False,
) -> None:
    """Write one HTML file about runs: which is better calibrated, where does it fail, when is it uncertain?

    Runs that differ only in their seed are shown as one model with error bars. Measured numbers are cached beside the
    run, so a second report is instant. The file loads nothing from the network.

    Example: byov report runs/byol runs/byov --out report.html
    """
    from byov.commands.console import progress, show
    from byov.device import choose_device
    from byov.evaluation.rows import SHIFTS, parse_severities
    from byov.files import check_out
    from byov.report.collect import Request
    from byov.report.page import report
    from byov.runs import Reading

    check_out(out, force)
    if shift not in (*SHIFTS, "few"):
        raise ValueError(f"The shift must be few, {', '.join(SHIFTS)}, not {shift!r}.")
    if samples < 1:
        raise ValueError(f"A report needs at least one draw, not --samples {samples}.")
    if limit < 0:
        raise ValueError(f"--limit is a number of images, or 0 for all, not {limit}.")
    place = choose_device(device)
    reading = Reading(samples, seed=seed, limit=limit or None, split=split, root=root, device=place, trust=trust)
    request = Request(reading, shift, parse_severities(severities))
    with progress() as advance:
        tree = report(runs, out, request, compute, renew, cache, title, advance=advance)
    show(tree["verdict"]["question"], tree["verdict"]["answer"])
    for comparison in tree["verdict"]["comparisons"][:1]:
        show(*comparison["sentences"])
    show(f"{out}: {out.stat().st_size / 1e3:,.0f} kB")
