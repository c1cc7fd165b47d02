"""An epoch of BYOV beside one of BYOL, in byov's own loop, and the share of it that making the views takes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from timing import Step, interleaved
from torch import Generator

from byov.data import Batch, ImageSet
from byov.ssl.pretrain import EncoderConfig, GaussianConfig, Pretrain, PretrainTask
from byov.train.fabric import make_fabric
from byov.train.loop import Loop
from byov.train.train_config import TrainConfig
from rows.setting import Setting, compared


def recipe(setting: Setting, family: str) -> Pretrain:
    """The feasibility probe's: ViT of width 192, depth 6, patch 4, batch 512; heads of 4096 and 256."""
    train = TrainConfig(
        epochs=1000,
        batch=16 if setting.tiny else 512 if setting.cuda else 64,
        precision="bf16-mixed" if setting.cuda else "32-true",
        compile=setting.compile,
        devices=1,
        accelerator="cuda" if setting.cuda else "cpu",
    )
    model = EncoderConfig("vit-nano/4", hidden=32, outputs=16) if setting.tiny else EncoderConfig("vit-mini/4")
    return Pretrain(model=model, posterior=GaussianConfig(family=family), train=train)


def images(setting: Setting) -> ImageSet:
    count, pixels = (64, 16) if setting.tiny else (50_000 if setting.cuda else 256, 32)
    generator = Generator().manual_seed(0)
    return ImageSet("noise", torch.randint(256, (count, 3, pixels, pixels), generator=generator, dtype=torch.uint8))


class Epochs:
    """One run of the loop, an epoch at a time: everything but the journal and the checkpoints."""

    def __init__(self, setting: Setting, family: str, data: ImageSet, folder: Path) -> None:
        self.recipe = recipe(setting, family)
        fabric = make_fabric(self.recipe.train)
        torch.manual_seed(0)
        self.task = PretrainTask(self.recipe, data, fabric.world_size, fabric.device)
        self.loop = Loop(fabric, self.task, self.recipe.train, folder, {})
        self.task.module.train()
        self.groups: Iterator[list[Batch]] = self.loop._groups()

    def steps(self, count: int) -> None:
        for parts in islice(self.groups, count):
            self.loop._optimize(parts)
            self.loop.step += 1
            self.task.after(self.loop.step, self.loop.total)


def epoch(setting: Setting) -> dict[str, Any]:
    """Seconds per epoch of BYOL and BYOV, paired, and of the views alone, compiled by themselves."""
    data = images(setting)
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Epochs(setting, family, data, Path(folder)) for name, family in KINDS.items()}
        steps = runs["BYOV"].loop.steps_per_epoch
        work: dict[str, Step] = {name: partial(run.steps, steps) for name, run in runs.items()}
        work["views"] = views(setting, runs["BYOV"], steps)
        for run in runs.values():
            run.steps(2 * setting.warmup)
        work["views"]()
        seconds = interleaved(work, max(setting.rounds // 4, 3), setting.device)
    found = compared(seconds, "BYOL") | {"steps": steps, "batch": runs["BYOV"].recipe.train.batch_size}
    found["views_share"] = compared(seconds, "BYOV")["ratio"]["views"]
    return found


def views(setting: Setting, run: Epochs, steps: int) -> Step:
    """The two views of as many batches as an epoch has, random numbers and all."""
    batch = next(run.groups)[0].images
    maker, graphs = run.task.views, setting.cuda and setting.compile
    render = (
        torch.compile(maker.render, mode="reduce-overhead" if graphs else None) if setting.compile else maker.render
    )

    @torch.no_grad()
    def work() -> None:
        with setting.autocast():
            for _ in range(steps):
                if graphs:
                    torch.compiler.cudagraph_mark_step_begin()
                render(batch, maker.draw(len(batch), Generator(batch.device), batch.device))

    return work


KINDS = {"BYOL": "none", "BYOV": "gaussian"}
