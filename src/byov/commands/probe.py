"""`byov probe`: fit and score kNN and linear probes on a pretrained encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options

Protocol = Annotated[
    str,
    options.draws(
        "Fit a logistic regression by lbfgs, or with byol also run BYOL's linear evaluation of student and teacher, by"
        " SGD on random crops."
    ),
]


def command(
    run: Annotated[Path, typer.Argument(help="Probe the pretraining run in this folder.")],
    data: options.Data = None,
    split: options.Split = "test",
    root: options.Root = None,
    samples: Annotated[
        int, options.draws("Predict under this many posterior draws; 0 predicts only at μ.", max=options.MOST_DRAWS)
    ] = 30,
    fit_samples: options.FitSamples = 8,
    temper: options.Temper = False,
    k: Annotated[
        int | None,
        options.draws("Use this many neighbours; by default one for every 250 training images, from 20 to 200."),
    ] = None,
    network: options.Network = "student",
    protocol: Protocol = "lbfgs",
    epochs: Annotated[int, options.draws("Train for this many epochs with --protocol byol.")] = 80,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    precision: options.Precision = "32-true",
    trust: options.Trust = False,
    out: Annotated[Path | None, options.output("Write the scores and their protocol to this JSON file.")] = None,
    force: options.Force = False,
) -> None:
    """Fit kNN and linear probes to the training images, and score them at the posterior mean and under draws.

    Example: byov probe runs/byov --protocol byol --out probe.json
    """
    from byov.commands.console import progress, show
    from byov.evaluation.probing import probe_run
    from byov.files import check_out, write_json
    from byov.report import tables
    from byov.ssl.classifiers import EXAMPLES

    if out is not None:
        check_out(out, force)
    tempered = EXAMPLES if temper else 0
    with progress() as advance:
        probed = probe_run(
            run, split, samples, fit_samples, k, seed, root, device, data, tempered, trust,
            protocol=protocol, network=network, epochs=epochs, precision=precision, report=advance,  # type: ignore[arg-type]
        )  # fmt: skip
    show(tables.probes({str(run): probed.result}))
    if out is not None:
        write_json(out, {"scores": probed.result.numbers(), "protocol": probed.protocol})
