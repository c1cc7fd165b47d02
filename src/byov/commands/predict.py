"""`byov predict`: predictions for each input, and their uncertainty."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options

Model = Annotated[
    str,
    typer.Argument(
        help="Predict with this run of byov train or byov pretrain (a linear probe is fitted to its training split),"
        " given by its folder or checkpoint, or with python:module:function, which returns a classifier (logits)."
    ),
]
Data = Annotated[
    list[str],
    typer.Argument(help="Predict these image files, a folder of images, an .npz file, or a dataset by its name."),
]
Out = Annotated[Path, options.output("Write to this file: .csv, or .npz with all probabilities.")]


def command(
    model: Model,
    data: Data,
    split: Annotated[
        str | None, options.data("Predict this split (default: the test split, or all of a folder without splits).")
    ] = None,
    root: options.Root = None,
    image_size: options.ImageSize = None,
    channels: options.Channels = None,
    samples: options.Samples = 100,
    tolerance: Annotated[
        float | None, options.draws("Stop drawing for an input once the standard error of its mean is this small.")
    ] = None,
    strategy: options.Strategy = "auto",
    fit_samples: options.FitSamples = 8,
    temper: options.Temper = False,
    seed: options.Seed = 0,
    out: Out = Path("predictions.csv"),
    force: options.Force = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = 512,
    trust: options.Trust = False,
) -> None:
    """Predict each input's class, with its confidence, spread, entropies and mutual information over posterior draws.

    std is the standard deviation of the predicted class's probability over draws; entropy (total) = expected_entropy
    (aleatoric) + mutual_information (epistemic), in nats; draws is the number of draws used. A file that cannot be read
    is listed on stderr, and its row holds only its name. The columns of a table are matched by name.

    Example: byov predict runs/bbb digits --samples 100 --out predictions.csv
    """
    from byov.commands.console import progress, show
    from byov.device import choose_device
    from byov.evaluation.predictions import check_file, find_images, predict_all, prediction_protocol, write
    from byov.evaluation.regressions import predict_run
    from byov.report import tables
    from byov.runs import Reading, open_run
    from byov.runs.header import is_table

    place = choose_device(device)
    if is_table(model):
        if tolerance is not None or split is not None or len(data) > 1:
            raise ValueError("A run on a table predicts all rows of one file, with the same number of draws each.")
        rows = predict_run(model, data[0], samples, seed, out, place, force, trust)
        show(f"{len(rows.mean)} rows: mean, std (including noise) and epistemic_std in {out}")
        return
    check_file(out, force)
    reading = Reading(
        samples=samples, strategy=strategy, tolerance=tolerance, seed=seed, fit_samples=fit_samples, temper=temper,  # type: ignore[arg-type]
        root=root, image_size=image_size, channels=channels, batch_size=batch_size, device=place, trust=trust,
    )  # fmt: skip
    run = open_run(model, reading)
    images, folder = find_images(data, split, root, *run.shape)
    with progress() as advance:
        found = predict_all(run, images, folder, advance)
    write(found, out, prediction_protocol(run, images))
    for name, why in found.unreadable.values():
        print(f"{name} cannot be read: {why}", file=sys.stderr)
    show(*tables.predictions(found, f"{model} on {images.name}", run.posterior, out))
