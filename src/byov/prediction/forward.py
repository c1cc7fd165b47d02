"""The network on one batch, under weights that are handed to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule
from byov.prediction.draws import Weights, batching
from byov.prediction.handover import Handover
from byov.prediction.inputs import Batch, size_of
from byov.prediction.look import Look
from byov.prediction.readout import readout
from byov.prediction.result import Task
from byov.prediction.reuse import Recording, again, record
from byov.prediction.state import compiled, modules_of


class Forward:
    """Passes on one fixed batch; the first is recorded, so that the others need not repeat what they share with it.

    The second, where the first may have filled a cache of the network's, or where `sleep` missed something: the first
    is watched only from the first drawn weight on. Without `watch` none is. Who makes several of these hands them one
    `handover`, and the first of them the `modules` of the model, if they are known; and what a pass on a batch like
    this one has shown (`look`), to which the first pass adds.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Batch,
        task: Task,
        watch: bool = True,
        handover: Handover | None = None,
        modules: list[nn.Module] | None = None,
        sleep: bool = True,
        look: Look | None = None,
    ) -> None:
        self.model, self.x, self.task, self.watch = model, x, task, watch
        self.handover = Handover(model.net) if handover is None and isinstance(model, BayesianModule) else handover
        self.recording: Recording | None = None
        self._modules, self.sleep = modules, sleep
        self.look = Look() if look is None else look

    def one(self, weights: Weights | None) -> Tensor:
        """What one draw predicts (1, N, …); of a plain network, what it predicts."""
        if weights is None:
            return self._values(self._call(self.model)).unsqueeze(0)
        tensors = weights()
        if not self.watch:
            out = self._under(tensors)
        elif self.recording is None or self.recording.settling:
            inputs, first = [self.x] if isinstance(self.x, Tensor) else self.x.values(), self.recording is None
            trust = self.look.given if first else None
            modules = [] if trust is not None else self._modules or modules_of(self.model)
            self._modules = None  # a pass may change them
            with self._seen(modules):
                handed = lambda drawn: self._under(dict(zip(tensors, drawn, strict=True)))  # noqa: E731
                out, self.recording = record(handed, modules, inputs, tensors.values(), self.sleep and first, trust)
            self.sleep &= not self.recording.settling
            if first and not compiled(modules):
                self.look.given = self.recording.given if self.recording.sound else None
            self.recording.settling &= first
        else:
            out = again(lambda: self._under(tensors), self.recording, tensors.values())
        return self._values(out).unsqueeze(0)

    def several(self, weights: Weights) -> Tensor:
        """What several stacked draws predict (K, N, …)."""
        recording = self.recording

        def one(tensors: dict[str, Tensor]) -> Tensor:
            forward = lambda: self._under(tensors)  # noqa: E731
            return self._values(forward() if recording is None else again(forward, recording, tensors.values()))

        tensors = weights()
        out = readout(recording, [*tensors.values()])
        if out is not None:
            return self._predicted(out, dim=2).movedim(1, 0)
        with batching():
            return torch.vmap(one)(tensors)

    @staticmethod
    def _seen(modules: list[nn.Module]) -> AbstractContextManager[Any]:
        """Around a pass to be recorded: a compiled network makes no calls that could be seen, so it runs as written."""
        return torch.compiler.set_stance("force_eager") if compiled(modules) else nullcontext()

    def _under(self, tensors: dict[str, Tensor]) -> Any:
        return self.handover(tensors, self._call)  # type: ignore[misc]

    def _call(self, network: Callable[..., Any]) -> Any:
        return network(self.x) if isinstance(self.x, Tensor) else network(**self.x)

    def _values(self, out: Any) -> Tensor:
        if not isinstance(out, Tensor):
            raise TypeError(f"predict needs a network that returns one tensor, not {type(out).__name__}.")
        if self.task == "classification" and out.ndim < 2:
            raise ValueError(f"A classifier returns logits (N, C), not a tensor of shape {tuple(out.shape)}.")
        if out.shape[:1] != (size_of(self.x),):
            raise ValueError(f"The network returns a tensor of shape {tuple(out.shape)} for {size_of(self.x)} inputs.")
        return self._predicted(out)

    def _predicted(self, out: Tensor, dim: int = 1) -> Tensor:
        """At least in float32, and a copy: a network may return its weights, whose memory the next draw takes."""
        dtype = out.dtype if out.dtype.itemsize >= 4 else torch.float32
        return out.softmax(dim, dtype=dtype) if self.task == "classification" else out.to(dtype, copy=True)
