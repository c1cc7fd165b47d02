"""The cases by name, and how one is performed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Setting:
    """Where the cases run, and how large; tiny is for a CPU, where it shows that the cases themselves work."""

    device: torch.device
    tiny: bool = False
    backend: str = "inductor"
    """What compiles: another than Inductor takes the place of `torch.compile` everywhere, without its modes."""

    def size(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def random(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)


@dataclass(frozen=True)
class Case:
    """A function that returns the figure it measured, or raises; the longest are begun first."""

    name: str
    seconds: float
    function: Callable[[Setting], str]


CASES: dict[str, Case] = {}


def case(seconds: float, variants: dict[str, Any] | None = None) -> Callable[[Any], Any]:
    """Register a function of the setting; with variants once for each, which it takes as its second argument."""

    def register(function: Any) -> Any:
        name = function.__name__.replace("_", " ")
        bound = {f"{name}: {label}": partial(function, variant=value) for label, value in (variants or {}).items()}
        CASES.update({full: Case(full, seconds, each) for full, each in (bound or {name: function}).items()})
        return function

    return register


def perform(each: Case, setting: Setting) -> str:
    """Run a case as if it were the first of its process; return its figure."""
    torch._dynamo.reset()
    gc.collect()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
    inductor = torch.compile

    def other(model: Any = None, **kwargs: Any) -> Any:
        return inductor(model, **{**kwargs, "mode": None, "backend": setting.backend})

    with nullcontext() if setting.backend == "inductor" else patch("torch.compile", other):
        return each.function(setting)
