"""Stacking: weights for the members of an ensemble, or for draws, that predict held-out data best.

This is the reweighting named in section 6 of the patching paper, by stacking (Yao et al. 2018). It finds the mixture
with the highest log score: max_w 1/N Σ_n log Σ_s w_s p_s(y_n | x_n) over w ≥ 0, Σ_s w_s = 1, which is concave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise
from byov.posterior.mixture import Ensemble
from byov.posterior.module import BayesianModule
from byov.prediction.inputs import InputSpec, batches_of, device_of, inputs_from_batch, ready, size_of
from byov.prediction.outputs import OutputSpec
from byov.prediction.resident import Resident
from byov.prediction.result import BatchState, Prediction, entropy, prediction_fields
from byov.prediction.strategies import Loop


def stacking_weights(probs: Tensor, labels: Tensor, tolerance: float = 1e-6, iterations: int = 20_000) -> Tensor:
    """Find the weights (S,) of S predictives (S, N, C) that give the labels (N,) the highest mean log score.

    It uses EM, w_s ← w_s · g_s with g_s = mean_n p_s(y_n) / Σ_r w_r p_r(y_n), which never lowers the score. It stops
    within `tolerance` nats of the optimum: by concavity, the gap is at most max_s g_s − 1.
    """
    if probs.ndim != 3 or labels.shape != probs.shape[1:2] or not labels.numel():
        found = f"{tuple(probs.shape)} and {len(labels)}"
        raise ValueError(f"Stacking takes probabilities (S, N, C) and N > 0 labels, not {found}.")
    if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < probs.shape[2]:
        found = f"{labels.min().item():g} to {labels.max().item():g}"
        raise ValueError(f"Stacking takes labels 0 to {probs.shape[2] - 1}, whole numbers, not {found}.")
    at_label = probs.double().gather(2, labels.long().to(probs.device).view(1, -1, 1).expand(len(probs), -1, 1))[..., 0]
    if not torch.isfinite(at_label).all() or (at_label < 0).any():
        raise ValueError("Stacking needs probabilities, finite and at least 0.")
    possible = at_label.amax(0) > 0
    if not possible.any():
        raise ValueError("Every label has probability 0 under every draw: there is nothing to stack.")
    at_label = at_label[:, possible]  # labels that no draw can explain, no weights can
    weights = torch.full((len(probs),), 1.0 / len(probs), dtype=torch.float64, device=probs.device)
    for _ in range(iterations):
        gain = (at_label / (weights @ at_label)).mean(1)
        if gain.max() - 1.0 <= tolerance:
            break
        weights = weights * gain
    return weights / weights.sum()


@dataclass(frozen=True)
class Stacked:
    """Stored draws of a model and their weights; `stacked.predict(x)` is their mixture."""

    model: BayesianModule
    noises: list[list[Noise]]
    weights: Tensor

    def predict(self, x: Tensor | Iterable[Any]) -> Prediction:
        """Predict with the mixture: its mean, spread and entropies under the weights."""
        parts = []
        for values in _values(self.model, x, self.noises):
            w = self.weights.to(values).view(-1, 1, 1)
            mean = (w * values).sum(0)
            expected = (w[..., 0] * torch.stack([entropy(v) for v in values])).sum(0)
            found = prediction_fields(mean, (w * (values - mean).square()).sum(0), entropy(mean), expected)
            parts.append(Prediction(**found, samples=len(self.noises), strategy="loop"))
        return Prediction.cat(parts)


def stack(
    model: BayesianModule,
    x: Tensor | Iterable[Any],
    labels: Tensor,
    samples: int = 20,
    generator: Generator | None = None,
    tolerance: float = 1e-6,
) -> Stacked:
    """Fit `stacking_weights` on held-out data: for the members of an `Ensemble` of all weights, else for draws."""
    if not isinstance(model, BayesianModule):
        raise TypeError(f"Stacking takes a BayesianModule, not {type(model).__name__}.")
    if samples < 1:
        raise ValueError(f"Stacking needs at least one draw, not {samples}.")
    noises = _members(model) or [model.noise(generator) for _ in range(samples)]
    parts = [values.cpu() for values in _values(model, x, noises)]
    if not parts:
        raise ValueError("The loader is empty: there is nothing to stack.")
    probs = torch.cat(parts, dim=1)
    if labels.shape != probs.shape[1:2]:
        raise ValueError(f"Stacking takes one label for each of {probs.shape[1]} inputs, not {tuple(labels.shape)}.")
    weights = stacking_weights(probs, labels.cpu(), tolerance)
    weights = torch.where(weights < 1e-4, 0.0, weights)  # drop draws that contribute nothing
    kept = weights.nonzero()[:, 0].tolist()
    return Stacked(model, [noises[i] for i in kept], weights[kept] / weights.sum())


def _members(model: BayesianModule) -> list[list[Noise]] | None:
    """Return a draw for each member if the posterior is one explicit ensemble without further noise; else None."""
    factor, *others = model.factors
    family = factor.family
    if others or not isinstance(family, Ensemble) or family.sigma > 0:
        return None
    if not family.learn_probs:
        return [[{"z": torch.tensor([k], device=device_of(model))}] for k in range(family.k)]
    p = factor.get_parameter("logits").detach().float().softmax(0)  # the middle of each member's share of [0, 1)
    return [[{"u": middle}] for middle in (p.cumsum(0) - p / 2)]


def _values(model: BayesianModule, x: Tensor | Iterable[Any], noises: list[list[Noise]]) -> Iterator[Tensor]:
    """Yield the class probabilities (S, N, C) of each batch under the draws."""
    resident, takes = Resident(model), InputSpec.of(model.net)
    one, batches = batches_of(x, model.net)
    for batch in batches if one is None else [one]:
        reading = OutputSpec("classification", None, model.net)
        given = batch if one is not None else inputs_from_batch(batch, takes)
        draws = Loop(model, ready(given, model), reading, resident)
        running = BatchState(size_of(draws.x), reading, None, keep=True)
        with resident.installed(), torch.inference_mode(False), torch.no_grad():
            for noise in noises:
                running.take(draws.under(noise)[None])
        yield running.result("loop", each=False).draws  # type: ignore[misc]
