"""The classifiers behind the patching paper's tables: every method and seed trained once, and read once for all tables.

    table = readings(context)        {method: [what one seed's network scored, …]}

At scale "quick" small networks on digits (recipes/digits_paper.toml), at scale "full" ResNet-18 with the CIFAR stem on
CIFAR-100 (recipes/cifar100_paper.toml): the network of the paper's Table 4 on the data of its Table 6. Settings are the
paper's: Adam at its defaults, a constant learning rate, and the L2 penalty of appendix C.1. They matter: under a rate
that goes to zero the patches of a layer come to agree, and a tuned weight decay leaves little overconfidence to repair.
Where patches start, and how slowly they move apart, is ours (results/README.md has what it gains); the paper's own
start, at random and no nearer to each other than that, is two methods more, `emp_paper` and `ecmp_paper`.

Runs of one's own take the place of all of these, whatever their settings: `_handed_in`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from byov.reproduce.experiment import Context, Scale, plain
from byov.reproduce.patching_reading import PROTOCOL, read
from byov.reproduce.recipes import PLACE, load_here, runs_folder, settings_of, trained
from byov.runs import read_header
from byov.train.config import flatten, load_config, to_dict
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
    row: str = ""
    """The row of the paper's tables that it is read beside, where that is not the one of its own name."""


_PAPER = ("start=reset", "spread=0.0", "apart=none")
METHODS: dict[str, Method] = {
    "vanilla": Method("vanilla", "vanilla"),
    "ecmp": Method("ECMP (BN+out)"),
    "emp": Method("EMP (BN+out)", changes=("family=emp",)),
    "dropout": Method("dropout", "vanilla", ("family=dropout", "on=before-norm", "p=0.005")),
    "emp_bn": Method("EMP (BN)", changes=("family=emp", "on=norm")),
    "ecmp_bn": Method("ECMP (BN)", changes=("on=norm",)),
    # "We initialize M and m randomly": the other components anew, as torch does, and nothing that holds them apart.
    "ecmp_paper": Method("ECMP (BN+out), as the paper starts it", changes=_PAPER, row="ecmp"),
    "emp_paper": Method("EMP (BN+out), as the paper starts it", changes=("family=emp", *_PAPER), row="emp"),
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

_ANY = ("on", "output_family", "sigma", "shared_sigma", "alternate")
PATCHES = (*_ANY, "k", "start", "spread", "apart", "gain", "learn_probs", "zero")
_MASKED = (*_ANY, "p")
IDENTITY: dict[str, tuple[str, ...]] = {"none": (), "dropout": _MASKED, "dropconnect": _MASKED}
"""By family, the settings of [posterior] that tell its runs apart; PATCHES for those with components."""


def recipe(context: Context, method: str) -> Supervised:
    """Return the whole recipe of a method, for the context's scale and seed."""
    if method not in METHODS:
        raise ValueError(f"A method is one of {', '.join(METHODS)}, not {method!r}.")
    chosen, name = METHODS[method], f"{RECIPES[context.scale]}_{METHODS[method].recipe}"
    epochs = load_config(Supervised, name).train.epoch_count * chosen.epochs
    changes = (f"posterior.{change}" for change in chosen.changes)
    return load_here(context, Supervised, name, *changes, f"train.epochs={epochs}")


def seeds(context: Context) -> range:
    """Return the seeds that every method is trained with."""
    return range(context.seed, context.seed + SEEDS[context.scale])


def _reading_protocol(context: Context, method: str) -> dict[str, Any]:
    """Return what a reading depends on: how the network was trained and is read. Not where: it outlives its run."""
    settings = flatten(to_dict(recipe(context, method)))
    return {**PROTOCOL[context.scale], "method": method, **{k: v for k, v in settings.items() if k not in PLACE}}


GAUSSIANS = (
    "posterior.log_var",
    "posterior.relative",
    "posterior.kl_scale",
    "train.log_var_lr",
    "train.log_var_optimizer",
)
"""Settings without a use here, where nothing is Gaussian and the penalty is L2: readings of before they had other
defaults."""


def _defaults() -> dict[str, Any]:
    return flatten(to_dict(Supervised()))


def same_reading(before: Any, asked: dict[str, Any]) -> bool:
    """Tell whether a reading's protocol is the one asked for: a setting that it lacks had its default."""
    if not isinstance(before, dict):
        return False
    known = {key: value for key, value in plain(_defaults()).items() if key in asked}
    return all((known | before).get(key, ...) == asked.get(key, ...) for key in {*before, *asked} - {*GAUSSIANS})


def reading(context: Context, method: str, seed: int) -> dict[str, Any]:
    """Return what the network of a method and seed scores; trained and read once, and kept beside the runs."""
    own = replace(context, seed=seed)

    def make() -> dict[str, Any]:
        run = trained(own, method, recipe(own, method))
        own.check_time()
        return read(run, context, METHODS[method].label)

    shared = replace(own, out=runs_folder(context))
    found = shared.kept(f"{method}_seed{seed}", _reading_protocol(own, method), make, same_reading)
    return {**found, "seed": seed, "label": METHODS[method].label, "row": METHODS[method].row or method}


def is_read(context: Context, method: str, seed: int) -> bool:
    """Tell whether there is a reading of that method and seed; its run may be gone."""
    shared = replace(context, out=runs_folder(context), seed=seed)
    return shared.find(f"{method}_seed{seed}", _reading_protocol(shared, method), same_reading) is not None


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
    name, count = found[method][0]["label"], len(found[method])
    return name if count >= len(found["vanilla"]) else f"{name} [{count} seed{'s' * (count > 1)}]"


def row(found: Readings, method: str) -> str:
    """Return the row of the paper's tables that a method is read beside; "" where it has none."""
    return found[method][0]["row"]


def beside(found: Readings, rows: Iterable[str]) -> list[str]:
    """Return the methods that are read beside these rows of the paper, in the rows' order."""
    return [method for wanted in rows for method in found if row(found, method) == wanted]


def in_rows(rows: Iterable[str]) -> list[str]:
    """Return our methods for these rows of the paper: its own setting stands beside ours."""
    return [name for wanted in rows for name, method in METHODS.items() if (method.row or name) == wanted]


def _handed_in(context: Context) -> Readings:
    """Return readings of the user's own runs of `byov train`, whatever their settings.

    A run with the posterior of a method is read as that method. Any other is labelled by what sets it apart from the
    nearest method of its family, and read beside the same row of the paper, unless it is Bayesian elsewhere.
    """
    found: Readings = {}
    shared = replace(context, out=runs_folder(context))  # read once for all tables
    for run in context.runs:
        method, changed = _nearest(context, run)
        digest, words = checkpoint_digest(run), ", ".join([METHODS[method].label, *changed])
        protocol = {**PROTOCOL[context.scale], "network": digest}
        each = shared.kept(f"run_{digest}", protocol, partial(read, run, context, words))
        elsewhere = any(change.startswith(("on =", "output_family =")) for change in changed)
        about = {"label": words, "row": "" if elsewhere else METHODS[method].row or method}
        seed = settings_of(run)["train.seed"]
        found.setdefault(words if changed else method, []).append({**each, **about, "seed": seed})
    if "vanilla" not in found:
        raise ValueError("The runs given hold no vanilla network (posterior.family = none) to compare with.")
    for what in ("data", "network"):
        if len(several := {each[what] for readings in found.values() for each in readings}) > 1:
            raise ValueError(f"A table compares runs of one {what}, not of {' and '.join(sorted(several))}.")
    order = [name for name in METHODS if name in found]
    return {name: found[name] for name in [*order, *(name for name in found if name not in order)]}


def _nearest(context: Context, run: Path) -> tuple[str, list[str]]:
    """Return the method of a run's family that has most of its settings, and in which it differs."""
    settings = _posterior({**_defaults(), **settings_of(run)})
    candidates = []
    for name in METHODS:
        asked = _posterior(flatten(to_dict(recipe(context, name))))
        if asked["family"] == settings["family"]:
            keys = IDENTITY.get(settings["family"], PATCHES)
            changed = [f"{key} = {str(settings[key]).lower()}" for key in keys if settings[key] != asked[key]]
            candidates.append((len(changed), name, changed))
    if not candidates:
        raise ValueError(f"The posterior of {run} is that of no method here: {', '.join(METHODS)}.")
    _, name, changed = min(candidates, key=lambda candidate: candidate[0])
    return name, changed


def _posterior(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of [posterior], with where components start in so many words."""
    found = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("posterior.")}
    if found["start"] == "auto":
        found["start"] = "reset" if found["family"] == "ensemble" else "copy"
    if found["spread"] == "auto" and found["start"] == "reset":
        found["spread"] = 0.0
    return found


def checkpoint_digest(run: Path) -> str:
    """Return the first 16 digits of the SHA-256 of a run's checkpoint."""
    return sha256(read_header(run).file.read_bytes()).hexdigest()[:16]
