"""`byov prune`: the network of a run without the weights that its posterior is least sure of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor, nn


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder or checkpoint, of byov pretrain or byov train.")],
    out: Annotated[Path, typer.Option(help="The file to write, in the safetensors format.")],
    sparsity: Annotated[float, typer.Option(help="The share of weights to set to 0.")] = 0.5,
    by: Annotated[str, typer.Option(help="What decides: snr (|μ|/σ) or magnitude (|μ|).")] = "snr",
    scope: Annotated[str, typer.Option(help="That share of every layer's weights, or of all: layer or global.")] = (
        "layer"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite that file.")] = False,
) -> None:
    """Prune a run's network at the posterior mean, without retraining; of a pretraining run its encoder.

    Biases and normalisation layers are left alone. byov.pruning.load_sparse reads the file into the plain network.

    Example: byov prune runs/byov --sparsity 0.7 --by snr --out pruned.safetensors
    """
    from byov.pruning import save_sparse

    file = run / "checkpoint.safetensors" if run.is_dir() else run
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out takes the name of a file.")
    if out.exists() and file.exists() and out.samefile(file):
        raise ValueError(f"{out} is the run's own checkpoint: choose another --out.")
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists: choose another --out, or say --force.")
    net, made_of = _pruned(file, sparsity, by, scope)
    save_sparse(net, out, {**made_of, "run": str(run), "sparsity": sparsity, "by": by, "scope": scope})
    _show(net, f"{run}, {100 * sparsity:g} % by {by}, scope {scope}", out)


def _pruned(file: Path, sparsity: float, by: Any, scope: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The pruned network of a run, and what the file should say about it."""
    from byov.pruning import prune, weights
    from byov.ssl import pretrain
    from byov.train import checkpoint, supervised

    if not file.is_file():
        raise ValueError(f"There is no run at {file}: name a run's folder or its checkpoint.")
    state = checkpoint.peek(file)
    recipe = state.get("recipe") if isinstance(state, dict) else None
    kind = recipe.get("kind") if isinstance(recipe, dict) else None
    if kind == "train":
        classifier, of = supervised.restore(file)
        return prune(classifier.net, sparsity, by, scope), {"kind": kind, "network": of.model.name}
    if kind == "pretrain":
        module, to = pretrain.restore(file)

        def encoder_weights(name: str, part: nn.Module, parameter: Tensor) -> bool:
            return name.startswith("encoder.") and weights(name, part, parameter)

        student = prune(module.student, sparsity, by, scope, encoder_weights)
        return student.get_submodule("encoder"), {"kind": kind, "network": to.model.encoder}
    raise ValueError(f"{file} is a checkpoint of kind {kind!r}; those that can be pruned are pretrain and train.")


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
