"""`byov explore`: what the posterior of a run looks like, as numbers and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from byov.exploration.runs import Run, Settings

WHAT = ("layers", "convergence", "noise", "alignment", "gallery", "humans")


def command(
    runs: Annotated[list[Path], typer.Argument(help="Runs of byov pretrain or byov train: their folders.")],
    what: Annotated[
        str, typer.Option(help="layers, convergence, noise, alignment, gallery, humans, several with commas, or all.")
    ] = "all",
    out: Annotated[Path, typer.Option(help="The folder for WHAT.json, WHAT.png and WHAT.svg.")] = Path("exploration"),
    samples: Annotated[int, typer.Option(help="Posterior draws.")] = 50,
    bootstraps: Annotated[int, typer.Option(help="Bootstraps of the draws, or of the images.")] = 50,
    seed: Annotated[int, typer.Option(help="Of draws, noise, bootstraps, and what --limit takes.")] = 0,
    limit: Annotated[int, typer.Option(help="Look at this many test images; 0: at all.")] = 2000,
    train_limit: Annotated[
        int | None, typer.Option(help="Fit a probe on this many training images.", show_default=False)
    ] = None,
    root: Annotated[str | None, typer.Option(help="The folder of the data sets.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is in --out.")] = False,
) -> None:
    """Layer-wise σ and SNR, convergence over draws, variance under noise, alignment, certain images, people.

    layers: σ and |μ|/σ of each layer over training. convergence: predictive mean and std against the number of draws.
    noise: variance after encoder, projector and predictor. alignment: the predictive std of the first two runs with a
    posterior, such as BYOV and a supervised one. gallery: the most and least certain images. humans: uncertainty
    against people's votes (CIFAR-10H). all: those that apply to the runs.

    Example: byov explore runs/byov runs/supervised --what layers,alignment --out exploration
    """
    from rich.console import Console

    from byov.device import choose_device
    from byov.exploration.runs import Settings

    names = _asked(what)
    _check_out(out, names, force)
    place = str(choose_device(device))
    settings = Settings(samples, bootstraps, seed, limit or None, train_limit, root=root, device=place)
    written = _explore(_open(runs, settings), names, what == "all", out)
    console = Console()
    for line in written:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _asked(what: str) -> list[str]:
    names = list(WHAT) if what == "all" else [name.strip() for name in what.split(",")]
    for name in names:
        if name not in WHAT:
            raise ValueError(f"--what is {', '.join(WHAT)} or all, not {name!r}.")
    return list(dict.fromkeys(names))


def _check_out(out: Path, names: list[str], force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: --out takes the name of a folder.")
    for name in names:
        for kind in ("json", "png", "svg"):
            if (out / f"{name}.{kind}").exists() and not force:
                raise FileExistsError(f"{out / name}.{kind} exists: choose another --out, or say --force.")


def _open(paths: list[Path], settings: Settings) -> list[Run]:
    from byov.exploration.runs import Run

    names = [path.resolve().name if path.is_dir() else str(path) for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError("The same run is named twice.")
    return [Run(path, name, settings) for path, name in zip(paths, names, strict=True)]


def _explore(runs: list[Run], names: list[str], skip: bool, out: Path) -> list[str]:
    """Make and write the items; with `skip`, leave out those that none of the runs has anything for."""
    import json
    from dataclasses import asdict

    import torch

    import byov
    from byov.exploration.drawing import save
    from byov.exploration.items import ITEMS, Inapplicable
    from byov.files import write_json

    lines = []
    settings = {k: v for k, v in asdict(runs[0].settings).items() if k not in ("root", "device", "batch_size")}
    versions = {"byov": byov.__version__, "torch": str(torch.__version__)}
    for name in names:
        try:
            result: Any = json.loads(json.dumps(ITEMS[name].make(runs), allow_nan=False))
        except Inapplicable as error:
            if not skip:
                raise
            lines.append(f"{name} is left out: {error}")
            continue
        about = {run.name: run.about() for run in runs}
        protocol = {"settings": settings, "runs": about, "versions": versions}
        write_json(out / f"{name}.json", {"what": name, "protocol": protocol, "result": result})
        save(ITEMS[name].figure(result), out / name)
        lines.append(f"{name}: {out / name}.json, .png and .svg")
    return lines
