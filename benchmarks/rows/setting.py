"""Where and at which size a row is measured: the sizes of the table, or tiny ones that only prove that it runs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from peers import Task
from timing import Ratio
from torch import Generator, Tensor, nn

from byov.models import cifar_resnet18, vit

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "vit_s16": (lambda: vit("s", 1000, image_size=224, patch=16), 224, 1000, 256),
    "vit_s16 stream": (lambda: vit("s", 1000, image_size=224, patch=16, stream="autocast"), 224, 1000, 256),
    "vit_ti4": (lambda: vit("ti"), 32, 10, 512),
    "resnet18": (cifar_resnet18, 32, 10, 512),
}
"""How to make it, pixels, classes, and the batch on a GPU."""
TINY: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "vit_s16": (lambda: vit("nano", 10, image_size=32, patch=16), 32, 10, 4),
    "vit_s16 stream": (lambda: vit("nano", 10, image_size=32, patch=16, stream="autocast"), 32, 10, 4),
    "vit_ti4": (lambda: vit("nano", 10, image_size=16), 16, 10, 4),
    "resnet18": (cifar_resnet18, 8, 10, 2),
}
CPU_BATCH = 64


@dataclass(frozen=True)
class Setting:
    """A device, a size, and how many interleaved rounds."""

    device: torch.device
    tiny: bool = False
    rounds: int = 20
    compile: bool = False
    warmup: int = 4
    """Steps before the first round; with CUDA graphs the first compiles, the second is recorded, the third replayed."""

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def burst(self) -> int:
        return 5 if self.cuda else 1

    def autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda)

    def network(self, name: str) -> nn.Module:
        """The same weights at every call; convolutions in channels-last, where a GPU is faster with it."""
        torch.manual_seed(0)
        net = (TINY if self.tiny else NETWORKS)[name][0]().to(self.device)
        return net.to(memory_format=torch.channels_last) if self._last(name) else net

    def batch_of(self, name: str) -> int:
        batch = (TINY if self.tiny else NETWORKS)[name][3]
        return batch if self.cuda or self.tiny else CPU_BATCH

    def inputs(self, name: str, batches: int = 1, batch: int | None = None) -> tuple[Tensor, Tensor]:
        _, pixels, classes, _ = (TINY if self.tiny else NETWORKS)[name]
        generator, count = Generator().manual_seed(1), batches * (batch or self.batch_of(name))
        x = torch.randn(count, 3, pixels, pixels, generator=generator).to(self.device)
        y = torch.randint(classes, (count,), generator=generator).to(self.device)
        return (x.contiguous(memory_format=torch.channels_last) if self._last(name) else x), y

    def _last(self, name: str) -> bool:
        return self.cuda and name == "resnet18"

    def task(self, name: str) -> Task:
        x, y = self.inputs(name)
        graphs = self.cuda and self.compile
        return Task(lambda: self.network(name), x, y, bf16=self.cuda, compile=self.compile, graphs=graphs, fused=True)

    def clear(self) -> None:
        """Let go of the last measurement's graphs and memory."""
        torch._dynamo.reset()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def about(self) -> dict[str, Any]:
        return {"device": str(self.device), "tiny": self.tiny, "compile": self.compile, "rounds": self.rounds}


def compared(seconds: dict[str, list[float]], to: str) -> dict[str, Any]:
    """Milliseconds of every contender, and paired ratios to one of them."""
    return {
        "ms": {name: 1000 * median(times) for name, times in seconds.items()},
        "ratio": {name: asdict(Ratio.of(times, seconds[to])) for name, times in seconds.items() if name != to},
    }
