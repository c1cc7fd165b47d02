"""The classifiers behind the patching paper's tables: every method and seed trained once, and read once for all tables.

    table = readings(context)        {method: [what one seed's network scored, …]}

At scale "quick" small networks on digits (recipes/digits_paper.toml), at scale "full" ResNet-18 with the CIFAR stem on
CIFAR-100 (recipes/cifar100_paper.toml): the network of the paper's Table 4 on the data of its Table 6. Settings are the
paper's: Adam at its defaults, a constant learning rate, and the L2 penalty of appendix C.1. They matter: under a rate
that goes to zero the patches of a layer come to agree, and a tuned weight decay leaves little overconfidence to repair.
Where patches start, and how slowly they move apart, is ours (results/README.md has what it gains).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from byov.reproduce.experiment import Context, Scale
from byov.reproduce.patching_reading import PROTOCOL, read
from byov.reproduce.recipes import PLACE, load, load_here, matches, runs_folder, settings_of, trained
from byov.runs import read_header
from byov.train.config import flatten, to_dict
from byov.train.supervised import Supervised

Readings = dict[str, list[dict[str, Any]]]
"""By method, one reading for each seed."""

RECIPES: dict[Scale, str] = {"quick": "digits", "full": "cifar100"}
SEEDS: dict[Scale, int] = {"quick": 1, "full": 3}


@dataclass(frozen=True)
class Method:
    """One row of the tables: its name, the recipe that it starts from, and what it changes in its [posterior]."""

    label: str
    recipe: Literal["paper", "vanilla"] = "paper"
    changes: tuple[str, ...] = ()
    epochs: int = 1
    """Times the recipe's number of epochs."""


METHODS: dict[str, Method] = {
    "vanilla": Method("vanilla", "vanilla"),
    "ecmp": Method("ECMP (BN+out)"),
    "emp": Method("EMP (BN+out)", changes=("family=emp",)),
    "dropout": Method("dropout", "vanilla", ("family=dropout", "on=before-norm", "p=0.005")),
    "emp_bn": Method("EMP (BN)", changes=("family=emp", "on=norm")),
    "ecmp_bn": Method("ECMP (BN)", changes=("on=norm",)),
    # From here on not in the paper's tables.
    "dropconnect": Method("DropConnect", "vanilla", ("family=dropconnect", "p=0.005")),
    "emp_ecmp": Method("EMP (BN) + ECMP (out)", changes=("family=emp", "on=norm", "output_family=ecmp")),
    "emp_dropout": Method(
        "EMP (BN) + dropout (out)", changes=("family=emp", "on=norm", "output_family=dropout", "p=0.1")
    ),
    "emp_learned": Method("EMP (BN+out), learned p", changes=("family=emp", "learn_probs=true")),
    # Of its five members a step trains one: five times the epochs, so that each sees as many images as the others.
    "ensemble": Method("explicit ensemble", "vanilla", ("family=ensemble",), epochs=5),
}
"""In the order in which they are trained: what the paper's claims are about comes first."""

IDENTITY = {"none": (), "dropout": ("on", "p"), "dropconnect": ("on", "p"), "ensemble": ("on", "k")}
PATCHES = ("on", "output_family", "k", "start", "spread", "apart", "learn_probs")
"""By family, the settings of [posterior] that a run shares with the method it is taken for; PATCHES for others."""


def recipe(context: Context, method: str) -> Supervised:
    """Return the whole recipe of a method, for the context's scale and seed."""
    if method not in METHODS:
        raise ValueError(f"A method is one of {', '.join(METHODS)}, not {method!r}.")
    chosen, name = METHODS[method], f"{RECIPES[context.scale]}_{METHODS[method].recipe}"
    epochs = load(Supervised, name).train.epoch_count * chosen.epochs
    changes = (f"posterior.{change}" for change in chosen.changes)
    return load_here(context, Supervised, name, *changes, f"train.epochs={epochs}")


def seeds(context: Context) -> range:
    """Return the seeds that every method is trained with."""
    return range(context.seed, context.seed + SEEDS[context.scale])


def _asked(context: Context, method: str) -> dict[str, Any]:
    """Return what a reading depends on: how the network was trained and is read. Not where: it outlives its run."""
    settings = flatten(to_dict(recipe(context, method)))
    return {**PROTOCOL[context.scale], "method": method, **{k: v for k, v in settings.items() if k not in PLACE}}


def _defaults() -> dict[str, Any]:
    return flatten(to_dict(Supervised()))


def reading(context: Context, method: str, seed: int) -> dict[str, Any]:
    """Return what the network of a method and seed scores; trained and read once, and kept beside the runs."""
    own = replace(context, seed=seed)

    def make() -> dict[str, Any]:
        run = trained(own, method, recipe(own, method))
        own.check_time()
        return read(run, context, METHODS[method].label)

    shared = replace(own, out=runs_folder(context))
    return shared.kept(f"{method}_seed{seed}", _asked(own, method), make, _defaults())


def is_read(context: Context, method: str, seed: int) -> bool:
    """Tell whether there is a reading of that method and seed; its run may be gone."""
    shared = replace(context, out=runs_folder(context), seed=seed)
    return shared.find(f"{method}_seed{seed}", _asked(shared, method), _defaults()) is not None


def readings(context: Context, methods: Iterable[str] | None = None) -> Readings:
    """Return the readings of methods, by default of all; train and read what is missing, all methods seed by seed.

    Of a partial context they are those at hand: the first seeds of each method, no more than of the vanilla network.
    """
    if context.runs:
        return _handed_in(context)
    wanted, each = list(methods or METHODS), seeds(context)
    counts = dict.fromkeys(wanted, len(each))
    if context.partial:
        counts = {m: len(list(takewhile(lambda seed, m=m: is_read(context, m, seed), each))) for m in wanted}  # type: ignore[misc]
        counts = {m: min(count, counts["vanilla"]) for m, count in counts.items()}
    found: Readings = {method: [] for method in wanted if counts[method]}
    for i, seed in enumerate(each):
        for method in found:
            if i < counts[method]:
                found[method].append(reading(context, method, seed))
    return found


def label(found: Readings, method: str) -> str:
    """Return the name of a method in a table, with the number of its seeds where others have more."""
    name, count = METHODS[method].label, len(found[method])
    return name if count >= len(found["vanilla"]) else f"{name} [{count} seed{'s' * (count > 1)}]"


def _handed_in(context: Context) -> Readings:
    """Return readings of the user's own runs of `byov train`, each under the method whose posterior it has."""
    found: Readings = {}
    for run in context.runs:
        name = _method(context, run)
        digest = checkpoint_digest(run)
        protocol = {**PROTOCOL[context.scale], "network": digest}
        each = context.kept(f"run_{digest}", protocol, partial(read, run, context, METHODS[name].label))
        found.setdefault(name, []).append(each)
    if "vanilla" not in found:
        raise ValueError("The runs given hold no vanilla network (posterior.family = none) to compare with.")
    return {name: found[name] for name in METHODS if name in found}


def _method(context: Context, run: Path) -> str:
    settings = settings_of(run)
    for name in METHODS:
        asked = flatten(to_dict(recipe(context, name)))
        keys = ("family", *IDENTITY.get(asked["posterior.family"], PATCHES))
        if matches(settings, asked, (f"posterior.{key}" for key in keys)):
            return name
    raise ValueError(f"The posterior of {run} is that of no method here: {', '.join(METHODS)}.")


def checkpoint_digest(run: Path) -> str:
    """Return the first 16 digits of the SHA-256 of a run's checkpoint."""
    return sha256(read_header(run).file.read_bytes()).hexdigest()[:16]
