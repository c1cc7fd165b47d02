"""The supervised step of every family, compiled: its gradients, and its training where σ is next to nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import byov
from byov.posterior.materialize import split

from .compare import ending, follow, noise_of, same_ending
from .networks import FAMILIES, batch, bayesian
from .registry import Setting, case

GRID = [  # every pair of choices occurs; test_gpu.py counts
    ("none", "byov-vit", "bf16", "graphs"),
    ("none", "timm-vit", "fp32", "graphs"),
    ("none", "resnet18", "bf16", "default"),
    ("gaussian", "byov-vit", "bf16", "graphs"),
    ("gaussian", "timm-vit", "bf16", "default"),
    ("gaussian", "resnet18", "fp32", "graphs"),
    ("emp", "byov-vit", "fp32", "default"),
    ("emp", "timm-vit", "bf16", "graphs"),
    ("emp", "resnet18", "bf16", "graphs"),
    ("ecmp", "byov-vit", "bf16", "default"),
    ("ecmp", "timm-vit", "fp32", "graphs"),
    ("ecmp", "resnet18", "bf16", "graphs"),
    ("dropout", "byov-vit", "fp32", "graphs"),
    ("dropout", "timm-vit", "bf16", "default"),
    ("dropout", "resnet18", "bf16", "graphs"),
    ("dropconnect", "byov-vit", "bf16", "graphs"),
    ("dropconnect", "timm-vit", "fp32", "default"),
    ("dropconnect", "resnet18", "fp32", "default"),
    ("ensemble", "byov-vit", "bf16", "graphs"),
    ("ensemble", "timm-vit", "bf16", "graphs"),
    ("ensemble", "resnet18", "fp32", "default"),
]
CHOICES = (tuple(FAMILIES), ("byov-vit", "timm-vit", "resnet18"), ("bf16", "fp32"), ("graphs", "default"))


class Loss(nn.Module):
    """A network and its cross-entropy: what is compiled."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x).float(), y)


@case(35, {" ".join(choice): choice for choice in GRID})
def gradients_of(setting: Setting, variant: tuple[str, str, str, str]) -> str:
    """Over consecutive steps, the compiled gradients of every role and parameter are those of the eager step."""
    family, name, digits, mode = variant
    module = Loss(bayesian(name, FAMILIES[family], setting))
    x, y = batch(setting.size(256 if name == "resnet18" else 512, 16), setting)

    def feed(step: int) -> Any:
        return (x, y), noise_of(module, setting.random(1000 + step))

    # Drop-path's own chance: with this, compiled code draws what eager code does from the same seed.
    same = torch._inductor.config.patch(fallback_random=True) if name == "timm-vit" else nullcontext()
    with same:
        return follow(module, feed, bf16=digits == "bf16", graphs=mode == "graphs")


@case(60)
def without_noise_a_classifier_trains_as_the_plain_network(setting: Setting) -> str:
    """Bayes at σ = 2e-9 for 200 steps: the mean loss of the last 40 within 1 % of the deterministic network's.

    In float32 and at a small rate: in bfloat16 two runs part after some thirty steps, whoever computes them.
    """
    data = [batch(setting.size(512, 16), setting, seed) for seed in range(4)]
    steps, last = setting.size((200, 40), (30, 6))

    def end(family: Any, compiled: bool) -> float:
        torch.manual_seed(0)
        module = Loss(bayesian("byov-vit", family, setting))
        optimizer = torch.optim.SGD(module.parameters(), 5e-3)
        return ending(module, lambda step: data[step % 4], optimizer, steps, last, compiled=compiled)

    still = byov.Gaussian(-40.0)
    return same_ending(end(None, False), end(still, False), end(still, True), within=0.01)


@case(15)
def minimal(setting: Setting) -> str:
    """A LayerNorm whose scale and bias are parts of a flat tensor: byov's split is right, whatever torch.split is."""
    rows, columns = setting.size((8192, 768), (64, 16))
    sizes = [columns * columns, columns, columns]
    x, target = (torch.randn(rows, columns, device=setting.device, generator=setting.random(i)) for i in range(2))
    start = torch.randn(sum(sizes), device=setting.device, generator=setting.random(2)) * columns**-0.5

    def loss(flat: Tensor, cut: Any) -> Tensor:
        weight, scale, bias = cut(flat, sizes)
        hidden = F.layer_norm(x @ weight.view(columns, columns), (columns,), scale, bias)
        return (F.gelu(hidden) * target).mean()

    def gradient(cut: Any, compiled: bool) -> Tensor:
        flat = start.clone().requires_grad_()
        (torch.compile(loss) if compiled else loss)(flat, cut).backward()
        assert flat.grad is not None
        return flat.grad

    right = gradient(torch.split, False)[sizes[0] :]
    found = [float((gradient(cut, True)[sizes[0] :] - right).norm() / right.norm()) for cut in (torch.split, split)]
    assert found[1] < 1e-3, f"the error of byov's split is {found[1]:.2g}"
    says = "loses" if not found[0] < 1e-3 else "keeps"
    return f"torch.split {says} the gradient (error {found[0]:.2g}), byov's split keeps it ({found[1]:.2g})"
