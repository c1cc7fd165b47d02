"""What a recipe leaves open fits the machine and the data; what it says stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from byov.data import ImageSet
from byov.data.config import DataConfig
from byov.models.registry import fitting_size
from byov.ssl.pretrain import EncoderConfig, Pretrain, start
from byov.train import checkpoint
from byov.train.config import to_dict
from byov.train.run import claim, difference
from byov.train.tabular import TableTrain
from byov.train.train_config import (
    ON_CPU,
    ON_GPU,
    TrainConfig,
    as_started,
    fit_to_data,
    fit_to_machine,
    fitting_batch,
    shorter_side,
)

RECIPES = Path(__file__).parents[2] / "recipes"


def machine(train: TrainConfig) -> tuple[Any, Any]:
    return train.compile, train.precision


def pictures(folder: Path, sizes: list[tuple[int, int]]) -> str:
    folder.mkdir()
    chance = np.random.default_rng(0)
    for i, (width, height) in enumerate(sizes):
        Image.fromarray(chance.integers(256, size=(height, width, 3), dtype=np.uint8)).save(folder / f"{i:03}.png")
    return f"folder:{folder}"


# The machine


@pytest.mark.parametrize(
    ("train", "on_cpu", "on_gpu"),
    [
        (TrainConfig(), ON_CPU, ON_GPU),
        (TrainConfig(compile=True, precision="bf16-mixed"), ON_CPU, ON_GPU),  # a GPU's recipe
        (TrainConfig(compile=True), (True, "32-true"), (True, "bf16-mixed")),
        (TrainConfig(precision="bf16-mixed"), (False, "bf16-mixed"), (True, "bf16-mixed")),
        (TrainConfig(compile=False, precision="64-true"), (False, "64-true"), (False, "64-true")),
        (TableTrain(), ON_CPU, ON_CPU),
    ],
)
def test_what_is_open_is_the_machines(train: TrainConfig, on_cpu: Any, on_gpu: Any) -> None:
    assert machine(train.on(gpu=False)) == on_cpu
    assert machine(train.on(gpu=True)) == on_gpu
    assert train.on(gpu=True).on(gpu=True) == train.on(gpu=True)


def test_a_gpus_recipe_on_a_cpu_says_so() -> None:
    given = TrainConfig(compile=True, precision="bf16-mixed", accelerator="cpu")
    here, said = fit_to_machine(given)
    assert not given.sees_gpu
    assert machine(here) == ON_CPU
    assert said.count(".") == said.count("train.") + 1, "one sentence"
    assert "is for a GPU, and this run is on a CPU: it is 32-true, not compiled." in said
    assert fit_to_machine(replace(given, compile="auto", precision="auto"))[1] == "On a CPU: 32-true, not compiled."
    assert fit_to_machine(here) == (here, "")


# The data


@pytest.mark.parametrize(
    ("images", "parts", "batch"),
    [(50_000, 1, 256), (512, 1, 256), (511, 1, 128), (200, 1, 64), (200, 6, 96), (3, 1, 2)],
)
def test_a_small_set_gets_a_smaller_batch(images: int, parts: int, batch: int) -> None:
    assert fitting_batch(images, 256, parts) == batch


def noise(count: int) -> ImageSet:
    return ImageSet("noise", torch.zeros(count, 1, 8, 8, dtype=torch.uint8))


def test_batch_and_epochs_fit_the_data() -> None:
    fitted, _, said = fit_to_data(Pretrain(), noise(200), 1)
    assert (fitted.train.batch, fitted.train.epochs) == (64, 334)  # 3 steps an epoch, 1,002 in all
    assert said == "noise has 200 images: batches of 64, 334 epochs."
    fitted, _, said = fit_to_data(Pretrain(), noise(25_600), 1)
    assert (fitted.train.batch, fitted.train.epochs, said) == (256, 100, "")
    given = Pretrain(train=TrainConfig(epochs=11, batch=150))
    assert fit_to_data(given, noise(200), 1)[0] == given
    assert fit_to_data(given, noise(200), 1)[2] == ""


@pytest.mark.parametrize(
    ("network", "side", "size"),
    [
        ("vit-nano/4", 64, 64),
        ("vit-nano/4", 500, 64),  # 16 patches a side
        ("vit-mini/8", 61, 64),
        ("vit-mini/8", 500, 128),
        ("vit-s/16", 60, 64),
        ("vit-s/16", 500, 224),
        ("convnet32", 64, 64),
        ("resnet18", 500, 224),
        ("timm:resnet18", 3, 8),
        ("vit_tiny_patch16_224", 64, 224),  # made for one size
        ("vit_base_patch16_384", 64, 384),
        ("torchvision:vit_b_16", 64, 224),
        ("python:mine:network", 64, 224),  # not known
    ],
)
def test_images_are_as_the_files_unless_the_network_wants_a_size(network: str, side: int, size: int) -> None:
    assert fitting_size(network, side) == size


def test_the_size_is_the_median_of_the_shorter_sides(tmp_path: Path) -> None:
    name = pictures(tmp_path / "some", [(64, 80), (90, 62), (70, 66), (500, 300), (20, 10)])
    (tmp_path / "some" / "999.png").write_bytes(b"no picture")
    data = DataConfig(name).load()
    assert shorter_side(data.paths) == 64  # type: ignore[union-attr]
    assert shorter_side([str(tmp_path / "none.png")]) == 224
    recipe = Pretrain(data=DataConfig(name), model=EncoderConfig("convnet32"))
    fitted, resized, said = fit_to_data(recipe, data, 1)
    assert fitted.data.image_size == resized.image_size == 64
    assert "pictures of 64 × 64 pixels" in said
    given = replace(recipe, data=DataConfig(name, image_size=32))
    fitted, resized, said = fit_to_data(given, given.data.load(), 1)
    assert (fitted.data.image_size, resized.image_size) == (32, 32)
    assert "pixels" not in said


# Runs


def test_a_run_keeps_what_it_was_started_with() -> None:
    started = Pretrain(train=TrainConfig(epochs=7, warmup=0.0, batch=32, compile=True, precision="64-true"))
    config = to_dict(started)
    open_ = Pretrain(train=TrainConfig(warmup=0.0))
    assert as_started(open_, config) == started
    given = Pretrain(train=TrainConfig(epochs=8, warmup=0.0))
    assert as_started(given, config).train.epochs == 8
    assert difference(open_, config) == ""
    assert difference(given, config) == "train.epochs = 7, not 8"
    gpu = Pretrain(train=TrainConfig(compile=True, precision="bf16-mixed"))
    cpu = Pretrain(train=TrainConfig(compile=False, precision="32-true"))
    assert difference(gpu, to_dict(cpu)) == difference(cpu, to_dict(gpu)) == ""  # one recipe on two machines
    assert difference(replace(cpu, train=replace(cpu.train, compile=True)), to_dict(cpu)) == (
        "train.compile = False, not True"
    )


def test_a_default_run_on_small_pictures_stops_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataConfig(pictures(tmp_path / "mine", [(24, 30)] * 6))
    train = TrainConfig(accelerator="cpu", devices=1, workers=0, minutes=1e-9)
    recipe = Pretrain(data=data, model=EncoderConfig("convnet16", hidden=8, outputs=4), train=train)
    assert not start(recipe, tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "On a CPU: 32-true, not compiled." in said
    assert "has 6 images: pictures of 24 × 24 pixels, batches of 2, 334 epochs." in said
    state = checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")
    stored = state["recipe"]["config"]
    assert stored["data"]["image_size"] == 24
    fitted = {"compile": False, "precision": "32-true", "batch": 2, "epochs": 334}
    assert stored["train"].items() >= fitted.items()
    assert claim(tmp_path / "run", "pretrain", recipe, resume=True)
    assert not start(recipe, tmp_path / "run", resume=True)
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")["step"] == state["step"] + 1
    # A run of a folder that was made before sizes were fitted, and left its size open, had the size of its shape.
    stored["data"]["image_size"] = None
    checkpoint.save(tmp_path / "run" / "checkpoint.safetensors", state)
    assert not start(recipe, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"started with data\.image_size = 24, not 16"):
        start(replace(recipe, data=replace(data, image_size=16)), tmp_path / "run", resume=True)
