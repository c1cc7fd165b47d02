"""A random last layer: the network runs once, and all draws of the layer are one product.

Where the posterior covers nothing but the `nn.Linear` whose output the network returns, draws differ only there. A hook
on the layer catches its input during the first pass. From then on S draws cost S rows of a matrix product.

That is right only if other passes would do the same up to the layer. A network that draws random numbers of its own, or
that changes a buffer or an attribute as it runs, is left to the loop; its first pass counts as the first draw.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule
from byov.prediction.inputs import device_of

CHUNK = 1 << 25
"""Weights and outputs of the draws made at once, in elements; 128 MiB in float32."""


def last_layer(model: BayesianModule) -> tuple[str, nn.Linear] | None:
    """The linear layer that alone is random, with its name; None where there is no such layer."""
    slots = [slot for factor in model.factors for slot in factor.layout.slots]
    if len({slot.layer for slot in slots}) != 1 or any(len(slot.names) > 1 for slot in slots):
        return None
    layer = model.net.get_submodule(name := slots[0].layer)
    hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return (name, layer) if type(layer) is nn.Linear and not hooked else None


class Watch:
    """Watches one pass: what the last layer is given, and whether another pass would give it the same."""

    def __init__(self, model: BayesianModule) -> None:
        self.model, self._found = model, last_layer(model)
        self._calls: list[tuple[Tensor, ...]] = []
        self._written: list[int] = []
        self._repeats = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the pass, with the draw's weights installed."""
        if self._found is None:
            yield
            return
        modules, device = list(self.model.net.modules()), device_of(self.model)
        # A compiled network calls no hooks. Its first pass runs as it is written.
        compiled = any(module._compiled_call_impl is not None for module in modules)
        hooks = [self._found[1].register_forward_hook(self._called), self.model.net.register_forward_hook(self._called)]
        before = state_of(modules, device)
        try:
            with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
                yield
        finally:
            for hook in hooks:
                hook.remove()
        self._repeats = same_state(before, state_of(modules, device))

    def _called(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._calls.append((*args, out))
        self._written += [tensor._version for tensor in (*args, out) if isinstance(tensor, Tensor)]

    def head(self, generator: Generator) -> Head | None:
        """The layer's draws, if the layer was called once and the network has returned what it gave; else None."""
        if self._found is None or not self._repeats or len(self._calls) != 2:
            return None
        layer, network = self._calls
        now = [tensor._version for call in self._calls for tensor in call if isinstance(tensor, Tensor)]
        if len(layer) != 2 or layer[1] is not network[-1] or self._written != now:  # given otherwise, or changed since
            return None
        return Head(self.model, *self._found, layer[0], generator)


class Head:
    """Draws of the last layer on fixed inputs."""

    strategy = "head"

    def __init__(
        self, model: BayesianModule, name: str, layer: nn.Linear, inputs: Tensor, generator: Generator
    ) -> None:
        self.model, self.name, self.layer, self.inputs, self.generator = model, name, layer, inputs, generator

    @property
    def chunk(self) -> int:
        """How many draws to make at once."""
        outputs = self.inputs.numel() // self.inputs.shape[-1] * self.layer.out_features
        return max(1, CHUNK // max(self.layer.weight.numel(), outputs))

    def __call__(self, count: int) -> Tensor:
        """What the network returns under the next draws (K, N, …)."""
        drawn: dict[str, Tensor] = {}
        for factor, noise in zip(self.model.factors, stacked_noise(self.model, self.generator, count), strict=True):
            drawn |= factor.layout.split(torch.vmap(factor.flat_draw)(noise))
        weight, bias = (self._under(drawn, leaf, count) for leaf in ("weight", "bias"))
        out = linear(self.inputs, weight.flatten(0, 1), None if bias is None else bias.flatten())  # type: ignore[union-attr]
        return out.unflatten(-1, (count, -1)).movedim(-2, 0)

    def _under(self, drawn: dict[str, Tensor], leaf: str, count: int) -> Tensor | None:
        """The layer's weight or bias under the draws (K, …): drawn, or the same point for all."""
        name, point = f"{self.name}.{leaf}" if self.name else leaf, self.layer._parameters[leaf]
        return drawn.get(name, None if point is None else point.expand(count, *point.shape))

    def select(self, keep: Tensor) -> None:
        """Go on with some of the inputs only."""
        self.inputs = self.inputs[keep]


def stacked_noise(model: BayesianModule, generator: Generator | None, count: int) -> list[Noise]:
    """What is random in the next draws, by factor: each tensor (K, …)."""
    noises = [model.noise(generator) for _ in range(count)]
    return [{k: torch.stack([n[i][k] for n in noises]) for k in part} for i, part in enumerate(noises[0])]


State = tuple[list[Any], list[Any], list[Tensor]]


def state_of(modules: list[nn.Module], device: torch.device) -> State:
    """What a pass may leave behind: attributes, buffers and their versions, and where the global random streams are."""
    buffers = [buffer for module in modules for buffer in module._buffers.values() if buffer is not None]
    held = [value for module in modules for value in vars(module).values()] + buffers
    numpy: Any = np.random.get_state()  # noqa: NPY002 - the global stream is what a network may use
    plain = [[b._version for b in buffers if not b.is_inference()], random.getstate(), numpy[1].tobytes(), numpy[2:]]
    streams = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    return held, plain, streams


def same_state(before: State, after: State) -> bool:
    """Whether the pass between them left nothing behind; attributes are compared by identity."""
    held = len(before[0]) == len(after[0]) and all(a is b for a, b in zip(before[0], after[0], strict=True))
    return held and before[1] == after[1] and all(map(torch.equal, before[2], after[2]))
