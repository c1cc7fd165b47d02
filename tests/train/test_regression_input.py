"""Regression on a table of one's own: what the fitter does not have is said, and what the document shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import byov
from byov.cli import app
from byov.posterior import Family
from byov.train.regression import Fitted, Settings, fit

SHORT = Settings(hidden=3, epochs=2, batch=10)
X, Y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30.0)
PATCHING = Path(__file__).parents[2] / "docs" / "patching.md"


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        (byov.EMP(5, learn_probs=True), "probabilities are fixed: EMP takes no learn_probs"),
        (byov.Ensemble(5, learn_probs=True), "probabilities are fixed: Ensemble takes no learn_probs"),
        (byov.EMP(5, spread=0.9), r"start at Settings\.gamma and 0: EMP takes no spread"),
        (byov.ECMP(5, spread=0.1), r"start at Settings\.gamma and 0: ECMP takes no spread"),
        (byov.Ensemble(5, spread=0.1), "start anew, each from a seed of its own: Ensemble takes no spread"),
        (byov.EMP(5, start="reset"), "EMP takes no start='reset'"),
        (byov.ECMP(5, start="reset"), "ECMP takes no start='reset'"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(family: Family, sentence: str) -> None:
    for given in (family, {"plain": byov.EMP(5), "other": family}):
        with pytest.raises(ValueError, match=sentence):
            fit(X, Y, given, settings=SHORT)


def test_settings_that_it_has_are_taken() -> None:
    """Mixing probabilities change the draws; an ensemble's members start anew, which is what `start="reset"` says."""
    plain = fit(X, Y, byov.EMP(2), settings=SHORT).predict(X, samples=50)
    tilted = fit(X, Y, byov.EMP(2, probs=(0.9, 0.1)), settings=SHORT).predict(X, samples=50)
    assert not torch.equal(plain, tilted)
    for family in (byov.Ensemble(3), byov.Ensemble(3, start="reset")):
        first = fit(X, Y, family, settings=SHORT).splits[0].first
        assert len({tuple(member.flatten().tolist()) for member in first}) == 3


def test_the_tables_of_the_paper_are_fitted_as_before() -> None:
    from byov.reproduce.patching_table12 import FAMILIES

    assert fit(X, Y, FAMILIES, settings=SHORT).keys() == FAMILIES.keys()


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(X, Y, byov.EMP(2), settings=SHORT)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_training_refuses_is_not_predicted(fitted: Fitted, value: float) -> None:
    holes = X.copy()
    holes[4, 1] = holes[7, 0] = value
    sentence = "2 rows have a missing or infinite value, the first is row 4"
    with pytest.raises(ValueError, match=sentence):
        fit(holes, Y, byov.EMP(2), settings=SHORT)
    with pytest.raises(ValueError, match=sentence):
        fitted.predict(holes, samples=3)
    assert fitted.predict(X, samples=3).isfinite().all()


@pytest.mark.parametrize("device", ["cuda:99", torch.device("cuda", 99), "nowhere"])
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(ValueError, match=f"There is no device '{device}' here"):
        fit(X, Y, byov.EMP(2), settings=SHORT, device=device)


def test_the_device_is_the_one_asked_for() -> None:
    place = fit(X, Y, byov.EMP(2), settings=SHORT, device="auto").splits[0].device.type
    assert place == ("cuda" if torch.cuda.is_available() else "cpu")
    assert fit(X, Y, byov.EMP(2), settings=SHORT, device=torch.device("cpu")).splits[0].device.type == "cpu"


def test_numbers_alone_are_one_split() -> None:
    some = torch.arange(5, 25)
    wanted = fit(X, Y, byov.EMP(2), [some], settings=SHORT)
    alone: list[Any] = [some, some.to(torch.uint8), some.numpy(), some.tolist()]
    for rows in alone:
        got = fit(X, Y, byov.EMP(2), rows, settings=SHORT)
        assert len(got.splits) == 1
        assert torch.equal(got.predict(X, samples=4), wanted.predict(X, samples=4))
    assert len(fit(X, Y, byov.EMP(2), torch.arange(30).view(2, 15), settings=SHORT).splits) == 2


@pytest.mark.parametrize(
    "rows", [torch.rand(20), [torch.rand(20)], [torch.ones(30, dtype=torch.bool)], [torch.zeros(2, 10).long()]]
)
def test_rows_that_are_no_indices(rows: Any) -> None:
    with pytest.raises(ValueError, match="rows are indices, a list or 1-D tensor of whole numbers, not torch"):
        fit(X, Y, byov.EMP(2), rows, settings=SHORT)
    with pytest.raises(ValueError, match="0 to 29"):
        fit(X, Y, byov.EMP(2), [[]], settings=SHORT)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a.csv", "data/A.TSV", "a.txt", "table:a.npz", "table:a.csv"])
def test_a_table_is_no_set_of_images(name: str, tmp_path: Path) -> None:
    sentence = r"byov train takes a table as data\.name = 'table:FILE', Python by byov\.data\.table\."
    with pytest.raises(ValueError, match=sentence):
        byov.data.load(name)
    sentence = "is not a file" if name.startswith("table:") else sentence
    done = CliRunner().invoke(app, ["train", "--run", str(tmp_path / "run"), "--set", f"data.name={name}"])
    assert isinstance(done.exception, ValueError)  # `byov` prints it as one line
    assert re.search(sentence, str(done.exception))


def test_the_table_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It writes a file, so it runs in a folder of its own; and the network learns what the table holds."""
    (section,) = re.findall(r"^## A table of numbers\n(.*?)^## ", PATCHING.read_text(), re.M | re.S)
    (block,) = re.findall(r"^```py\n(.*?)^```", section, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "byov": byov}  # imported by the page's first block
    exec(compile(block, "docs/patching.md", "exec", dont_inherit=True), names)
    assert [path.name for path in tmp_path.iterdir()] == ["wells.csv"]
    scores = re.findall(r"RMSE ([\d.]+), log density (-?[\d.]+)", capsys.readouterr().out)
    assert len(scores) == 5
    assert max(float(error) for error, _ in scores) < 0.5 * float(names["y"].std())
    assert min(float(density) for _, density in scores) > -10
