"""R-AUROC of a run by measure: against the metrics themselves, with errors, and in `byov explore` and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Generator

import byov
from byov.evaluation.explore import explore, explore_runs
from byov.evaluation.retrieval import detection, retrieval, run_measures
from byov.metrics import functional as F
from byov.report.figures import EXPLORED
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained
from byov.ssl.pretrain import Pretrain, start
from byov.train.config import load_config

SMALL = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1", "data.holdout=0.8"]
READING = Reading(samples=3, limit=60, train_limit=80)
DRAWN = {f"{what}_{stage}" for what in ("spread", "variance") for stage in ("encoder", "projector", "predictor")}
AUGMENTED = {f"augmented_spread_{stage}" for stage in ("encoder", "projector", "predictor")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, recipes = tmp_path_factory.mktemp("runs"), Path(__file__).parents[2] / "recipes"
    for name in ("byov", "byol"):
        assert start(load_config(Pretrain, recipes / f"digits_{name}.toml", SMALL), folder / name)
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Noise with labels, in an .npz of plain arrays."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, size=(50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", test_images=images, test_labels=random.integers(0, 3, 50))
    return tmp_path / "noise.npz"


def problem(count: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=generator)
    embeddings = torch.randn(count, 4, generator=generator) + 1.5 * torch.eye(3, 4)[labels]
    return torch.rand(count, generator=generator), embeddings, labels


def test_it_is_the_metrics_with_their_errors() -> None:
    uncertainty, embeddings, labels = problem()
    right = F.recall_at_1(embeddings, labels)
    found = retrieval({"spread_encoder": uncertainty}, embeddings, labels, bootstraps=300)
    value, error = found.r_auroc["spread_encoder"] or (None, None)
    assert value == pytest.approx(F.r_auroc(uncertainty, embeddings, labels).item())
    assert found.r_at_1 == pytest.approx([right.item(), (right * (1 - right) / 200).sqrt().item()])
    # Hanley and McNeil's error of an AUROC near a half: √((n₁ + n₂ + 1) / (12 n₁ n₂))
    wrong = round(200 * (1 - right.item()))
    assert error == pytest.approx((201 / (12 * wrong * (200 - wrong))) ** 0.5, rel=0.2)
    assert np.mean(found.curve["spread_encoder"]) == pytest.approx(right.item())
    assert len(found.curve["spread_encoder"]) == 10


def test_a_network_that_is_always_right_has_no_r_auroc() -> None:
    embeddings = torch.eye(2).repeat_interleave(8, 0)
    found = retrieval({"negative_norm": torch.rand(16)}, embeddings, torch.arange(2).repeat_interleave(8), 5)
    assert found.r_at_1 == [1.0, 0.0]
    assert found.r_auroc == {"negative_norm": None}


def test_detection_is_the_auroc_of_what_both_have() -> None:
    known, other = {"a": torch.rand(30), "b": torch.rand(30)}, {"a": torch.rand(40) + 0.3}
    found = detection(known, other, bootstraps=20)
    assert list(found) == ["a"]
    assert (found["a"] or [0])[0] == pytest.approx(F.ood_auroc(known["a"], other["a"]).item())


def test_a_run_is_read_by_draws_and_by_augmentations(runs: Path) -> None:
    byov_run, byol_run = (open_run(runs / name, READING) for name in ("byov", "byol"))
    assert isinstance(byov_run, Pretrained)
    assert isinstance(byol_run, Pretrained)
    embeddings, measures = run_measures(byov_run, byov_run.images.images)
    assert set(measures) == DRAWN | AUGMENTED | {"negative_norm"}
    torch.testing.assert_close(
        embeddings, byov.features(byov_run.module, byov_run.images.images, **byov_run.normalisation)
    )
    _, again = run_measures(byov_run, byov_run.images.images, augmented=False)
    assert set(again) == DRAWN | {"negative_norm"}
    assert all(torch.equal(measures[name], again[name]) for name in again)
    assert set(run_measures(byol_run, byol_run.images.images, augmented=False)[1]) == AUGMENTED | {"negative_norm"}


def test_explore_writes_it_beside_foreign_images(runs: Path, foreign: Path, tmp_path: Path) -> None:
    paths, name = [runs / "byov", runs / "byol"], f"npz:{foreign}"
    (item,) = explore_runs(paths, ["representation"], READING, 4, tmp_path / "out", ood=name)
    content = json.loads((tmp_path / "out" / "representation.json").read_text())
    assert item == ("representation", content["result"])
    assert content["protocol"]["settings"]["ood"] == name
    assert {run: each["posterior"] for run, each in content["result"].items()} == {"byov": True, "byol": False}
    for each in content["result"].values():
        assert list(each["data"]) == ["digits", "npz:noise"]
        assert each["data"]["digits"]["images"] == 60
        assert each["data"]["npz:noise"]["images"] == 50
        assert set(each["ood"]["npz:noise"]) == set(each["data"]["digits"]["r_auroc"])
    made = EXPLORED["representation"](content["result"])
    assert [axes.get_title() for axes in made.axes] == ["digits", "", "npz:noise", "npz:noise from digits"]
    alone = explore("representation", [open_run(runs / "byol", READING, "byol")], 4)
    assert alone["byol"]["data"]["digits"] == content["result"]["byol"]["data"]["digits"]
    assert EXPLORED["representation"](alone).axes[0].get_xlabel() == "R-AUROC"


def test_people_are_compared_with_what_it_knows_without_labels(tmp_path: Path) -> None:
    """On made-up pictures and votes under CIFAR-10's name: each measure's rank correlation is scipy's."""
    random = np.random.default_rng(0)
    arrays = {
        f"{split}_images": random.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8) for split in ("train", "test")
    }
    labels = {f"{split}_labels": np.arange(60) % 10 for split in ("train", "test")}
    np.savez(tmp_path / "cifar10.npz", **arrays, **labels)
    votes = random.integers(1, 50, (60, 10))
    np.savez(tmp_path / "cifar10h.npz", counts=votes)
    own = ["data.name=cifar10", f"data.root={tmp_path}", "data.holdout=0", "model.encoder=convnet16", "train.batch=20"]
    assert start(
        load_config(Pretrain, None, [*SMALL[:-1], *own, "model.hidden=16", "model.outputs=8"]), tmp_path / "run"
    )
    run = open_run(tmp_path / "run", Reading(samples=3, root=tmp_path, fit_samples=1), "run")
    assert isinstance(run, Pretrained)
    found = explore("humans", [run], 4)["run"]
    _, measures = run_measures(run, run.images.images)
    assert set(measures) | {"entropy_at_mean", "std"} <= set(found["spearman"])
    share = votes / votes.sum(1, keepdims=True)
    people = -(share * np.log(share)).sum(1)
    for name, values in measures.items():
        expected = spearmanr(values.numpy(), people).statistic
        assert found["spearman"][name][0] == pytest.approx(expected)
    labelled = [tick.get_text() for tick in EXPLORED["humans"]({"run": found}).axes[0].get_xticklabels()]
    assert len(labelled) == len(found["spearman"])


def test_bad_input_ends_before_anything_is_written(runs: Path, foreign: Path, tmp_path: Path) -> None:
    def run(items: list[str], ood: str | None) -> Callable[[], object]:
        return lambda: list(explore_runs([runs / "byol"], items, READING, 4, tmp_path / "out", ood=ood))

    cases = {
        "--ood names the foreign images of --what representation": run(["gallery"], "digits"),
        "takes the name of other images": run(["representation"], "digits"),
        "A data set's prefix is": run(["gallery", "representation"], "nonsense:x"),
        "is not a readable": run(["gallery", "representation"], f"npz:{tmp_path}/missing.npz"),
    }
    for sentence, call in cases.items():
        with pytest.raises(ValueError, match=sentence):
            call()
    assert not (tmp_path / "out").exists()
