"""The classifiers behind the patching paper's tables; each method and seed is trained once and read once.

    table = readings(context)        {method: [the scores of one seed's network, …]}

Scale "quick" uses small networks on digits (recipes/digits_paper.toml); scale "full" uses ResNet-18 with the CIFAR stem
on CIFAR-100 (recipes/cifar100_paper.toml), the network of the paper's Table 4 on the data of its Table 6. As in the
paper: Adam at its defaults, at a constant learning rate (it names no schedule), and the L2 penalty of appendix C.1.
Ours: 60 epochs (the paper: 100 and 400) of 48,000 images (50,000). The optimizer matters: with a learning rate that
decays to zero the patches of a layer come to agree, and a tuned weight decay leaves little overconfidence to repair.
How patches start, and how slowly they move apart, is ours too (results/README.md lists the gain); the paper's random
start is available as two more methods, `emp_paper` and `ecmp_paper`.

The user's runs replace all of these, whatever their settings: see `_given_readings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from byov.evaluation.results import plain_json
from byov.reproduce.experiment import Context, Scale
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
    """One row of the tables: its name, its recipe, and its changes to [posterior]."""

    label: str
    recipe: Literal["paper", "vanilla"] = "paper"
    changes: tuple[str, ...] = ()
    epochs: int = 1
    """A multiple of the recipe's number of epochs."""
    row: str = ""
    """The row of the paper's tables to compare with, if its name differs."""


_PAPER = ("start=reset", "spread=0.0", "apart=none")
METHODS: dict[str, Method] = {
    "vanilla": Method("vanilla", "vanilla"),
    "ecmp": Method("ECMP (BN+out)"),
    "emp": Method("EMP (BN+out)", changes=("family=emp",)),
    "dropout": Method("dropout", "vanilla", ("family=dropout", "on=before-norm", "p=0.005")),
    "emp_bn": Method("EMP (BN)", changes=("family=emp", "on=norm")),
    "ecmp_bn": Method("ECMP (BN)", changes=("on=norm",)),
    # "We initialize M and m randomly": the other components use torch's initialization, in which γ is 1 and β is 0 in
    # every patch of a norm, and nothing keeps them apart.
    "ecmp_paper": Method("ECMP (BN+out), as the paper starts it", changes=_PAPER, row="ecmp"),
    "emp_paper": Method("EMP (BN+out), as the paper starts it", changes=("family=emp", *_PAPER), row="emp"),
    # The following are not in the paper's tables.
    "dropconnect": Method("DropConnect", "vanilla", ("family=dropconnect", "p=0.005")),
    "emp_ecmp": Method("EMP (BN) + ECMP (out)", changes=("family=emp", "on=norm", "output_family=ecmp")),
    "emp_dropout": Method(
        "EMP (BN) + dropout (out)", changes=("family=emp", "on=norm", "output_family=dropout", "p=0.1")
    ),
    "emp_learned": Method("EMP (BN+out), learned p", changes=("family=emp", "learn_probs=true")),
    # A step trains one of its five members, so five times the epochs show each as many images as the others see.
    "ensemble": Method("explicit ensemble", "vanilla", ("family=ensemble",), epochs=5),
}
"""In the order of training: the methods of the paper's claims come first."""

_ANY = ("on", "output_family", "sigma", "shared_sigma", "alternate")
PATCHES = (*_ANY, "k", "start", "spread", "apart", "gain", "learn_probs", "zero")
_MASKED = (*_ANY, "p")
IDENTITY: dict[str, tuple[str, ...]] = {"none": (), "dropout": _MASKED, "dropconnect": _MASKED}
"""By family, the settings of [posterior] that distinguish its runs; PATCHES for families with components."""


def recipe(context: Context, method: str) -> Supervised:
    """Return the full recipe of a method for the context's scale and seed."""
    if method not in METHODS:
        raise ValueError(f"The method must be one of {', '.join(METHODS)}, not {method!r}.")
    chosen, name = METHODS[method], f"{RECIPES[context.scale]}_{METHODS[method].recipe}"
    epochs = load_config(Supervised, name).train.epoch_count * chosen.epochs
    changes = (f"posterior.{change}" for change in chosen.changes)
    return load_here(context, Supervised, name, *changes, f"train.epochs={epochs}")


def seeds(context: Context) -> range:
    """Return the seeds of every method."""
    return range(context.seed, context.seed + SEEDS[context.scale])


def _reading_protocol(context: Context, method: str) -> dict[str, Any]:
    """Return what a reading depends on: how the network was trained and read, but not where: it outlives its run."""
    settings = flatten(to_dict(recipe(context, method)))
    return {**PROTOCOL[context.scale], "method": method, **{k: v for k, v in settings.items() if k not in PLACE}}


GAUSSIANS = (
    "posterior.log_var",
    "posterior.relative",
    "posterior.kl_scale",
    "train.log_var_lr",
    "train.log_var_optimizer",
)
"""Settings unused here, since nothing is Gaussian and the penalty is L2; older readings have other defaults."""


def _defaults() -> dict[str, Any]:
    return flatten(to_dict(Supervised()))


def same_reading(before: Any, asked: dict[str, Any]) -> bool:
    """Return whether a reading's protocol matches the requested one; missing settings have their default."""
    if not isinstance(before, dict):
        return False
    known = {key: value for key, value in plain_json(_defaults()).items() if key in asked}
    return all((known | before).get(key, ...) == asked.get(key, ...) for key in {*before, *asked} - {*GAUSSIANS})


def reading(context: Context, method: str, seed: int) -> dict[str, Any]:
    """Return the scores of a method and seed, whose network is trained and read once; they are kept with the runs."""
    own = replace(context, seed=seed)

    def make() -> dict[str, Any]:
        run = trained(own, method, recipe(own, method))
        own.check_time()
        return read(run, context, METHODS[method].label)

    shared = replace(own, out=runs_folder(context))
    found = shared.kept(f"{method}_seed{seed}", _reading_protocol(own, method), make, same_reading)
    return {**found, "seed": seed, "label": METHODS[method].label, "row": METHODS[method].row or method}


def is_read(context: Context, method: str, seed: int) -> bool:
    """Return whether a method and seed has been read; its run may be gone."""
    shared = replace(context, out=runs_folder(context), seed=seed)
    return shared.find(f"{method}_seed{seed}", _reading_protocol(shared, method), same_reading) is not None


def readings(context: Context, methods: Iterable[str] | None = None) -> Readings:
    """Return the readings of methods, by default all; train and read missing ones, all methods seed by seed.

    A partial context returns only existing readings: the first seeds of each method, at most as many as of vanilla.
    """
    if context.runs:
        return _given_readings(context)
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
    """Return the label of a method in a table, with its number of seeds if others have more."""
    name, count = found[method][0]["label"], len(found[method])
    return name if count >= len(found["vanilla"]) else f"{name} [{count} seed{'s' * (count > 1)}]"


def row(found: Readings, method: str) -> str:
    """Return the row of the paper's tables that a method is compared with; "" if there is none."""
    return found[method][0]["row"]


def matching(found: Readings, rows: Iterable[str]) -> list[str]:
    """Return the methods that are compared with these rows of the paper, in the order of the rows."""
    return [method for wanted in rows for method in found if row(found, method) == wanted]


def in_rows(rows: Iterable[str]) -> list[str]:
    """Return our methods for these rows of the paper, including the paper's own settings."""
    return [name for wanted in rows for name, method in METHODS.items() if (method.row or name) == wanted]


def _given_readings(context: Context) -> Readings:
    """Return readings of the user's runs of `byov train`, whatever their settings.

    A run with the posterior of a method counts as that method. Any other is labelled by its differences from the
    nearest method of its family, and compared with the same row of the paper unless other layers are Bayesian.
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
        raise ValueError("The runs given include no vanilla network (posterior.family = none) to compare with.")
    for what in ("data", "network"):
        if len(several := {each[what] for readings in found.values() for each in readings}) > 1:
            raise ValueError(f"A table needs runs with the same {what}, not {' and '.join(sorted(several))}.")
    order = [name for name in METHODS if name in found]
    return {name: found[name] for name in [*order, *(name for name in found if name not in order)]}


def _nearest(context: Context, run: Path) -> tuple[str, list[str]]:
    """Return the nearest method of a run's family, and the settings that differ."""
    settings = _posterior({**_defaults(), **settings_of(run)})
    candidates = []
    for name in METHODS:
        asked = _posterior(flatten(to_dict(recipe(context, name))))
        if asked["family"] == settings["family"]:
            keys = IDENTITY.get(settings["family"], PATCHES)
            changed = [f"{key} = {str(settings[key]).lower()}" for key in keys if settings[key] != asked[key]]
            candidates.append((len(changed), name, changed))
    if not candidates:
        raise ValueError(f"The posterior of {run} belongs to none of the methods {', '.join(METHODS)}.")
    _, name, changed = min(candidates, key=lambda candidate: candidate[0])
    return name, changed


def _posterior(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of [posterior], with automatic starts resolved."""
    found = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("posterior.")}
    if found["start"] == "auto":
        found["start"] = "reset" if found["family"] == "ensemble" else "copy"
    if found["spread"] == "auto" and found["start"] == "reset":
        found["spread"] = 0.0
    return found


def checkpoint_digest(run: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a run's checkpoint."""
    return sha256(read_header(run).file.read_bytes()).hexdigest()[:16]
