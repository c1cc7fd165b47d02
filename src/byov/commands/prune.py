"""`byov prune`: the network of a run without the weights that its posterior is least sure of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

    from byov.pruning.runs import Prunable


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder or checkpoint, of byov pretrain or byov train.")],
    out: Annotated[Path, typer.Option(help="The file to write: safetensors, or of a sweep JSON.")],
    sparsity: Annotated[float, typer.Option(help="The share of weights to set to 0, or of groups to remove.")] = 0.5,
    by: Annotated[str, typer.Option(help="What decides: snr (|μ|/σ) or magnitude (|μ|).")] = "snr",
    scope: Annotated[str, typer.Option(help="That share of every layer's weights, or of all: layer or global.")] = (
        "layer"
    ),
    groups: Annotated[
        bool, typer.Option("--groups", help="Remove whole attention heads and hidden units: a smaller network.")
    ] = False,
    rounds: Annotated[
        int, typer.Option(help="Prune a run of byov train in so many rounds, with fine-tuning; 0: at once, without.")
    ] = 0,
    epochs: Annotated[int, typer.Option(help="Of fine-tuning, in each round.")] = 1,
    lr: Annotated[float, typer.Option(help="Of fine-tuning.")] = 1e-3,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Instead: top-1 and ECE over sparsities, by SNR and magnitude.")
    ] = False,
    twin: Annotated[
        Path | None,
        typer.Option(help="A sweep also of this run, by magnitude: a deterministic one.", show_default=False),
    ] = None,
    sparsities: Annotated[
        str | None, typer.Option(help="Of a sweep, such as 0,0.5,0.9; none: thirteen to 0.95.", show_default=False)
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit a sweep's linear probe to each pruned encoder, not once before.")
    ] = False,
    split: Annotated[str, typer.Option(help="What a sweep is read on.")] = "test",
    root: Annotated[Path | None, typer.Option(help="The folder of the data sets.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of a sweep's probe, and of fine-tuning.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
) -> None:
    """Prune a run's network at the posterior mean, without retraining; of a pretraining run its encoder.

    Biases and normalisation layers are left alone. byov.pruning.load_sparse reads the file into the plain network.
    With --sweep the networks are only read: OUT.json, and its figure as OUT.png and OUT.svg. A supervised network is
    read by its own output layer, an encoder by a linear probe fitted before pruning (--refit: after it).

    Example: byov prune runs/byov --sparsity 0.7 --by snr --out pruned.safetensors
    """
    from byov.device import choose_device

    file = run / "checkpoint.safetensors" if run.is_dir() else run
    _check_out(out, file, force)
    place = None if root is None else str(root)
    if sweep:
        if groups or rounds:
            raise ValueError("A sweep is of single weights without fine-tuning: leave out --groups and --rounds.")
        _sweep(run, twin, out, sparsities, scope, refit, split, place, seed, choose_device(device), force)
        return
    if twin is not None or sparsities is not None or refit:
        raise ValueError("--twin, --sparsities and --refit are of a sweep: add --sweep.")
    if groups and rounds:
        raise ValueError("Rounds of fine-tuning prune single weights: leave out --groups or --rounds.")
    from byov.pruning import save_sparse
    from byov.pruning.runs import open_run

    of = open_run(file)
    about = {"kind": of.kind, "network": of.network, "run": str(run), "sparsity": sparsity, "by": by, "scope": scope}
    if rounds:
        net = _in_rounds(file, sparsity, rounds, by, scope, epochs, lr, place, seed, choose_device(device))
        about |= {"rounds": rounds, "epochs": epochs, "lr": lr, "seed": seed}
    else:
        net = _pruned(of, sparsity, by, scope, groups)
        about |= {"groups": True} if groups else {}
    save_sparse(net, out, about)
    title = f"{run}, {100 * sparsity:g} % by {by}, scope {scope}"
    if groups:
        _show_smaller(of, net, title, out)
    else:
        _show(net, title, out)


def _check_out(out: Path, file: Path, force: bool) -> None:
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out takes the name of a file.")
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"{out} is the run's own checkpoint: choose another --out.")
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists: choose another --out, or say --force.")


def _pruned(of: Prunable, sparsity: float, by: Any, scope: Any, groups: bool) -> nn.Module:
    from byov.pruning import prune, prune_groups

    if groups:
        return of.plain(prune_groups(of.model, sparsity, sparsity, by, scope, of.blocks))
    return of.plain(prune(of.model, sparsity, by, scope, of.where))


def _in_rounds(
    file: Path,
    sparsity: float,
    rounds: int,
    by: Any,
    scope: Any,
    epochs: int,
    lr: float,
    root: Any,
    seed: int,
    device: Any,
) -> nn.Module:
    """Pruned bit by bit; a line after each round."""
    from rich.console import Console

    from byov.metrics.functional import accuracy
    from byov.pruning import prune_gradually
    from byov.pruning.fine_tuning import FineTune
    from byov.pruning.runs import open_run, reader

    of = open_run(file, device)
    fine_tune = FineTune(of, of.images("train", root, device), epochs, lr, seed, device)
    test = of.images("test", root, device)
    read, _ = reader(of, None, test)
    console = Console()

    def report(step: float, net: nn.Module) -> None:
        assert test.labels is not None
        top1 = accuracy(read(net), test.labels).item()
        console.print(f"{100 * step:5.1f} % zeros, fine-tuned: top-1 {100 * top1:.2f} %", highlight=False)

    return prune_gradually(of.model, fine_tune, sparsity, rounds, by, scope, of.where, report=report).cpu()


def _sweep(
    run: Path,
    twin: Path | None,
    out: Path,
    sparsities: str | None,
    scope: Any,
    refit: bool,
    split: str,
    root: str | None,
    seed: int,
    device: Any,
    force: bool,
) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from byov.files import check_out, write_json
    from byov.pruning.curves import SPARSITIES, sweep_runs
    from byov.pruning.figure import draw_curves
    from byov.reproduce.results import save_figure

    if out.suffix != ".json":
        raise ValueError(f"A sweep is written as JSON: --out ends in .json, unlike {out.name}.")
    for suffix in (".json", ".png", ".svg"):
        check_out(out.with_suffix(suffix), force)
    wanted = SPARSITIES if sparsities is None else _numbers(sparsities)
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("pruning", total=None)

        def report(name: str, by: str, sparsity: float) -> None:
            bar.update(task, advance=1)

        content = sweep_runs(
            run,
            twin,
            wanted,
            scope,
            "refitted" if refit else "fixed",
            split=split,
            root=root,
            seed=seed,
            device=device,
            report=report,
        )
    write_json(out, content)
    save_figure(draw_curves(content), out.with_suffix(""), "sweep")
    _show_curves(content, out)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"Sparsities are numbers from 0 to below 1, such as 0,0.5,0.9, not {text!r}.") from None


def _show_curves(content: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    curves, test = content["curves"], content["protocol"]["test"]
    table = Table(
        title=Text(f"top-1 in %, {test['name']} {test['split']}; retrained: {content['protocol']['retrained']}")
    )
    table.add_column("zeros", justify="right")
    for curve in curves:
        table.add_column(Text(f"{curve['model']}\n{curve['by']}"), justify="right")
    for i, sparsity in enumerate(curves[0]["sparsity"]):
        table.add_row(f"{100 * sparsity:g} %", *(f"{100 * curve['top1'][i]:.2f}" for curve in curves))
    console = Console()
    console.print(table)
    console.print(f"top-1, ECE and their protocol: {out}", highlight=False, markup=False, soft_wrap=True)


def _show_smaller(of: Prunable, net: nn.Module, title: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from byov.posterior.module import BayesianModule
    from byov.pruning import find_blocks

    whole = of.plain(of.model.point() if isinstance(of.model, BayesianModule) else of.model)
    left = {block.name: block.units for block in find_blocks(net)}
    table = Table(title=Text(title))
    table.add_column("block", overflow="fold")
    for heading in ("kind", "groups", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    for block in find_blocks(whole):
        table.add_row(Text(block.name), block.kind, f"{block.units:,}", f"{left[block.name]:,}")
    console = Console()
    console.print(table)
    before, after = (sum(p.numel() for p in each.parameters()) for each in (whole, net))
    console.print(
        f"{before:,} parameters, {after:,} left ({100 * after / before:.1f} %): {out}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _show(net: nn.Module, title: str, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from byov.pruning import layers

    rows = layers(net)
    table = Table(title=Text(title))
    table.add_column("layer", overflow="fold")
    for heading in ("weights", "kept", "zeros", "sparsity"):
        table.add_column(heading, justify="right", no_wrap=True)
    weights, zeros = sum(row.weights for row in rows), sum(row.zeros for row in rows)
    for name, of, gone in [*rows, ("all of these", weights, zeros)]:
        if name == "all of these":
            table.add_section()
        table.add_row(Text(name), f"{of:,}", f"{of - gone:,}", f"{gone:,}", f"{100 * gone / max(of, 1):.1f} %")
    console = Console()
    console.print(table)
    masks = {f"{row.name}_mask" for row in rows}
    dense = sum(p.nbytes for p in net.parameters())
    dense += sum(buffer.nbytes for name, buffer in net.named_buffers() if name not in masks)
    sparse = out.stat().st_size
    console.print(
        f"dense {dense:,} bytes, sparse {sparse:,} ({100 * sparse / dense:.1f} %): {out}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
