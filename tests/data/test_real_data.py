"""The real data sets, in the folder that BYOV_DATA names or in ../shared/data beside the repository."""

import os
from pathlib import Path

import pytest
import torch

from byov.data import ImageSet, cifar10h, load, uci

BESIDE = Path(__file__).parents[3] / "shared" / "data"
ROOT = Path(os.environ.get("BYOV_DATA") or BESIDE)
pytestmark = pytest.mark.data


def need(name: str) -> Path:
    if not (ROOT / name).is_file():
        pytest.skip(f"{name} is not in {ROOT}; set BYOV_DATA to a folder that has it")
    return ROOT


def image_set(name: str, split: str) -> ImageSet:
    return load(name, split, need(f"{name.replace('-', '_')}.npz"))


def test_cifar100_has_the_mean_and_std_that_everybody_normalises_with() -> None:
    data = image_set("cifar100", "test")
    assert data.mean == pytest.approx((0.5088, 0.4874, 0.4419), abs=2e-4)
    assert data.std == pytest.approx((0.2683, 0.2574, 0.2771), abs=2e-4)


def test_people_agree_with_cifar10s_labels() -> None:
    data, votes = image_set("cifar10", "test"), cifar10h(need("cifar10h.npz"))
    assert data.class_names[3] == "cat"
    assert votes.shape == (10_000, 10)
    assert 45 < votes.sum(1).double().mean() < 55
    assert (votes.argmax(1) == data.labels).double().mean() == pytest.approx(0.992, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "features", "targets", "splits"),
    [
        ("boston", 506, 13, 1, 20),
        ("concrete", 1030, 8, 1, 20),
        ("energy", 768, 8, 2, 20),
        ("kin8nm", 8192, 8, 1, 20),
        ("naval", 11_934, 16, 2, 20),
        ("power", 9568, 4, 1, 20),
        ("protein", 45_730, 9, 1, 5),
        ("wine_red", 1599, 11, 1, 20),
        ("yacht", 308, 6, 1, 20),
    ],
)
def test_uci_is_table_12s(name: str, rows: int, features: int, targets: int, splits: int) -> None:
    data = uci(name, need(f"uci/{name}.npz"))
    assert data.X.shape == (rows, features)
    assert len(data.splits) == splits
    fold = data.fold(splits - 1, "all")
    assert fold.y_train.shape[1] == targets
    train, test = data.splits[-1]
    assert sorted(torch.cat([train, test]).tolist()) == list(range(rows))
    assert fold.X_test.isfinite().all()
