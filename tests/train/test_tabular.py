"""Regression on a table through `byov train`, `byov evaluate` and `byov predict`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import byov
from byov.data.tables import table, training_rows
from byov.evaluation.regressions import predicted
from byov.train import checkpoint
from byov.train.config import load_config
from byov.train.tabular import Regressor, TableTask, Tabular, restore, start

ROOT = Path(__file__).parents[2]
NOISE = 0.5
FAMILIES = ("none", "gaussian", "dropout", "dropconnect", "ensemble", "emp", "ecmp")


@pytest.fixture(scope="module")
def wells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows of y = 10 sin 3a + 5b, with Gaussian noise of a half."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(600, 2, generator=generator)
    y = 10 * (3 * x[:, 0]).sin() + 5 * x[:, 1] + NOISE * torch.randn(600, generator=generator)
    path = tmp_path_factory.mktemp("data") / "wells.csv"
    rows = [f"{a},{b},{c}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("\n".join(["depth,slope,flow", *rows]))
    return path


def recipe(wells: Path, *changes: str) -> Tabular:
    at = (f"data.name=table:{wells}", "train.accelerator=cpu", "train.devices=1", "train.epochs=150")
    return load_config(Tabular, None, [*at, *changes])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_the_function_and_its_noise(family: str, wells: Path, tmp_path: Path) -> None:
    """60 test rows: the RMSE of the truth is 0.5 with a standard error of 0.05, so 0.8 tells a fit from none (4.0)."""
    epochs = 300 if family in ("ensemble", "emp", "ecmp") else 120  # a step reaches one component of five
    more = ["posterior.log_var=-8"] if family == "gaussian" else []
    assert start(recipe(wells, f"posterior.family={family}", f"train.epochs={epochs}", *more), tmp_path)
    module, _, like = restore(tmp_path)
    data = table(wells)
    test = data.splits[0][1]
    found = predicted(module, like, data.X[test], None if family == "none" else 100).scores(data.y[test][:, None])
    assert found["rmse"] < 0.8
    assert found["log_density"] > -1.4  # of the truth: −½ log(2πe/4) = −0.73
    assert found["coverage95"] > 0.85  # of 60 rows; what an interval is stands in tests/evaluation
    assert 0.25 < float(module.precision) ** -0.5 < 1.0


def test_the_loss_is_the_gaussian_density_and_the_kl_by_hand(wells: Path) -> None:
    asked = recipe(wells, "posterior.family=gaussian", "posterior.kl_scale=dataset")
    data = training_rows(table(wells), 0)
    module = TableTask(asked, data, 1, torch.device("cpu")).module
    with torch.no_grad():
        module.log_precision.fill_(0.7)
    x, y = data.images[:20], data.labels[:20]
    generator = torch.Generator().manual_seed(3)
    net: Any = module.net
    noise = net.noise(generator)
    with net.draw(noise=noise):
        out = module(x, y, torch.tensor(0.3))
    with net.draw(noise=noise):
        f = net(x)
    tau = torch.tensor(0.7).exp()
    density = torch.distributions.Normal(f, tau**-0.5).log_prob(y).mean()
    torch.testing.assert_close(out.nll, -density.detach())
    torch.testing.assert_close(out.loss, -density + 0.3 * net.kl() / len(data))
    assert module.kl_scale == len(data) == 540


@pytest.mark.parametrize(("offset", "unit"), [(1.7e9, 1.0), (0.0, 1e-28), (0.0, 1e28)])
def test_targets_of_any_offset_and_unit_are_predicted_as_those_near_one(
    offset: float, unit: float, tmp_path: Path
) -> None:
    """Seconds since 1970 are 128 apart in float32, and the square of 1e-28 is 0; else it is the same run.

    Rounding differs in the last bit of the targets, which a few steps of Adam make 3e-3 of; the targets' std is 10.
    """
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, found = x[:20], []
    for name, y in (("plain", 10 * x[:, 0]), ("odd", offset + unit * 10 * x[:, 0])):
        np.savez(tmp_path / f"{name}.npz", X=x, y=y)
        start(recipe(tmp_path / f"{name}.npz", "train.epochs=8", "train.batch=40"), tmp_path / name)
        module, _, like = restore(tmp_path / name)
        found.append(predicted(module, like, rows, 20))
    plain, odd = found
    close = {"rtol": 0.0, "atol": 0.05}
    torch.testing.assert_close((odd.mean - offset) / unit, plain.mean, **close)
    torch.testing.assert_close(odd.std / unit, plain.std, **close)
    torch.testing.assert_close(odd.spread / unit, plain.spread, **close)


def test_a_precision_that_is_given_stays_and_is_at_the_targets_scale(wells: Path, tmp_path: Path) -> None:
    start(recipe(wells, "posterior.family=none", "model.precision=4", "train.epochs=3"), tmp_path)
    module, _, like = restore(tmp_path)
    assert float(module.precision) == pytest.approx(4.0, rel=1e-5)
    found = predicted(module, like, torch.rand(5, 2), None)
    torch.testing.assert_close(found.std, torch.full((5, 1), 0.5, dtype=torch.float64), rtol=1e-4, atol=1e-5)
    assert not found.spread.any()
    expected = module.net((torch.tensor([[0.2, 0.9]]) - torch.tensor(like.mean)) / torch.tensor(like.std))
    own = predicted(module, like, torch.tensor([[0.2, 0.9]]), None).mean
    torch.testing.assert_close(own, (expected * module.y_std + module.y_mean).double(), rtol=1e-5, atol=1e-5)


def test_train_evaluate_and_predict_by_command(call: Any, wells: Path, tmp_path: Path) -> None:
    run, out, rows = tmp_path / "run", tmp_path / "r.json", tmp_path / "p.csv"
    words = ("data.target=flow", "posterior.family=emp", "posterior.on=norm+output", "train.epochs=100")
    sets = [part for word in (f"data.name=table:{wells}", *words) for part in ("--set", word)]
    status, _, err = call("train", "--run", run, *sets, "--set", "train.accelerator=cpu")
    assert status == 0
    assert "rows/s" in err
    status, shown, _ = call("evaluate", run, "--samples", 50, "--device", "cpu", "--out", out)
    found = json.loads(out.read_text())
    assert status == 0
    assert not found["note"]  # as there is where the mean averages networks that started anew
    assert found["protocol"]["data"]["rows"] == 60
    assert f"{found['under_draws']['rmse']:.4g}" in shown
    assert call("evaluate", run, "--device", "cpu", "--out", out)[0] == 2  # nothing is overwritten
    assert call("predict", run, wells, "--samples", 20, "--device", "cpu", "--out", rows)[0] == 0
    lines = list(csv.DictReader(rows.read_text().splitlines()))
    assert len(lines) == 600
    assert all(float(line["std"]) > float(line["epistemic_std"]) > 0 for line in lines)
    alone = tmp_path / "new.csv"  # rows whose target is not known yet
    alone.write_text("depth,slope\n0.5,0.5\n")
    assert call("predict", run, alone, "--device", "cpu", "--out", tmp_path / "new_p.csv")[0] == 0
    mean = float(next(csv.DictReader((tmp_path / "new_p.csv").read_text().splitlines()))["mean"])
    assert mean == pytest.approx(10 * torch.tensor(1.5).sin().item() + 2.5, abs=2.0)


@pytest.fixture(scope="module")
def fitted(wells: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "wells"
    start(recipe(wells, "posterior.family=none", "train.epochs=2"), run)
    return run


def test_columns_are_found_by_their_names(call: Any, wells: Path, fitted: Path, tmp_path: Path) -> None:
    """The same predictions in another order, without the target; another column is refused by name."""
    rows, out = [line.split(",") for line in wells.read_text().splitlines()[:6]], tmp_path / "p.csv"

    def predict(*columns: int) -> tuple[int, str, str]:
        (tmp_path / "new.csv").write_text("\n".join(",".join(row[column] for column in columns) for row in rows))
        status, _, error = call("predict", fitted, tmp_path / "new.csv", "--device", "cpu", "--out", out, "--force")
        return status, error, out.read_text()

    status, _, expected = predict(0, 1, 2)
    assert (status, len(expected.splitlines())) == (0, 6)
    assert predict(1, 0)[2] == expected
    status, error, kept = predict(0, 2)
    assert (status, "lacks 'slope'" in error, kept) == (2, True, expected)


def test_a_run_from_before_names_were_kept_still_opens(call: Any, wells: Path, fitted: Path, tmp_path: Path) -> None:
    state = checkpoint.load(fitted / "checkpoint.safetensors")
    assert (state["recipe"].pop("columns"), state["recipe"].pop("target")) == (["depth", "slope"], "flow")
    checkpoint.save(tmp_path / "old" / "checkpoint.safetensors", state)
    for run, out in ((fitted, "new.csv"), (tmp_path / "old", "old.csv")):
        assert call("predict", run, wells, "--device", "cpu", "--out", tmp_path / out)[0] == 0
        assert call("evaluate", run, "--device", "cpu", "--out", tmp_path / f"{out}.json")[0] == 0
    assert (tmp_path / "new.csv").read_bytes() == (tmp_path / "old.csv").read_bytes()


def test_a_table_that_changed_since_training_is_not_evaluated(call: Any, wells: Path, tmp_path: Path) -> None:
    """Other rows are other splits, so that it would be scored on rows it was trained on; other places are no change."""
    rows, path = [line.split(",") for line in wells.read_text().splitlines()], tmp_path / "t.csv"
    path.write_text(wells.read_text())
    start(recipe(path, "posterior.family=none", "train.epochs=1"), tmp_path / "run")
    found = []
    for order in ((0, 1, 2), (2, 1, 0)):
        path.write_text("\n".join(",".join(row[i] for i in order) for row in rows))
        assert call("evaluate", tmp_path / "run", "--device", "cpu", "--out", tmp_path / "r.json", "--force")[0] == 0
        found.append(json.loads((tmp_path / "r.json").read_text())["at_mean"])
    assert found[0] == found[1]
    path.write_text("\n".join(",".join(row) for row in rows[:-1]))
    status, _, err = call("evaluate", tmp_path / "run", "--device", "cpu", "--out", tmp_path / "other.json")
    assert (status, "has changed since the run was trained on it" in err) == (2, True)
    assert not (tmp_path / "other.json").exists()


def own(features: int, targets: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 7), nn.Tanh(), nn.Linear(7, targets))


def test_a_network_of_ones_own(wells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert start(recipe(wells, "model.name=python:test_tabular:own", "train.epochs=2"), tmp_path)
    module, _, _ = restore(tmp_path)
    assert isinstance(module, Regressor)
    assert isinstance(module.net, byov.BayesianModule)
    assert module.net.mean()["0.weight"].shape == (7, 2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data.target=depht"], "has no column 'depht'"),
        (["data.target=9"], "none can be the target at 9"),
        (["data.split=20"], "has the splits 0 to 19, not 20"),
        (["data.name=uci:"], "A table's name is table:FILE or uci:NAME, not 'uci:'"),
        (["data.name=table:nowhere.csv"], "nowhere.csv is not a file"),
        (["model.name=resnet18"], "A table's network is mlp, or python:module:function, not 'resnet18'"),
        (["model.precision=-1"], "model.precision is a number above 0 or none, not '-1'"),
        (["train.batch=1"], "BatchNorm, which needs batches of at least 2"),
        (["train.batch=2000"], "540 rows for each process, fewer than a batch of 2000"),
        (["posterior.family=gauss"], "posterior.family"),
    ],
)
def test_bad_input_is_one_sentence(call: Any, wells: Path, tmp_path: Path, words: list[str], sentence: str) -> None:
    sets = [part for word in (f"data.name=table:{wells}", *words) for part in ("--set", word)]
    status, out, err = call("train", "--run", tmp_path / "run", *sets, "--set", "train.accelerator=cpu")
    assert status == 2
    assert sentence in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "run").exists()


def test_readings_that_a_table_does_not_have_are_refused(call: Any, wells: Path, fitted: Path, tmp_path: Path) -> None:
    assert "without shifts" in call("evaluate", fitted, "--shift", "corruptions")[2]
    assert "without shifts" in call("evaluate", fitted, "--limit", 5)[2]
    assert "all rows of one file" in call("predict", fitted, wells, "--tolerance", 0.1)[2]
    assert "written as .csv" in call("predict", fitted, wells, "--out", tmp_path / "p.npz")[2]


def test_the_recipe_in_the_repository_is_read(wells: Path, tmp_path: Path) -> None:
    found = load_config(Tabular, ROOT / "recipes" / "boston_emp.toml", [f"data.name=table:{wells}", "train.epochs=1"])
    assert found.posterior.family == "emp"
    assert start(found, tmp_path)
