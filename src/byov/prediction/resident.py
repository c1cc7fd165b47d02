"""The weights of one draw at a fixed place: what a network computes with while it predicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of


class Resident:
    """Flat buffers for the weights of one draw, and their views by the network's names.

        resident = Resident(model)
        with resident.installed():
            resident.write(model.noise(generator))
            model.net(x)

    Inside the block the views stand where the network's own weights would. A draw is written into the buffers, and
    then the network is an ordinary one: nothing is handed over from draw to draw, and no address ever moves, so that
    a compiled network, or one that torch turns into CUDA graphs, works as it is.
    """

    def __init__(self, model: BayesianModule) -> None:
        self.model = model
        self._flat: list[Tensor] = []
        self._named: dict[str, Tensor] = {}
        self._allocate()

    @torch.inference_mode(False)
    def _allocate(self) -> None:
        self._flat, self._named = [], {}
        for factor in self.model.factors:
            like = next(iter(factor.roles.values()))
            flat = torch.empty(factor.layout.numel, dtype=like.dtype, device=like.device)
            # Parameters, as the network's own code expects them; tied ones are the same object under each name.
            weights = {name: nn.Parameter(part, False) for name, part in factor.layout.split(flat).items()}
            buffers = {name: torch.empty_like(value) for name, value in factor.mean_buffers().items()}
            self._flat.append(flat)
            self._named |= {**factor.layout.with_ties(weights), **buffers}

    def _stale(self) -> bool:
        """Whether the model has moved to another device or dtype since."""
        likes = (next(iter(factor.roles.values())) for factor in self.model.factors)
        return any((a.device, a.dtype) != (b.device, b.dtype) for a, b in zip(likes, self._flat, strict=True))

    @torch.no_grad()
    def write(self, noise: list[Noise] | None) -> None:
        """Write the draw with this noise into the buffers; without noise the posterior mean."""
        for i, (factor, flat) in enumerate(zip(self.model.factors, self._flat, strict=True)):
            flat.copy_(factor.flat_mean() if noise is None else factor.flat_draw(noise[i]))
            buffers = factor.mean_buffers() if noise is None else factor.drawn_buffers(noise[i])
            for name, value in buffers.items():
                self._named[name].copy_(value)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the views into the network, in eval mode, for one thread at a time; afterwards all is as it was."""
        with lock_of(self.model), evaluating(self.model):
            if self._stale():
                self._allocate()
            modules = dict(self.model.net.named_modules(remove_duplicate=False))
            before: list[tuple[nn.Module, str, Any, Any]] = []
            try:
                for name, tensor in self._named.items():
                    if self.model.handed_under(name):
                        prefix, _, leaf = name.rpartition(".")
                        before.append(_put(modules[prefix], leaf, tensor))
                yield
            finally:
                for module, leaf, place, old in reversed(before):
                    _restore(module, leaf, place, old)


def _put(module: nn.Module, leaf: str, tensor: Tensor) -> tuple[nn.Module, str, Any, Any]:
    """Set a tensor of a module; what `_restore` needs to undo it."""
    for place in (module._parameters, module._buffers):
        if leaf in place:
            old = place[leaf]
            place[leaf] = tensor  # type: ignore[assignment]
            return module, leaf, place, old
    old = getattr(module, leaf, None)  # a plain attribute, whose setter has to hear of it: see `_free_recurrent`
    setattr(module, leaf, tensor)
    return module, leaf, None, old


def _restore(module: nn.Module, leaf: str, place: Any, old: Any) -> None:
    """Put back what was there, whatever the network has done to it meanwhile."""
    for other in (module._parameters, module._buffers, module.__dict__):
        if other is not place:
            other.pop(leaf, None)
    if place is None:
        setattr(module, leaf, old)
    else:
        place[leaf] = old


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode again outside."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
