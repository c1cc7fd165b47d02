"""How far apart equal trainings of BYOL end: the noise of any check that looks at a loss after 240 steps, on a GPU.

    PYTHONPATH=src python results/gradients/spread.py

BYOL whose weights start 1e-6 apart, and BYOV at σ = 2e-9 with other noise, both eager in bfloat16, on random images in
the shapes of recipes/cifar10_vit_byov.toml. What was read: spread_h200.txt.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from byov.data.sources import load
from byov.ssl.pretrain import Pretrain, PretrainTask
from byov.train.config import load_config

SETTINGS = {"byol": ["posterior.family=none"], "byov": ["posterior.log_var=-40", "posterior.beta_end=0"]}
device = torch.device("cuda")
torch.set_float32_matmul_precision("high")
path = Path(tempfile.mkdtemp()) / "noise.npz"
smooth = np.random.default_rng(0).integers(0, 256, (2048, 8, 8, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
np.savez(path, train_images=smooth, train_labels=np.zeros(2048, np.int64))
data = load(f"npz:{path}")
images, beta = data.images.to(device), torch.zeros((), device=device)


def train(name: str, seed: int, steps: int = 240) -> float:
    """The mean loss of the last 40 steps."""
    torch.manual_seed(0)
    task = PretrainTask(load_config(Pretrain, "recipes/cifar10_vit_byov.toml", SETTINGS[name]), data, 1, device)
    task.module.to(device).train()
    torch.manual_seed(seed)
    if name == "byol" and seed:
        with torch.no_grad():
            for parameter in task.module.student.parameters():
                parameter.mul_(1 + 1e-6 * seed * torch.randn_like(parameter))
    learned = [p for n, p in task.module.student.named_parameters() if not n.endswith("log_var")]
    optimizer, losses = torch.optim.AdamW(learned, 1e-3, weight_decay=0.0, fused=True), []
    for k in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, k / 100)
        generator = torch.Generator(device).manual_seed(1000 + k)
        batch = torch.randperm(len(images), device=device, generator=generator)[:512]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = task.module(images[batch], task.views.draw(512, generator, device), beta)
        out.loss.backward()
        losses.append(out.loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        task.module.update_teacher(k + 1, 2000)
    return sum(losses[-40:]) / 40


for seed in range(5):
    for name in SETTINGS:
        print(name, "seed", seed, f"mean loss of the last 40 of 240 steps {train(name, seed):.4f}", flush=True)
