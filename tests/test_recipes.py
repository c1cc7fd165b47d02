"""The recipes of the repository: each is read by its command, and those that no other test trains can start."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from byov.data.config import Like
from byov.ssl.pretrain import Pretrain, build
from byov.train.config import load_config, to_dict
from byov.train.supervised import Supervised
from byov.train.tabular import Tabular

RECIPES = Path(__file__).parents[1] / "recipes"
IMAGES = Like(3, 128, (0.5,) * 3, (0.25,) * 3, 9469)


def keys_and_names(path: Path) -> str:
    content = tomllib.loads(path.read_text())
    return str(content) + (keys_and_names(path.parent / content["base"]) if "base" in content else "")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_is_read_by_its_command(path: Path) -> None:
    content = keys_and_names(path)
    kind = Pretrain if "'encoder'" in content else Tabular if "'uci:" in content else Supervised
    load_config(kind, path)


@pytest.mark.parametrize("name", ["byol", "byov"])
def test_imagenettes_recipes_start_at_128_pixels(name: str) -> None:
    recipe = load_config(Pretrain, RECIPES / f"imagenette_vit_{name}.toml", ["model.hidden=16", "model.outputs=4"])
    module = build(recipe, IMAGES, 1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    drawn = module.views.draw(2, generator, torch.device("cpu"))
    out = module(torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8), drawn, 0.1)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.student.parameters())


def test_byol_on_imagenette_differs_from_byov_by_posterior_and_decay_only() -> None:
    byov, byol = (load_config(Pretrain, RECIPES / f"imagenette_vit_{name}.toml") for name in ("byov", "byol"))
    same = replace(byol, posterior=byov.posterior, train=replace(byol.train, weight_decay=0.0))
    assert to_dict(same) == to_dict(byov) != to_dict(byol)
