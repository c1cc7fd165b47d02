"""Where and at which size a row is measured."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from networks import NETWORKS, TINY, Network
from peers import Task
from timing import Ratio
from torch import Generator, Tensor, nn


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

    def _named(self, name: str) -> Network:
        return (TINY if self.tiny else NETWORKS)[name]

    def network(self, name: str) -> nn.Module:
        """The same weights at every call; convolutions in channels-last, where a GPU is faster with it."""
        torch.manual_seed(0)
        net = self._named(name).build().to(self.device)
        return net.to(memory_format=torch.channels_last) if self._last(name) else net

    def batch_of(self, name: str) -> int:
        network = self._named(name)
        return network.batch if self.cuda or self.tiny else network.cpu_batch

    def inputs(self, name: str) -> tuple[Tensor, Tensor]:
        network, generator, batch = self._named(name), Generator().manual_seed(1), self.batch_of(name)
        x = torch.randn(batch, 3, network.pixels, network.pixels, generator=generator).to(self.device)
        y = torch.randint(network.classes, (batch,), generator=generator).to(self.device)
        return (x.contiguous(memory_format=torch.channels_last) if self._last(name) else x), y

    def _last(self, name: str) -> bool:
        return self.cuda and name.startswith("resnet")

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
