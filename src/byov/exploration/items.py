"""What `byov explore` can show of runs: for each item the numbers, and the figure drawn from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byov.data.augmentations import augment
from byov.exploration.alignment import Alignment, Density, GaussianFit, alignment, alignment_figure, predictive_std
from byov.exploration.convergence import Convergence, convergence, convergence_figure
from byov.exploration.gallery import Gallery, Shown, gallery, gallery_figure
from byov.exploration.humans import HumanAgreement, human_agreement, humans_figure
from byov.exploration.layers import LayerHistory, layer_history, layers_figure
from byov.exploration.noise import NoiseVariance, noise_figure, noise_variance
from byov.exploration.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHIFTS = ("clean", "gaussian_noise", "salt_and_pepper", "shear", "rotation", "contrast")
SEVERITY = 3
NOISE_IMAGES = 256
FLOOR = 1e-7
"""The least std whose logarithm is taken: float32 does not know a probability near 1 any better."""


class Inapplicable(ValueError):
    """None of the runs has what an item is about."""


@dataclass(frozen=True)
class Item:
    """How an item's numbers are made from runs, and its figure from the numbers; both plain JSON in between."""

    make: Callable[[Sequence[Run]], dict[str, Any]]
    figure: Callable[[dict[str, Any]], Figure]


def _layers(runs: Sequence[Run]) -> dict[str, Any]:
    found = {}
    for run in runs:
        if run.posterior or run.student is not None:
            found[run.name] = asdict(layer_history(run.path))
    if not found:
        raise Inapplicable("None of the runs has a posterior, whose layers could be shown.")
    return found


def _with_posterior(runs: Sequence[Run], what: str) -> list[Run]:
    drawn = [run for run in runs if run.posterior]
    if not drawn:
        raise Inapplicable(f"None of the runs has a posterior to draw from, which {what} needs.")
    return drawn


def _convergence(runs: Sequence[Run]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for run in _with_posterior(runs, "convergence"):
        s = run.settings
        found[run.name] = {}
        for shift in SHIFTS:
            chance = torch.Generator().manual_seed(s.seed)
            images = run.images if shift == "clean" else augment(run.images, shift, SEVERITY, chance)
            counts = range(1, s.samples + 1)
            found[run.name][shift] = asdict(convergence(run.draws(images), counts, s.bootstraps, s.seed))
    return found


def _noise(runs: Sequence[Run]) -> dict[str, Any]:
    found = {}
    for run in runs:
        if run.student is not None:
            mean, std = run.normalised
            s, images = run.settings, run.images[:NOISE_IMAGES]
            made = noise_variance(run.student, images, samples=s.samples, seed=s.seed, mean=mean, std=std)
            found[run.name] = asdict(made)
    if not found:
        raise Inapplicable(
            "None of the runs is of byov pretrain with a posterior, whose parts noise is followed through."
        )
    return found


def _alignment(runs: Sequence[Run]) -> dict[str, Any]:
    drawn = [run for run in runs if run.posterior]
    if len(drawn) < 2:
        raise Inapplicable("Alignment compares two runs with posteriors, such as BYOV and a supervised one: give both.")
    first, second = drawn[:2]
    if (
        first.test.labels is None
        or len(first.test) != len(second.test)
        or not bool(
            torch.equal(first.test.labels, second.test.labels)  # type: ignore[arg-type]
        )
    ):
        raise Inapplicable(f"{first.name} and {second.name} are not of the same images.")
    one, other = (predictive_std(run.under_draws.std.cpu()) for run in (first, second))
    found = [asdict(made) for made in both_scales(one, other, first.settings.seed)]
    return {
        "first": first.name,
        "second": second.name,
        "alignment": found,
    }


def both_scales(first: Tensor, second: Tensor, seed: int) -> list[Alignment]:
    """The alignment of two predictive std as the paper has it, and of their logarithms."""
    logarithms = alignment(first.clamp_min(FLOOR), second.clamp_min(FLOOR), log=True, seed=seed)
    return [alignment(first, second, seed=seed), logarithms]


def _gallery(runs: Sequence[Run]) -> dict[str, Any]:
    found = {}
    for run in runs:
        assert run.test.labels is not None
        prediction = run.under_draws if run.posterior else run.at_mean
        measure = "mutual information" if run.posterior else "entropy"
        uncertainty = prediction.mutual_information if run.posterior else prediction.entropy
        assert uncertainty is not None
        made = gallery(run.test.images, run.test.labels, run.test.class_names, prediction.mean, uncertainty, measure)
        found[run.name] = asdict(made)
    return found


def _humans(runs: Sequence[Run]) -> dict[str, Any]:
    from byov.data import cifar10h

    if any(run.subject.data != "cifar10" for run in runs):
        raise Inapplicable("People's votes are at hand for CIFAR-10 only (CIFAR-10H), and not all runs are of it.")
    try:
        votes = cifar10h(runs[0].settings.root)
    except ValueError as error:
        raise Inapplicable(str(error)) from error
    found = {}
    for run in runs:
        assert run.test.labels is not None
        at_mean = run.at_mean
        assert at_mean.entropy is not None
        uncertainty, probs = {"entropy_at_mean": at_mean.entropy}, at_mean.mean
        if run.posterior:
            drawn = run.under_draws
            measures = {name: getattr(drawn, name) for name in ("entropy", "expected_entropy", "mutual_information")}
            uncertainty |= {**measures, "std": predictive_std(drawn.std)}
            probs = drawn.mean
        s = run.settings
        made = human_agreement(uncertainty, probs.cpu(), run.test.labels, votes[run.places], 4 * s.bootstraps, s.seed)
        found[run.name] = asdict(made)
    return found


def _draw_alignment(result: dict[str, Any]) -> Figure:
    return alignment_figure([read_alignment(a) for a in result["alignment"]], result["first"], result["second"])


def read_alignment(values: dict[str, Any]) -> Alignment:
    """An `Alignment` from its JSON."""
    return Alignment(**{**values, "fit": GaussianFit(**values["fit"]), "kde": Density(**values["kde"])})


def _draw_gallery(result: dict[str, Any]) -> Figure:
    ends = ("most_certain", "least_certain")
    return gallery_figure(
        {
            run: Gallery(**{**g, **{end: [Shown(**shown) for shown in g[end]] for end in ends}})
            for run, g in result.items()
        }
    )


ITEMS: dict[str, Item] = {
    "layers": Item(_layers, lambda r: layers_figure({run: LayerHistory(**h) for run, h in r.items()})),
    "convergence": Item(
        _convergence,
        lambda r: convergence_figure({run: {s: Convergence(**c) for s, c in by.items()} for run, by in r.items()}),
    ),
    "noise": Item(_noise, lambda r: noise_figure({run: NoiseVariance(**n) for run, n in r.items()})),
    "alignment": Item(_alignment, _draw_alignment),
    "gallery": Item(_gallery, _draw_gallery),
    "humans": Item(_humans, lambda r: humans_figure({run: HumanAgreement(**h) for run, h in r.items()})),
}
