"""byov reproduce defaults: its sets, its numbers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scipy import stats

from byov.reproduce import defaults, defaults_cifar, defaults_methods
from byov.reproduce.defaults_methods import METHODS, Read
from byov.reproduce.defaults_scores import regressed, uncertainties
from byov.reproduce.defaults_sets import Place
from byov.reproduce.experiment import Context
from byov.train.config import load_config
from byov.train.supervised import Supervised

DIGITS = Place("digits", 0, None)


def test_a_task_is_cut_without_overlap_and_other_data_have_its_marginals() -> None:
    task = DIGITS.task()
    assert (len(task.x), len(task.held_x), len(task.test_x)) == (1212, 135, 450)
    rows = {tuple(row) for row in task.x.flatten(1).tolist()}
    assert sum(tuple(row) in rows for row in task.held_x.flatten(1).tolist()) == 0
    flat, other = task.test_x.flatten(1), task.other.flatten(1)
    assert torch.equal(flat.sort(0).values, other.sort(0).values)
    assert not torch.equal(flat, other)
    once, again = task.shifted(task.test_x), task.shifted(task.test_x)
    assert len(once) == 5
    assert all(torch.equal(a, b) and not torch.equal(a, task.test_x) for a, b in zip(once, again, strict=True))


def test_a_regression_is_calibrated_where_its_quantiles_are() -> None:
    y = torch.tensor(stats.norm.ppf((torch.arange(2000).numpy() + 0.5) / 2000), dtype=torch.float32)[:, None]
    right, narrow = (regressed(torch.zeros(3, 2000, 1), precision, y) for precision in (1.0, 25.0))
    assert right["ece"] < 1e-3
    assert right["error"] == pytest.approx(1.0, abs=5e-3)
    assert right["nll"] == pytest.approx(stats.norm.entropy(), abs=5e-3)
    levels = torch.arange(1, 20).double() / 20  # a σ of 1/5 puts its p-quantile at Φ⁻¹(p)/5
    exact = (torch.special.ndtr(torch.special.ndtri(levels) / 5) - levels).abs().mean()
    assert narrow["ece"] == pytest.approx(float(exact), abs=2e-3)


def test_draws_that_disagree_have_information() -> None:
    sure = torch.eye(2)[:, None].expand(2, 4, 2)  # two draws, each certain of another class
    total, information = uncertainties(sure, regression=False)
    torch.testing.assert_close(total, torch.full((4,), 2.0).log())
    torch.testing.assert_close(information, total)
    assert uncertainties(torch.tensor([[[0.0]], [[2.0]]]), regression=True)[0].tolist() == [1.0]


def test_every_method_is_read_and_a_temperature_changes_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults_methods, "STEPS", 4)
    monkeypatch.setattr(defaults_methods, "DRAWS", 2)
    defaults._followed.cache_clear()
    defaults._read.cache_clear()
    found = defaults.measure(DIGITS, 0)
    assert tuple(found) == METHODS
    assert found["plain"]["information"] == 0.0 < found["Gaussian"]["information"]
    assert found["plain"]["test_error"] == found["plain + temperature"]["test_error"]
    assert found["plain + temperature"]["held_nll"] <= found["plain"]["held_nll"] + 1e-6
    members = [defaults._read(DIGITS, i, "plain") for i in range(5)]
    mean = torch.stack([member.parts["test"][0][0] for member in members]).mean(0)
    truth = mean.gather(1, DIGITS.task().test_y[:, None]).log().mean()
    assert found["ensemble of 5"]["test_nll"] == pytest.approx(-float(truth), rel=1e-5)
    assert Read.ensemble([Read({}, 1.0), Read({}, 0.25)]).precision == pytest.approx(1 / 2.5)


def test_a_part_of_an_older_byov_is_measured_again_with_all_methods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def measure(place: Place, seed: int) -> dict[str, dict[str, float]]:
        asked.append(seed)
        return {method: {"test_nll": float(seed)} for method in METHODS}

    context = Context(tmp_path)
    about = {**defaults.settings(), "set": "digits", "split": 0}
    context.kept("digits_seed0", about, lambda: {"plain": {"test_nll": 9.0}})  # before there was SWAG
    monkeypatch.setattr(defaults, "measure", measure)
    found = defaults.readings(context, "digits")
    assert asked == [0, 1, 2, 3, 4]
    assert {len(scores) for scores in found.values()} == {5}
    assert defaults.difference(found, defaults.DEFAULT, "plain", "test_nll")[0] == 0.0
    assert defaults.readings(context, "digits") == found
    assert len(asked) == 5  # kept now


def test_a_difference_counts_beyond_its_error() -> None:
    assert [defaults.worded(gain, 0.1) for gain in (-0.2, 0.05, 0.2)] == ["better", "no different", "worse"]
    found = {"a": [{"x": 1.0}, {"x": 2.0}, {"x": 6.0}], "b": [{"x": 0.0}, {"x": 0.0}, {"x": 0.0}]}
    gain, error = defaults.difference(found, "a", "b", "x")
    assert (gain, error) == (3.0, pytest.approx((7 / 3) ** 0.5))
    gain, error = defaults.difference({"a": [{"x": 1.0}], "b": [{"x": 3.0}]}, "a", "b", "x")
    assert (gain, defaults.known(error), defaults.worded(gain, error)) == (-2.0, None, "lower, one seed")


def test_cifar_is_refused_on_a_cpu(call: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    status, _, err = call("reproduce", "defaults", "--scale", "full", "--device", "cpu", "--out", str(tmp_path / "out"))
    assert status == 2
    assert "needs a GPU" in err


def test_cifar_s_methods_are_recipes_and_the_default_is_among_them() -> None:
    for method, changes in defaults_cifar.CHANGES.items():
        words = [f"posterior.{change}" for change in changes]
        posterior = load_config(Supervised, defaults_cifar.RECIPE, words).posterior
        assert posterior.points, method  # all have the recipe's decay
    assert defaults.DEFAULT in defaults_cifar.CHANGES
