"""What recording layer-wise σ and SNR adds to training: the share of a step, which is to stay below 1 %.

    python benchmarks/layers.py                    # digits and ViT-Ti/4 on one CPU thread
    python benchmarks/layers.py --device cuda

A look at the posterior happens about a hundred times a run; also shown is what it would take after every step. Steps
and looks alternate, so that a disturbance falls on both. Ends with status 1 where a run's share is above the bar.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from timing import interleaved

from byov.data import Batches, ImageSet
from byov.ssl.pretrain import EncoderConfig, GaussianConfig, Pretrain, PretrainTask
from byov.train.journal import Journal, layer_interval
from byov.train.loop import Place
from byov.train.train_config import TrainConfig

BAR = 0.01
CASES = {
    "digits, convnet32": ("convnet32", 256, 64, (1, 8), 128, 400),
    "32 px, ViT-Ti/4": (f"python:{Path(__file__).stem}:vit_tiny", 4096, 256, (3, 32), 64, 15_000),
}
"""Encoder, hidden and output width of the heads, channels and pixels, batch, and steps of a whole run."""


def case(name: str, device: torch.device, rounds: int) -> dict[str, float | int | str]:
    encoder, hidden, outputs, (channels, pixels), batch, total = CASES[name]
    images = torch.randint(256, (batch, channels, pixels, pixels), dtype=torch.uint8)
    data = ImageSet("random", images, torch.zeros(batch, dtype=torch.int64), ("x",))
    train = TrainConfig(epochs=1, batch=batch, warmup=0)
    recipe = replace(
        Pretrain(train=train), model=EncoderConfig(encoder, hidden=hidden, outputs=outputs), posterior=GaussianConfig()
    )
    task = PretrainTask(recipe, data, 1, device)
    module = task.module.to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    generator, place = torch.Generator(device).manual_seed(0), Place(0, total, 0, 1, device)
    first = next(iter(Batches(task.data, batch, device=device, workers=0)))

    def step() -> None:
        module(*task.inputs(first, generator, place)).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        task.after(1, total)

    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), 0, total, total, True) as journal:

        def look() -> None:
            journal.record_layers(0, task.trainable())

        for _ in range(3):
            step()
            look()
        seconds = interleaved({"step": step, "look": look}, rounds, device)
    one_step, one_look = median(seconds["step"]), median(seconds["look"])
    return {
        "case": name,
        "weights": sum(factor.layout.numel for factor in task.trainable().factors),  # type: ignore[union-attr,operator]
        "steps": total,
        "step_ms": 1e3 * one_step,
        "look_ms": 1e3 * one_look,
        "look_of_step": one_look / one_step,
        "share": one_look / layer_interval(total) / one_step,
    }


def vit_tiny() -> torch.nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=12, num_heads=3, num_classes=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [case(name, torch.device(options.device), options.rounds) for name in CASES]
    table = Table(
        box=SIMPLE,
        title_justify="left",
        title=f"Recording layer-wise σ and SNR ({options.device}, {options.threads} threads)",
    )
    for heading in ("run", "weights", "step ms", "look ms", "look / step", "share of run"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for row in rows:
        values = (f"{row['step_ms']:.1f}", f"{row['look_ms']:.2f}", f"{row['look_of_step']:.2%}", f"{row['share']:.3%}")
        table.add_row(str(row["case"]), f"{row['weights']:,}", *values)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(any(float(row["share"]) > BAR for row in rows))


if __name__ == "__main__":
    main()
