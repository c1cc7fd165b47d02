"""BYOV's Figure 4: which runs it takes, what it keeps of them, and its arithmetic."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from byov.data.augmentations import AUGMENTATIONS
from byov.evaluation.rows import SHIFTS
from byov.reproduce import byov_figure4 as figure4
from byov.reproduce.experiment import EXPERIMENTS, Context
from byov.reproduce.experiment import run as execute
from byov.runs import read_header
from byov.ssl.pretrain import Pretrain, restore, start
from byov.ssl.probe import ProbeSettings
from byov.train.config import from_dict


@pytest.fixture(scope="module")
def other_seed(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of BYOV once more, from another seed."""
    folder = tmp_path_factory.mktemp("runs") / "byov_7"
    recipe = read_header(runs / "byov").config
    assert start(from_dict(Pretrain, {**recipe, "train": {**recipe["train"], "seed": 7}}), folder)
    return folder


def test_it_reads_the_pairs_handed_in_and_keeps_each_part(
    runs: Path, other_seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"SPARSITIES": (0.0, 0.4, 0.7), "REFITTED": {"quick": (0.7,)}, "SEVERITIES": {"quick": (5,)}}
    for name, value in {**small, "DRAWS": 2, "FIT_DRAWS": 1}.items():
        monkeypatch.setattr(figure4, name, value)
    for user in ("byov.evaluation.pruning", "byov.runs.run"):
        monkeypatch.setattr(f"{user}.ProbeSettings", partial(ProbeSettings, l2=(1e-2,), max_iter=30))
    monkeypatch.setitem(SHIFTS, "augmentations", {name: AUGMENTATIONS[name] for name in ("shear", "gaussian_noise")})
    context = Context(tmp_path, runs=(runs / "bbb", other_seed, runs / "byol", runs / "byov"))
    content = execute(EXPERIMENTS["byov/figure4"], context)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    data, curves = content["data"], content["data"]["sweep"]["curves"]
    assert [(c["probe"], c["model"], c["by"], c["seed"], len(c["top1"])) for c in curves] == [
        (probe, *of, 0, count)
        for probe, count in (("fixed", 3), ("refitted", 1))
        for of in (("BYOV", "snr"), ("BYOV", "magnitude"), ("BYOL", "magnitude"))
    ]
    assert curves[0]["top1"][0] == curves[1]["top1"][0]
    model: Any = restore(runs / "byov")[0].student
    own = [s.log().std().item() for n, s in model.std().items() if n.startswith("encoder") and s.ndim == 4]
    assert data["sigma_spread"] == [pytest.approx(sum(own) / 3)]
    readings = {(row["model"], row["reading"]) for row in data["shifts"]}
    assert readings == {("BYOV", "at_mean"), ("BYOV", "under_draws"), ("BYOL", "at_mean")}
    assert data["shifts"][0]["shift"] == "clean"
    ours = {row["quantity"]: row["ours"] for row in content["comparisons"]}
    gain = 100 * (curves[0]["top1"][2] - curves[1]["top1"][2])
    assert ours["the same at 70% zeros"] == pytest.approx(gain)
    # A part that is there is not made again.
    part = tmp_path / "parts/prune_fixed_0.json"
    before = json.loads(part.read_text())
    before["result"]["curves"][0]["top1"][2] = 0.5
    part.write_text(json.dumps(before))
    again = execute(EXPERIMENTS["byov/figure4"], context)
    assert again["data"]["sweep"]["curves"][0]["top1"][2] == 0.5


def test_runs_without_a_partner_are_refused(runs: Path, other_seed: Path, tmp_path: Path) -> None:
    for call_with_weights in ((runs / "byov",), (other_seed, runs / "byol"), (runs / "bbb",)):
        with pytest.raises(ValueError, match=r"none of BYOV has one of BYOL with the same train\.seed"):
            figure4.pairs(Context(tmp_path, runs=call_with_weights))


def made_up(snr: tuple[float, float]) -> dict[str, Any]:
    """Two seeds; by magnitude 0.5 and 0.6, BYOL 0.4 and 0.5."""
    curves = [
        {"model": model, "by": by, "seed": seed, "probe": probe, "sparsity": [0.0, 0.7], "top1": [0.9, top1]}
        for probe in ("fixed", "refitted")
        for seed in (0, 1)
        for model, by, top1 in (
            ("BYOV", "snr", snr[seed]),
            ("BYOV", "magnitude", 0.5 + 0.1 * seed),
            ("BYOL", "magnitude", 0.4 + 0.1 * seed),
        )
    ]
    shifts = [
        {
            "model": model,
            "seed": seed,
            "shift": shift,
            "reading": "at_mean",
            "ece": ece,
            "reliability": 0.1,
            "top1": 0.9,
        }
        for seed in (0, 1)
        for model, shift, ece in (
            ("BYOV", "clean", 0.02 + 0.01 * seed),
            ("BYOL", "clean", 0.05),
            ("BYOV", "shear", 0.3),
            ("BYOL", "shear", 0.2),
        )
    ]
    return {"sweep": {"curves": curves}, "shifts": shifts, "relative": figure4.relative(shifts)}


@pytest.mark.parametrize(("snr", "verdict"), [((0.58, 0.66), "reached"), ((0.55, 0.64), "missed")])
def test_the_comparisons(snr: tuple[float, float], verdict: str) -> None:
    rows = {row.quantity: row for row in figure4.compare(made_up(snr))}
    gains = [100 * (snr[0] - 0.5), 100 * (snr[1] - 0.6)]
    at = rows["the same at 70% zeros"]
    assert at.ours == pytest.approx(sum(gains) / 2)
    assert at.error == pytest.approx(abs(gains[0] - gains[1]) / 2)  # s/√2 of two is half their distance
    assert at.verdict == f"6 wanted: {verdict}"
    best = rows["SNR over magnitude, best, points of top-1"]
    assert (best.ours, best.paper, best.verdict) == (pytest.approx(at.ours), None, "at 70% zeros")
    assert rows["SNR of BYOV over magnitude of BYOL at 70%"].ours == pytest.approx(at.ours + 10)
    for quantity, ours, paper, told in (
        ("ECE of BYOL minus BYOV, clean", 2.5, 2.83, "paper: better; same direction"),
        ("reliability of BYOL minus BYOV, clean", 0.0, 1.03, "paper: better; other direction"),
        ("ECE of BYOL minus BYOV, shear", -10, None, "paper: worse; same direction"),
    ):
        row = rows[quantity]
        assert (row.ours, row.paper, row.verdict) == (pytest.approx(ours), paper, told)
    assert "ECE of BYOL minus BYOV, gaussian noise" not in rows
    assert (rows["signs that agree, of 4"].ours, rows["signs that agree, of 4"].paper) == (3, 4)


def test_every_augmentation_has_the_sign_of_the_paper() -> None:
    """Better but for shearing and Gaussian noise (4.3, poster); +2.4 ECE and +1.2 Brier under salt and pepper."""
    signs = dict.fromkeys(("clean", *AUGMENTATIONS), 1.0) | {"shear": -1.0, "gaussian_noise": -1.0}
    rows = [{"shift": name, "reading": "at_mean", "ece": s, "reliability": s} for name, s in signs.items()]
    *found, last = figure4.signs(rows)
    assert len(found) == 2 * (1 + len(AUGMENTATIONS)) == last.ours == last.paper
    assert last.verdict == "all signs as in the paper"
    paper = {row.quantity.removesuffix(", salt and pepper"): row.paper for row in found if "pepper" in row.quantity}
    assert paper == {"ECE of BYOL minus BYOV": 2.4, "reliability of BYOL minus BYOV": 1.2}


def test_a_sparser_model_by_snr_beside_one_by_magnitude() -> None:
    """By hand: by SNR 0.7 at 75 % zeros, on a line between two points; by magnitude 0.6 at 50 %."""
    curves = [
        {"model": "BYOV", "by": by, "sparsity": [0.0, 0.5, 0.7, 0.9], "top1": [t + 0.1 * seed for t in top1]}
        for by, top1 in (("snr", [0.9, 0.85, 0.8, 0.4]), ("magnitude", [0.9, 0.6, 0.3, 0.1]))
        for seed in (0, 1)
    ]
    assert figure4.sparser_by(curves, 0.25) == (pytest.approx(100 * (0.7 - 0.6)), 0.5)
    assert figure4.sparser_by(curves, 0.4) == (pytest.approx(-4.0), 0.0)  # 0.86 at 40 %, where 0.9 is all


def test_under_draws_the_signs_are_counted_and_the_paper_s_numbers_compared() -> None:
    gains = {"clean": 1.0, "salt_and_pepper": -1.0, "shear": -1.0, "mean": 0.5}
    rows = [
        {"shift": name, "reading": reading, "ece": gain, "reliability": gain}
        for reading, factor in (("at_mean", -1.0), ("under_draws", 1.0))
        for name, gain in ((name, factor * value) for name, value in gains.items())
    ]
    found = {row.quantity: row for row in figure4.signs(rows)}
    assert len(found) == 9 + 7  # four shifts and their count at μ; under draws two with the paper's numbers, the mean
    assert (found["signs that agree, of 8"].ours, found["signs that agree, of 8, under draws"].ours) == (2, 6)
    clean = found["ECE of BYOL minus BYOV, clean, under draws"]
    assert (clean.ours, clean.paper, clean.verdict) == (1.0, 2.83, "paper: better; same direction")
    assert found["ECE of BYOL minus BYOV, mean, under draws"].ours == 0.5
