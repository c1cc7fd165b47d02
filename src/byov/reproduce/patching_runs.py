"""The classifiers behind the patching paper's tables: every method and seed trained once, and read once for all tables.

    table = readings(context)        {method: [what one seed's network scored, …]}

At scale "quick" small networks on digits, at scale "full" ResNet-18 with the CIFAR stem on CIFAR-100: the network of
the paper's Table 4 on the data of its Table 6. Settings are the paper's, and those of recipes/cifar100_paper.toml:
Adam at its defaults, a constant learning rate, and the L2 penalty of appendix C.1. They matter: under a rate that goes
to zero the patches of a layer come to agree, and a tuned weight decay leaves little overconfidence to repair. Where
patches start, and how slowly they move apart, is ours (`_PATCHES`; results/README.md has what it gains).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from byov.device import choose_device
from byov.reproduce.experiment import Context, Scale, plain, same_protocol
from byov.reproduce.patching_reading import PROTOCOL, read
from byov.train import checkpoint
from byov.train.config import load_config, to_dict
from byov.train.run import FREE
from byov.train.supervised import Supervised, start

K = 5


@dataclass(frozen=True)
class Method:
    """One row of the tables: what it is called, and how its recipe differs from the common one."""

    label: str
    changes: tuple[str, ...]
    beyond: bool = False
    """Not in the paper's tables."""
    epochs: int = 1
    """Times the common number of epochs."""


def _posterior(**settings: object) -> tuple[str, ...]:
    return tuple(f"posterior.{key}={value}".replace("True", "true") for key, value in settings.items())


_PATCHES = {"k": K, "start": "copy", "spread": 0.6, "apart": 0.2}
METHODS: dict[str, Method] = {
    "vanilla": Method("vanilla", _posterior(family="none")),
    "ecmp": Method("ECMP (BN+out)", _posterior(family="ecmp", on="norm+output", **_PATCHES)),
    "emp": Method("EMP (BN+out)", _posterior(family="emp", on="norm+output", **_PATCHES)),
    "dropout": Method("dropout", _posterior(family="dropout", on="before-norm", p=0.005)),
    "emp_bn": Method("EMP (BN)", _posterior(family="emp", on="norm", **_PATCHES)),
    "ecmp_bn": Method("ECMP (BN)", _posterior(family="ecmp", on="norm", **_PATCHES)),
    "dropconnect": Method("DropConnect", _posterior(family="dropconnect", on="all", p=0.005), beyond=True),
    "emp_ecmp": Method(
        "EMP (BN) + ECMP (out)", _posterior(family="emp", on="norm", output_family="ecmp", **_PATCHES), beyond=True
    ),
    "emp_dropout": Method(
        "EMP (BN) + dropout (out)",
        _posterior(family="emp", on="norm", output_family="dropout", p=0.1, **_PATCHES),
        beyond=True,
    ),
    "emp_learned": Method(
        "EMP (BN+out), learned p",
        _posterior(family="emp", on="norm+output", learn_probs=True, **_PATCHES),
        beyond=True,
    ),
    # Of its K members a step trains one: K times the epochs, so that each sees as many images as the others' network.
    "ensemble": Method("explicit ensemble", _posterior(family="ensemble", on="all", k=K), beyond=True, epochs=K),
}
"""In the order in which they are trained: what the paper's claims are about comes first."""

EPOCHS: dict[Scale, int] = {"quick": 40, "full": 60}
_PAPER = (
    "posterior.penalty=l2",
    "train.optimizer=adam",
    "train.lr=1e-3",
    "train.lr_batch=none",
    "train.lr_end=1",
    "train.warmup=0",
)
COMMON: dict[Scale, tuple[str, ...]] = {
    "quick": ("data.name=digits", "data.holdout=0.6", "model.name=convnet16", "train.batch=64", *_PAPER),
    "full": (
        "data.name=cifar100",
        "data.holdout=0.04",
        "model.name=cifar_resnet18",
        "augment=crop-flip",
        "train.batch=256",
        "train.precision=bf16-mixed",
        "train.compile=true",
        "train.log_every=50",
        *_PAPER,
    ),
}
SEEDS: dict[Scale, int] = {"quick": 1, "full": 3}
FEWER: dict[str, int] = {}
"""How many seeds a method has that is to have fewer than the others: results/cifar100.py shows what is there."""
PLACE = {"train.accelerator", "train.devices", *FREE}
"""Settings that do not make a finished run another one: where it ran."""


def recipe(method: str, scale: Scale, seed: int, *changes: str) -> Supervised:
    """The whole recipe of one method."""
    if method not in METHODS:
        raise ValueError(f"A method is one of {', '.join(METHODS)}, not {method!r}.")
    chosen = METHODS[method]
    own = (*chosen.changes, f"train.epochs={EPOCHS[scale] * chosen.epochs}", f"train.seed={seed}")
    return load_config(Supervised, None, [*COMMON[scale], *own, *changes])


def seeds(context: Context, method: str | None = None) -> range:
    return range(context.seed, context.seed + FEWER.get(method or "", SEEDS[context.scale]))


def folder(context: Context) -> Path:
    """Where the runs of all tables lie: beside the experiments' own folders."""
    return context.out.parent / "runs" / context.scale


def trained(context: Context, method: str, seed: int, minutes: float | None = None) -> Path | None:
    """The folder of a finished run, trained where it is missing; None if its time limit came first."""
    place = [f"train.accelerator={choose_device(context.device).type}", "train.devices=1"]
    place += [] if context.root is None else [f"data.root={context.root}"]
    place += [] if minutes is None else [f"train.minutes={minutes}"]
    wanted = recipe(method, context.scale, seed, *place)
    run = folder(context) / f"{method}_seed{seed}"
    file = run / "checkpoint.safetensors"
    if not file.exists():
        return run if start(wanted, run, False) else None
    state = checkpoint.peek(file)
    # A run from before there was a setting has its default.
    now, before = _flat(to_dict(wanted)), _defaults() | _flat(state["recipe"]["config"])
    changed = [key for key in now if key not in PLACE and now[key] != before.get(key)]
    if changed:
        was = f"{changed[0]} = {before.get(changed[0])!r}, not {now[changed[0]]!r}"
        raise ValueError(f"{run} was trained with {was}: remove it, or choose another folder for the results.")
    if state["step"] < state["total"]:
        return run if start(wanted, run, True) else None
    return run


def _asked(context: Context, method: str, seed: int) -> dict[str, Any]:
    """What a reading depends on: how the network was trained and how it is read. Not where: it outlives its run."""
    settings = _flat(to_dict(recipe(method, context.scale, seed)))
    return {**PROTOCOL[context.scale], "method": method, **{k: v for k, v in settings.items() if k not in PLACE}}


def is_read(context: Context, method: str, seed: int) -> bool:
    """Whether there is a reading of that method and seed; its run may be gone."""
    path = folder(context) / "parts" / f"{method}_seed{seed}.json"
    asked = plain({"seed": seed, "scale": context.scale, **_asked(context, method, seed)})
    if not path.is_file():
        return False
    return same_protocol(json.loads(path.read_text(encoding="utf-8")).get("protocol"), asked, _defaults())


def _defaults() -> dict[str, Any]:
    return _flat(to_dict(Supervised()))


def reading(context: Context, method: str, seed: int) -> dict[str, Any]:
    """What the network of a method and seed scores; trained and read once, and kept beside the runs."""

    def make() -> dict[str, Any]:
        run = trained(context, method, seed)
        assert run is not None  # there is no time limit here
        return read(run, context, METHODS[method].label)

    shared = replace(context, out=folder(context), seed=seed)
    return shared.kept(f"{method}_seed{seed}", _asked(context, method, seed), make, _defaults())


def readings(context: Context, methods: Iterable[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """By method, one reading for each seed; trains and reads whatever is missing."""
    if context.runs:
        return _handed_in(context)
    wanted = [method for method in methods or METHODS if method in METHODS]
    return {method: [reading(context, method, seed) for seed in seeds(context, method)] for method in wanted}


def _handed_in(context: Context) -> dict[str, list[dict[str, Any]]]:
    """Readings of the user's own runs of `byov train`, each under the method whose posterior it has."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in context.runs:
        settings = _flat(checkpoint.peek(run / "checkpoint.safetensors" if run.is_dir() else run)["recipe"]["config"])
        for name in METHODS:
            keys = [change.partition("=")[0] for change in METHODS[name].changes]
            asked = _flat(to_dict(recipe(name, context.scale, 0)))
            if all(settings.get(key) == asked[key] for key in keys):
                digest = checkpoint_digest(run)
                protocol = {**PROTOCOL[context.scale], "network": digest}
                label = METHODS[name].label
                each = context.kept(f"run_{digest}", protocol, partial(read, run, context, label))
                found.setdefault(name, []).append(each)
                break
        else:
            raise ValueError(f"The posterior of {run} is that of no method here: {', '.join(METHODS)}.")
    if "vanilla" not in found:
        raise ValueError("The runs given hold no vanilla network (posterior.family = none) to compare with.")
    return {name: found[name] for name in METHODS if name in found}


def checkpoint_digest(run: Path) -> str:
    """The SHA-256 of a run's checkpoint, in short."""
    file = run / "checkpoint.safetensors" if run.is_dir() else run
    return sha256(file.read_bytes()).hexdigest()[:16]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
