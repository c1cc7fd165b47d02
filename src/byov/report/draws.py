"""How many draws are enough: the scores of the mean of K draws, and how much they depend on which draws these are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor

from byov.evaluation.predictors import Classifier, Probed
from byov.metrics import functional as metrics
from byov.posterior.random import stream
from byov.prediction import predict
from byov.prediction.result import entropy
from byov.report.measure import Opened
from byov.ssl.features import feature_draws
from byov.ssl.probe import READ

COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
BOOTSTRAPS = 30
SCORES = ("top1", "ece", "nll", "mutual_information")


@torch.no_grad()
def each_draw(run: Opened) -> Tensor:
    """Class probabilities (S, N, C) of the clean images under the draws that the scores were read under."""
    predictor, count = run.predictor, run.asked.samples
    if isinstance(predictor, Probed):
        probe = predictor.probe
        generator = Generator(probe.encoder.device or "cpu").manual_seed(stream(probe.seed, READ))
        drawn = feature_draws(probe.encoder, run.clean, count, generator, **probe.options)
        return torch.stack([probe.under_draws["linear"].probabilities(x).cpu() for x in drawn])
    assert isinstance(predictor, Classifier)
    generator = Generator(predictor.device).manual_seed(stream(predictor.seed, READ))
    mean, std = (0.0 if predictor.mean is None else predictor.mean), (1.0 if predictor.std is None else predictor.std)
    batches = ((part - mean) / std for part in run.clean.split(predictor.batch_size))
    found = predict(predictor.net, batches, count, "loop", None, generator, keep=True, progress=False)
    assert found.draws is not None
    return found.draws.cpu()


def convergence(run: Opened) -> dict[str, Any] | None:
    """For each K the mean and the deviation of a score over sets of K draws, taken from all with replacement."""
    if run.samples is None:
        return None
    at_mean = run.predictor(run.clean).mean.cpu()
    found = spread(each_draw(run), run.labels.cpu(), run.asked.bins)
    return {**found, "at_mean": _scores(at_mean, None, run.labels.cpu(), run.asked.bins)}


def spread(draws: Tensor, labels: Tensor, bins: int = 15, bootstraps: int = BOOTSTRAPS) -> dict[str, Any]:
    """Of class probabilities (S, N, C): {"draws": [K, …], score: {"mean": [...], "deviation": [...]}}."""
    size = len(draws)
    counts = [count for count in COUNTS if count < size] + [size]
    entropies = torch.stack([entropy(each) for each in draws])
    columns: dict[str, dict[str, list[float]]] = {name: {"mean": [], "deviation": []} for name in SCORES}
    for count in counts:
        generator = Generator().manual_seed(stream(0, count))
        sets = torch.randint(size, (bootstraps, count), generator=generator)
        rows = []
        for chosen in sets:
            probs = draws[chosen].mean(0)
            rows.append(list(_scores(probs, entropies[chosen].mean(0), labels, bins).values()))
        table = torch.tensor(rows, dtype=torch.float64)
        for i, name in enumerate(SCORES):
            columns[name]["mean"].append(float(table[:, i].mean()))
            columns[name]["deviation"].append(float(table[:, i].std()))
    return {"draws": counts, **columns}


def _scores(probs: Tensor, expected: Tensor | None, labels: Tensor, bins: int) -> dict[str, float]:
    """By name; without the draws' entropies there is no mutual information."""
    found = {
        "top1": metrics.accuracy(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels, bins).item(),
        "nll": metrics.nll(probs, labels).item(),
    }
    if expected is not None:
        found["mutual_information"] = (entropy(probs) - expected).clamp_min(0.0).mean().item()
    return found
