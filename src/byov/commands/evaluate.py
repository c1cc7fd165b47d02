"""`byov evaluate`: accuracy and uncertainty of a model, on clean and shifted images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options

Model = Annotated[
    str,
    typer.Argument(
        help="Evaluate this run, given by its folder or checkpoint (for byov pretrain, a linear probe is fitted to the"
        " training split), or python:module:function, which returns a classifier (logits) of images in [0, 1]."
    ),
]


def command(
    model: Model,
    data: options.Data = None,
    split: options.Split = "test",
    root: options.Root = None,
    shift: Annotated[str, options.data("Shift the images by none, augmentations (15) or corruptions (15).")] = "none",
    severities: options.Severities = "1-5",
    limit: Annotated[int | None, options.data("Evaluate on this many images.")] = None,
    train_limit: options.TrainLimit = None,
    image_size: options.ImageSize = None,
    channels: options.Channels = None,
    normalise: Annotated[bool, options.data("Standardise by the training mean and std.", "--normalise")] = False,
    samples: options.Samples = 30,
    fit_samples: options.FitSamples = 8,
    temper: options.Temper = False,
    network: options.Network = "student",
    strategy: options.Strategy = "loop",
    seed: options.Seed = 0,
    bins: Annotated[int, options.output("Use this many confidence bins for ECE and adaptive ECE.")] = 15,
    out: Annotated[Path, options.output("Write the results to this file.")] = Path("results.json"),
    baseline: Annotated[Path | None, options.output("Compute mCE and relative mCE against this results file.")] = None,
    resume: Annotated[bool, options.output("Continue the file --out, or overwrite it.", "--resume/--force")] = True,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 512,
    precision: options.Precision = "32-true",
    trust: options.Trust = False,
) -> None:
    """Measure accuracy, calibration, Brier parts, selective risk and OOD detection, clean and under shifts.

    All scores are computed at the posterior mean μ and, if there is a posterior, under draws. Repeat the command to
    continue an interrupted evaluation.

    Example: byov evaluate runs/byov --data digits --shift corruptions --out results.json
    """
    from byov.commands.console import progress, show
    from byov.device import choose_device
    from byov.evaluation import regressions
    from byov.evaluation.results import evaluate_run
    from byov.evaluation.rows import parse_severities
    from byov.report import tables
    from byov.runs import Reading, open_run
    from byov.runs.header import is_table

    place = choose_device(device)
    if is_table(model):
        if shift != "none" or data is not None or split != "test" or baseline is not None or limit is not None:
            raise ValueError("A run on a table is evaluated on all test rows of its own split, without shifts.")
        found = regressions.evaluate_run(model, samples, seed, out, place, root, not resume, trust)
        show(*tables.regression(found, model), f"all scores and their protocol: {out}")
        return
    levels = parse_severities(severities)
    reading = Reading(
        samples=samples, strategy=strategy, seed=seed, fit_samples=fit_samples, temper=temper, network=network,  # type: ignore[arg-type]
        data=data, split=split, limit=limit, train_limit=train_limit, root=root, image_size=image_size,
        channels=channels, normalise=normalise, batch_size=batch_size, device=place, precision=precision, trust=trust,  # type: ignore[arg-type]
    )  # fmt: skip
    run = open_run(model, reading)
    with progress() as advance:
        results = evaluate_run(run, out, shift, levels, bins, baseline, not resume, advance)
    show(*tables.evaluation(results, run, baseline), f"all scores and their protocol: {out}")
