"""One network, read once for all tables: S = 1, 20, 100 and 200 in one pass of 200 draws, and under 15 corruptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Generator, Tensor, nn

from byov.data.labelled import labelled
from byov.data.shift import SEVERITIES
from byov.evaluation.images import shifts_for
from byov.evaluation.rows import CHUNK
from byov.metrics import functional as metrics
from byov.posterior import BayesianModule
from byov.posterior.mixture import EMP, Ensemble
from byov.posterior.random import stream
from byov.prediction.resident import Resident
from byov.prediction.stacking import stack
from byov.reproduce.experiment import Context, Scale
from byov.train.supervised import Classifier, restore

if TYPE_CHECKING:
    from byov.data import ImageSet

POINTS = (1, 20, 100, 200)
"""S, as in the paper's Tables 9 to 11."""

PROTOCOL: dict[Scale, dict[str, Any]] = {
    "quick": {"draws": 200, "corruption_draws": 10, "corruption_images": 200, "stacked": 20},
    "full": {"draws": 200, "corruption_draws": 20, "corruption_images": 2000, "stacked": 20},
}
"""How a network is read. Corruption errors on fewer images: the same ones for all methods, 75 times each."""

BATCH = 2000


def read(run: Path, context: Context, label: str) -> dict[str, Any]:
    """All that the tables ask of the network of a run."""
    how, device = PROTOCOL[context.scale], torch.device(context.device)
    module, recipe = restore(run, device)
    net, name, root = module.net, recipe.data.name, context.root or recipe.data.root
    shape = (recipe.data.channels, recipe.data.image_size)
    images = labelled(name, "test", root, *shape)
    assert images.labels is not None
    labels, inputs = images.labels.to(device), _standard(images.images, module, device)
    means = running_means(net, inputs, how["draws"], POINTS, context.seed)
    probs = means[max(means)]
    diagram = metrics.reliability_diagram(probs, labels, 20)
    found: dict[str, Any] = {
        "label": label,
        "data": name,
        "network": recipe.model.name,
        "parameters": _parameters(net),
        "by_draws": {str(s): scores(mean, labels) for s, mean in means.items()},
        "at_mean": scores(_at_mean(net, inputs), labels),
        "diagram": {key: value.tolist() for key, value in diagram._asdict().items()},
        "errors": _corruption_errors(net, module, name, root, shape, how, device, context.seed),
    }
    if isinstance(net, BayesianModule) and recipe.data.holdout:
        held = recipe.data.load("holdout")
        found["stacked"] = _stacked(net, module, held, inputs, labels, how["stacked"], context.seed)  # type: ignore[arg-type]
    return found


@torch.no_grad()
def running_means(
    net: nn.Module, inputs: Tensor, draws: int, at: Sequence[int], seed: int = 0, batch: int = BATCH
) -> dict[int, Tensor]:
    """The mean class probabilities (N, C) after each number of draws in `at`; a plain network has one draw.

    Draw by draw over all inputs, so that weights are made once a draw; on a GPU compiled and in bfloat16.
    """
    device = inputs.device
    if not isinstance(net, BayesianModule):
        return {1: _probabilities(net.eval(), inputs, batch)}
    generator = Generator(device).manual_seed(stream(seed, 0x9A7C))
    network: Any = torch.compile(net.net) if device.type == "cuda" else net.net  # a reading is 2,500 passes
    total, means, resident = torch.zeros((), device=device), {}, Resident(net)
    with resident.installed():
        for s in range(1, draws + 1):
            resident.write(net.noise(generator))
            total = total + _probabilities(network, inputs, batch)
            if s in at or s == draws:
                means[s] = total / s
    return means


def _probabilities(network: Callable[[Tensor], Tensor], inputs: Tensor, batch: int) -> Tensor:
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.device.type == "cuda"):
        return torch.cat([network(part) for part in inputs.split(batch)]).float().softmax(1)


@torch.no_grad()
def _at_mean(net: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([net.eval()(part).float().softmax(1) for part in inputs.split(BATCH)])


def scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """In shares, not per cent; ECE and MCE as in the paper's D.2 (20 bins, those of at most 5 samples removed)."""
    return {
        "top1": metrics.accuracy(probs, labels).item(),
        "top5": metrics.accuracy(probs, labels, top_k=min(5, probs.shape[1])).item(),
        "ece": metrics.calibration_error(probs, labels, 20, "l1", 6).item(),
        "mce": metrics.calibration_error(probs, labels, 20, "max", 6).item(),
        "ece15": metrics.calibration_error(probs, labels, 15).item(),
        "nll": metrics.nll(probs, labels).item(),
        "brier": metrics.brier_score(probs, labels).item(),
    }


def _standard(images: Tensor, module: Classifier, device: torch.device) -> Tensor:
    """uint8 or floats in [0, 1] as the network takes them, in the layout that convolutions are quickest in."""
    floats = images.to(device).float() / (255 if images.dtype == torch.uint8 else 1)
    mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in (module.augment.mean, module.augment.std))
    return ((floats - mean) / std).contiguous(memory_format=torch.channels_last)


def _parameters(net: nn.Module) -> int:
    """What is learned; dropout's gates are not."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def _corruption_errors(
    net: nn.Module,
    module: Classifier,
    name: str,
    root: str | None,
    shape: tuple[int | None, int | None],
    how: dict[str, Any],
    device: torch.device,
    seed: int,
) -> dict[str, list[float]]:
    """Top-1 errors by corruption, severity by severity; "clean" on the same images."""
    sets, labels = _corrupted(name, root, shape, how["corruption_images"], str(device))
    errors: dict[str, list[float]] = {}
    for corruption, each in sets.items():
        for images in each:
            inputs = _standard(images, module, device)
            (mean,) = running_means(net, inputs, how["corruption_draws"], (), seed).values()
            errors.setdefault(corruption, []).append(1.0 - metrics.accuracy(mean, labels).item())
    return errors


@lru_cache(maxsize=1)
def _corrupted(
    name: str, root: str | None, shape: tuple[int | None, int | None], limit: int, device: str
) -> tuple[dict[str, list[Tensor]], Tensor]:
    """The corrupted test images, made once for all networks, with the random numbers of `byov evaluate` and seed 0."""
    data: ImageSet = labelled(name, "test", root, *shape, limit=limit)
    shifts, _ = shifts_for("corruptions", data)
    clean, sets = data.images.to(device).float() / 255, {}
    sets["clean"] = [clean]
    for corruption, shift in shifts.items():
        for severity in SEVERITIES:
            generator = Generator(device).manual_seed(stream(0, crc32(corruption.encode()), severity))
            parts = [shift(part, severity, generator) for part in clean.split(CHUNK)]
            sets.setdefault(corruption, []).append(torch.cat(parts).half())  # 11 bits, where the images had 8
    assert data.labels is not None
    return sets, data.labels.to(device)


def _stacked(
    net: BayesianModule, module: Classifier, held: ImageSet, inputs: Tensor, labels: Tensor, draws: int, seed: int
) -> dict[str, Any] | None:
    """Scores under stacking weights that were fitted on the held-out images; for EMP and explicit ensembles."""
    if not any(isinstance(factor.family, EMP | Ensemble) for factor in net.factors):
        return None
    assert held.labels is not None
    device = inputs.device
    fit = _standard(held.images, module, device)
    generator = Generator(device).manual_seed(stream(seed, 0x57AC))
    fitted = stack(net, fit.split(BATCH), held.labels, draws, generator)
    prediction = fitted.predict(inputs.split(BATCH))
    return {**scores(prediction.mean, labels.cpu()), "weights": fitted.weights.tolist()}
