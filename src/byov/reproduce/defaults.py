"""The benefit of the default posterior: every method on every small set, on clean, shifted and other data.

This is not from the papers: it asks whether `byov.bayesianize(net)` improves on what users have for free. The sets are
in `defaults_sets` and the methods in `defaults_methods`; unavailable sets are left out. CIFAR-10 and CIFAR-100
(ResNet-18, `defaults_cifar`) need a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from math import isnan, nan
from operator import eq
from statistics import mean, median
from time import monotonic
from typing import Any

import torch

from byov.reproduce import defaults_cifar
from byov.reproduce.defaults_methods import (
    MEMBERS,
    METHODS,
    RULES,
    SWAG_SCALES,
    Fitted,
    Read,
    fit,
    followed,
    settings,
    trainer,
)
from byov.reproduce.defaults_scores import averaged
from byov.reproduce.defaults_sets import Place, names
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment, standard_error

SEEDS = 5
FEWER = {"flowers": 1}
"""Sets with fewer seeds: a seed of flowers takes an hour of one core."""
SPLITS = 5
"""The number of splits of a table; each is read with one seed, and the tables are averaged."""
DEFAULT = "SWAG"
"""The recommended method for a network trained from scratch."""
TURNS = 60
"""The number of timed steps per method."""

Reading = dict[str, float]
Readings = dict[str, list[Reading]]
"""By method, one reading for each seed."""


@experiment("defaults", "The recommended posterior on small sets, compared with what users have for free")
def defaults(context: Context) -> Outcome:
    if context.scale == "full" and not context.device.startswith("cuda"):
        raise ValueError("defaults at scale full trains ResNet-18 on CIFAR and needs a GPU; --scale quick does not.")
    torch.set_num_threads(1)  # more threads do not speed up small networks
    sets: dict[str, Readings] = {}
    left_out: list[str] = []
    for name in (*names(), *(defaults_cifar.NAMES if context.scale == "full" else ())):
        try:
            sets[name] = readings(context, name)
        except ValueError as error:
            left_out.append(f"{name} is left out: {error}")
    tables = [sets.pop(name) for name in list(sets) if name.startswith("uci-")]
    if tables:
        sets["uci"] = _pooled(tables)
    costs = _kept(context, "cost", settings(), cost, ("plain", "SWAG", *RULES))
    data = {"protocol": settings(), "sets": sets, "cost": costs}
    return Outcome(data, list(judged(sets)), note=" ".join(left_out))


def readings(context: Context, name: str) -> Readings:
    """Return the scores of every method on a set for each seed; each seed is trained and read once, and cached."""
    found: Readings = {method: [] for method in METHODS}
    for seed in range(SPLITS if name.startswith("uci-") else FEWER.get(name, SEEDS)):
        place = Place(name, seed if name.startswith("uci-") else 0, context.root)
        about, number = {**settings(name == "flowers"), "set": name, "split": place.split}, context.seed + seed
        cifar = name in defaults_cifar.NAMES
        make = partial(defaults_cifar.measure, context, name, number) if cifar else partial(measure, place, number)
        each = _kept(context, f"{name}_seed{seed}", about, make, () if cifar else METHODS)
        for method in each:
            found[method].append(each[method])
    return {method: scores for method, scores in found.items() if scores}


def _kept(
    context: Context, name: str, about: dict[str, Any], make: Callable[[], dict[str, Any]], methods: Sequence[str]
) -> dict[str, Any]:
    """Return a part that was kept, or measure it: again where it was kept by a byov that knew fewer methods."""
    before = context.find(name, about)
    complete = before is not None and set(methods) <= set(before)
    return context.kept(name, about, make, eq if complete else lambda *_: False)


def measure(place: Place, seed: int) -> dict[str, Reading]:
    """Train all methods with a seed. The ensemble consists of the plain networks of this seed and the next four."""
    part = place.task()
    members = [_read(place, seed + i, "plain") for i in range(MEMBERS)]
    found = {"plain": members[0], "plain + temperature": members[0].tempered(part)}
    found |= {method: _read(place, seed, method) for method in SWAG_SCALES}
    found |= {method: Read.of(fit(method, part, seed), part) for method in RULES}
    found["ensemble of 5"] = Read.ensemble(members)
    return {method: found[method].scores(part) for method in METHODS}


@lru_cache(maxsize=MEMBERS)
def _followed(place: Place, seed: int) -> dict[str, Fitted]:
    """Train a plain network; return it with the SWAG posteriors of its training."""
    return followed(fit("SWAG", place.task(), seed))


@lru_cache(maxsize=MEMBERS + len(SWAG_SCALES))
def _read(place: Place, seed: int, method: str) -> Read:
    return Read.of(_followed(place, seed)[method], place.task())


def _pooled(tables: list[Readings]) -> Readings:
    """Average the scores over tables for each split."""
    return {m: [averaged([t[m][i] for t in tables]) for i in range(SPLITS)] for m in tables[0]}


# Comparisons


def judged(sets: dict[str, Readings]) -> Iterator[Comparison]:
    """Compare the recommended default with the plain network on each set over seeds, and count the outcomes."""
    counts: Counter[str] = Counter()
    for name, found in sets.items():
        for score in ("test_nll", "test_ece", "shifted_nll", "shifted_ece", "test_error"):
            gain, error = difference(found, DEFAULT, "plain", score)
            verdict = worded(gain, error)
            counts[f"{score}, {verdict}"] += 1
            yield Comparison(f"{name}: {score}, {DEFAULT} − plain", gain, None, known(error), verdict)
        gain, error = difference(found, DEFAULT, "plain + temperature", "shifted_nll")
        verdict = worded(gain, error)
        counts[f"temperature, {verdict}"] += 1
        yield Comparison(f"{name}: shifted_nll, {DEFAULT} − temperature", gain, None, known(error), verdict)
    for what, count in sorted(counts.items()):
        yield Comparison(f"sets: {what}", count)


def difference(found: Readings, method: str, other: str, score: str) -> tuple[float, float]:
    """Return the difference between two methods in a score, averaged over seeds, and its standard error.

    With one seed the error is not known: nan.
    """
    each = [a[score] - b[score] for a, b in zip(found[method], found[other], strict=True)]
    error = standard_error(each)
    return mean(each), nan if error is None else error


def known(error: float) -> float | None:
    """Return an error, or None if it is nan, which JSON does not have."""
    return None if isnan(error) else error


def worded(gain: float, error: float) -> str:
    """Describe a difference in a score where lower is better, relative to its standard error."""
    if isnan(error):
        return f"{'lower' if gain < 0 else 'higher'}, one seed"
    return "better" if gain < -error else "worse" if gain > error else "no different"


def cost() -> dict[str, dict[str, float]]:
    """Measure the step time and the parameters of each method on digits, relative to the plain network."""
    part = Place("digits", 0, None).task()
    made = {method: trainer(method, part, 0) for method in ("plain", "SWAG", *RULES)}
    times: dict[str, list[float]] = {method: [] for method in made}
    for _ in range(TURNS):
        for method, (_, step) in made.items():
            began = monotonic()
            step()
            times[method].append(monotonic() - began)
    parameters = {m: sum(p.numel() for p in fitted.parameters()) for m, (fitted, _) in made.items()}
    return {
        m: {"step": median(times[m]) / median(times["plain"]), "parameters": parameters[m] / parameters["plain"]}
        for m in made
    }
