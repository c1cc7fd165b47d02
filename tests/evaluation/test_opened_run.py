"""`byov.open`: a command's run in Python says what the command says, of files, tensors and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import byov
from byov.data import load
from byov.evaluation.opened_run import Opened, OpenedTable
from byov.runs import Reading, open_run
from byov.train.config import load_config
from byov.train.tabular import Tabular, start

SMALL = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1"]


def opened(path: Path, **reading: Any) -> Opened:
    run = byov.open(path, device="cpu", **reading)
    assert isinstance(run, Opened)
    return run


def test_a_classifier_predicts_files_tensors_and_sets(runs: Path, tmp_path: Path) -> None:
    run, digits = opened(runs / "bbb", samples=4, seed=3), load("digits", "test")
    images = digits.images[:3]
    for i, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(tmp_path / f"{i}.png")
    assert isinstance(run.model, byov.BayesianModule)
    assert not run.model.training
    assert run.classes == tuple("0123456789")
    expected = open_run(runs / "bbb", Reading(samples=4, seed=3)).draws(images.float() / 255).mean(0)
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for x in (images, images.float() / 255, images.numpy(), files, tmp_path, digits.subset(torch.arange(3))):
        found = run.predict(x)
        assert found.samples == 4
        torch.testing.assert_close(found.mean, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(run.predict(str(files[1]), 4).mean, expected[1:2], rtol=1e-4, atol=1e-6)
    assert run.predict("digits", 1).mean.shape == (450, 10)
    standardised = (images.float() / 255 - run.run.normalisation["mean"][0]) / run.run.normalisation["std"][0]
    at_mean = run.model(standardised).softmax(1)
    torch.testing.assert_close(run.predict(images, 0).mean, at_mean, rtol=1e-4, atol=1e-6)


def test_a_run_s_network_travels(runs: Path, tmp_path: Path) -> None:
    run = opened(runs / "bbb")
    run.model.save_pretrained(tmp_path, recipe=run.recipe)
    loaded = byov.load(tmp_path)
    x = torch.randn(2, 1, 8, 8)
    a, b = (byov.predict(m, x, 3, generator=torch.Generator().manual_seed(0)).mean for m in (run.model, loaded))
    assert torch.equal(a, b)


def test_a_probe_predicts_for_a_pretraining_run(runs: Path) -> None:
    run = opened(runs / "byov", samples=2, fit_samples=1, train_limit=300)
    images = load("digits", "test").images[:5]
    expected = open_run(runs / "byov", Reading(samples=2, fit_samples=1, train_limit=300)).predictor(images / 255, 2)
    torch.testing.assert_close(run.predict(images).mean, expected.mean)
    assert run.classes == tuple("0123456789")
    assert run.recipe is None


def test_a_table_is_predicted_at_its_own_scale(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i * i % 7},{1000 + 10 * i}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + rows)
    settings = [*SMALL, f"data.name=table:{tmp_path / 'rows.csv'}", "train.batch=8", "model.hidden=4"]
    assert start(load_config(Tabular, None, settings), tmp_path / "table")
    run = byov.open(tmp_path / "table", device="cpu")
    assert isinstance(run, OpenedTable)
    assert run.columns == ("a", "b")
    found = run.predict(tmp_path / "rows.csv", 5)
    assert found.mean.shape == (40, 1)
    assert 1000 < found.mean.mean() < 1400
    torch.testing.assert_close(found.std.square(), found.aleatoric + found.epistemic)
    torch.testing.assert_close(run.predict([[3.0, 2.0]], 5).mean, found.mean[3:4])


def test_bad_input_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    run = opened(runs / "plain")
    (tmp_path / "broken.png").write_text("no image")
    for x, sentence in (
        (tmp_path / "none.png", "There is no picture at"),
        (tmp_path / "broken.png", "cannot be read"),
        ([tmp_path / "broken.png", "digits"], "digits is not an image"),
        (torch.zeros(3, 8, 8), r"images \(N, C, H, W\)"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            run.predict(x)
    with pytest.raises(ValueError, match="There is no run at"):
        byov.open(tmp_path)
