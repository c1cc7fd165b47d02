"""ρ learns at a rate of its own, whatever moves μ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from byov.data import ImageSet
from byov.posterior import log_var_rate
from byov.train.config import load_config
from byov.train.fabric import make_fabric
from byov.train.loop import Loop
from byov.train.supervised import Supervised, SupervisedTask


def rates(tmp_path: Path, *settings: str) -> list[tuple[float, float]]:
    """Return the rates of μ and ρ at each step of a short training."""
    base = ["model.name=convnet16", "train.epochs=4", "train.batch=8", "train.warmup=0", "train.devices=1"]
    recipe = load_config(Supervised, None, [*base, "train.accelerator=cpu", *settings])
    images = torch.randint(256, (32, 1, 8, 8), dtype=torch.uint8)
    data = ImageSet("noise", images, torch.arange(32) % 2, ("0", "1"))
    task = SupervisedTask(recipe, data, 1, torch.device("cpu"))
    loop = Loop(make_fabric(recipe.train), task, recipe.train, tmp_path, {})
    found: list[tuple[float, float]] = []

    def look(*_: Any) -> None:
        by_role = {group["role"]: group["lr"] for group in loop.optimizer.param_groups}
        found.append((by_role["weights"], by_role["log_var"]))

    task.after = look  # type: ignore[method-assign]
    loop.fit()
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lars"])
def test_rho_moves_at_one_over_the_root_of_the_steps_along_the_schedule(optimizer: str, tmp_path: Path) -> None:
    found = rates(tmp_path, f"train.optimizer={optimizer}", "train.lr=0.02")
    assert len(found) == 16
    assert found[0] == pytest.approx((0.02, 16**-0.5))
    for weights, rho in found:
        assert rho == pytest.approx(weights / 0.02 * 16**-0.5)


def test_a_given_rate_is_in_units_of_the_weights(tmp_path: Path) -> None:
    for weights, rho in rates(tmp_path, "train.log_var_lr=3", "train.lr=0.01"):
        assert rho == pytest.approx(3 * weights)


def test_a_training_has_steps() -> None:
    with pytest.raises(ValueError, match="at least one step, not 0"):
        log_var_rate(0)
