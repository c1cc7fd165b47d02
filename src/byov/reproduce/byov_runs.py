"""The trained networks behind BYOV's figures: made once in a common folder, taken up where they stopped, or handed in.

    pretrained(context, "byov")                                         a run of byov pretrain
    pretrained(context, "byov_beta1", "posterior.beta_end=1.0")         the same with other settings
    supervised(context)                                                 supervised Bayes by Backprop

The recipes are those of recipes/digits_*.toml at scale "quick" and recipes/cifar10_vit_*.toml at scale "full".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from byov.device import choose_device
from byov.exploration.runs import Run, Settings
from byov.reproduce.experiment import Context, Scale
from byov.ssl import pretrain
from byov.train import checkpoint
from byov.train import supervised as labelled
from byov.train.config import load_config, to_dict
from byov.train.run import FREE

_MILD = ("area=[0.5, 1.0]", "flip=0.0", "blur=0.0")
PRETRAIN: dict[Scale, tuple[str, ...]] = {
    "quick": (
        "data.name=digits",
        "model.encoder=convnet32",
        "model.hidden=256",
        "model.outputs=64",
        "posterior.log_var=-11.0",
        "posterior.beta_end=0.03",
        "ssl.tau_base=0.97",
        *(f"views.{view}.{setting}" for view in ("first", "second") for setting in _MILD),
        "views.second.solarize=0.0",
        "train.epochs=40",
        "train.batch=128",
        "train.lr=2e-3",
        "train.warmup=3",
    ),
    "full": (
        "data.name=cifar10",
        "model.encoder=vit-mini/4",
        "model.hidden=2048",
        "model.outputs=256",
        "posterior.log_var=-14.0",
        "posterior.beta_end=0.005",
        "ssl.tau_base=0.99",
        "train.epochs=150",
        "train.batch=512",
        "train.lr=1e-3",
        "train.log_var_lr=4.0",
        "train.warmup=10",
        "train.precision=bf16-mixed",
        "train.compile=true",
        "train.log_every=50",
    ),
}
"""What differs from the defaults: recipes/digits_byov.toml and recipes/cifar10_vit_byov.toml."""

SUPERVISED: dict[Scale, tuple[str, ...]] = {
    "quick": (
        "data.name=digits",
        "model.name=convnet32",
        "posterior.log_var=-10.0",
        "posterior.beta_end=0.1",
        "train.epochs=30",
        "train.batch=128",
        "train.lr=3e-3",
        "train.warmup=2",
    ),
    "full": (
        "data.name=cifar10",
        "model.name=vit-mini/4",
        "posterior.log_var=-13.0",
        "posterior.beta_end=0.05",
        "augment=crop-flip",
        "train.epochs=100",
        "train.batch=512",
        "train.lr=1e-3",
        "train.warmup=10",
        "train.precision=bf16-mixed",
        "train.compile=true",
        "train.log_every=50",
    ),
}
"""Supervised Bayes by Backprop on the same images with the same encoder: recipes/digits_train.toml, and its like."""

PLACE = {"train.accelerator", "train.devices", *FREE}
"""Settings that do not make a finished run another one: where it ran."""


def pretrained(context: Context, name: str, *changes: str) -> Path:
    """The folder of a finished run of `byov pretrain`: the scale's recipe with `changes` ("posterior.beta_end=1.0").

    Trained in the folder `runs/SCALE` beside the experiments' own, unless it is there; of `context.runs`, if any are
    given, the first that agrees with `changes` and with the kind of posterior.
    """
    recipe = load_config(pretrain.Pretrain, None, [*PRETRAIN[context.scale], *_here(context), *changes])
    asked = {"posterior.family", "posterior.prior", "posterior.coverage", *(_key(change) for change in changes)}
    return _made(context, name, "pretrain", recipe, asked, pretrain.start)


def supervised(context: Context, name: str = "supervised", *changes: str) -> Path:
    """The folder of a finished run of `byov train`, likewise; by default supervised Bayes by Backprop."""
    recipe = load_config(labelled.Supervised, None, [*SUPERVISED[context.scale], *_here(context), *changes])
    asked = {"posterior.family", *(_key(change) for change in changes)}
    return _made(context, name, "train", recipe, asked, labelled.start)


def _here(context: Context) -> list[str]:
    """The run's seed and place, as settings of a recipe."""
    root = [] if context.root is None else [f"data.root={context.root}"]
    kind = choose_device(context.device).type
    return [f"train.seed={context.seed}", f"train.accelerator={kind}", "train.devices=1", *root]


def _made(
    context: Context, name: str, kind: str, recipe: Any, asked: set[str], start: Callable[[Any, Path, bool], bool]
) -> Path:
    wanted = _flat(to_dict(recipe))
    if context.runs:
        return _handed_in(context.runs, kind, {key: wanted[key] for key in sorted(asked)})
    run = context.out.parent / "runs" / context.scale / f"{name}_seed{context.seed}"
    file = run / "checkpoint.safetensors"
    if not file.exists():
        start(recipe, run, False)
        return run
    state = checkpoint.peek(file)
    # A run from before there was a setting has its default.
    before = _flat(to_dict(type(recipe)())) | _flat(state["recipe"]["config"])
    changed = [key for key in wanted if key not in PLACE and wanted[key] != before.get(key)]
    if changed:
        key = changed[0]
        was = f"{key} = {before.get(key)!r}, not {wanted[key]!r}"
        raise ValueError(f"{run} was trained with {was}: remove it, or choose another folder for the results.")
    if state["step"] < state["total"]:
        start(recipe, run, True)
    return run


def _handed_in(runs: Sequence[Path], kind: str, asked: dict[str, Any]) -> Path:
    for run in runs:
        about = _about(run)
        settings = _flat(about["config"])
        if about.get("kind") == kind and all(settings.get(key) == value for key, value in asked.items()):
            return run
    words = ", ".join(f"{key} = {value}" for key, value in asked.items())
    raise ValueError(f"None of the runs given is of byov {kind} with {words}: give one, or leave the runs out.")


def _about(run: Path) -> dict[str, Any]:
    """What a run's checkpoint says of its recipe and data."""
    file = run / "checkpoint.safetensors" if run.is_dir() else run
    if not file.is_file():
        raise ValueError(f"There is no run at {run}: name a run's folder or its checkpoint.")
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("kind") not in ("pretrain", "train"):
        raise ValueError(f"{run} is not a run of byov pretrain or byov train.")
    return about


def _key(change: str) -> str:
    return change.partition("=")[0].strip()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# What the figures about the posterior share

PRIORS = {"normal": "N(0, I)", "teacher-mean": "N(μ_T, I)", "teacher-normal": "N(μ_T, Σ_T)"}
BETAS: dict[Scale, tuple[float, ...]] = {"quick": (0.01, 0.03, 0.1), "full": (0.005, 0.05, 0.5)}
"""What β ends at. The paper's 1.0 is too much for a small data set, whose N of β·KL/N is small."""
BASE: dict[Scale, float] = {
    scale: load_config(pretrain.Pretrain, None, recipe).posterior.beta_end for scale, recipe in PRETRAIN.items()
}
"""The recipes' own β."""


def byov_run(context: Context, prior: str = "normal", beta: float | None = None) -> Path:
    """BYOV under one of the paper's priors, with β from 0 to `beta`; the recipe's own by default."""
    name, changes = "byov", []
    if prior != "normal":
        name, changes = f"{name}_{prior}", [f"posterior.prior={prior}"]
    if beta is not None and beta != BASE[context.scale]:
        name, changes = f"{name}_beta{beta:g}", [*changes, f"posterior.beta_end={beta}"]
    return pretrained(context, name, *changes)


def byol_run(context: Context) -> Path:
    """BYOL by the same recipe."""
    return pretrained(context, "byol", "posterior.family=none")


def supervised_twin(context: Context) -> Path:
    """Supervised Bayes by Backprop with the β of BYOV's recipe, as in the paper's Figure 1b; or the user's."""
    beta = BASE[context.scale]
    own = load_config(labelled.Supervised, None, SUPERVISED[context.scale]).posterior.beta_end
    if context.runs or own == beta:
        return supervised(context)
    return supervised(context, "supervised_twin", f"posterior.beta_end={beta}")


def handed_in(context: Context) -> dict[str, Path]:
    """The user's pretraining runs with posteriors, by prior and β, where a figure compares whatever it is given."""
    found: dict[str, Path] = {}
    for run in context.runs:
        about = _about(run)
        posterior = about["config"]["posterior"]
        if about["kind"] == "pretrain" and posterior["family"] != "none":
            label = f"{PRIORS[posterior['prior']]}, β: {posterior['beta_start']:g} → {posterior['beta_end']:g}"
            found[f"{label} ({run.name})" if label in found else label] = run
    if not found:
        raise ValueError("None of the runs given is of byov pretrain with a posterior.")
    return found


def recipe_of(run: Path) -> dict[str, Any]:
    """The recipe that a run was trained with, as its checkpoint has it."""
    return _about(run)["config"]


def opened(context: Context, runs: Mapping[str, Path], **changes: Any) -> list[Run]:
    """Runs as exploration reads them, under the names that a figure gives them."""
    settings = Settings(seed=context.seed, root=context.root, device=str(choose_device(context.device)), **changes)
    return [Run(path, name, settings) for name, path in runs.items()]
