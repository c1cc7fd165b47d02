"""Scores and predictions of a run on a table: RMSE, log density and coverage, at μ and under draws."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Generator, Tensor

from byov.data.config import DataSpec
from byov.data.tables import Scale, features
from byov.evaluation.results import command_line
from byov.files import check_out, replacing, write_json
from byov.metrics.functional import log_predictive_density, rmse
from byov.posterior import BayesianModule
from byov.prediction import predict
from byov.runs import read_header
from byov.runs.run import NO_NETWORK, digest, mean_is_no_network
from byov.train.tabular import Regressor, Tabular, held_out, restore

NORMAL_95 = NormalDist().inv_cdf(0.975)
"""Standard deviations on either side of the mean that hold 95 % of a Gaussian."""


@dataclass(frozen=True)
class Predicted:
    """Predictions of N rows and T targets, in original units; draws are (S, N, T), with S = 1 at μ."""

    draws: Tensor
    precision: Tensor

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def spread(self) -> Tensor:
        """Return the standard deviation over draws, the part that more data would reduce."""
        return self.draws.std(0, correction=0)

    @property
    def std(self) -> Tensor:
        """Return the standard deviation, including the noise 1/τ."""
        return (self.draws.var(0, correction=0) + 1.0 / self.precision).sqrt()

    def scores(self, y: Tensor) -> dict[str, float]:
        """Score against targets (N, T): RMSE, mean log density per target, and the coverage of 95 % intervals."""
        outputs = range(y.shape[1])
        density = [log_predictive_density(self.draws[..., t], y[:, t], float(self.precision[t])) for t in outputs]
        inside = (y - self.mean).abs() <= NORMAL_95 * self.std
        return {
            "rmse": rmse(self.mean, y).item(),
            "log_density": torch.stack(density).mean().item(),
            "coverage95": inside.double().mean().item(),
        }


def predicted(module: Regressor, like: DataSpec, X: Tensor, samples: int | None, seed: int = 0) -> Predicted:
    """Predict rows X (N, D), given in original units, under `samples` draws, or at μ if None."""
    if X.ndim != 2 or X.shape[1] != like.channels:
        raise ValueError(f"The run needs rows of {like.channels} features, not {X.shape[-1]}.")
    scale = Scale(*(torch.tensor(moment, dtype=torch.float64) for moment in (like.mean, like.std)))
    x = scale.standardise(X.double()).to(module.y_mean)
    net: Any = module.net
    if samples is None or not isinstance(net, BayesianModule):
        with torch.no_grad():
            draws = net(x)[None]
    else:
        generator = Generator(x.device).manual_seed(seed)
        draws = predict(net, x, samples, generator=generator, task="regression", keep=True, progress=False).draws
    return Predicted(module.target_scale.restore(draws.double().cpu()), module.precision)


def open_table(path: str | Path, device: torch.device, trust: bool) -> tuple[Regressor, Tabular, DataSpec]:
    """Open a run on a table: its module, its recipe, and the form of its rows."""
    return read_header(path, ["table"]).trusted(trust).restored(restore, device)


def evaluate_run(
    name: str,
    samples: int,
    seed: int,
    out: Path,
    device: torch.device,
    root: Path | None = None,
    force: bool = False,
    trust: bool = False,
) -> dict[str, Any]:
    """Score a run on the test rows of its split, at μ and under draws; write scores and protocol to `out`."""
    check_out(out, force)
    module, recipe, like = open_table(name, device, trust)
    data, X, y = held_out(recipe, like, root)
    posterior = isinstance(module.net, BayesianModule)
    readings: dict[str, int | None] = {"at_mean": None, **({"under_draws": samples} if posterior else {})}
    found: dict[str, Any] = {key: predicted(module, like, X, count, seed).scores(y) for key, count in readings.items()}
    found["precision"] = module.precision.tolist()
    found["note"] = NO_NETWORK if mean_is_no_network(module.net) else ""
    found["protocol"] = {
        "model": {"name": name, "kind": "table", "digest": digest(module), "posterior": posterior},
        "data": {"name": recipe.data.name, "split": recipe.data.split, "digest": data.digest, "rows": len(y)},
        "samples": samples if posterior else None,
        "seed": seed,
        "device": device.type,
        "torch": str(torch.__version__),
        "command": command_line(),
    }
    write_json(out, {"kind": "byov evaluate, a table", **found})
    return found


def predict_run(
    name: str,
    data: str,
    samples: int,
    seed: int,
    out: Path,
    device: torch.device,
    force: bool = False,
    trust: bool = False,
) -> Predicted:
    """Predict the rows of a file and write a .csv with mean, standard deviation and standard deviation over draws."""
    if out.suffix != ".csv":
        raise ValueError(f"Predictions for a table are written as .csv, not as {out.name}.")
    check_out(out, force)
    module, recipe, like = open_table(name, device, trust)
    X = features(data, like.channels, recipe.data.column, like.columns, like.target)
    found = predicted(module, like, X, samples, seed)
    if not found.std.isfinite().all():
        raise ValueError(f"The predictions of {data} are not finite for some rows.")
    columns = (found.mean[:, 0].tolist(), found.std[:, 0].tolist(), found.spread[:, 0].tolist())
    with replacing(out) as fresh, fresh.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow(["row", "mean", "std", "epistemic_std"])
        write.writerows(zip(range(1, 1 + len(columns[0])), *columns, strict=True))
    return found
