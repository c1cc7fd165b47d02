"""Whole runs: one that is killed and taken up again, and every shipped recipe that compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from math import ceil, isfinite
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byov.ssl.pretrain import Pretrain, PretrainTask
from byov.train import checkpoint
from byov.train.config import load_config, value_of
from byov.train.fabric import make_fabric
from byov.train.loop import Loop
from byov.train.supervised import Supervised, SupervisedTask

from .compare import gradients
from .networks import blocks
from .registry import ROOT, Setting, case


def settings(folder: str, setting: Setting, count: int, classes: int) -> list[str]:
    """What every run here is told; the images it is on are written into the folder."""
    images, labels = blocks(count, classes)
    np.savez(Path(folder) / "images.npz", train_images=images, train_labels=labels)
    here = [f"data.name=npz:{folder}/images.npz", f"train.accelerator={setting.device.type}", "train.devices=1"]
    compiled = ["train.compile=true", f"train.precision={setting.size('bf16-mixed', '32-true')}"]
    return [*here, *compiled, "train.log_every=1", "train.warmup=1", *setting.size([], ["train.batch=16"])]


@case(200)
def killed_and_resumed(setting: Setting) -> str:
    """`byov pretrain`, killed by SIGKILL and resumed, ends to the bit as a run that was not; with CUDA graphs.

    Inductor must not choose its kernels by timing them, or two whole runs differ at times. Should they differ still, by
    a library's kernel that adds up in another order each time, the resumed one may be half as far again from a whole
    run, but not 2 %: one that lost its moments, its place in the data or its teacher is 5 to 9 % away.
    """
    with tempfile.TemporaryDirectory() as folder:
        network = f"model.encoder=python:{__package__}.networks:{setting.size('steady_encoder', 'tiny_encoder')}"
        small = setting.size(["train.batch=256"], ["model.hidden=32", "model.outputs=16", "train.compile=false"])
        changes = [*settings(folder, setting, setting.size(2048, 64), 10), network, *small, "train.epochs=8"]
        path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests"))
        kernels = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/kernels", "TORCHINDUCTOR_DETERMINISTIC": "1"}
        environment = os.environ | kernels | {"PYTHONPATH": path}

        def start(run: str, *more: str) -> subprocess.Popen[bytes]:
            sets = [word for change in changes for word in ("--set", change)]
            words = ["pretrain", str(ROOT / "recipes/cifar10_vit_byov.toml"), "--run", f"{folder}/{run}", *sets, *more]
            with Path(folder, f"{run}.txt").open("ab") as log:
                return subprocess.Popen(
                    [sys.executable, "-m", "byov", *words], cwd=ROOT, env=environment, stdout=log, stderr=log
                )

        def finish(run: str, process: subprocess.Popen[bytes]) -> dict[str, Tensor]:
            assert process.wait(timeout=240) == 0, Path(folder, f"{run}.txt").read_text()[-2000:]
            return checkpoint.load(Path(folder, run, "checkpoint.safetensors"))["module"]

        whole = finish("whole", start("whole"))  # alone: the others find its kernels
        killed, other = start("killed", "--set", "train.save_minutes=0"), start("other")
        log, begun = Path(folder, "killed/log.jsonl"), monotonic()
        while killed.poll() is None and monotonic() - begun < 200:
            if log.exists() and log.read_bytes().count(b"\n") > 10:
                break
            sleep(0.01)
        killed.kill()
        killed.wait()
        again = finish("other", other)
        reached = checkpoint.peek(Path(folder, "killed/checkpoint.safetensors"))
        assert 0 < reached["step"] < reached["total"], f"it was killed after step {reached['step']}"
        resumed = finish("killed", start("killed", "--resume"))
    control, away = distance(again, whole), distance(resumed, whole)
    found = f"resumed after step {reached['step']}, {away:.2g} from a whole run; two whole runs differ by {control:.2g}"
    assert away <= min(1.5 * control, 0.02), found
    return found


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """0 where all is equal to the bit, else ‖a − b‖/‖b‖ of the means."""
    if all(torch.equal(a[name], b[name]) for name in a.keys() | b.keys()):
        return 0.0
    mean = "student.q.0.mean"
    return max(float((a[mean] - b[mean]).norm() / b[mean].norm()), 1e-12)


RECIPES = sorted(path for path in (ROOT / "recipes").glob("cifar*.toml") if "_small_" not in path.name)
"""Those that are meant for a GPU, by their names: most leave it to the machine to compile."""


@case(130, {path.stem: path for path in RECIPES})
def recipe(setting: Setting, variant: Path) -> str:
    """Thirty steps of a GPU's recipe: the loss stays finite, and every parameter has a gradient in some step."""
    pretrain = value_of(variant, [], "model.encoder") is not None
    kind, make = (Pretrain, PretrainTask) if pretrain else (Supervised, SupervisedTask)
    small = ["model.encoder=convnet16", "model.hidden=32", "model.outputs=16"] if pretrain else ["model.name=convnet16"]
    shallow = ["model.name=pyramidnet20_a48"] if "pyramidnet" in variant.stem else []  # 110 layers compile for minutes
    count, norms = setting.size(4096, 128), defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        changes = settings(folder, setting, count, setting.size(100, 4)) + setting.size([], small) + shallow
        steps = int(0.95 * count) // load_config(kind, variant, changes).train.batch_size  # in an epoch, some held out
        config = load_config(kind, variant, [*changes, f"train.epochs={ceil(30 / steps)}"])
        fabric, data = make_fabric(config.train), config.data.load()
        task: Any = make(config, data, 1, fabric.device)
        loop = Loop(fabric, task, config.train, Path(folder, "run"), {"config": {}, "data": {"digest": data.digest}})

        def look(*_: Any) -> None:
            for role, parts in gradients(task.trainable()).items():
                for name, part in parts.items():
                    norms[f"{role} {name}"] += part.norm()

        loop.optimizer.register_step_pre_hook(look)
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert loop.fit()
        losses = [json.loads(line).get("loss") for line in Path(folder, "run/log.jsonl").read_text().splitlines()]
    losses = [loss for loss in losses if loss is not None]
    assert len(losses) == loop.total >= 30
    assert all(isfinite(loss) for loss in losses), losses
    wrong = [name for name, norm in norms.items() if not 0.0 < float(norm) < float("inf")]
    assert not wrong, f"no gradient, or none that is finite: {wrong[:5]}"
    return f"{loop.total} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}, {len(norms)} gradients, {loop.seconds:.0f} s"
