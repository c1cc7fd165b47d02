"""`posterior.family = "swag"` in a recipe: the plain training, followed step by step, opened as its posterior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from digits_runs import arguments, digits, recipe
from torch import Tensor

import byov
from byov.data import load
from byov.posterior import BayesianModule
from byov.posthoc.swag import ETA, SCALE
from byov.train import checkpoint
from byov.train.posterior_config import FamilyConfig
from byov.train.supervised import restore, start

FEW = ("train.epochs=1", "train.minutes=1e-9")  # a step for each start


def weights(run: Path, prefix: str) -> dict[str, Tensor]:
    module = checkpoint.load(run / "checkpoint.safetensors")["module"]
    return {name.removeprefix(prefix): t.double() for name, t in module.items() if name.startswith(prefix)}


def test_a_run_is_the_average_and_the_spread_of_the_plain_training(tmp_path: Path) -> None:
    """In one piece; beside the plain training at the same constant rate, read after each of its steps."""
    assert start(recipe("posterior.family=swag", "train.epochs=1"), tmp_path / "swag")
    plain, path = recipe("posterior.family=none", "train.lr_end=1", *FEW), []
    for step in range(10):
        assert start(plain, tmp_path / "plain", resume=step > 0) == (step == 9)
        path.append(weights(tmp_path / "plain", "net."))
    module, settings = restore(tmp_path / "swag")
    assert settings.posterior.family == "swag"
    net = module.net
    assert isinstance(net, BayesianModule)
    assert not net.training
    last = weights(tmp_path / "swag", "net.net.")
    for name, average in net.mean().items():
        values = torch.stack([weights[name] for weights in path])
        assert torch.equal(last[name], values[-1])
        mean, variance = values[0], torch.zeros_like(values[0])
        for t, value in enumerate(values[1:], 2):
            share = (ETA + 1) / (t + ETA)
            variance = (1 - share) * (variance + share * (value - mean) ** 2)
            mean = mean + share * (value - mean)
        torch.testing.assert_close(average.double(), mean, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(net.std()[name].double(), SCALE * variance.sqrt(), rtol=1e-3, atol=1e-6)


def test_it_resumes_to_the_bit_and_predicts_under_draws(tmp_path: Path, call: Any) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert call(*arguments(whole))[0] == 0  # it is the default
    assert not start(recipe("train.minutes=1e-9"), pieces)
    early = restore(pieces)[0].net  # after one step the posterior is the network itself
    assert max(s.max().item() for s in early.std().values()) < 1e-9  # type: ignore[operator]
    assert start(recipe(), pieces, resume=True)
    one, two = (checkpoint.load(run / "checkpoint.safetensors")["module"] for run in (whole, pieces))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    rates = [json.loads(line)["lr"] for line in (whole / "log.jsonl").read_text().splitlines()]
    assert rates[5:] == [3e-2] * 15
    images, labels = digits()
    prediction = byov.predict(byov.open(whole, trust=True).model, images, samples=10)
    assert float((prediction.mean.argmax(1) == labels).float().mean()) > 0.8
    assert float(prediction.mutual_information.mean()) > 1e-4
    status, _, said = call("explore", str(whole), "--what", "layers", "--out", str(tmp_path / "layers"), "--trust")
    assert status == 2
    assert "SWAG's comes from plain training" in said


def test_a_rate_that_is_set_is_kept(tmp_path: Path) -> None:
    start(recipe("train.lr_end=0.5", "train.epochs=1"), tmp_path)
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["lr"]
    assert 0.5 * 3e-2 < last < 0.6 * 3e-2


@pytest.mark.parametrize(
    ("changes", "unused"),
    [
        ({"beta_end": 0.1, "k": 3}, ["posterior.beta_end", "posterior.k"]),
        ({"beta_end": 0.1, "points": True}, []),  # a prior of the weights themselves
        ({}, []),
    ],
)
def test_settings_without_effect_are_named(changes: dict[str, Any], unused: list[str]) -> None:
    assert sorted(FamilyConfig(**changes).unused()) == unused


def test_a_table_s_run_is_followed_too(tmp_path: Path, call: Any) -> None:
    x = load("digits", "train").images.flatten(1).float()  # type: ignore[union-attr]
    rows = [
        ",".join(f"{v:.0f}" for v in [*row[20:24], row[:32].sum()])
        for row in x[:200].tolist()
        for row in [torch.tensor(row)]
    ]
    (tmp_path / "ink.csv").write_text("a,b,c,d,ink\n" + "\n".join(rows) + "\n")
    sets = [f"data.name=table:{tmp_path / 'ink.csv'}", "train.epochs=20", "train.accelerator=cpu", "train.devices=1"]
    words = [word for change in sets for word in ("--set", change)]
    status, said, _ = call("train", "--run", str(tmp_path / "run"), *words)
    assert status == 0
    assert "under 30 draws" in said
    net = byov.train.tabular.restore(tmp_path / "run")[0].net
    assert isinstance(net, BayesianModule)
    assert 0 < float(torch.cat([s.flatten() for s in net.std().values()]).median()) < 1
