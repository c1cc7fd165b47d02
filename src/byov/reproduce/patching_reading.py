"""Read a network once for all tables: S = 1, 20, 100 and 200 from one set of 200 draws, and 15 corruptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.data.labelled import labelled
from byov.data.shift import SEVERITIES
from byov.evaluation.rows import CLEAN, plan, shifted, shifts_for
from byov.evaluation.scores import PAPER_BINS, main_scores, paper_scores
from byov.metrics import functional as metrics
from byov.posterior import BayesianModule
from byov.posterior.mixture import EMP, Ensemble
from byov.posterior.random import stream
from byov.prediction.resident import Resident
from byov.prediction.stacking import stack
from byov.reproduce.experiment import Context, Scale
from byov.runs import Reading, Run, open_run, read_header

POINTS = (1, 20, 100, 200)
"""S, as in the paper's Tables 9 to 11."""

PROTOCOL: dict[Scale, dict[str, Any]] = {
    "quick": {"draws": 200, "corruption_draws": 10, "corruption_images": 200, "stacked": 20},
    "full": {"draws": 200, "corruption_draws": 20, "corruption_images": 2000, "stacked": 20},
}
"""How a network is read. Corruption errors use fewer images, the same for all methods, since each is read 75 times."""

BATCH = 2000


def read(path: Path, context: Context, label: str) -> dict[str, Any]:
    """Return everything that the tables need from the network of a run."""
    how, seed = PROTOCOL[context.scale], context.seed
    root = context.root or read_header(path, ["train"]).config["data"]["root"]
    run = open_run(path, Reading(device=context.device, root=root, trust=context.trust))
    net, labels, inputs = run.network, run.labels.to(context.device), standardised(run, run.pixels)
    means = running_means(net, inputs, how["draws"], POINTS, seed)
    diagram = metrics.reliability_diagram(means[max(means)], labels, PAPER_BINS)
    found: dict[str, Any] = {
        "label": label,
        "data": run.data,
        "network": run.recipe.model.name,
        "parameters": sum(p.numel() for p in net.parameters() if p.requires_grad),  # dropout's gates are not trained
        "by_draws": {str(s): scores(mean, labels) for s, mean in means.items()},
        "at_mean": scores(_at_mean(net, inputs), labels),
        "diagram": {key: value.tolist() for key, value in diagram._asdict().items()},
        "errors": _corruption_errors(run, how, seed),
    }
    if run.q is not None and run.recipe.data.holdout:
        found["stacked"] = _stacked(run, inputs, labels, how["stacked"], seed)
    return found


def standardised(run: Run, pixels: Tensor) -> Tensor:
    """Standardise pixels in [0, 1] for the network, in the memory layout in which convolutions are fastest."""
    mean, std = (torch.tensor(values, device=pixels.device).view(1, -1, 1, 1) for values in run.normalisation.values())
    return ((pixels.float() - mean) / std).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def running_means(
    net: nn.Module, inputs: Tensor, draws: int, at: Sequence[int], seed: int = 0, batch: int = BATCH
) -> dict[int, Tensor]:
    """Return the mean class probabilities (N, C) after each number of draws in `at`; a plain network has one draw.

    Each draw of the weights is used for all inputs; on a GPU the network is compiled and runs in bfloat16.
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


def scores(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return scores as shares, not per cent; ECE and MCE follow the paper's D.2 (bins of at most 5 samples removed)."""
    main, paper = main_scores(probs, labels), paper_scores(probs, labels)
    return {
        "top1": main["top1"],
        "top5": metrics.accuracy(probs, labels, top_k=min(5, probs.shape[1])).item(),
        "ece": paper["ece_paper"],
        "mce": paper["mce"],
        "ece15": main["ece"],
        "nll": main["nll"],
        "brier": metrics.brier_score(probs, labels).item(),
    }


def _corruption_errors(run: Run, how: dict[str, Any], seed: int) -> dict[str, list[float]]:
    """Return top-1 errors by corruption, one per severity; "clean" uses the same images."""
    assert run.data is not None
    device = str(run.reading.device)
    sets, labels = corrupted(run.data, run.reading.root, run.shape, how["corruption_images"], device)
    errors: dict[str, list[float]] = {}
    for corruption, each in sets.items():
        for images in each:
            (mean,) = running_means(run.network, standardised(run, images), how["corruption_draws"], (), seed).values()
            errors.setdefault(corruption, []).append(1.0 - metrics.accuracy(mean, labels).item())
    return errors


@lru_cache(maxsize=1)
def corrupted(
    name: str, root: str | Path | None, shape: tuple[int | None, int | None, bool], limit: int, device: str
) -> tuple[dict[str, list[Tensor]], Tensor]:
    """Return the corrupted test images, shared by all networks; they equal those of `byov evaluate` with seed 0."""
    data = labelled(name, "test", root, *shape, limit=limit)
    shifts, _ = shifts_for("corruptions", data)
    sets: dict[str, list[Tensor]] = {}
    for corruption, severity in plan(shifts, SEVERITIES):
        moved = torch.cat(list(shifted(data.images, shifts.get(corruption), severity, 0, torch.device(device))))
        # 11 bits are enough: the images had 8
        sets.setdefault(corruption, []).append(moved if corruption == CLEAN else moved.half())
    assert data.labels is not None
    return sets, data.labels.to(device)


def _stacked(run: Run, inputs: Tensor, labels: Tensor, draws: int, seed: int) -> dict[str, Any] | None:
    """Fit stacking weights on the held-out images and score them, for EMP and explicit ensembles."""
    assert run.q is not None
    if not any(isinstance(factor.family, EMP | Ensemble) for factor in run.q.factors):
        return None
    held = run.load_own("holdout")
    assert held.labels is not None
    fit = standardised(run, held.images.float() / 255)
    generator = Generator(inputs.device).manual_seed(stream(seed, 0x57AC))
    fitted = stack(run.q, fit.split(BATCH), held.labels, draws, generator)
    prediction = fitted.predict(inputs.split(BATCH))
    return {**scores(prediction.mean, labels.cpu()), "weights": fitted.weights.tolist()}
