"""The folder of one experiment: `result.json`, `figure.png` and `figure.svg`, written once and shown ever after."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from byov.files import write_json
from byov.reproduce.experiment import Context, Experiment, Outcome, plain, rows

KIND = "byov reproduce"


def protocol(context: Context) -> dict[str, Any]:
    """What the numbers of an experiment depend on, beyond what it says itself."""
    import torch

    import byov

    place = torch.cuda.get_device_name(context.device) if context.device.startswith("cuda") else context.device
    return {
        "scale": context.scale,
        "seed": context.seed,
        "device": place,
        "runs": [str(run) for run in context.runs],
        "versions": {"byov": byov.__version__, "torch": str(torch.__version__)},
    }


def finished(folder: Path) -> dict[str, Any] | None:
    """The result in a folder; None if there is none yet."""
    path = folder / "result.json"
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, and an experiment needs a folder: choose another --out.")
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != KIND:
            raise ValueError(content["kind"])
    except (ValueError, KeyError, TypeError):
        raise FileExistsError(f"{path} is not a file of `{KIND}`: choose another --out.") from None
    return content


def check(experiment: Experiment, context: Context) -> None:
    """Refuse a folder whose finished result was asked for otherwise."""
    before = finished(context.out)
    if before is None:
        return
    now = protocol(context)
    for key in ("scale", "seed", "runs"):
        if before["protocol"].get(key) != now[key]:
            given = f"{key} = {before['protocol'].get(key)}, not {now[key]}"
            raise FileExistsError(
                f"{context.out} holds {experiment.name} with {given}: choose another --out, or add --force."
            )


def run(experiment: Experiment, context: Context) -> dict[str, Any]:
    """Run an experiment and write its folder; the result last, so that it is there only if all is."""
    import torch

    context.out.mkdir(parents=True, exist_ok=True)
    start = monotonic()
    torch.manual_seed(context.seed)  # whatever ran before it in this process
    outcome = experiment.run(context)
    content = plain(
        {
            "kind": KIND,
            "name": experiment.name,
            "title": experiment.title,
            "protocol": protocol(context),
            "data": outcome.data,
            "comparisons": rows(outcome.comparisons),
            "note": outcome.note,
        }
    )
    draw(outcome, context.out, experiment.name)
    # How long it took is no result: beside it, so that the same seed gives the same file.
    about = {
        "command": shlex.join(["byov", *sys.argv[1:]]),
        "seconds": round(monotonic() - start, 1),
        "machine": platform.machine(),
    }
    write_json(context.out / "environment.json", about)
    write_json(context.out / "result.json", content)
    return content


def draw(outcome: Outcome, folder: Path, name: str) -> list[Path]:
    """The figure as PNG and SVG, the same bytes for the same figure; nothing where there is none."""
    if outcome.figure is None:
        return []
    return save_figure(outcome.figure, folder / "figure", name)


def save_figure(figure: Any, stem: Path, name: str) -> list[Path]:
    """Write `stem`.png and `stem`.svg, each whole or not at all and without a date."""
    import matplotlib

    paths = []
    stem.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = stem.with_name(f"{stem.name}.{kind}")
            partial = path.with_name(f".{path.name}.partial")
            figure.savefig(partial, format=kind, dpi=150, bbox_inches="tight", metadata=metadata)
            os.replace(partial, path)
            paths.append(path)
    return paths
