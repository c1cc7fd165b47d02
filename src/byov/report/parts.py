"""What a report measures beside the scores: pictures, pruned networks, the layers of a posterior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from byov.evaluation.predictors import Classifier, Probed
from byov.metrics import functional as metrics
from byov.posterior.module import BayesianModule
from byov.pruning import By, sweep, weights
from byov.report.gallery import gallery
from byov.report.measure import Opened
from byov.ssl.features import features

SPARSITIES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SWEPT = ("top1", "ece", "nll")
"""The scores whose change with the sparsity is shown."""


def pictures(run: Opened) -> dict[str, Any]:
    """The images it is most and least certain of, and its most confident mistakes."""
    found = run.predictor(run.clean, run.samples)
    return {"reading": "under_draws" if run.samples else "at_mean", **gallery(run.images, found)}


def pruning(run: Opened) -> list[dict[str, Any]]:
    """Scores at μ of the network pruned by |μ| and, with a posterior, by |μ|/σ: a share of each layer, no retraining.

    Of a pretraining run the encoder is pruned, and the probe stays the one that was fitted before.
    """

    def where(name: str, part: nn.Module, parameter: Tensor) -> bool:
        inside = name.startswith("encoder.") or not run.pretrained
        return inside and weights(name, part, parameter)

    curves = []
    orders: tuple[By, ...] = ("magnitude",) if run.q is None else ("snr", "magnitude")
    for by in orders:
        each: list[dict[str, float]] = []

        def keep(net: nn.Module, each: list[dict[str, float]] = each) -> float:
            each.append(_scores_at_mean(run, net))
            return each[-1]["top1"]

        sweep(run.network, SPARSITIES, keep, by, "layer", where)
        curve = {name: [row[name] for row in each] for name in SWEPT}
        curves.append({"by": by, "scope": "layer", "sparsity": list(SPARSITIES), **curve})
    return curves


def _scores_at_mean(run: Opened, net: nn.Module) -> dict[str, float]:
    predictor = run.predictor
    if isinstance(predictor, Probed):
        probe = predictor.probe
        head = probe.at_mean["linear"]
        probs = head.probabilities(features(net, run.clean, **probe.options))
    else:
        assert isinstance(predictor, Classifier)
        probs = Classifier(net, **run.found.about(run.train), batch_size=predictor.batch_size)(run.clean).mean
    labels = run.labels.to(probs.device)
    return {
        "top1": metrics.accuracy(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels, run.asked.bins).item(),
        "nll": metrics.nll(probs, labels).item(),
    }


def layers(run: Opened) -> list[dict[str, Any]] | None:
    """σ and |μ|/σ of each random tensor, by quantiles over its weights."""
    return None if run.q is None else list(_layers(run.q))


@torch.no_grad()
def _layers(q: BayesianModule) -> Iterator[dict[str, Any]]:
    mean, std, snr = q.mean(), q.std(), q.snr()
    for name in mean:
        # torch.quantile refuses more than 16 million values; a random million says the same to three digits.
        picked = torch.randperm(mean[name].numel(), generator=torch.Generator().manual_seed(0))[:1_000_000]
        row: dict[str, Any] = {"name": name, "weights": mean[name].numel(), "shape": list(mean[name].shape)}
        for what, values in (("sigma", std[name]), ("snr", snr[name])):
            flat = values.detach().float().cpu().flatten()[picked]
            known = flat[flat.isfinite()]
            row[what] = torch.quantile(known, torch.tensor(QUANTILES)).tolist() if len(known) else None
        yield row
