"""A run's folder is never overwritten, and taken up again only with the recipe it was started with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from byov.train import checkpoint
from byov.train.config import to_dict
from byov.train.loop import TrainConfig
from byov.train.run import FREE, claim


@dataclass(frozen=True)
class Data:
    name: str = "digits"
    root: str | None = None
    sizes: tuple[int, ...] = (8, 8)


@dataclass(frozen=True)
class Recipe:
    data: Data = field(default_factory=Data)
    train: TrainConfig = field(default_factory=TrainConfig)


def run_of(folder: Path, recipe: Recipe) -> Path:
    checkpoint.save(folder / "checkpoint.safetensors", {"recipe": {"config": to_dict(recipe)}, "w": torch.ones(3)})
    return folder


def test_a_new_folder_is_free(tmp_path: Path) -> None:
    assert claim(tmp_path / "new", Recipe(), resume=False) is False
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert claim(tmp_path / "empty", Recipe(), resume=False) is False


def test_a_run_is_taken_up_with_its_own_recipe(tmp_path: Path) -> None:
    assert claim(run_of(tmp_path, Recipe()), Recipe(), resume=True) is True


def test_a_setting_that_is_newer_than_the_run_was_at_its_default(tmp_path: Path) -> None:
    old = to_dict(Recipe())
    del old["train"]["clip"]
    checkpoint.save(tmp_path / "checkpoint.safetensors", {"recipe": {"config": old}, "w": torch.ones(3)})
    assert claim(tmp_path, Recipe(), resume=True) is True
    with pytest.raises(ValueError, match=r"started with train\.clip = None, not 1\.0"):
        claim(tmp_path, Recipe(train=TrainConfig(clip=1.0)), resume=True)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = run_of(tmp_path, Recipe())
    before = (run / "checkpoint.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="holds a run already: resume it with --resume, or choose another --run"):
        claim(run, Recipe(), resume=False)
    assert (run / "checkpoint.safetensors").read_bytes() == before


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="no checkpoint"):
            claim(run, Recipe(), resume=True)
    assert not (tmp_path / "none").exists()


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file, and a run needs a folder"):
        claim(tmp_path / "file", Recipe(), resume=False)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (Recipe(train=TrainConfig(lr=0.5)), r"train.lr = 0.001, not 0.5"),
        (Recipe(train=TrainConfig(epochs=101)), r"train.epochs = 100, not 101"),
        (Recipe(train=TrainConfig(clip=1.0)), r"train.clip = None, not 1.0"),
        (Recipe(data=Data(sizes=(8, 9))), r"data.sizes = \[8, 8\], not \[8, 9\]"),
    ],
)
def test_another_recipe_is_refused(tmp_path: Path, changed: Recipe, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"The run was started with {sentence}"):
        claim(run_of(tmp_path, Recipe()), changed, resume=True)


def test_what_does_not_change_the_result_may_change(tmp_path: Path) -> None:
    free = {"minutes": 1.0, "save_minutes": 1.0, "log_every": 7, "workers": 3, "cuda_graphs": False}
    assert {f"train.{name}" for name in free} | {"data.root", "data.download"} == FREE
    recipe = Recipe()
    other = replace(recipe, train=replace(recipe.train, **free), data=replace(recipe.data, root="elsewhere"))
    assert claim(run_of(tmp_path, recipe), other, resume=True) is True


def test_a_checkpoint_that_is_none_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"what is this, a letter to somebody?")
    with pytest.raises(ValueError, match="not a byov checkpoint"):
        claim(tmp_path, Recipe(), resume=True)
