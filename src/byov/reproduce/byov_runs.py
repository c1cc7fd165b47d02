"""The trained networks behind BYOV's figures, or the user's own runs instead.

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
"""The final values of β; N is the number of weights. The paper's text names 0.3 and 1.0."""

RECENTRED = {"recentred": True}
"""Part of the protocol of a probe under draws: byov once left the common shift of a draw in its features."""


def pretrained(context: Context, name: str, *changes: str, recipe: str = "") -> Path:
    """Return the folder of a finished run of `byov pretrain`, by the scale's recipe or another one, with `changes`.

    If `context.runs` are given, return the first that matches `changes` and the kind of posterior.
    """
    recipe = recipe or f"{RECIPES[context.scale]}_byov"
    keys = {"posterior.family", "posterior.prior", "posterior.coverage"}
    return _run(context, "pretrain", name, load_here(context, Pretrain, recipe, *changes), keys, changes)


def supervised(context: Context, name: str = "supervised", *changes: str, recipe: str = "") -> Path:
    """Return the folder of a finished run of `byov train`, as `pretrained`; by default supervised Bayes by Backprop."""
    recipe = recipe or f"{RECIPES[context.scale]}_train"
    return _run(context, "train", name, load_here(context, Supervised, recipe, *changes), {"posterior.family"}, changes)


def _run(
    context: Context, kind: str, name: str, recipe: Pretrain | Supervised, keys: set[str], changes: tuple[str, ...]
) -> Path:
    """Return a run of a recipe: trained here, or the first of the user's runs that matches it at the keys."""
    if not context.runs:
        return trained(context, name, recipe)
    wanted, keys = flatten(to_dict(recipe)), keys | {change.partition("=")[0].strip() for change in changes}
    for run in context.runs:
        settings = settings_of(run)
        if settings["kind"] == kind and all(settings.get(key) == wanted[key] for key in keys):
            return run
    words = ", ".join(f"{key} = {wanted[key]}" for key in sorted(keys))
    raise ValueError(f"None of the runs given is of byov {kind} with {words}: add one, or give no runs.")


def own_beta(scale: Scale) -> float:
    """Return the β of a scale's own recipe."""
    return load_config(Pretrain, f"{RECIPES[scale]}_byov").posterior.beta_end


def about_beta(context: Context) -> str:
    """State the final β for figures where the paper's β goes from 0 to 1; "" for the user's runs."""
    if context.runs:
        return ""
    return f" β ends at {own_beta(context.scale):g}; in the paper at 1, for an unstated N."


def byov_run(context: Context, prior: str = "normal", beta: float | None = None) -> Path:
    """Return a run of BYOV with one of the paper's priors and β from 0 to `beta`, by default the recipe's."""
    name, changes = "byov", []
    if prior != "normal":
        name, changes = f"{name}_{prior}", [f"posterior.prior={prior}"]
    if beta is not None and beta != own_beta(context.scale):
        name, changes = f"{name}_beta{beta:g}", [*changes, f"posterior.beta_end={beta}"]
    return pretrained(context, name, *changes)


def byol_run(context: Context) -> Path:
    """Return a run of BYOL with the same recipe, so without weight decay; the paper's BYOL keeps BYOL's own."""
    return pretrained(context, "byol", "posterior.family=none")


def supervised_twin(context: Context) -> Path:
    """Return a run of supervised Bayes by Backprop with the β of BYOV's recipe (Figure 1b), or the user's run."""
    beta = own_beta(context.scale)
    if context.runs or beta == load_config(Supervised, f"{RECIPES[context.scale]}_train").posterior.beta_end:
        return supervised(context)
    return supervised(context, "supervised_twin", f"posterior.beta_end={beta}")


def given_runs(context: Context) -> dict[str, Path]:
    """Return the user's pretraining runs with posteriors by prior and β, for figures that compare them all."""
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
    """Open runs under the names that a figure uses."""
    place = choose_device(context.device)
    how = Reading(seed=context.seed, root=context.root, device=place, limit=limit, trust=context.trust, **reading)
    return [open_run(path, how, name) for name, path in runs.items()]
