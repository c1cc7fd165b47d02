"""A compiled step's gradients beside those of the eager float32 step: same weights, same inputs, same draw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.posterior import BayesianModule
from byov.posterior.factor import Factor

STEPS = 6
"""With CUDA graphs the first step is a warm-up and the second is recorded; the others replay."""
FLOAT32, KINKED, BFLOAT16 = 1e-3, 3e-2, 0.2
"""The largest relative error of a gradient: in float32, in float32 behind ReLUs, where rounding alone makes 0.012 of a
ResNet-18's, and in bfloat16. There it may also be half as much again as that of the eager step: eager is off by 0.3 to
0.5 in the early layers of a ResNet-18, and by anything where the gradient is 0 but for rounding, as of a bias before
BatchNorm. A lost gradient is off by 1."""
UNCLEAR = 0.6
"""Where eager bfloat16 is further off than this it is no measure; that may be so for a tenth of the slots."""
SMALL = 1e-3
"""Slots below this share of their role's largest norm may be off by a hundredth of that."""

Named = dict[str, dict[str, Tensor]]


def posterior(module: nn.Module) -> BayesianModule | None:
    return next((part for part in module.modules() if isinstance(part, BayesianModule)), None)


def noise_of(module: nn.Module, generator: Generator) -> Any:
    model = posterior(module)
    return None if model is None else model.noise(generator)


def gradients(module: nn.Module) -> Named:
    """By role, then by the network's own names: of a flat gradient every parameter's part by itself."""
    found: Named = {}
    inside: set[int] = set()
    for factor in module.modules():
        for role, value in factor.roles.items() if isinstance(factor, Factor) else ():
            inside.add(id(value))
            found.setdefault(role, {}).update(factor.layout.split(value.grad.clone()))
    points = [(n, p) for n, p in module.named_parameters() if p.requires_grad and id(p) not in inside]
    return found | ({"point": {n: p.grad.clone() for n, p in points}} if points else {})


def errors(own: Named, reference: Named) -> dict[str, float]:
    """‖a − b‖/‖b‖ by slot; of small slots, ‖a − b‖ in a unit that makes BFLOAT16 of what they may be off by."""
    found: dict[str, Tensor] = {}
    for role, parts in reference.items():
        norms = {name: part.norm() for name, part in parts.items()}
        largest = max(norms.values())
        for name, part in parts.items():
            unit = norms[name] if norms[name] > SMALL * largest else 0.01 * largest / BFLOAT16
            found[f"{role} {name}"] = (own[role][name] - part).norm() / unit
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))


def backward(run: Any, module: nn.Module, parts: list[Any], bf16: bool, seed: int) -> Named:
    """The gradients of the mean over the parts, and BatchNorm's statistics; the network's own chance by the seed."""
    model, device = posterior(module), next(module.parameters()).device.type
    module.zero_grad(set_to_none=True)
    for i, (inputs, noise) in enumerate(parts):
        torch.manual_seed(seed + i)
        torch.compiler.cudagraph_mark_step_begin()
        held = nullcontext() if model is None else model.draw(noise=noise)
        with held, torch.autocast(device, torch.bfloat16, enabled=bf16):
            out = run(*inputs)
        ((out if isinstance(out, Tensor) else out.loss) / len(parts)).backward()
    statistics = {name: buffer.clone() for name, buffer in module.named_buffers() if "running" in name}
    return gradients(module) | ({"buffer": statistics} if statistics else {})


def follow(
    module: nn.Module,
    feed: Callable[[int], tuple[Any, Any]],
    *,
    bf16: bool = True,
    graphs: bool = True,
    parts: int = 1,
    before: Callable[[int], None] = lambda step: None,
    after: Callable[[int], None] = lambda step: None,
) -> str:
    """Train a few compiled steps; at each, an eager float32 twin takes the weights and tells what is right.

    `feed` gives the inputs and the noise of a pass; `before` and `after` are around the optimizer's step.
    """
    twin = copy.deepcopy(module)
    run = torch.compile(module, mode="reduce-overhead" if graphs else None, fullgraph=True)
    learned = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, 1e-3, weight_decay=0.0, fused=True)
    kinked = any(isinstance(part, nn.ReLU) for part in module.modules())
    close = BFLOAT16 if bf16 else KINKED if kinked else FLOAT32
    worst: tuple[float, int, str] = (0.0, 0, "")
    for step in range(STEPS):
        fed, seed = [feed(step * parts + i) for i in range(parts)], step * parts
        state = {name: value.clone() for name, value in module.state_dict().items()}
        twin.load_state_dict(state)
        rounded = backward(twin, twin, fed, True, seed) if bf16 else None
        twin.load_state_dict(state)
        reference = backward(twin, twin, fed, False, seed)
        torch.set_float32_matmul_precision("high" if bf16 else "highest")  # as the loop does
        with torch._dynamo.config.patch(error_on_recompile=True):
            own = backward(run, module, fed, bf16, seed)
        torch.set_float32_matmul_precision("highest")
        usual = {} if rounded is None else errors(rounded, reference)
        unclear = [name for name, error in usual.items() if error > UNCLEAR]
        assert len(unclear) < 0.1 * len(usual) + 1, f"bfloat16 does not tell {unclear}"
        for name, error in errors(own, reference).items():
            eager = usual.get(name, 0.0)
            found = f"{error:.2g} ({name}; eager in bfloat16 {eager:.2g})" if bf16 else f"{error:.2g} ({name})"
            assert error < max(close, 1.5 * eager), f"step {step}: the error is {found}"
            worst = max(worst, (error if eager < UNCLEAR else 0.0, step, found))
        before(step)
        optimizer.step()
        after(step)
    return f"largest error {worst[2]}"


def ending(
    module: nn.Module,
    inputs: Callable[[int], Any],
    optimizer: torch.optim.Optimizer,
    steps: int,
    last: int,
    *,
    compiled: bool,
    bf16: bool = False,
    after: Callable[[int], None] = lambda step: None,
) -> float:
    """Train, every step with a draw of its own, compiled with CUDA graphs or eager; the mean loss of the last steps."""
    run = torch.compile(module, mode="reduce-overhead") if compiled else module
    losses: list[Tensor] = []
    for step in range(steps):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(next(module.parameters()).device.type, torch.bfloat16, enabled=bf16):
            out = run(*inputs(step))
        loss = out if isinstance(out, Tensor) else out.loss
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        after(step)
    return float(torch.stack(losses[-last:]).mean())


def move(weights: list[nn.Parameter], by: float) -> None:
    """Multiply each weight by 1 + by·ε with ε ~ N(0, 1)."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in weights:
            weight.mul_(1 + by * torch.randn(weight.shape, generator=generator).to(weight.device))


def same_ending(plain: float, eager: float, compiled: float, within: float, apart: float = 0.0) -> str:
    """Compare with the plain training's ending; `apart` is how far the plain one ends from itself, slightly moved.

    However unstable the training, 15 % is the most that is allowed: the case has to be able to fail.
    """
    found = f"plain {plain:.5f} (moved: {apart:.5f} away), eager {eager:.5f}, compiled {compiled:.5f}"
    size = max(abs(plain), 0.1)
    bound = max(within * size, min(3 * apart, 0.15 * size))
    assert max(abs(eager - plain), abs(compiled - plain)) < bound, found
    return found
