"""Uncertainty without labels: how far draws, or augmentations, move the embedding of each image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of
from byov.prediction.resident import Resident, evaluating
from byov.prediction.result import Moments
from byov.ssl.features import Encoder, ImageOptions, extract
from byov.ssl.views import Views

STAGES = ("encoder", "projector", "predictor")
OVER = ("draws", "augmentations")
MEASURES = {
    **{f"spread_{stage}": f"spread ({stage})" for stage in STAGES},
    **{f"variance_{stage}": f"variance ({stage})" for stage in STAGES},
    **{f"augmented_spread_{stage}": f"augmented ({stage})" for stage in STAGES},
    "negative_norm": "−‖embedding‖",
}
"""The possible keys of `Representation.measures`, in words."""


@dataclass(frozen=True, eq=False)
class Representation:
    """The uncertainty of each image's embedding e without labels, by stage for a student with heads.

    With e_s the output of a stage under draw (or augmentation) s of S, and u_s = e_s / ‖e_s‖:

        spread   = 1 − ‖(1/S) Σ_s u_s‖          0 if all point the same way, 1 if they point anywhere
        variance = (1/D) Σ_d Var_s(e_s,d)       the trace of the covariance, divided by D

    Attributes:
        embeddings: (N, D), the encoder's output at μ for the unchanged images.
        spread: by stage, (N,).
        variance: by stage, (N,).
        over: "draws" or "augmentations".
        draws: their number.
    """

    embeddings: Tensor
    spread: dict[str, Tensor]
    variance: dict[str, Tensor]
    over: str
    draws: int

    @property
    def norm(self) -> Tensor:
        """Return the norm (N,) of the embedding at μ, which is small if a network without a posterior is uncertain."""
        return self.embeddings.norm(dim=1)

    @property
    def trace(self) -> Tensor:
        """Return the trace (N,) of the covariance of the encoder's embedding."""
        return self.embeddings.shape[1] * self.variance["encoder"]

    @property
    def measures(self) -> dict[str, Tensor]:
        """Return the measures by name, larger if less certain; stages that nothing moves are left out."""
        if self.over == "draws":
            found = {f"spread_{stage}": values for stage, values in self.spread.items()}
            found |= {f"variance_{stage}": values for stage, values in self.variance.items()}
        else:
            found = {f"augmented_spread_{stage}": values for stage, values in self.spread.items()}
        return {name: v for name, v in found.items() if bool((v > 0).any())} | {"negative_norm": -self.norm}


@torch.no_grad()
def representation_uncertainty(
    model: nn.Module,
    images: Tensor,
    draws: int = 30,
    generator: Generator | None = None,
    *,
    over: str = "draws",
    views: Views | None = None,
    **options: Unpack[ImageOptions],
) -> Representation:
    """Measure how uncertain the representation of each image is, without labels and without a probe.

    Memory does not grow with the number of draws.

    Args:
        model: an encoder; a student with an `encoder`, a projector and a predictor; or a BYOL or BYOV module with a
            `student`. Encoder and student may be a BayesianModule.
        images: (N, C, H, W), uint8, or floats in [0, 1].
        draws: the number of posterior draws, each used for all images, or of augmentations per image.
        generator: the generator of the draws or augmentations; torch's global one by default.
        over: "draws" of a posterior, or "augmentations" at μ, for any network.
        views: the augmentations, alternating between both pipelines; by default the model's own, otherwise BYOL's.
        options: `ImageOptions`, including the `mean` and `std` that standardise the images.
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise ValueError(f"A spread needs at least two draws, not draws={draws!r}.")
    if over not in OVER:
        raise ValueError(f"The spread must be over {' or '.join(OVER)}, not {over!r}.")
    encoder = Encoder.of(model)
    if over == "draws" and encoder.posterior is None:
        raise ValueError("The network has no posterior to draw from; use over='augmentations'.")
    if options.get("device") is None:
        options["device"] = encoder.device
    stages = _parts(model, encoder)
    parts = list(stages.values())
    moments = {stage: (Moments("regression"), Moments("regression")) for stage in stages}
    with _weights(encoder, parts) as write:
        write(None)
        (embeddings,) = stage_outputs([encoder.module], images, **options)
        if over == "draws" and encoder.posterior is not None:
            noise = encoder.posterior.noise
            moved = _drawn(parts, images, draws, lambda: write(noise(generator)), options)
        else:
            views = views or getattr(model, "views", None) or Views()
            moved = _augmented(parts, images, draws, generator, views, options)
        for outputs in moved:
            for (whole, unit), output in zip(moments.values(), outputs, strict=True):
                whole.update(output[None])
                unit.update(F.normalize(output, dim=1)[None])
    spread = {stage: _spread(unit) for stage, (_, unit) in moments.items()}
    variance = {stage: (whole.square / whole.count).mean(1) for stage, (whole, _) in moments.items()}
    for values in (embeddings.sum(1), *spread.values(), *variance.values()):
        if bad := int((~values.isfinite()).sum()):
            raise ValueError(f"The network's outputs are not finite for {bad} of {len(values)} images.")
    return Representation(embeddings, spread, variance, over, draws)


def chain(parts: Sequence[nn.Module], widths: list[int]) -> Callable[[Tensor], Tensor]:
    """Return a function that concatenates the outputs (N, ΣD) of parts that feed each other; it fills in `widths`."""

    def forward(batch: Tensor) -> Tensor:
        outputs = []
        for part in parts:
            batch = part(batch)
            outputs.append(batch.float().flatten(1))
        widths[:] = [output.shape[1] for output in outputs]
        return torch.cat(outputs, dim=1)

    return forward


def stage_outputs(parts: Sequence[nn.Module], images: Tensor, **options: Unpack[ImageOptions]) -> tuple[Tensor, ...]:
    """Compute the outputs (N, D) of parts that feed each other, in float32, with their current weights."""
    widths: list[int] = []
    return extract(chain(parts, widths), images, **options).split(widths, dim=1)


def _parts(model: nn.Module, encoder: Encoder) -> dict[str, nn.Module]:
    """Return the encoder and the heads of a student, in the order in which they feed each other."""
    student = getattr(model, "student", model)
    student = student.net if isinstance(student, BayesianModule) else student
    found: dict[str, nn.Module] = {"encoder": encoder.module}
    for stage in STAGES[1:] if encoder.module is getattr(student, "encoder", None) else ():
        head = getattr(student, stage, None)
        if not isinstance(head, nn.Module):
            break
        found[stage] = head
    return found


@contextmanager
def _weights(encoder: Encoder, parts: list[nn.Module]) -> Iterator[Callable[[list[Noise] | None], None]]:
    """Put the parts into eval mode; yield a function that writes the weights of a draw, or those at μ, into them."""
    if encoder.posterior is None:
        with lock_of(encoder.module), evaluating(nn.ModuleList(parts)):
            yield lambda noise: None  # the weights are those at μ
    else:
        resident = Resident(encoder.posterior)
        with resident.installed():
            yield resident.write


def _drawn(
    parts: list[nn.Module], images: Tensor, draws: int, draw: Callable[[], None], options: ImageOptions
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the outputs of each stage, draw by draw."""
    for _ in range(draws):
        draw()
        yield stage_outputs(parts, images, **options)


def _augmented(
    parts: list[nn.Module],
    images: Tensor,
    draws: int,
    generator: Generator | None,
    views: Views,
    options: ImageOptions,
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the outputs of each stage, augmentation by augmentation, alternating between the two pipelines."""
    views = replace(views, mean=_numbers(options.get("mean")), std=_numbers(options.get("std")))
    views.check(images)
    options = {**options, "mean": None, "std": None}  # the views standardise
    for i in range(0, draws, 2):
        widths: list[int] = []
        outputs = chain(parts, widths)
        batches = iter(views.draw(len(images), generator).split(options.get("batch_size", 512), dim=1))

        def forward(batch: Tensor) -> Tensor:
            pair = views.render(batch, next(batches).to(batch.device))  # noqa: B023
            return torch.cat([outputs(view) for view in pair], dim=1)  # noqa: B023

        both = extract(forward, images, **options).split(2 * widths, dim=1)
        yield from (both[: len(parts)], both[len(parts) :])[: draws - i]


def _numbers(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def _spread(unit: Moments) -> Tensor:
    """Compute 1 − ‖m‖ from the variance t of unit vectors, where ‖m‖² = 1 − t, accurately for small t."""
    total = (unit.square / unit.count).sum(1)
    return total / (1 + (1 - total).clamp_min(0).sqrt())
