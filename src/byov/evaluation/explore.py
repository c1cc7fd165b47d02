"""The numbers behind each item of `byov explore`, as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from byov.data import cifar10h
from byov.data.augmentations import augment
from byov.data.labelled import labelled
from byov.evaluation.alignment import both_scales, predictive_std
from byov.evaluation.convergence import convergence
from byov.evaluation.gallery import gallery
from byov.evaluation.humans import human_agreement
from byov.evaluation.layers import layer_history, per_epoch
from byov.evaluation.noise import noise_variance
from byov.evaluation.retrieval import detection, retrieval, run_measures
from byov.evaluation.rows import which_images
from byov.files import check_out, write_json
from byov.runs import Reading, Run, open_run
from byov.runs.run import Pretrained, versions
from byov.ssl.linear_evaluation import Advance

SHIFTS = ("clean", "gaussian_noise", "salt_and_pepper", "shear", "rotation", "contrast")
SEVERITY = 3
NOISE_IMAGES = 256
LEAST_IMAGES = 8

Found = dict[str, Any]


class Inapplicable(ValueError):
    """Raised if an item applies to none of the runs."""


def explore(item: str, runs: Sequence[Run], bootstraps: int = 50, ood: str | None = None) -> Found:
    """Compute the numbers of an item for runs; raise `Inapplicable` if it applies to none of them."""
    if runs[0].reading.samples < 2 or bootstraps < 2:
        raise ValueError("Exploration needs at least two draws and two bootstraps.")
    if (limit := runs[0].reading.limit) is not None and limit < LEAST_IMAGES:
        raise ValueError(f"Exploration needs at least {LEAST_IMAGES} images, not {limit}.")
    return ITEMS[item](runs, bootstraps, ood)


def _layers(run: Run, bootstraps: int, ood: str | None) -> Found | None:
    if run.q is None or run.header is None:
        return None
    return asdict(per_epoch(layer_history(run.header.folder)))


def _convergence(run: Run, bootstraps: int, ood: str | None) -> Found | None:
    if not run.posterior:
        return None
    found, seed, counts = {}, run.reading.seed, range(1, run.reading.samples + 1)
    for shift in SHIFTS:
        chance = torch.Generator().manual_seed(seed)
        images = run.pixels if shift == "clean" else augment(run.pixels.cpu(), shift, SEVERITY, chance)
        found[shift] = asdict(convergence(run.draws(images), counts, bootstraps, seed))
    return found


def _noise(run: Run, bootstraps: int, ood: str | None) -> Found | None:
    if run.kind != "pretrain" or run.q is None:
        return None
    images, r = run.pixels[:NOISE_IMAGES].cpu(), run.reading
    return asdict(noise_variance(run.q, images, samples=r.samples, seed=r.seed, **run.normalisation))


def _alignment(runs: Sequence[Run], bootstraps: int, ood: str | None) -> Found:
    drawn = [run for run in runs if run.posterior]
    if len(drawn) < 2:
        raise Inapplicable("Alignment compares two runs with posteriors, such as BYOV and a supervised run: give both.")
    first, second = drawn[:2]
    if len(first.images) != len(second.images) or not torch.equal(first.labels, second.labels):
        raise Inapplicable(f"{first.name} and {second.name} were not read on the same images.")
    one, other = (predictive_std(run.prediction.std.cpu()) for run in (first, second))
    found = [asdict(made) for made in both_scales(one, other, first.reading.seed)]
    return {"first": first.name, "second": second.name, "alignment": found}


def _gallery(run: Run, bootstraps: int, ood: str | None) -> Found:
    measure = "mutual information" if run.posterior else "entropy"
    uncertainty = run.prediction.mutual_information if run.posterior else run.prediction.entropy
    assert uncertainty is not None
    names, mean = run.images.class_names, run.prediction.mean
    return asdict(gallery(run.images.images, run.labels, names, mean, uncertainty, measure))


def _humans(run: Run, bootstraps: int, ood: str | None) -> Found:
    if run.data != "cifar10":
        raise Inapplicable("People's votes are available only for CIFAR-10 (CIFAR-10H), and not all runs use it.")
    try:
        votes = cifar10h(run.reading.root)[run.places]
    except ValueError as error:
        raise Inapplicable(str(error)) from error
    assert run.at_mean.entropy is not None
    uncertainty = {"entropy_at_mean": run.at_mean.entropy}
    if (drawn := run.under_draws) is not None:
        measures = ("entropy", "expected_entropy", "mutual_information")
        uncertainty |= {name: getattr(drawn, name) for name in measures} | {"std": predictive_std(drawn.std)}
    if isinstance(run, Pretrained):
        uncertainty |= run_measures(run, run.images.images)[1]
    probs = run.prediction.mean.cpu()
    return asdict(human_agreement(uncertainty, probs, run.labels, votes, 4 * bootstraps, run.reading.seed))


def _representation(run: Run, bootstraps: int, ood: str | None) -> Found | None:
    if not isinstance(run, Pretrained):
        return None
    r, own = run.reading, run.images
    sets = [own] if ood is None else [own, labelled(ood, "test", r.root, *run.shape, r.limit, r.seed)]
    if own.name == sets[-1].name and ood is not None:
        raise ValueError(f"{run.name} is read on {own.name} itself: --ood needs other images.")
    made = [run_measures(run, each.images) for each in sets]
    readings = {
        each.name: asdict(retrieval(measures, embeddings, each.labels, 4 * bootstraps, r.seed))
        for each, (embeddings, measures) in zip(sets, made, strict=True)
        if each.labels is not None
    }
    apart = {
        each.name: detection(made[0][1], measures, 4 * bootstraps, r.seed)
        for each, (_, measures) in zip(sets[1:], made[1:], strict=True)
    }
    return {"posterior": run.posterior, "data": readings, "ood": apart}


Item = Callable[[Sequence[Run], int, str | None], Found]


def _of_each(of: Callable[[Run, int, str | None], Found | None], nothing: str = "") -> Item:
    """Return an item with the numbers of each run to which it applies, by the run's name."""

    def item(runs: Sequence[Run], bootstraps: int, ood: str | None) -> Found:
        found = {run.name: made for run in runs if (made := of(run, bootstraps, ood)) is not None}
        if not found:
            raise Inapplicable(nothing)
        return found

    return item


ITEMS: dict[str, Item] = {
    "layers": _of_each(_layers, "Layers need a run with a posterior."),
    "convergence": _of_each(_convergence, "Convergence needs a run with a posterior."),
    "noise": _of_each(_noise, "Noise needs a run of byov pretrain with a posterior."),
    "alignment": _alignment,
    "gallery": _of_each(_gallery),
    "humans": _of_each(_humans),
    "representation": _of_each(_representation, "Representation needs a run of byov pretrain."),
}
"""The items by name; `byov.report.figures.EXPLORED` draws each."""


def parse_items(what: str) -> list[str]:
    """Parse "layers,noise" or "all"."""
    items = list(ITEMS) if what == "all" else [name.strip() for name in what.split(",")]
    for item in items:
        if item not in ITEMS:
            raise ValueError(f"--what must be {', '.join(ITEMS)} or all, not {item!r}.")
    return list(dict.fromkeys(items))


def check_folder(out: Path, items: Sequence[str], force: bool) -> None:
    """Raise if files of the items would be overwritten in the folder."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: --out takes the name of a folder.")
    for item in items:
        for kind in ("json", "png", "svg"):
            check_out(out / f"{item}.{kind}", force)


def explore_runs(
    paths: Sequence[Path],
    items: Sequence[str],
    reading: Reading,
    bootstraps: int,
    out: Path,
    skip: bool = False,
    advance: Advance = lambda *_: None,
    ood: str | None = None,
) -> Iterator[tuple[str, Found | str]]:
    """Open runs, compute items, write each to OUT/ITEM.json and yield it, or with `skip` the reason it was left out."""
    names = [path.resolve().name if path.is_dir() else str(path) for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError("The same run is given twice.")
    if ood is not None:
        if "representation" not in items:
            raise ValueError("--ood is only for --what representation.")
        labelled(ood, "test", reading.root, limit=1)  # raises before anything is written
    runs = [open_run(path, reading, name) for path, name in zip(paths, names, strict=True)]
    kept = ("samples", "seed", "limit", "train_limit", "fit_samples")
    settings = {name: getattr(reading, name) for name in kept} | {"bootstraps": bootstraps, "ood": ood}
    for done, item in enumerate(items):
        advance(item, done, len(items))
        try:
            found: Found = json.loads(json.dumps(explore(item, runs, bootstraps, ood), allow_nan=False))
        except Inapplicable as error:
            if not skip:
                raise
            yield item, str(error)
            continue
        protocol = {"settings": settings, "runs": {run.name: about(run) for run in runs}, "versions": versions()}
        write_json(out / f"{item}.json", {"what": item, "protocol": protocol, "result": found})
        yield item, found


def about(run: Run) -> Found:
    """Return the weights and images that the numbers depend on."""
    return {"kind": run.kind, "weights": run.digest, "posterior": run.posterior, "data": which_images(run.images)}
