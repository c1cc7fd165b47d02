"""Dropout before every BatchNorm, the patching paper's baseline (D.3), as a posterior.

What stands before a BatchNorm need not be a layer with weights: it may be a sum of two branches, or another norm. So
each BatchNorm gets a *gate*, one number per channel that its input is multiplied with. It is 1, is not learned, and
`byov.Dropout` covers it: in a draw it is 0 with probability p, else 1/(1 − p). That is `nn.Dropout2d` before the norm
with one mask for the whole batch, since a draw is of the network's weights; the paper's layer has a mask for each image
and pixel. The running statistics see the zeros, as the paper's do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn, ones


def add_gates(net: nn.Module) -> nn.Module:
    """Put a gate before every BatchNorm of `net`, in place."""
    norms = [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        raise ValueError(f"{type(net).__name__} has no BatchNorm that dropout could come before.")
    for norm in norms:
        like = next(norm.parameters(), None)
        device = None if like is None else like.device
        norm.register_parameter("gate", nn.Parameter(ones(norm.num_features, device=device), requires_grad=False))
        norm.register_forward_pre_hook(_through_gate)
    return net


def gates(name: str, module: nn.Module, parameter: Tensor) -> bool:
    """The rule that covers the gates."""
    return name.rpartition(".")[2] == "gate"


def _through_gate(norm: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    x = inputs[0]
    return x * norm.gate.to(x.dtype).view(1, -1, *(1 for _ in x.shape[2:]))
