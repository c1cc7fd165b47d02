"""`byov explore`: numbers and figures about the posterior of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options

What = Annotated[
    str,
    options.plain(
        "Show layers, convergence, noise, alignment, gallery, humans, representation, several with commas, or all."
    ),
]


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Explore these runs of byov pretrain or byov train, given by their folders.")
    ],
    what: What = "all",
    out: Annotated[Path, options.plain("Write WHAT.json, WHAT.png and WHAT.svg to this folder.")] = Path("exploration"),
    force: options.Force = False,
    samples: options.Samples = 50,
    bootstraps: Annotated[int, options.draws("Resample the draws, or the images, this many times.", max=10_000)] = 50,
    seed: options.Seed = 0,
    limit: Annotated[int, options.data("Use this many test images; 0 means all.")] = 2000,
    train_limit: options.TrainLimit = None,
    ood: Annotated[
        str | None, options.data("Use this dataset as out-of-distribution images for representation: svhn, npz:FILE ….")
    ] = None,
    root: options.Root = None,
    device: options.Device = "auto",
    trust: options.Trust = False,
) -> None:
    """Show layer-wise σ and SNR, convergence over draws, noise, alignment, images, people, representation.

    layers: σ and |μ|/σ of each layer over training. convergence: predictive mean and std against the number of draws.
    noise: variance after encoder, projector and predictor. alignment: the predictive std of the first two runs with a
    posterior, such as BYOV and a supervised run. gallery: the most and least certain images. humans: uncertainty
    against people's votes (CIFAR-10H). representation: how well the uncertainty of an embedding, computed without
    labels, predicts a nearest neighbour of another class (R-AUROC) and detects other images (--ood). all: those that
    apply to the runs.

    Example: byov explore runs/byov runs/supervised --what layers,alignment --out exploration
    """
    from byov.commands.console import progress, show
    from byov.device import choose_device
    from byov.evaluation.explore import check_folder, explore_runs, parse_items
    from byov.report.drawing import save
    from byov.report.figures import EXPLORED
    from byov.runs import Reading

    items = parse_items(what)
    check_folder(out, items, force)
    place = choose_device(device)
    limits = {"limit": limit or None, "train_limit": train_limit}
    reading = Reading(samples, seed=seed, root=root, device=place, trust=trust, **limits)  # type: ignore[arg-type]
    with progress() as advance:
        for item, found in explore_runs(runs, items, reading, bootstraps, out, what == "all", advance, ood):
            if isinstance(found, str):
                show(f"{item} is left out: {found}")
            else:
                save(EXPLORED[item](found), out / item)
                show(f"{item}: {out / item}.json, .png and .svg")
