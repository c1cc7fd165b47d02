"""How far from itself does SimSiam end, begun a rounding error away? No posterior, nothing compiled, on a CPU.

python results/gradients/simsiam_apart.py > results/gradients/simsiam_apart.txt        some minutes on two cores

The training of tests/gpu's "without noise it trains as the published method", in float32, with batches of 64 rather
than 512; the mean of the last 20 of 60 losses. Each weight is multiplied by 1 + 1e-6·ε, ε ~ N(0, 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from gpu.compare import ending  # noqa: E402
from gpu.pretraining import BYOL, inputs, pretrain_task  # noqa: E402
from gpu.registry import Setting  # noqa: E402

STEPS, LAST, APART = 60, 20, 1e-6
SETTING = Setting(torch.device("cpu"))


def end(objective: str, seed: int | None) -> float:
    torch.manual_seed(0)
    task = pretrain_task(SETTING, [*BYOL, f"ssl.objective={objective}", "train.batch=64"])
    weights = list(task.module.student.parameters())
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in weights:
                weight.mul_(1 + APART * torch.randn(weight.shape, generator=generator))
    optimizer = torch.optim.AdamW(weights, 1e-4, weight_decay=0.0)

    def after(step: int) -> None:
        task.after(step + 1, STEPS)

    return ending(task.module, lambda s: inputs(task, SETTING, s), optimizer, STEPS, LAST, compiled=False, after=after)


for objective in ("simsiam", "byol"):
    for seed in (None, 1, 2):
        print(
            f"{objective:8} {'as it is' if seed is None else f'moved, {seed}':9} {end(objective, seed):.5f}", flush=True
        )
