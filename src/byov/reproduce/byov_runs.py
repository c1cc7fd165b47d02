"""The trained networks behind BYOV's figures, or the user's own in their place.

pretrained(context, "byov")                                      a run of byov pretrain
pretrained(context, "byov_beta1", "posterior.beta_end=1.0")      the same with other settings
supervised(context)                                              supervised Bayes by Backprop
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byov.device import choose_device
from byov.reproduce.experiment import Context, Scale
from byov.reproduce.recipes import load_here, settings_of, trained
from byov.runs import Reading, Run, open_run
from byov.ssl.pretrain import Pretrain
from byov.train.config import flatten, load_config, to_dict
from byov.train.supervised import Supervised

RECIPES: dict[Scale, str] = {"quick": "digits", "full": "cifar10_vit"}
"""recipes/digits_byov.toml, recipes/digits_train.toml and so on."""
PRIORS = {"normal": "N(0, I)", "teacher-mean": "N(μ_T, I)", "teacher-normal": "N(μ_T, Σ_T)"}
BETAS: dict[Scale, tuple[float, ...]] = {"quick": (0.03, 0.1, 1.0), "full": (0.03, 0.1, 1.0)}
"""Where β ends; N is the number of weights. The paper has 0.03 to 1.0."""


def pretrained(context: Context, name: str, *changes: str, recipe: str = "") -> Path:
    """Return the folder of a finished run of `byov pretrain`: the scale's recipe, or another, with `changes`.

    Of `context.runs`, if any are given, it is the first that agrees with `changes` and with the kind of posterior.
    """
    recipe = recipe or f"{RECIPES[context.scale]}_byov"
    keys = {"posterior.family", "posterior.prior", "posterior.coverage"}
    return _run(context, "pretrain", name, load_here(context, Pretrain, recipe, *changes), keys, changes)


def supervised(context: Context, name: str = "supervised", *changes: str, recipe: str = "") -> Path:
    """Return the folder of a finished run of `byov train`, likewise; by default supervised Bayes by Backprop."""
    recipe = recipe or f"{RECIPES[context.scale]}_train"
    return _run(context, "train", name, load_here(context, Supervised, recipe, *changes), {"posterior.family"}, changes)


def _run(
    context: Context, kind: str, name: str, recipe: Pretrain | Supervised, keys: set[str], changes: tuple[str, ...]
) -> Path:
    """Return the run that a recipe asks for: trained here, or the first of the user's that agrees at the keys."""
    if not context.runs:
        return trained(context, name, recipe)
    wanted, keys = flatten(to_dict(recipe)), keys | {change.partition("=")[0].strip() for change in changes}
    for run in context.runs:
        settings = settings_of(run)
        if settings["kind"] == kind and all(settings.get(key) == wanted[key] for key in keys):
            return run
    words = ", ".join(f"{key} = {wanted[key]}" for key in sorted(keys))
    raise ValueError(f"None of the runs given is of byov {kind} with {words}: give one, or leave the runs out.")


def own_beta(scale: Scale) -> float:
    """Return the β of a scale's own recipe."""
    return load_config(Pretrain, f"{RECIPES[scale]}_byov").posterior.beta_end


def about_beta(context: Context) -> str:
    """Say where β ends in a figure whose β the paper has from 0 to 1; "" of runs handed in, which may have any."""
    if context.runs:
        return ""
    return f" β ends at {own_beta(context.scale):g}; in the paper at 1, with an N that it does not state."


def byov_run(context: Context, prior: str = "normal", beta: float | None = None) -> Path:
    """Return a run of BYOV under one of the paper's priors, with β from 0 to `beta`, by default the recipe's own."""
    name, changes = "byov", []
    if prior != "normal":
        name, changes = f"{name}_{prior}", [f"posterior.prior={prior}"]
    if beta is not None and beta != own_beta(context.scale):
        name, changes = f"{name}_beta{beta:g}", [*changes, f"posterior.beta_end={beta}"]
    return pretrained(context, name, *changes)


def byol_run(context: Context) -> Path:
    """Return a run of BYOL by the same recipe."""
    return pretrained(context, "byol", "posterior.family=none")


def supervised_twin(context: Context) -> Path:
    """Return a run of supervised Bayes by Backprop with the β of BYOV's recipe (Figure 1b); or the user's."""
    beta = own_beta(context.scale)
    if context.runs or beta == load_config(Supervised, f"{RECIPES[context.scale]}_train").posterior.beta_end:
        return supervised(context)
    return supervised(context, "supervised_twin", f"posterior.beta_end={beta}")


def handed_in(context: Context) -> dict[str, Path]:
    """Return the user's pretraining runs with posteriors, by prior and β, where a figure compares all of them."""
    found: dict[str, Path] = {}
    for run in context.runs:
        of = settings_of(run)
        if of["kind"] == "pretrain" and of["posterior.family"] != "none":
            beta = f"β: {of['posterior.beta_start']:g} → {of['posterior.beta_end']:g}"
            label = f"{PRIORS[of['posterior.prior']]}, {beta}"
            found[f"{label} ({run.name})" if label in found else label] = run
    if not found:
        raise ValueError("None of the runs given is of byov pretrain with a posterior.")
    return found


def opened(context: Context, runs: Mapping[str, Path], limit: int | None = 2000, **reading: Any) -> list[Run]:
    """Open runs to be read, under the names that a figure gives them."""
    place = choose_device(context.device)
    how = Reading(seed=context.seed, root=context.root, device=place, limit=limit, trust=context.trust, **reading)
    return [open_run(path, how, name) for name, path in runs.items()]
