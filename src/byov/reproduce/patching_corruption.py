"""Tables 5, 7 and 8 of the patching paper: corruption errors relative to the vanilla network's."""

from __future__ import annotations

from functools import partial
from statistics import mean
from typing import Any

from byov.metrics import functional as metrics
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment, standard_error
from byov.reproduce.patching_accuracy import about, holds
from byov.reproduce.patching_runs import METHODS, Readings, label, readings

MCE = {"emp": 97.8, "emp_bn": 98.8, "ecmp": 99.5, "ecmp_bn": 99.8, "dropout": 100.0, "vanilla": 100.0}
RELATIVE = {"emp": 97.4, "emp_bn": 99.0, "ecmp": 102.0, "ecmp_bn": 101.0, "dropout": 100.0, "vanilla": 100.0}
PLACE = "ResNet-18 on ImageNet-C"


def corruption_errors(found: Readings, method: str, partial: bool = False) -> list[dict[str, Any]]:
    """Return CE by corruption, mCE and relative mCE of each seed, in per cent of the vanilla network of the same seed.

    Of `partial` readings the first seeds are those that a method with fewer has.
    """
    vanillas = found["vanilla"][: len(found[method]) if partial else None]
    if len(vanillas) != len(found[method]):
        counts = f"{len(found[method])} of {METHODS[method].label} and {len(vanillas)} of the vanilla network"
        raise ValueError(f"Corruption errors are by seed, against the vanilla network of the same; here are {counts}.")
    each = []
    for ours, theirs in zip(found[method], vanillas, strict=True):
        errors, vanilla = dict(ours["errors"]), dict(theirs["errors"])
        clean, vanilla_clean = errors.pop("clean")[0], vanilla.pop("clean")[0]
        try:
            relative = metrics.relative_mean_corruption_error(errors, clean, vanilla, vanilla_clean).item()
        except ValueError:  # a corruption that does the vanilla network no harm has no relative error
            relative = None
        each.append(
            {
                "mCE": metrics.mean_corruption_error(errors, vanilla).item(),
                "relative_mCE": relative,
                "CE": {name: value.item() for name, value in metrics.corruption_error(errors, vanilla).items()},
            }
        )
    return each


def _table(context: Context, methods: tuple[str, ...] | None, key: str, paper: dict[str, float]) -> Outcome:
    found = readings(context, methods)
    errors = {method: corruption_errors(found, method, context.partial) for method in found}
    rows = []
    for method, each in errors.items():
        known = [e[key] for e in each if e[key] is not None]
        if not known:
            continue
        ours, theirs = mean(known), paper.get(method)
        told = method in ("emp", "ecmp") and theirs is not None
        verdict = holds(ours < 100, theirs < 100) if told else ""  # type: ignore[operator]
        name = "mCE" if key == "mCE" else "relative mCE"
        rows.append(Comparison(f"{label(found, method)}: {name} %", ours, theirs, standard_error(known), verdict))
        for corruption in each[0]["CE"] if key == "mCE" and method != "vanilla" else ():
            values = [e["CE"][corruption] for e in each]
            rows.append(Comparison(f"{label(found, method)}: {corruption}", mean(values), None, standard_error(values)))
    images = "Our corruptions are made as CIFAR-10-C's, on the same images for every method."
    return Outcome({"errors": errors}, rows, note=f"{about(found, PLACE)} {images}")


for _name, _methods, _key, _paper, _title in (
    ("table5", ("vanilla", "dropout", "emp", "ecmp"), "mCE", MCE, "Mean corruption error"),
    ("table7", None, "mCE", MCE, "Mean corruption error of every method"),
    ("table8", None, "relative_mCE", RELATIVE, "Relative mean corruption error of every method"),
):
    _run = partial(_table, methods=_methods, key=_key, paper=_paper)
    experiment(f"patching/{_name}", f"{_title} (CIFAR-100-C for ImageNet-C)")(_run)
