"""Layer-wise σ and SNR: against brute force for every family, and the same records whether or not a run was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.posterior.layer_statistics import layer_statistics
from byov.ssl.pretrain import EncoderConfig, GaussianConfig, Pretrain, start
from byov.train.journal import LAYER_RECORDS, LEAST_INTERVAL, Journal, layers_due
from byov.train.loop import TrainConfig

FAMILIES = [
    byov.Gaussian(-4.0),
    byov.Dropout(0.3),
    byov.DropConnect(0.2, sigma=0.1),
    byov.Ensemble(3, start="reset"),
    byov.EMP(3, sigma=0.05),
    byov.ECMP(3),
]


class Net(nn.Module):
    """Nested layers, and a parameter of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


def perturbed(rules: Any, net: nn.Module | None = None) -> byov.BayesianModule:
    model = byov.bayesianize(net or Net(), rules)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def brute_force(model: byov.BayesianModule) -> dict[str, tuple[Any, ...]]:
    std, mean = model.std(), model.mean()
    layers: dict[str, list[str]] = {}
    for name in std:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    found = {}
    for layer, names in layers.items():
        sigma = torch.cat([std[name].double().flatten() for name in names])
        snr = torch.cat([mean[name].double().flatten() for name in names]).abs()[sigma > 0] / sigma[sigma > 0]
        ratios = (snr.mean().item(), snr.max().item()) if len(snr) else (None, None)
        found[layer] = (len(sigma), sigma.mean().item(), sigma.max().item(), *ratios)
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_every_family_against_brute_force(family: Any) -> None:
    model = perturbed(family)
    found, expected = layer_statistics(model), brute_force(model)
    assert list(found) == ["", "body.0", "body.1", "body.2"]
    for layer, row in expected.items():
        assert tuple(found[layer]) == pytest.approx(row, rel=1e-5), layer


def test_a_layer_cut_between_two_families_is_one_layer() -> None:
    model = perturbed({"*.weight": byov.Gaussian(-4.0), "*.bias": byov.DropConnect(0.5, sigma=0.2)})
    assert len(model.factors) == 2
    found, expected = layer_statistics(model), brute_force(model)
    assert set(found) == set(expected)
    for layer, row in expected.items():
        assert tuple(found[layer]) == pytest.approx(row, rel=1e-5), layer


def test_a_weight_without_spread_has_no_ratio() -> None:
    """Dropout never drops a bias: its σ is 0, and its SNR would be infinite."""
    model = byov.bayesianize(nn.Linear(3, 2), {"bias": byov.Dropout(0.5)})
    row = layer_statistics(model)[""]
    assert (row.weights, row.sigma_mean, row.sigma_max, row.snr_mean, row.snr_max) == (2, 0.0, 0.0, None, None)


def test_the_gaussian_in_closed_form() -> None:
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, -1.0]]))
    model = byov.bayesianize(net, byov.Gaussian(2 * torch.log(torch.tensor(0.5)).item()))
    assert tuple(layer_statistics(model)[""]) == pytest.approx((2, 0.5, 0.5, 4.0, 6.0), rel=1e-6)


def test_a_plain_network_is_refused() -> None:
    with pytest.raises(TypeError, match="BayesianModule, not of Linear"):
        layer_statistics(nn.Linear(2, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("total", [1, 3, 40, 99, 400, 4_321, 60_000])
def test_about_a_hundred_records_with_the_first_and_the_last(total: int) -> None:
    steps = [step for step in range(total + 1) if layers_due(step, total)]
    assert (steps[0], steps[-1]) == (0, total)
    assert len(steps) <= 1.5 * LAYER_RECORDS + 2
    if total >= LEAST_INTERVAL * LAYER_RECORDS:
        assert len(steps) >= LAYER_RECORDS


# In a run


def entries(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "layers.jsonl").read_text().splitlines()]


def recipe(**train: Any) -> Pretrain:
    return Pretrain(
        model=EncoderConfig("convnet32", hidden=16, outputs=8),
        posterior=GaussianConfig(beta_end=0.1),
        train=TrainConfig(epochs=2, batch=128, warmup=1, accelerator="cpu", devices=1, **train),
    )


def test_a_run_that_was_stopped_has_the_records_of_one_that_was_not(tmp_path: Path) -> None:
    start(recipe(), tmp_path / "whole")
    whole = entries(tmp_path / "whole")
    assert [entry["step"] for entry in whole] == [0, 4, 8, 12, 16, 20]
    assert whole[-1]["epoch"] == 2.0
    first = {name: row[1] for name, row in whole[0]["layers"].items()}
    assert first == pytest.approx(dict.fromkeys(first, 0.00673795), rel=1e-5)  # exp(-5), as every σ starts
    assert whole[-1]["layers"]["projector.0"][1] != whole[0]["layers"]["projector.0"][1]

    assert not start(recipe(minutes=1e-9), tmp_path / "parts")  # one step
    with (tmp_path / "parts" / "layers.jsonl").open("a") as file:  # as if it had gone on and been killed
        file.write('{"step": 4, "epoch": 0.4, "layers": {}}\n{"step": 8, "epo')
    start(recipe(), tmp_path / "parts", resume=True)
    assert entries(tmp_path / "parts") == whole


def test_a_run_without_a_posterior_has_no_layers(tmp_path: Path) -> None:
    with Journal(tmp_path, 0, 20, 4, True) as journal:
        journal.record_layers(0, nn.Linear(2, 2))
    assert not (tmp_path / "layers.jsonl").exists()


def test_all_ranks_but_the_first_are_silent(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", 0, 20, 4, False) as journal:
        journal.record_layers(0, byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()))
    assert not (tmp_path / "run").exists()


def test_a_run_that_starts_anew_starts_with_nothing(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it left the record of step 0, which would be there twice."""
    model = byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())
    for _ in range(2):
        with Journal(tmp_path, 0, 20, 4, True) as journal:
            journal.record_layers(0, model)
    assert [entry["step"] for entry in entries(tmp_path)] == [0]


@pytest.mark.slow
def test_a_run_killed_without_warning_loses_and_doubles_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "byov", "pretrain", "--run", str(tmp_path / "run")]
    for setting in ("model.encoder=convnet32", "model.hidden=32", "model.outputs=16", "train.epochs=12"):
        words += ["--set", setting]
    words += ["--set", "train.batch=128", "--set", "train.accelerator=cpu", "--set", "train.save_minutes=0.01"]
    options: dict[str, Any] = {"stderr": subprocess.DEVNULL, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    process = subprocess.Popen(words, **options)
    layers = tmp_path / "run" / "layers.jsonl"
    while process.poll() is None and (not layers.exists() or len(layers.read_text().splitlines()) < 12):
        sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(layers.read_text().splitlines()) >= 12
    subprocess.run([*words, "--resume"], check=True, **options)
    assert [entry["step"] for entry in entries(tmp_path / "run")] == list(range(0, 121, 4))
