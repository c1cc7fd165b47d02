"""The large tensors of a draw take the memory of the draw before.

On CPU a fresh tensor above 32 MiB is memory that the system has to map and clear, page by page. For eleven million
weights that is a third of the time that the noise takes, and two thirds of that of θ = μ + σ·ε.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE = 1 << 18
"""Elements from which it is worth it."""

_FUNCTIONS = (torch.empty, torch.randn, torch.rand, torch.addcmul)


class Recycle(TorchFunctionMode):
    """Inside, each call writes its result where the same call of the round before did.

    For rounds that make the same calls in the same order, and whose results nobody needs in the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor | None] = []
        self.position = 0

    def __enter__(self) -> Recycle:
        self.position = 0
        super().__enter__()
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _FUNCTIONS or "out" in kwargs:
            return func(*args, **kwargs)
        position, self.position = self.position, self.position + 1
        if position == len(self.memory):
            result = func(*args, **kwargs)
            self.memory.append(result if result.device.type == "cpu" and result.numel() >= LARGE else None)
            return result
        memory = self.memory[position]
        return func(*args, **kwargs) if memory is None else func(*args, **kwargs, out=memory)
