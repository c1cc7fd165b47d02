"""`byov prune`: the network of a run without the weights that its posterior is least sure of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands import options
from byov.commands.prune_sweep import Refit, Sparsities, Sweep, Twin, sweep_command

ROUNDS = "Fine-tuning in rounds"
Run = Annotated[
    Path, typer.Argument(help="Prune this run of byov pretrain or byov train, by its folder or checkpoint.")
]
Out = Annotated[Path, typer.Option(help="Write to this file: safetensors, or of a sweep JSON.")]
Sparsity = Annotated[float, typer.Option(help="Set this share of weights to 0, or remove this share of groups.")]
Order = Annotated[
    str | None,
    typer.Option(
        help="Decide by snr (|μ|/σ), magnitude (|μ|) or random; a sweep takes several, as in snr,random."
        " Default: snr, and of a sweep all that the run allows.",
        show_default=False,
    ),
]
Scope = Annotated[
    str, typer.Option(help="Prune that share of every layer, or of all weights: layer or global; of a sweep both.")
]
Groups = Annotated[
    bool, typer.Option("--groups", help="Remove whole attention heads and hidden units, for a smaller network.")
]
Rounds = Annotated[
    int,
    typer.Option(
        max=1000, help="Prune a run of byov train in this many rounds; 0 prunes at once.", rich_help_panel=ROUNDS
    ),
]
Epochs = Annotated[int, typer.Option(help="Fine-tune for this many epochs in each round.", rich_help_panel=ROUNDS)]
Rate = Annotated[float, typer.Option(help="Fine-tune at this learning rate.", rich_help_panel=ROUNDS)]


def command(
    run: Run,
    out: Out,
    sparsity: Sparsity = 0.5,
    by: Order = None,
    scope: Scope = "layer",
    groups: Groups = False,
    force: options.Force = False,
    rounds: Rounds = 0,
    epochs: Epochs = 1,
    lr: Rate = 1e-3,
    sweep: Sweep = False,
    twin: Twin = None,
    sparsities: Sparsities = None,
    refit: Refit = False,
    split: options.Split = "test",
    root: options.Root = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    trust: options.Trust = False,
) -> None:
    """Prune a run's network at the posterior mean, without retraining; of a pretraining run its encoder.

    Biases and normalisation layers are left alone. byov.pruning.load_sparse reads the file into the plain network.
    With --sweep the networks are only read: OUT.json, and its figure as OUT.png and OUT.svg. A supervised network is
    read by its own output layer, an encoder by a linear probe fitted before pruning (--refit: and by one after it).

    Example: byov prune runs/byov --sparsity 0.7 --by snr --out pruned.safetensors
    """
    from byov.commands.console import show
    from byov.device import choose_device
    from byov.evaluation.pruning import Prunable, check_file, prune_run
    from byov.report import tables
    from byov.runs import Reading, open_run

    check_file(out, run, force)
    named = choose_device(device)
    place = named if sweep or rounds else "cpu"
    reading = Reading(seed=seed, split=split, root=root, device=place, trust=trust)
    if sweep:
        if groups or rounds:
            raise ValueError("A sweep is of single weights without fine-tuning: leave out --groups and --rounds.")
        sweep_command(run, twin, out, by, scope, sparsities, refit, force, reading)
        return
    if twin is not None or sparsities is not None or refit:
        raise ValueError("--twin, --sparsities and --refit are of a sweep: add --sweep.")
    if groups and rounds:
        raise ValueError("Rounds of fine-tuning prune single weights: leave out --groups or --rounds.")
    opened, by = open_run(run, reading), "snr" if by is None else by
    net = prune_run(opened, out, sparsity, by, scope, groups, rounds, epochs, lr, show)  # type: ignore[arg-type]
    title = f"{run}, {100 * sparsity:g} % by {by}, scope {scope}"
    show(*(tables.smaller(Prunable(opened), net, title, out) if groups else tables.sparse(net, title, out)))
