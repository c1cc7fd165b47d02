"""A random last layer: the network runs once, and one matrix product computes all draws of the layer.

If the posterior covers only the `nn.Linear` whose output the network returns, a hook on the layer records its input in
the first pass. This is correct only if other passes give the layer the same input. Modules of torch.nn, torchvision,
timm and byov do so, unless they have hooks. Any other network is checked in a second pass: the layer's input must be
the same, the product must give the network's output, and the pass must change nothing. If the check fails, the passes
so far count as the first draws of the loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules import module as global_hooks

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule

CHUNK = 1 << 25  # elements of the weights, or of the outputs, of the draws made at once; 128 MiB in float32
KNOWN = ("torch.nn.", "torchvision.", "timm.", "byov.")


def known(modules: Iterable[nn.Module]) -> bool:
    """Return whether all modules are of libraries whose passes depend only on inputs and weights, without hooks."""
    hooks = global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks
    return not hooks and all(
        type(module).__module__.startswith(KNOWN)
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        for module in modules
    )


def fingerprint(net: nn.Module) -> tuple[Any, ...]:
    """Return what a pass may change: the global random states, buffers, attributes that are plain values."""
    numpy: Any = np.random.get_state()  # noqa: NPY002 - the global stream is what a network may use
    streams = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]
    plain = [
        value for module in net.modules() for value in vars(module).values() if isinstance(value, int | float | str)
    ]
    buffers = [(id(buffer), buffer._version) for buffer in net.buffers() if not buffer.is_inference()]
    return random.getstate(), numpy[1].tobytes(), numpy[2:], [s.tolist() for s in streams], plain, buffers


def last_layer(model: BayesianModule) -> tuple[str, nn.Linear] | None:
    """Return the linear layer that is the only random one, with its name; None if there is no such layer."""
    slots = [slot for factor in model.factors for slot in factor.layout.slots]
    if len({slot.layer for slot in slots}) != 1 or any(len(slot.names) > 1 for slot in slots):
        return None
    layer = model.net.get_submodule(name := slots[0].layer)
    owned = any(factor.buffer_names for factor in model.factors)  # an ensemble's buffers are drawn with it
    return (name, layer) if type(layer) is nn.Linear and not owned else None


class LayerRecorder:
    """Record passes: the input of the last layer, and whether the layer's output is the network's (its `tensor`)."""

    def __init__(self, net: nn.Module, layer: nn.Linear, tensor: Callable[[Any], Tensor]) -> None:
        self._watched, self._tensor = (layer, net), tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch one pass, with the draw's weights installed."""
        self._calls: list[tuple[Any, ...]] = []
        self._versions: list[int] = []
        self._autocast: set[Any] = set()
        hooks = [net.register_forward_hook(self._called) for net in self._watched]
        try:
            # A compiled network calls no hooks, so it runs eagerly while it is watched.
            compiled = any(module._compiled_call_impl is not None for module in self._watched[1].modules())
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _called(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        out = self._tensor(out) if module is self._watched[1] else out
        self._calls.append((*args, out))
        self._versions += [tensor._version for tensor in (*args, out) if isinstance(tensor, Tensor)]
        kind = out.device.type if isinstance(out, Tensor) else "cpu"
        self._autocast.add((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)))

    def inputs(self) -> Tensor | None:
        """Return the layer's input if it was called once and the network returned its output; else None."""
        now = [tensor._version for call in self._calls for tensor in call if isinstance(tensor, Tensor)]
        if len(self._calls) != 2 or len(self._calls[0]) != 2 or self._versions != now or len(self._autocast) > 1:
            return None  # not called once, changed since, or under different autocast settings
        return self._calls[0][0] if self._calls[0][1] is self._calls[1][-1] else None


class Head:
    """Draws of the last layer on fixed inputs."""

    strategy = "head"

    def __init__(self, model: BayesianModule, name: str, layer: nn.Linear, inputs: Tensor, generator: Any) -> None:
        self.model, self.name, self.layer, self.inputs, self.generator = model, name, layer, inputs, generator

    @property
    def chunk(self) -> int:
        """Return the number of draws to compute at once."""
        return max(1, CHUNK // (self.layer.out_features * max(self.inputs.shape[:-1].numel(), self.inputs.shape[-1])))

    def __call__(self, count: int) -> Tensor:
        """Return the network's outputs under the next draws (K, N, …)."""
        return self.under(self.model.noises(count, self.generator))

    def under(self, noises: list[list[Noise]]) -> Tensor:
        """Return the network's outputs under the draws with this noise (K, N, …)."""
        drawn, count = dict[str, Tensor](), len(noises)
        for factor, noise in zip(self.model.factors, stacked_noise(noises), strict=True):
            drawn |= factor.layout.split(torch.vmap(factor.drawer())(noise))
        weight, bias = (self._stacked(drawn, leaf, count) for leaf in ("weight", "bias"))
        out = linear(self.inputs, weight.flatten(0, 1), None if bias is None else bias.flatten())  # type: ignore[union-attr]
        return out.unflatten(-1, (count, -1)).movedim(-2, 0)

    def _stacked(self, drawn: dict[str, Tensor], leaf: str, count: int) -> Tensor | None:
        """Return the layer's weight or bias under the draws (K, …): drawn, or the same for all if it is a point."""
        name, point = f"{self.name}.{leaf}" if self.name else leaf, self.layer._parameters[leaf]
        return drawn.get(name, None if point is None else point.expand(count, *point.shape))

    def select(self, keep: Tensor) -> None:
        """Keep only the inputs in the mask `keep`."""
        self.inputs = self.inputs[keep]


def stacked_noise(noises: list[list[Noise]]) -> list[Noise]:
    """Stack the noise of several draws, by factor: each tensor (K, …)."""
    return [{k: torch.stack([n[i][k] for n in noises]) for k in part} for i, part in enumerate(noises[0])]


def alike(out: Tensor, other: Tensor) -> bool:
    """Return whether two results of the same computation differ at most by rounding."""
    digits = 1e-4 if min(out.dtype.itemsize, other.dtype.itemsize) >= 4 else 3e-2
    out, other = out.float(), other.float()
    return bool(((out - other).abs() <= digits * (other.abs().max() + other.abs())).all()) or not out.isfinite().all()
