"""`byov evaluate`: how good a model is and how well it knows, on clean images and under shift."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from byov.data import ImageSet
    from byov.evaluation.results import Results
    from byov.evaluation.rows import Row
    from byov.evaluation.subjects import Reading, Subject


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A run's folder or checkpoint (of byov pretrain: a linear probe is fitted on the training split),"
            " or python:module:function, which returns a classifier (logits) that takes images in [0, 1]."
        ),
    ],
    data: Annotated[
        str | None, typer.Option(help="The data set's name; none: the one a run was made from.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate on.")] = "test",
    root: Annotated[Path | None, typer.Option(help="The folder of the data sets.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(help="Posterior draws to read under.")] = 30,
    shift: Annotated[str, typer.Option(help="none, augmentations (15) or corruptions (15).")] = "none",
    severities: Annotated[str, typer.Option(help="Of the shifts, such as 1-5 or 1,3,5.")] = "1-5",
    strategy: Annotated[str, typer.Option(help="How draws are made: loop, vmap or auto; a probe knows loop.")] = "loop",
    seed: Annotated[int, typer.Option(help="Of the draws, the shifts, the probe, and what --limit takes.")] = 0,
    bins: Annotated[int, typer.Option(help="Of ECE and adaptive ECE.")] = 15,
    limit: Annotated[
        int | None, typer.Option(help="Evaluate on this many images of the split.", show_default=False)
    ] = None,
    train_limit: Annotated[
        int | None, typer.Option(help="Fit a probe on this many training images.", show_default=False)
    ] = None,
    fit_samples: Annotated[int, typer.Option(help="Posterior draws that a probe is fitted under.")] = 8,
    temper: Annotated[
        bool, typer.Option("--temper", help="Fit a temperature for a probe, at μ and under draws.")
    ] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Resize the images for an entry point's network.", show_default=False)
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Make them 1 or 3 channels, for the same.", show_default=False)
    ] = None,
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Standardise them by the training split's mean and deviation.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The file of results.")] = Path("results.json"),
    baseline: Annotated[
        Path | None, typer.Option(help="Another --out: gives mCE and relative mCE.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images at a time; it changes no result.")] = 512,
    precision: Annotated[
        str, typer.Option(help="32-true, or bf16-mixed: faster on a GPU, probes stay float32.")
    ] = "32-true",
    resume: Annotated[
        bool, typer.Option("--resume/--force", help="Go on with the rows in --out, or overwrite that file.")
    ] = True,
) -> None:
    """Accuracy, calibration, Brier parts, selective risk and OOD detection: clean, and under shifts.

    Everything is read at the posterior mean μ and, where there is a posterior, under draws. An evaluation that was
    interrupted goes on where it stopped when the same command is given again.

    Example: byov evaluate runs/byov --data digits --shift corruptions --out results.json
    """
    from byov.data.labelled import check_classes, labelled
    from byov.device import choose_device
    from byov.evaluation.images import parse_severities, shifts_for, strength_note
    from byov.evaluation.regressions import evaluate_run
    from byov.evaluation.results import Results, read_baseline
    from byov.evaluation.scores import conventions
    from byov.evaluation.subjects import Reading, is_regression, subject
    from byov.metrics.functional._checks import check_whole

    if is_regression(model):
        if shift != "none" or data is not None or split != "test" or baseline is not None or limit is not None:
            raise ValueError("A run on a table is read on all test rows of its own split, without shifts.")
        _show_numbers(evaluate_run(model, samples, seed, out, choose_device(device), root, not resume), model, out)
        return
    levels = parse_severities(severities)
    check_whole(bins, "bins")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out takes the name of a file.")
    place = choose_device(device)
    reading = Reading(samples, strategy, seed, fit_samples, normalise, batch_size, place, precision, temper)  # type: ignore[arg-type]
    found = subject(model, reading)
    name = data or found.data
    if name is None:
        raise ValueError("Say which images to evaluate on: --data NAME.")
    if found.shape is not None:
        if channels not in (None, found.shape[0]) or image_size not in (None, found.shape[1]):
            raise ValueError(f"The run takes images of {found.shape[0]} channels and {found.shape[1]} pixels.")
        channels, image_size = found.shape
    images = labelled(name, split, root, channels, image_size, limit, seed)
    train = labelled(name, "train", root, channels, image_size, train_limit, seed) if found.needs_train else None
    if train is not None:
        check_classes(train, images, split)
    found.check(images)
    shifts, left_out = shifts_for(shift, images)
    protocol = {
        "seed": seed,
        "samples": samples if found.posterior else None,
        "strategy": strategy,
        "bins": bins,
        "shift": shift,
        "severities": list(levels),
        "shifts": list(shifts),
        "left_out": left_out,
        **_made_of(found, model, images, split, train),
        "conventions": {**conventions(bins), "strengths": strength_note(shift, images)},
        "device": place.type,
        "precision": _precision(reading),
        "versions": _versions(),
    }
    other = read_baseline(baseline, protocol) if baseline is not None else None
    results = Results(out, protocol, force=not resume)
    _run(found, images, train, shifts, results, reading, other)
    _show(results, out, left_out, baseline, found)


def _show_numbers(found: dict[str, Any], model: str, out: Path) -> None:
    """A regression's scores, a line for each reading."""
    from rich.console import Console
    from rich.table import Table

    protocol = found["protocol"]
    made = Table(title=f"{model} on {protocol['data']['name']}, {protocol['data']['rows']:,} test rows", box=None)
    for heading in ("", "RMSE", "log density", "in 95 % intervals"):
        made.add_column(heading, justify="right" if heading else "left")
    words = {"at_mean": "at μ", "under_draws": f"under {protocol['samples']} draws"}
    for key, label in words.items():
        if key in found:
            each = found[key]
            cells = f"{each['rmse']:.4g}", f"{each['log_density']:.3f}", f"{100 * each['coverage95']:.1f} %"
            made.add_row(label, *cells)
    console = Console()
    console.print(made, width=max(100, console.width))
    if found["note"]:
        console.print(found["note"], highlight=False)
    console.print(f"all scores and their protocol: {out}", highlight=False, soft_wrap=True)


def _made_of(found: Subject, model: str, images: ImageSet, split: str, train: ImageSet | None) -> dict[str, Any]:
    """Which images and which weights."""
    from byov.evaluation.subjects import digest

    weights = {"name": model, "kind": found.kind, "digest": digest(found.weights), "posterior": found.posterior}
    fitted = None if train is None else {"digest": train.digest, "images": len(train)}
    shape = list(images.images.shape[1:])
    return {
        "data": {"name": images.name, "split": split, "digest": images.digest, "images": len(images), "shape": shape},
        "train": fitted,
        "model": {**weights, **found.about(train)},
    }


def _precision(reading: Reading) -> str | None:
    """None where every product is float32: what files say that are older than this line."""
    import torch

    if reading.autocast is not None:
        return reading.precision
    return "tf32" if reading.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else None  # type: ignore[union-attr]


def _versions() -> dict[str, str]:
    import torch
    import torchvision

    import byov

    return {"byov": byov.__version__, "torch": str(torch.__version__), "torchvision": str(torchvision.__version__)}


def _run(
    found: Subject, images: ImageSet, train: ImageSet | None, shifts: Any, results: Results, reading: Any, other: Any
) -> None:
    """Compute the rows that are missing, and write the file after each of them."""
    import platform
    import shlex
    import sys
    from time import monotonic

    import torch
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from byov.evaluation.rows import evaluate, plan

    rows, protocol, start = {row.key: row for row in results.rows}, results.protocol, monotonic()
    wanted = plan(shifts, protocol["severities"])
    missing = [key for key in wanted if key not in rows]
    environment = {
        "device": torch.cuda.get_device_name(reading.device)
        if reading.device.type == "cuda"
        else f"cpu ({platform.machine()})",
        "batch_size": reading.batch_size,
        "command": shlex.join(["byov", *sys.argv[1:]]),
    }

    def save() -> None:
        seconds = round(results.seconds + monotonic() - start, 3)
        done = [rows[key] for key in wanted if key in rows]
        results.write(done, {**environment, "seconds": seconds}, other)

    if not missing:
        if other is not None:
            save()  # a baseline may be new where no row is
        return
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("fitting the probe" if train is not None else "evaluating", total=len(missing))
        predictor = found.predictor(train)
        if reading.temper:
            environment["temperatures"] = predictor.probe.temperatures  # type: ignore[attr-defined]
        bar.update(task, description="evaluating")

        def report(row: Row) -> None:
            rows[row.key] = row
            save()
            following = missing[min(missing.index(row.key) + 1, len(missing) - 1)]
            bar.update(task, advance=1, description=f"evaluating {following[0].replace('_', ' ')}")

        assert images.labels is not None
        evaluate(
            predictor,
            images.images,
            images.labels,
            shifts,
            protocol["severities"],
            reading.samples,
            bins=protocol["bins"],
            seed=reading.seed,
            device=reading.device,
            known=results.rows,
            report=report,
        )


def _show(results: Results, out: Path, left_out: dict[str, str], baseline: Path | None, found: Subject) -> None:
    from rich.console import Console

    from byov.evaluation.results import read
    from byov.evaluation.subjects import NO_NETWORK, started_anew
    from byov.evaluation.table import error_lines, table

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(100, console.width))
    protocol = results.protocol
    about = f"{protocol['data']['name']} {protocol['data']['split']}, {protocol['data']['images']:,} images"
    draws = f", {protocol['samples']} draws" if protocol["samples"] else ""
    console.print(table(results.rows, f"{protocol['model']['name']} on {about}{draws}"))
    console.print(_caption(protocol), highlight=False)
    if floor := _floor(results.rows[0], protocol["data"]["images"]):
        console.print(floor, highlight=False)
    if started_anew(found.weights):
        console.print(NO_NETWORK, highlight=False)
    for name, reason in left_out.items():
        console.print(f"{name} is left out: {reason}", highlight=False, soft_wrap=True)
    _show_errors(console, read(out), baseline, error_lines)
    console.print(f"all scores and their protocol: {out}", highlight=False, soft_wrap=True)


def _floor(clean: Row, images: int) -> str:
    """What the ECE of the clean images is to be compared with; rows of older files do not say."""
    floors = {"at μ": clean.at_mean.get("ece_floor"), "under draws": (clean.under_draws or {}).get("ece_floor")}
    each = ", ".join(f"{100 * floor:.2f} % {name}" for name, floor in floors.items() if floor is not None)
    if not each:
        return ""
    return f"With these confidences a perfectly calibrated model reads, on {images:,} images, an ECE of {each}."


def _show_errors(console: Console, content: dict[str, Any], baseline: Path | None, lines: Any) -> None:
    errors = content["summary"].get("corruption_errors")
    if errors and baseline is not None:
        for line in lines(errors, str(baseline)):
            console.print(line, highlight=False, soft_wrap=True)


def _caption(protocol: dict[str, Any]) -> str:
    parts = [f"top-1 and ECE ({protocol['bins']} equal-width bins) in %."]
    if protocol["shifts"]:
        levels = ", ".join(map(str, protocol["severities"]))
        mean = f"the mean over severities {levels}" if "," in levels else f"severity {levels}"
        by = "entropy (H) and mutual information (MI)" if protocol["samples"] else "entropy (H)"
        parts += [f"Shifts: {mean}.", f"AUROC: shifted from clean images by {by}."]
        parts += [protocol["conventions"]["strengths"]]
    return " ".join(parts).strip()
