"""What the machine can do, and what a network asks of it."""

from __future__ import annotations

from typing import Any

import timm.layers
import torch
from timing import interleaved
from torch.utils.flop_counter import FlopCounterMode

from rows.setting import Setting

H200 = 790e12
"""FLOP/s that a bfloat16 matrix product reached on an H200: the rate that the bar is a share of."""


def product(setting: Setting) -> dict[str, Any]:
    """FLOP/s of one large matrix product, the best of many: no network can do better."""
    size = 256 if setting.tiny else 8192 if setting.cuda else 1024
    dtype = torch.bfloat16 if setting.cuda else torch.float32
    a, b = (torch.randn(size, size, device=setting.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    work = {"product": lambda: torch.mm(a, b, out=out)}
    interleaved(work, 3, setting.device, burst=10)
    seconds = interleaved(work, 5 if setting.tiny else 20, setting.device, burst=10)["product"]
    return {"size": size, "flops": 2 * size**3 / min(seconds)}


def model_flops(setting: Setting, network: str) -> float:
    """Floating-point operations of one image's forward and backward pass, as the formulas of its layers have them.

    Counted with attention written as two matrix products: fused kernels hide theirs, and recompute some.
    """
    fused = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(False)
    try:
        cpu = Setting(torch.device("cpu"), setting.tiny)
        net, (x, _) = cpu.network(network), cpu.inputs(network, batch=1)
    finally:
        timm.layers.set_fused_attn(fused)
    with FlopCounterMode(display=False) as counter:
        net.eval()(x).sum().backward()
    return float(counter.get_total_flops())
