"""Tables 12 and 13: the paper's numbers as printed, the scores, and a run that goes on where it stopped."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byov.data.tables import Table, uci
from byov.reproduce import patching_table12 as table
from byov.reproduce.experiment import EXPERIMENTS, Context
from byov.train.regression import Settings

RESULTS = Path(__file__).parents[2] / "results" / "regression"


def test_both_tables_come_from_the_same_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three small tables under the names of the quick ones, with settings that take a second."""
    folder, out, rng = tmp_path / "uci", tmp_path / "out", np.random.default_rng(0)
    folder.mkdir()
    for name, targets in (("boston", 1), ("yacht", 1), ("energy", 2)):
        X = rng.normal(size=(60, 3))
        y = X @ rng.normal(size=(3, targets)) * 5 + 20
        splits = np.stack([rng.permutation(60) for _ in range(6)])
        other = {"y_other": y[:, 1:]} if targets > 1 else {}
        np.savez(folder / f"{name}.npz", X=X, y=y[:, 0], split_train=splits[:, :50], split_test=splits[:, 50:], **other)
    trained, train = [], table.fit
    monkeypatch.setattr(table, "Settings", partial(Settings, epochs=8, batch=25))
    monkeypatch.setattr(table, "DRAWS", 50)
    monkeypatch.setattr(table, "fit", lambda X, *rest: trained.append(len(X)) or train(X, *rest))
    first = EXPERIMENTS["patching/table12"].run(Context(out / "table12", root=str(tmp_path)))
    assert len(trained) == 3
    (out / "regression" / "parts" / "energy.json").unlink()  # as if it had been interrupted there
    second = EXPERIMENTS["patching/table13"].run(Context(out / "table13", root=str(tmp_path)))
    assert len(trained) == 4
    sets = first.data["sets"]
    assert json.dumps(sets) == json.dumps(second.data["sets"])
    assert list(sets) == ["Boston", "Energy", "Yacht"]
    assert sets["Energy"]["targets"] == 2
    for method in (part["methods"][name] for part in sets.values() for name in table.FAMILIES):
        assert [len(values) for values in method.values()] == [5, 5, 5]
        assert set(method["weight_decay"]) <= set(table.DECAYS)
    assert len(first.comparisons) == len(second.comparisons) == 12 + 1
    assert first.figure is not None
    assert [c.paper for c in first.comparisons if c.quantity == "Yacht, Ensemble"] == [29.48]


def test_scores_are_those_of_a_closed_form() -> None:
    """Draws that agree: the log density of N(target | prediction, 10), target by target; the RMSE over all entries."""
    target = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    error = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    got = table.scores((target + error).expand(7, 2, 2), target)
    assert got["rmse"] == pytest.approx(math.sqrt((1 + 4 + 9) / 4))
    best = -0.5 * math.log(2 * math.pi * 10)
    assert got["lpd"] == pytest.approx(best - 0.05 * (1 + 4 + 9) / 4)
    assert best == pytest.approx(-2.07, abs=0.001)  # what the paper has on Kin8nm and Naval: τ is at the data's scale


def test_the_papers_numbers() -> None:
    """As printed: Table 13's never exceed what τ = 0.1 allows, and fit Table 12's where the draws hardly differ."""
    titles = ["Boston", "Concrete", "Energy", "Kin8nm", "Naval", "Power", "Protein", "WineRed", "Yacht", "Year"]
    assert [entry.title for entry in table.ENTRIES if not entry.last] == titles
    for entry in table.ENTRIES:
        assert len(entry.rmse) == len(entry.lpd) == 4
        assert all(density <= -2.07 for density, _ in entry.lpd)
        for method in table.JUDGED if entry.title in ("Energy", "Power", "Protein") else ():
            (rmse, _), (density, _) = entry.paper("rmse", method), entry.paper("lpd", method)
            assert density == pytest.approx(-2.07 - 0.05 * rmse**2, abs=0.05)


@pytest.mark.parametrize(
    ("values", "score", "verdict"),
    [
        ([3.0, 3.2, 3.1], "rmse", "reached"),
        ([3.8, 3.7, 3.75], "rmse", "reached"),  # 3.75 against 3.48 ± 0.18
        ([4.0, 4.0, 4.0], "rmse", "missed"),
        ([-2.5, -2.4, -2.6], "lpd", "reached"),
        ([-2.8, -2.8, -2.8], "lpd", "missed"),  # -2.65 ± 0.05
    ],
)
def test_verdicts(values: list[float], score: Any, verdict: str) -> None:
    boston = table.ENTRIES[0]
    got = table.compare(boston, "ECMP", score, {"methods": {"ECMP": {score: values}}})
    assert got.verdict == verdict
    assert got.error == pytest.approx(np.std(values, ddof=1) / 3**0.5)


@pytest.mark.parametrize(("score", "claimed", "ours"), [("rmse", 8, 2), ("lpd", 9, 4)])
def test_on_how_many_sets_emp_or_ecmp_is_best(score: Any, claimed: int, ours: int) -> None:
    """D.7 says 8 of 10 and 9 of 10; its Table 13 has 8. Ours, from the scores in results/: the ensemble wins."""
    entries = {entry.title: entry for entry in table.ENTRIES if not entry.last}
    printed = {t: {m: e.paper(score, m)[0] for m in table.FAMILIES} for t, e in entries.items()}
    best = {title: table.best_of(means, score) for title, means in printed.items()}
    own = table.claim(entries, best, score)
    assert (own.ours, own.paper, own.verdict) == (8, 8, f"holds: 8 in the paper's table; it says {claimed} of 10")
    assert {t for t, methods in best.items() if not set(methods) & set(table.JUDGED)} == {"Power", "Year"}
    assert best["Kin8nm"] == list(table.FAMILIES)  # all tie
    sets: dict[str, Any] = {}
    for path in RESULTS.glob("full_*.json"):
        sets |= json.loads(path.read_text())["result"]["sets"]
    means = {title: table.entry_means(sets[title], score) for title in entries if title in sets}
    found = table.claim(entries, {title: table.best_of(each, score) for title, each in means.items()}, score)
    assert (found.quantity[-11:], found.paper) == (": sets of 9", 8)
    assert found.ours == ours
    assert found.verdict.startswith("does not hold")


def test_the_other_reading_of_protein() -> None:
    """The last feature becomes the target, and the usual target the first feature."""
    X, y = torch.arange(12.0).view(4, 3), torch.tensor([50.0, 51, 52, 53])
    data = Table("t", X, y, ((torch.arange(3), torch.arange(3, 4)),), y_other=y[:, None] * 2)
    entry = next(e for e in table.ENTRIES if e.last)
    inputs, target = table.columns(data, entry)
    assert target[:, 0].tolist() == [2, 5, 8, 11]
    assert inputs[1].tolist() == [51, 3, 4]
    assert table.columns(data, table.ENTRIES[0])[1][1].tolist() == [51, 102]


@pytest.mark.data
@pytest.mark.slow
def test_yacht_reaches_the_paper(real_data: Path) -> None:
    """A tenth of the paper's epochs is enough on two splits: EMP and ECMP are below its RMSE of 1.6."""
    try:
        data = uci("yacht", real_data)
    except ValueError as error:
        pytest.skip(str(error))
    families = {name: table.FAMILIES[name] for name in table.JUDGED}
    rows = [train for train, _ in data.splits[:2]]
    fitted = table.fit(data.X, data.y, families, rows, settings=Settings(epochs=1000, weight_decay=1e-4))
    for posterior in fitted.values():
        for i, (_, test) in enumerate(data.splits[:2]):
            assert table.scores(posterior.predict(data.X[test], i, 1000), data.y[test, None])["rmse"] < 1.6
