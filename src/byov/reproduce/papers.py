"""All tables and figures of the two papers, reproducible or not, and the matching of name patterns."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

CAPTIONS: dict[str, str] = {
    "byov/figure1a": "BYOL, and what BYOV changes in it",
    "byov/figure1b": "Predictive standard deviation: supervised BBB against BYOV",
    "byov/figure2": "Prior ablation: accuracy, calibration and Brier parts over β",
    "byov/figure3": "Layer-wise σ and SNR over training, for three priors",
    "byov/figure4": "SNR and magnitude pruning; relative reliability and ECE under shift",
    "byov/figure5": "Predictive mean and standard deviation over the number of draws, by augmentation",
    "byov/figure6": "SNR over training, for several β",
    "byov/figure7": "Variance after encoder, projector and predictor under Gaussian noise",
    "byov/table1": "Which parts of the network are Bayesian",
    "patching/figure1": "GPU memory over the years",
    "patching/figure2": "How dropout, EMP and ECMP assign weights to components",
    "patching/figure3": "Functions drawn from the prior under dropout and EMP",
    "patching/figure4": "Calibration curves, ResNet-18 on ImageNet",
    "patching/figure5": "Calibration curves, PyramidNet on CIFAR-100",
    "patching/figure6": "Calibration over the number of MC samples",
    "patching/figure7": "Calibration curves, ResNet-18 on ImageNet, every configuration",
    "patching/table1": "Parameters of variational methods in the literature",
    "patching/table2": "Special cases of the variational family",
    "patching/table3": "Ensemble size and parameters of ensemble-based methods",
    "patching/table4": "ResNet-18 on ImageNet: accuracy and calibration",
    "patching/table5": "Mean corruption error on ImageNet-C",
    "patching/table6": "PyramidNet on CIFAR-100: accuracy and calibration",
    "patching/table7": "Mean corruption error on ImageNet-C, every configuration",
    "patching/table8": "Relative mean corruption error on ImageNet-C",
    "patching/table9": "MC sample size, accuracy and calibration: EMP",
    "patching/table10": "MC sample size, accuracy and calibration: ECMP",
    "patching/table11": "MC sample size, accuracy and calibration: dropout",
    "patching/table12": "Root mean squared error on ten regression sets",
    "patching/table13": "Log predictive density on ten regression sets",
}

_IMAGENET = "it needs a ResNet-18 on ImageNet, a week on several GPUs per method"
_DIAGRAM = "it is a diagram with nothing to measure"

REASONS: dict[str, str] = {
    "byov/figure1a": _DIAGRAM,
    "patching/figure1": "its data are 1,599 GPUs scraped from a web site; it involves no model",
    "patching/figure2": _DIAGRAM,
    "patching/figure4": _IMAGENET,
    "patching/figure7": _IMAGENET,
    "patching/table2": "it is a list of definitions: byov.Dropout, DropConnect, Ensemble, EMP and ECMP",
    "patching/table4": _IMAGENET,
    "patching/table5": _IMAGENET,
    "patching/table7": _IMAGENET,
    "patching/table8": _IMAGENET,
}
"""Why a table or figure cannot be reproduced. An experiment of the same name, say on other data, takes precedence."""
NO_EXPERIMENT = "it has no experiment yet"


def choose(patterns: Sequence[str], known: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the names that match patterns, in the papers' order, and the reasons for those a glob leaves out."""
    if not patterns:
        raise ValueError("Name a table or figure, such as byov/figure4; byov reproduce --list shows them all.")
    chosen: set[str] = set()
    skipped: dict[str, str] = {}
    for pattern in patterns:
        found = [name for name in _names(known) if fnmatchcase(name, pattern)]
        if not found:
            near = get_close_matches(pattern, _names(known), n=1)
            nearest = f"; the nearest is {near[0]}" if near else ""
            raise ValueError(f"There is no table or figure {pattern!r}{nearest}; byov reproduce --list shows them all.")
        for name in found:
            if name in known:
                chosen.add(name)
                continue
            skipped[name] = REASONS.get(name, NO_EXPERIMENT)
            if name == pattern:
                raise ValueError(f"{name} cannot be reproduced: {skipped[name]}.")
    if not chosen:
        raise ValueError(f"Nothing that matches {' '.join(patterns)} can be reproduced; see byov reproduce --list.")
    return [name for name in _names(known) if name in chosen], skipped


def catalogue(known: dict[str, Any], patterns: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """Return (name, title, reason why it is not reproduced or None) of all names that match patterns."""
    return [
        (name, known[name].title, None) if name in known else (name, CAPTIONS[name], REASONS.get(name, NO_EXPERIMENT))
        for name in _names(known)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _names(known: dict[str, Any]) -> list[str]:
    return [*CAPTIONS, *(name for name in known if name not in CAPTIONS)]
