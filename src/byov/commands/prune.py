"""`byov prune`: remove the weights of a run's network that its posterior is least certain of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from byov.commands import options
from byov.commands.options import panel, plain

tuned, swept = panel("Fine-tuning in rounds"), panel("Sweep")
Run = Annotated[
    Path, typer.Argument(help="Prune this run of byov pretrain or byov train, given by its folder or checkpoint.")
]
Order = Annotated[
    str | None,
    plain(
        "Rank weights by snr (|μ|/σ), magnitude (|μ|) or random; a sweep takes several, as in snr,random."
        " Default: snr, and for a sweep all that the run allows."
    ),
]


def command(
    run: Run,
    out: Annotated[Path, plain("Write to this file: safetensors, or JSON for a sweep.")],
    sparsity: Annotated[float, plain("Set this share of weights to 0, or remove this share of groups.")] = 0.5,
    by: Order = None,
    scope: Annotated[
        str, plain("Prune this share of every layer (layer) or of all weights (global); a sweep also takes both.")
    ] = "layer",
    groups: Annotated[
        bool, plain("Remove whole attention heads and hidden units, which makes the network smaller.", "--groups")
    ] = False,
    force: options.Force = False,
    rounds: Annotated[int, tuned("Prune a run of byov train in this many rounds; 0 prunes at once.", max=1000)] = 0,
    epochs: Annotated[int, tuned("Fine-tune for this many epochs in each round.")] = 1,
    lr: Annotated[float, tuned("Fine-tune at this learning rate.")] = 1e-3,
    sweep: Annotated[
        bool, swept("Score the network over a range of sparsities, by SNR, magnitude and random.", "--sweep")
    ] = False,
    twin: Annotated[Path | None, swept("Also sweep this deterministic run, by magnitude.")] = None,
    sparsities: Annotated[str | None, swept("Sweep these, such as 0,0.5,0.9 (default: thirteen up to 0.95).")] = None,
    refit: Annotated[bool, swept("Also score a probe fitted to each pruned encoder.", "--refit")] = False,
    split: options.Split = "test",
    root: options.Root = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    trust: options.Trust = False,
) -> None:
    """Prune a run's network, or the encoder of a pretraining run, at the posterior mean and without retraining.

    Biases and normalisation layers are kept. byov.pruning.load_sparse loads the file into the plain network. With
    --sweep the pruned networks are only scored: OUT.json, and its figure as OUT.png and OUT.svg. A supervised network
    uses its own output layer, an encoder a linear probe fitted before pruning (with --refit also one fitted after it).

    Example: byov prune runs/byov --sparsity 0.7 --by snr --out pruned.safetensors
    """
    from byov.commands.console import show
    from byov.device import choose_device
    from byov.evaluation.pruning import Prunable, check_file, prune_run, sweep_line
    from byov.report import tables
    from byov.runs import Reading, open_run

    check_file(out, run, force)
    named = choose_device(device)
    reading = Reading(seed=seed, split=split, root=root, device=named if sweep or rounds else "cpu", trust=trust)
    if sweep:
        if groups or rounds:
            raise ValueError("A sweep prunes single weights without fine-tuning: leave out --groups and --rounds.")
        probing, orders = "both" if refit else "fixed", by and by.split(",")
        _sweep(run, out, sparsities, force, twin=twin, by=orders, scope=scope, probing=probing, reading=reading)
        return
    if twin is not None or sparsities is not None or refit:
        raise ValueError("--twin, --sparsities and --refit are for a sweep: add --sweep.")
    if groups and rounds:
        raise ValueError("Fine-tuning in rounds prunes single weights: leave out --groups or --rounds.")
    opened, by = open_run(run, reading), "snr" if by is None else by
    net = prune_run(opened, out, sparsity, by, scope, groups, rounds, epochs, lr, show)  # type: ignore[arg-type]
    title = f"{run}, {100 * sparsity:g} % by {by}, scope {scope}"
    rows = tables.smaller(Prunable(opened), net, title, out) if groups else tables.sparse(net, title, out)
    show(*rows, *([] if groups or rounds else [sweep_line(run, out, sparsity, by, scope, seed)]))


def _sweep(run: Path, out: Path, sparsities: str | None, force: bool, **how: Any) -> None:
    """Score the run and its twin over sparsities; write the scores and their figure."""
    from byov.commands.console import progress, show
    from byov.evaluation.sweep import check_sweep_files, parse_sparsities, sweep_runs
    from byov.files import write_json
    from byov.report import drawing, figures, tables

    check_sweep_files(out, force)
    wanted = parse_sparsities(sparsities)
    with progress() as advance:
        content = sweep_runs(run, sparsities=wanted, report=advance, **how)
    write_json(out, content)
    drawing.save(figures.pruning_figure(content), out.with_suffix(""))
    show(*tables.sweep(content), f"top-1, ECE, NLL and their protocol: {out}")
