"""Recipes, and plans of GPU runs, are read by their commands; what no other test trains can start, at toy size."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from byov.data.config import DataSpec
from byov.ssl.pretrain import Pretrain, build
from byov.train.config import load_config, to_dict
from byov.train.supervised import Supervised
from byov.train.tabular import Tabular

ROOT = Path(__file__).parents[1]
RECIPES, PLANS = ROOT / "recipes", sorted((ROOT / "results" / "plans").glob("*.toml"))
IMAGES = DataSpec(3, 128, (0.5,) * 3, (0.25,) * 3, 9469)


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


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_s_recipes_are_read_by_their_commands(path: Path) -> None:
    plan = tomllib.loads(path.read_text())
    for own in plan["runs"].values():
        kind = {"pretrain": Pretrain, "train": Supervised}[own.get("command", "pretrain")]
        recipe = load_config(kind, RECIPES / f"{own['recipe']}.toml", [*plan.get("set", []), *own.get("set", [])])
        if path.stem == "pyramidnet":
            assert recipe.model.name == "pyramidnet110_a84"
            assert (recipe.train.optimizer, recipe.train.lr, recipe.train.lr_end) == ("adam", 1e-3, 1.0)


@pytest.mark.slow
def test_the_pyramidnet_s_plan_makes_its_tables_from_what_it_trained(tmp_path: Path) -> None:
    """Every run of it on digits, two epochs of a PyramidNet of eight layers; called again, it makes nothing anew."""
    text = (ROOT / "results" / "plans" / "pyramidnet.toml").read_text().replace("--scale full", "--scale quick")
    (tmp_path / "plan.toml").write_text(text)
    toy = ["data.name=digits", "model.name=pyramidnet8_a4", "train.epochs=2", "train.compile=false"]
    toy += ["train.precision=32-true", "train.accelerator=cpu", "data.holdout=0.8"]
    words = ["--root", str(tmp_path), "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--jobs", "2"]
    command = [sys.executable, str(ROOT / "results" / "gpu.py"), str(tmp_path / "plan.toml"), *words]
    command += [word for change in toy for word in ("--set", change)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    logs = {log.name: log.read_text()[-500:] for log in (tmp_path / "out").glob("*.txt")}
    assert "reproduce: made" in done.stdout, (done, logs)
    table = json.loads((tmp_path / "out" / "tables" / "patching" / "table6" / "result.json").read_text())
    rows = {row["quantity"]: row["paper"] for row in table["comparisons"]}
    ecmp = ["ECMP (BN+out), spread = 0.2: ECE %", "ECMP (BN+out), as the paper starts it: ECE %"]
    assert [rows[name] for name in ecmp] == [8.73, 8.73]
    assert rows["dropout: ECE over vanilla's"] == pytest.approx(21.1 / 21.6)
    again = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert again.stdout.count(": finished") == 6
    assert "finished before" in (tmp_path / "out" / "reproduce.txt").read_text()
