"""BYOV's figures about the posterior, on runs of a few steps: what is trained, kept, compared and drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from byov.evaluation import LayerHistory
from byov.reproduce import byov_accuracy, byov_posterior, byov_runs
from byov.reproduce.byov_runs import byov_run, pretrained, supervised
from byov.reproduce.experiment import Context, Outcome, OutOfTime
from byov.reproduce.recipes import load_here
from byov.runs import Reading, read_header
from byov.ssl.pretrain import Pretrain, start

TINY = ("train.epochs=1", "train.warmup=0", "data.holdout=0.8")


def few(**settings: Any) -> Reading:
    """Probes are fitted on a hundred images under two draws."""
    return Reading(**{**settings, "train_limit": 100, "fit_samples": 2})


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Everything at scale quick, but with a handful of steps, draws and bootstraps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(byov_runs.BETAS, "quick", (0.05, 0.1))
        patch.setattr(byov_accuracy, "ROWS", (*byov_accuracy.ROWS[1:3], byov_accuracy.ROWS[6]))
        patch.setattr(byov_runs, "Reading", few)
        patch.setitem(byov_posterior.ALIGNED_DRAWS, "quick", 4)
        patch.setitem(byov_posterior.CONVERGENCE_LIMIT, "quick", 30)
        for module in (byov_posterior, byov_accuracy):
            patch.setattr(module, "BOOTSTRAPS", 4)
        patch.setattr(byov_posterior, "CONVERGENCE_DRAWS", 4)
        patch.setattr(byov_posterior, "NOISE_DRAWS", 3)
        patch.setattr(byov_accuracy, "DRAWS", 3)
        yield Context(tmp_path_factory.mktemp("out") / "byov" / "any", changes=TINY)


def checked(outcome: Outcome) -> Outcome:
    json.dumps(outcome.data, allow_nan=False)
    assert outcome.figure is not None
    assert outcome.comparisons
    assert all(isfinite(c.ours) and (c.error is None or isfinite(c.error)) for c in outcome.comparisons)
    return outcome


def trained(context: Context) -> dict[str, int]:
    """Each run's folder, and when it was last written."""
    return {p.parent.name: p.stat().st_mtime_ns for p in (context.out.parent / "runs").rglob("checkpoint.safetensors")}


def test_figures_share_their_runs(context: Context) -> None:
    """Figure 6's β and Figure 3's priors are cells of Figure 2's grid, and its N(0, I) is everybody's."""
    assert all(byov_runs.own_beta(scale) in betas for scale, betas in byov_runs.BETAS.items())
    checked(byov_posterior.figure6(context))
    three = checked(byov_posterior.figure3(context))
    assert list(three.data["layers"]) == ["N(0, I)", "N(μ_T, I)", "N(μ_T, Σ_T)"]
    before = trained(context)
    assert set(before) == {f"byov{n}_seed0" for n in ("", "_beta0.05", "_teacher-mean", "_teacher-normal")}

    two = checked(byov_accuracy.figure2(context))
    after = trained(context)
    assert {name: after[name] for name in before} == before
    new = {"byol_seed0", "byov_teacher-mean_beta0.05_seed0", "byov_teacher-normal_beta0.05_seed0"}
    assert set(after) - set(before) == new
    assert set(two.data["byov"]) == {"normal", "teacher-mean", "teacher-normal"}
    assert all(set(cells) == {"0.05", "0.1"} for cells in two.data["byov"].values())
    best = max(cells[beta]["top1"][0] for cells in two.data["byov"].values() for beta in cells)
    first = next(c for c in two.comparisons if c.quantity.startswith("best, top-1"))
    assert first.ours == pytest.approx(100 * (best - two.data["byol"]["top1"][0]))
    assert first.paper == -0.4

    assert byov_accuracy.figure2(context).data == two.data
    assert trained(context) == after  # nothing is trained twice


def test_the_figures_about_draws(context: Context) -> None:
    one = checked(byov_posterior.figure1b(context))
    assert [a["log"] for a in one.data["alignment"]] == [False, True]
    twin = read_header(supervised(context, "supervised_twin", "posterior.beta_end=0.1"))
    assert twin.config["posterior"]["beta_end"] == 0.1  # the same β as BYOV's, as in the paper
    five = checked(byov_posterior.figure5(context))
    assert set(five.data["convergence"]["BYOV"]) >= {"clean", "gaussian_noise", "salt_and_pepper", "shear"}
    seven = checked(byov_posterior.figure7(context))
    assert seven.data["noise"]["BYOV"]["stages"] == ["encoder", "projector", "predictor"]


def test_table_1_leaves_parts_as_points(context: Context) -> None:
    outcome = checked(byov_accuracy.table1(context))
    assert [row["paper"]["top1"] for row in outcome.data["rows"]] == [73.68, 73.97, 72.60]
    assert [c.paper for c in outcome.comparisons] == pytest.approx([-2.29, -0.97, -2.0, -0.88, -3.37, -1.48])
    run = context.out.parent / "runs" / "quick" / "vit_no-norm-no-conv_normal_rising_seed0"
    layers = json.loads((run / "layers.jsonl").read_text().splitlines()[0])["layers"]
    assert not any("norm" in layer or "patch_embed" in layer for layer in layers)
    assert any("qkv" in layer for layer in layers)
    constant = read_header(run.with_name("vit_linear-only_normal_constant_seed0")).config["posterior"]
    assert (constant["beta_start"], constant["beta_schedule"]) == (constant["beta_end"], "constant")


def test_a_run_that_stopped_is_taken_up_and_another_recipe_is_refused(context: Context) -> None:
    with pytest.raises(OutOfTime):
        pretrained(replace(context, deadline=monotonic()), "stopped")
    assert "stopped_seed0" not in trained(context)  # nothing is begun after the deadline
    run = context.out.parent / "runs" / "quick" / "stopped_seed0"
    recipe = load_here(context, Pretrain, "digits_byov")
    assert not start(replace(recipe, train=replace(recipe.train, minutes=1e-9)), run)  # as far as the time allowed
    assert not read_header(run).finished
    assert pretrained(context, "stopped") == run
    assert read_header(run).finished
    assert pretrained(replace(context, deadline=monotonic()), "stopped") == run  # nothing to do takes no time
    with pytest.raises(ValueError, match=r"was trained with posterior\.beta_end = 0\.1, not 0\.5"):
        pretrained(context, "stopped", "posterior.beta_end=0.5")


def test_a_probe_trusts_the_code_of_the_users_runs(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """`byov reproduce --run RUN --trust` said so to every reader of a run except the probe of Figure 2 and Table 1."""
    said: list[bool] = []

    def probe_run(run: Path, **settings: Any) -> None:
        said.append(settings["trust"])
        raise InterruptedError

    monkeypatch.setattr(byov_accuracy, "probe_run", probe_run)
    run = byov_run(context)
    for trust in (False, True):
        own = replace(context, trust=trust, out=context.out.parent / "trusting")
        with pytest.raises(InterruptedError):
            byov_accuracy.measured(own, f"trust_{trust}", run)
    assert said == [False, True]


def test_runs_that_are_handed_in_are_used(context: Context) -> None:
    byov, mean = byov_run(context), byov_run(context, "teacher-mean")
    labelled = supervised(context)
    given = replace(context, runs=(labelled, mean, byov), out=context.out.parent / "given")
    before = trained(context)
    assert (byov_run(given), byov_run(given, "teacher-mean"), supervised(given)) == (byov, mean, labelled)
    outcome = checked(byov_posterior.figure3(given))
    assert list(outcome.data["layers"]) == ["N(μ_T, I), β: 0 → 0.1", "N(0, I), β: 0 → 0.1"]
    assert trained(context) == before
    with pytest.raises(ValueError, match=r"None of the runs given is of byov pretrain with posterior\.coverage = all"):
        byov_run(replace(given, runs=(labelled,)))
    with pytest.raises(ValueError, match=r"None of the runs given is of byov pretrain with a posterior\."):
        byov_posterior.figure3(replace(given, runs=(labelled,)))


def test_how_far_two_histories_end_apart() -> None:
    def one(last: list[float]) -> LayerHistory:
        values: Any = [[1.0, value] for value in last]
        return LayerHistory([0, 1], [0.0, 1.0], ["a", "b"], [1, 1], values, values, values, values)

    assert byov_posterior.log_ratio(one([1.0, 1.0]), one([10.0, 0.001]), "snr_mean") == pytest.approx(2.0)
    assert byov_posterior.log_ratio(one([1.0, 1.0]), one([10.0, 0.001]), "sigma_max", ["a"]) == pytest.approx(1.0)
    assert byov_posterior.log_ratios(one([1.0, 1.0]), one([10.0, 0.001]), "snr_mean") == pytest.approx([1.0, -3.0])


def test_less_is_better_for_calibration_and_more_for_accuracy() -> None:
    def scores(**values: float) -> dict[str, list[float]]:
        return {score: [values.get(score, 0.5), 0.001] for score in byov_accuracy.SHOWN}

    byol = scores(top1=0.9, ece=0.05, reliability=0.04)
    own = scores(top1=0.8, ece=0.02, reliability=0.09)
    grid = {"normal": {"0.1": own, "1": scores(top1=0.7, ece=0.08)}}
    rows = {row.quantity: row for row in byov_accuracy.compare(byol, grid, own)}
    for name, gain, verdict in (("top-1 %", -10, "worse"), ("ECE %", 3, "better"), ("reliability × 100", -5, "worse")):
        best, mine = (rows[f"{which}, {name}: better than BYOL by"] for which in ("best", "N(0, I)"))
        assert best.ours == mine.ours == pytest.approx(gain)
        assert mine.verdict == verdict
    assert byov_accuracy.verdict(0.1, 0.1, 2.83) == "no clear difference"
    assert byov_accuracy.verdict(1.0, 0.1, 2.83) == "as in the paper"
    assert byov_accuracy.verdict(-1.0, 0.1, 2.83) == "opposite to the paper"


@pytest.mark.slow
@pytest.mark.data
def test_people_beside_models(context: Context, real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real CIFAR-10 and CIFAR-10H, with models of a few steps."""
    if not (real_data / "cifar10h.npz").is_file() or not (real_data / "cifar10.npz").is_file():
        pytest.skip(f"cifar10.npz and cifar10h.npz are not in {real_data}; set BYOV_DATA to a folder that has them")
    small = ("data.image_size=8", "data.holdout=0.98", "train.epochs=1", "train.warmup=0")
    monkeypatch.setitem(byov_posterior.HUMAN_LIMITS, "quick", {"limit": 300, "train_limit": 300})
    monkeypatch.setitem(byov_posterior.HUMAN_DRAWS, "quick", 3)
    monkeypatch.setattr(byov_runs, "Reading", Reading)
    found = checked(byov_posterior.humans(replace(context, root=str(real_data), changes=small))).data["humans"]
    assert set(found) == {"BYOL", "BYOV", "supervised BBB"}
    without, drawn = {"entropy_at_mean", "augmented_spread_encoder"}, {"entropy", "mutual_information", "std"}
    assert set(found["BYOL"]["spearman"]) >= without
    assert not set(found["BYOL"]["spearman"]) & drawn  # BYOL has nothing to draw from
    assert set(found["BYOV"]["spearman"]) > without | drawn
    assert found["BYOV"]["images"] == 300


def test_a_part_is_not_begun_after_the_deadline_and_data_are_looked_for_in_the_context_s_folder(tmp_path: Path) -> None:
    late = Context(tmp_path, deadline=0.0, root="elsewhere")
    with pytest.raises(OutOfTime):
        late.kept("part", {}, dict)
    replace(late, deadline=None).kept("part", {}, dict)
    assert late.kept("part", {}, dict) == {}  # what is there takes no time
    assert load_here(late, Pretrain, "digits_byov").data.root == "elsewhere"
