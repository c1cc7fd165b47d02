"""Heads of probes, from features to class probabilities: logistic regression and weighted nearest neighbours.

Both take training features (N, D), or (S, N, D) for the same N examples under S draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

L2 = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Strengths tried by default, from strong to weak; each fit starts from the previous solution."""
TOLERANCE = 1e-6
"""A fit ends when no gradient component of the objective is larger."""
FOLDS = 5
"""Number of folds for fitting a temperature. Each fold is predicted by a head fitted on the others: with two folds,
that head would have seen half of the examples, and be more overconfident than the final one."""
EXAMPLES = 10_000
"""Maximum number of training examples on which the commands fit a temperature."""
CHUNK_ELEMENTS = 1 << 28
"""Maximum number of similarities in memory at once: 1 GiB in float32."""


def neighbours(images: int, k: int | None = None) -> int:
    """Return k for this number of training images, at most a tenth of them.

    By default one for every 250 images, from 20 to 200: 200, the usual number, on CIFAR's 50,000.
    """
    wanted = min(max(images // 250, 20), 200) if k is None else k
    return min(wanted, max(1, images // 10))


class LinearProbe(nn.Module):
    """Logits W (x − center)/scale + b.

    Its state is four plain tensors: `LinearProbe(**probe.state_dict())` is the same probe. `l2` is the strength it was
    fitted with, if any.
    """

    weight: Tensor
    bias: Tensor
    center: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, center: Tensor, scale: Tensor, l2: float | None = None) -> None:
        super().__init__()
        if weight.ndim != 2 or bias.shape != weight.shape[:1] or not center.shape == scale.shape == weight.shape[1:]:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (weight, bias, center, scale))
            raise ValueError(f"A linear probe is weight (C, D), bias (C,), center (D,) and scale (D,), not {shapes}.")
        self.l2 = l2
        for name, tensor in {"weight": weight, "bias": bias, "center": center, "scale": scale}.items():
            self.register_buffer(name, tensor.detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (N, C) for features (N, D)."""
        return F.linear((features - self.center) / self.scale, self.weight, self.bias)

    def probabilities(self, features: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        return self(features).softmax(1)


class KNN(nn.Module):
    """Weighted k nearest neighbours (Wu et al. 2018): p(c | x) ∝ Σ over the k nearest of exp(cos(x, xᵢ)/T)·[yᵢ = c].

    Args:
        features: (N, D), or (S, N, D): each example then occurs once per draw, and k·S neighbours vote, so that
            identical draws change nothing.
        labels: (N,).
        k: the number of neighbours, at most N.
        temperature: T.
        classes: C; by default one more than the largest label.
    """

    features: Tensor
    labels: Tensor

    def __init__(
        self, features: Tensor, labels: Tensor, k: int = 200, temperature: float = 0.1, classes: int | None = None
    ) -> None:
        super().__init__()
        draws, labels, self.classes = _check(features, labels, classes)
        if not 1 <= k <= len(labels):
            raise ValueError(f"k lies between 1 and the {len(labels)} training features, not at {k}.")
        if not temperature > 0:
            raise ValueError(f"A temperature is above 0, not {temperature}.")
        self.k, self.temperature = k * len(draws), temperature
        self.register_buffer("features", F.normalize(draws.flatten(0, 1).float(), dim=1))
        self.register_buffer("labels", labels.repeat(len(draws)))

    def forward(self, features: Tensor) -> Tensor:
        """Return probabilities (N, C) in float32 for features (N, D)."""
        rows = max(1, CHUNK_ELEMENTS // len(self.features))
        return torch.cat([self._votes(part) for part in features.split(rows)])

    probabilities = forward

    @torch.no_grad()
    def _votes(self, features: Tensor) -> Tensor:
        similarity = F.normalize(features.float(), dim=1) @ self.features.T
        nearest, index = similarity.topk(self.k, dim=1, sorted=False)
        # exp(cos/T) divided by its sum is a softmax, which does not overflow for small T.
        weights = (nearest / self.temperature).softmax(1)
        return weights.new_zeros(len(features), self.classes).scatter_add_(1, self.labels[index], weights)


def linear_probe(
    train_features: Tensor,
    labels: Tensor,
    *,
    classes: int | None = None,
    l2: float | Sequence[float] = L2,
    holdout: float = 0.1,
    seed: int = 0,
    groups: Tensor | None = None,
    max_iter: int = 500,
    dtype: torch.dtype | None = None,
) -> LinearProbe:
    """Fit  min over W, b of  (1/N) Σ −log softmax(W xᵢ + b)[yᵢ] + λ/2 ‖W‖²  on standardised features x, by L-BFGS.

    Under S draws the probability is the average over the draws, as it is at prediction time: a head fitted to each draw
    separately is underconfident on average.

    In scikit-learn's terms λ = 1/(C·N). Given several strengths, the one with the lowest negative log-likelihood on a
    held-out part of the training examples is chosen, and the probe is fitted again on all of them. They are tried from
    strong to weak, until that score has become worse twice: the weakest take the longest.

    Args:
        train_features: (N, D) or (S, N, D); an example is held out under all draws or none. The fit runs on the device
            of this tensor.
        labels: (N,).
        classes: C; by default one more than the largest label.
        l2: λ, or the values to choose from.
        holdout: the fraction of the examples held out for choosing λ.
        seed: selects the held-out examples.
        groups: (N,), the group of each example, if examples of a group share something (such as their draws): whole
            groups are held out, so that λ is chosen on data that the probe has not seen.
        max_iter: of L-BFGS, for each strength.
        dtype: of the fit. float64 by default (float32 on devices without it): in float32, rounding ends the line search
            before the optimum, the more so the weaker λ. The probe itself is float32.
    """
    draws, labels, classes = _check(train_features, labels, classes)
    strengths = sorted({float(value) for value in ([l2] if isinstance(l2, int | float) else l2)}, reverse=True)
    if not strengths or not strengths[-1] > 0:
        raise ValueError(f"An l2 strength is above 0, not {l2}.")
    if dtype is None:
        dtype = torch.float32 if draws.device.type == "mps" else torch.float64
    x = draws.to(dtype)
    scale, center = torch.std_mean(x, dim=(0, 1), correction=0)
    # A feature that varies only by rounding is not scaled: dividing would turn rounding errors into features.
    scale = torch.where(scale > 1e-6 * (center.square() + scale.square()).sqrt(), scale, 1.0)
    x = (x - center) / scale
    theta = x.new_zeros(classes, x.shape[-1] + 1)
    chosen = strengths[0]
    if len(strengths) > 1:
        held = held_out(x.shape[1], holdout, seed, groups).to(x.device)
        chosen, theta = _choose(x, labels, theta, strengths, held, max_iter)
    theta = _minimise(x, labels, theta, chosen, max_iter).float()
    return LinearProbe(theta[:, :-1], theta[:, -1], center.float(), scale.float(), chosen)


def _check(features: Tensor, labels: Tensor, classes: int | None) -> tuple[Tensor, Tensor, int]:
    """Return features as (S, N, D), int64 labels on their device and the number of classes; raise on a mismatch."""
    if not isinstance(features, Tensor) or features.ndim not in (2, 3) or not features.numel():
        got = str(tuple(features.shape)) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"Training features are (N, D), or (S, N, D) under S draws, and not empty; not {got}.")
    draws = features if features.ndim == 3 else features[None]
    if labels.shape != draws.shape[1:2] or labels.is_floating_point():
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"Labels are whole numbers, one for each of {draws.shape[1]} examples, not {got}.")
    low, high = int(labels.min()), int(labels.max())
    classes = high + 1 if classes is None else classes
    if low < 0 or high >= classes:
        raise ValueError(f"Labels {low} to {high} do not fit {classes} classes.")
    if not bool(draws.isfinite().all()):
        raise ValueError("Training features must be finite, but some are NaN or infinite.")
    return draws.detach(), labels.to(draws.device, torch.int64), classes


def held_out(examples: int, holdout: float, seed: int, groups: Tensor | None) -> Tensor:
    """Select a random fraction of the examples, or of the groups; return a mask of the held-out examples."""
    unit = torch.arange(examples) if groups is None else groups.cpu()
    units = int(unit.max()) + 1
    held = round(holdout * units)
    if not 0 < held < units:
        what = "examples" if groups is None else "groups"
        raise ValueError(f"A share of {holdout} of {units} {what} leaves nothing to fit or to choose on.")
    order = torch.randperm(units, generator=Generator().manual_seed(seed))
    return torch.isin(unit, order[:held])


def folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Assign examples to random folds 0 … K−1, stratified by class; K is at most the size of the smallest class."""
    from sklearn.model_selection import StratifiedKFold  # takes half a second to import

    classes = labels.cpu().numpy()
    found = torch.zeros(len(labels), dtype=torch.int64)
    count = min(count, int(labels.unique(return_counts=True)[1].min()))
    if count > 1:
        parts = StratifiedKFold(count, shuffle=True, random_state=seed % (1 << 32)).split(classes, classes)
        for fold, (_, held) in enumerate(parts):
            found[torch.from_numpy(held)] = fold
    return found


def _choose(
    x: Tensor, labels: Tensor, theta: Tensor, strengths: list[float], held: Tensor, max_iter: int
) -> tuple[float, Tensor]:
    """Return the strength with the lowest held-out negative log-likelihood, and its fit."""
    fit, test = (x[:, ~held], labels[~held]), (x[:, held], labels[held])
    best, chosen, chosen_theta, worse = float("inf"), strengths[0], theta, 0
    for strength in strengths:
        theta = _minimise(*fit, theta, strength, max_iter)
        score = _nll(*test, theta).item()
        if score < best:
            best, chosen, chosen_theta, worse = score, strength, theta, 0
        else:
            worse += 1
        if worse == 2:
            break
    return chosen, chosen_theta


def _nll(x: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
    """Compute the mean −log of the label's probability, which is averaged over the draws (S, N, D)."""
    logits = F.linear(x, theta[:, :-1], theta[:, -1])
    each = logits.log_softmax(-1).gather(-1, labels.expand(len(x), -1).unsqueeze(-1))
    return (log(len(x)) - each.logsumexp(0)).mean()


def _minimise(x: Tensor, labels: Tensor, start: Tensor, l2: float, max_iter: int) -> Tensor:
    """Find θ = (W, b) where no gradient component is above the tolerance, or stop after `max_iter` steps.

    The tolerance is the same for choosing λ and for the final fit: a loose one also regularises, so too weak a λ would
    be chosen.
    """
    theta = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=max_iter,
        history_size=20,
        tolerance_grad=TOLERANCE,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        optimizer.zero_grad()
        loss = _nll(x, labels, theta) + 0.5 * l2 * theta[:, :-1].square().sum()
        loss.backward()
        return loss.item()

    with torch.enable_grad():
        optimizer.step(objective)
    if not bool(theta.isfinite().all()):
        raise ValueError(f"The linear probe diverged at an l2 strength of {l2}.")
    return theta.detach()
