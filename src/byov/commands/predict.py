"""`byov predict`: what a model says of each input, and how sure it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from byov.data import FolderSet, ImageSet
    from byov.evaluation.predictions import Predict, Predictions
    from byov.evaluation.subjects import Reading, Subject


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A run's folder or checkpoint, of byov train, or of byov pretrain (a linear probe is fitted on its"
            " training split), or python:module:function, which returns a classifier (logits)."
        ),
    ],
    data: Annotated[str, typer.Argument(help="A folder of images, an .npz file, or a data set's name.")],
    samples: Annotated[int, typer.Option(help="Posterior draws, at most.")] = 100,
    out: Annotated[Path, typer.Option(help="The file to write: .csv, or .npz with all probabilities.")] = Path(
        "predictions.csv"
    ),
    split: Annotated[
        str | None, typer.Option(help="Of the data; none: test, or all of a folder without splits.", show_default=False)
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Stop drawing for an input at this standard error of its mean.", show_default=False),
    ] = None,
    strategy: Annotated[str, typer.Option(help="How draws are made: auto, loop or vmap; a probe knows loop.")] = "auto",
    root: Annotated[Path | None, typer.Option(help="The folder of the data sets.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of the draws, and of a probe.")] = 0,
    fit_samples: Annotated[int, typer.Option(help="Posterior draws that a probe is fitted under.")] = 8,
    temper: Annotated[bool, typer.Option("--temper", help="Fit a temperature for a probe's probabilities.")] = False,
    image_size: Annotated[
        int | None, typer.Option(help="Resize the images for an entry point's network.", show_default=False)
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Make them 1 or 3 channels, for the same.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    batch_size: Annotated[int, typer.Option(help="Images at a time; it changes no result.")] = 512,
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
) -> None:
    """Predict each input's class, with its confidence, spread, entropies and mutual information over posterior draws.

    std is that of the predicted class's probability over draws; entropy (total) = expected_entropy (aleatoric) +
    mutual_information (epistemic), in nats; draws is how many it took. Files that cannot be read are left out.

    Example: byov predict runs/bbb digits --samples 100 --out predictions.csv
    """
    from byov.device import choose_device
    from byov.evaluation.predictions import predict_all, write
    from byov.evaluation.regressions import predict_run
    from byov.evaluation.subjects import Reading, digest, is_regression, subject
    from byov.files import check_out

    if is_regression(model):
        if tolerance is not None or split is not None:
            raise ValueError("A run on a table predicts all rows of a file, under as many draws each.")
        rows = predict_run(model, data, samples, seed, out, choose_device(device), force)
        typer.echo(f"{len(rows.mean)} rows: mean, std (noise included) and epistemic_std of each in {out}")
        return
    if out.suffix not in (".csv", ".npz"):
        raise ValueError(f"Predictions are written as .csv or .npz, not as {out.suffix or 'a file without a suffix'}.")
    check_out(out, force)
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"A tolerance is above 0, not {tolerance}.")
    if strategy not in ("auto", "loop", "vmap"):
        raise ValueError(f"A strategy is auto, loop or vmap, not {strategy!r}.")
    place = choose_device(device)
    reading = Reading(samples, "loop", seed, fit_samples, batch_size=batch_size, device=place, temper=temper)
    found = subject(model, reading)
    if found.shape is not None:
        if channels not in (None, found.shape[0]) or image_size not in (None, found.shape[1]):
            raise ValueError(f"The run takes images of {found.shape[0]} channels and {found.shape[1]} pixels.")
        channels, image_size = found.shape
    images, folder = _images(data, split, root, channels, image_size)
    call, names = _predictor(found, model, images, reading, strategy, tolerance, root)
    with _progress(len(images)) as advance:
        predictions = predict_all(call, images, names, batch_size, folder, advance)
    protocol = {
        "model": {"name": model, "kind": found.kind, "digest": digest(found.weights), "posterior": found.posterior},
        "data": {"name": images.name, "digest": images.digest, "images": len(images)},
        "samples": samples,
        "tolerance": tolerance,
        "strategy": strategy,
        "seed": seed,
        "fit_samples": fit_samples if found.kind == "pretrain" else None,
        "temper": temper,
        "device": place.type,
    }
    write(predictions, out, protocol)
    _show(predictions, f"{model} on {images.name}", out, found.posterior)


def _images(
    data: str, split: str | None, root: Path | None, channels: int | None, image_size: int | None
) -> tuple[ImageSet | FolderSet, Path | None]:
    """The images, labelled or not, and the folder that their files' names are relative to."""
    from byov.data import ImageSet, load
    from byov.data.sources import SPLIT_FOLDERS

    path = Path(data.removeprefix("folder:")).expanduser()
    folder = data.startswith("folder:") or (path.is_dir() and ":" not in data)
    if folder:
        splits = {part: key for key, parts in SPLIT_FOLDERS.items() for part in parts if (path / part).is_dir()}
        found = load(
            f"folder:{path}", split or ("test" if splits else "train"), image_size=image_size, channels=channels
        )
        return found, path
    name = f"npz:{data}" if data.endswith(".npz") and not data.startswith("npz:") else data
    streamed = name == "imagenet"
    loaded = load(name, split or "test", root, image_size=image_size if streamed else None, channels=channels)
    if isinstance(loaded, ImageSet) and image_size is not None:
        loaded = loaded.resized(image_size)
    return loaded, None


def _predictor(
    found: Subject,
    model: str,
    images: ImageSet | FolderSet,
    reading: Reading,
    strategy: Any,
    tolerance: float | None,
    root: Path | None,
) -> tuple[Predict, tuple[str, ...]]:
    """How the model predicts, and what it calls its classes."""
    from byov.data.labelled import labelled
    from byov.evaluation.predictions import network_predict, probe_predict
    from byov.train import checkpoint

    if found.kind == "pretrain":
        if tolerance is not None:
            raise ValueError("A probe reads all images under the same draws: leave out --tolerance.")
        if strategy == "vmap":
            raise ValueError("A probe reads one draw after the other: its strategy is loop, not vmap.")
        assert found.data is not None
        assert found.shape is not None
        train = labelled(found.data, "train", root, *found.shape)
        return probe_predict(found.predictor(train), reading.samples), train.class_names
    names = images.class_names
    if found.kind == "train":
        path = Path(model).expanduser()
        state = checkpoint.peek(path / "checkpoint.safetensors" if path.is_dir() else path)
        names = tuple(state["recipe"]["class_names"])
    about = found.about(None)
    call = network_predict(
        found.weights, reading.samples, strategy, tolerance, **about, seed=reading.seed, device=reading.device
    )
    return call, names


def _progress(total: int) -> Any:
    """A bar over images, where there is a terminal to show it; gives what it is moved by."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def shown() -> Any:
        console = Console(stderr=True)
        columns = (TextColumn("[bold]predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
            task = bar.add_task("predicting", total=total)
            yield lambda count: bar.update(task, advance=count)

    return shown()


def _show(found: Predictions, title: str, out: Path, posterior: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = found.columns
    table = Table(title=Text(f"{title}: the most uncertain inputs"), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("input", overflow="fold")
    if found.labels is not None:
        table.add_column("label")
    table.add_column("predicted", min_width=9)
    for heading in ("confidence", "std", "entropy", "MI", "draws"):
        table.add_column(heading, justify="right", no_wrap=True)
    for i in found.most_uncertain():
        truth = [] if found.labels is None else [Text(found.class_names[found.labels[i]])]
        numbers = [f"{columns[name][i]:.3f}" for name in ("confidence", "std", "entropy", "mutual_information")]
        predicted = Text(found.class_names[columns["predicted"][i]])
        table.add_row(Text(found.inputs[i]), *truth, predicted, *numbers, str(columns["draws"][i]))
    console.print(table)
    draws = columns["draws"].mean()
    parts = [f"{len(found):,} inputs, {draws:.4g} draws each" if posterior else f"{len(found):,} inputs, no posterior"]
    parts += [] if found.accuracy is None else [f"top-1 {100 * found.accuracy:.2f} %"]
    parts += [f"mean confidence {columns['confidence'].mean():.3f}", f"entropy {columns['entropy'].mean():.3f}"]
    parts += [f"mutual information {columns['mutual_information'].mean():.4f}"] if posterior else []
    if found.unreadable:
        parts.append(f"{found.unreadable} could not be read")
    console.print(f"{', '.join(parts)}: {out}", highlight=False, markup=False, soft_wrap=True)
