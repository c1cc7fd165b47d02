"""The weights of one draw at a fixed place in memory, used by a network during prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of


class Resident:
    """Memory for the weights of one draw, by the network's names.

        resident = Resident(model)
        with resident.installed():
            resident.write(model.noise(generator))
            model.net(x)

    With a draw written to this memory, the network is an ordinary one whose weights never move: it can be compiled,
    also with CUDA graphs. `caller` is a module around the model, such as a LightningModule, to call instead of it.
    """

    def __init__(self, model: BayesianModule, caller: nn.Module | None = None) -> None:
        self.model = model
        self.net = model.net if caller is None or caller is model else caller
        self.modules: list[nn.Module] = []
        self._draw: list[Callable[[Noise], Tensor]] = []
        self._places: list[tuple[dict[str, Any], str, Tensor]] = []
        self._allocate()

    @torch.inference_mode(False)
    def _allocate(self) -> None:
        self._flat = [like.new_empty(f.layout.numel) for f, like in zip(self.model.factors, self._likes(), strict=True)]
        self._named: dict[str, Tensor] = {}
        copies: list[tuple[Tensor, Tensor]] = []
        for factor, flat in zip(self.model.factors, self._flat, strict=True):
            for slot, part in zip(factor.layout.slots, flat.split(factor.layout.sizes), strict=True):
                if part.data_ptr() % 16:  # bytes. A compiled network would copy it at every call
                    copies.append((part.clone(), part))
                    part = copies[-1][0]
                weight = nn.Parameter(part.view(slot.shape), requires_grad=False)
                self._named |= dict.fromkeys(slot.names, weight)
            self._named |= {name: torch.empty_like(value) for name, value in factor.mean_buffers().items()}
        self._copies, self._originals = [copy for copy, _ in copies], [part for _, part in copies]

    def _likes(self) -> list[Tensor]:
        return [next(iter(factor.roles.values())).detach() for factor in self.model.factors]

    @torch.no_grad()
    def write(self, noise: list[Noise] | None) -> None:
        """Write the draw with this noise into the memory; without noise, write the posterior mean."""
        if any(place.get(leaf) is not tensor for place, leaf, tensor in self._places):
            raise RuntimeError("The network replaces its own weights during a pass, so no further draw can reach it.")
        for i, factor in enumerate(self.model.factors):
            self._flat[i].copy_(factor.flat_mean() if noise is None else self._draw[i](noise[i]))
            for name, value in (factor.mean_buffers() if noise is None else factor.drawn_buffers(noise[i])).items():
                self._named[name].copy_(value)
        if self._copies:
            torch._foreach_copy_(self._copies, self._originals)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the tensors into the network, in eval mode, for one thread at a time; restore everything afterwards."""
        with lock_of(self.model), ExitStack() as undo:
            if self._draw:
                raise RuntimeError("A Serving cannot be called inside its own pass: call byov.predict there.")
            if [(t.device, t.dtype) for t in self._flat] != [(t.device, t.dtype) for t in self._likes()]:
                self._allocate()  # the model has moved to another device or dtype
            modules = dict(self.model.net.named_modules(remove_duplicate=False))
            within = list(modules.values() if self.net is self.model.net else self.net.modules())
            undo.enter_context(evaluating(self.net, within))
            undo.enter_context(self.direct())
            for name, tensor in self._named.items():
                if self.model.is_first_name(name):
                    prefix, _, leaf = name.rpartition(".")
                    undo.callback(_put(modules[prefix], leaf, tensor))
                    own = modules[prefix]._parameters if isinstance(tensor, nn.Parameter) else modules[prefix]._buffers
                    self._places.append((own, leaf, tensor))
            undo.callback(self._places.clear)
            undo.callback(self._draw.clear)
            with torch.no_grad():
                self._draw += [factor.drawer() for factor in self.model.factors]
            self.modules = within
            yield

    @contextmanager
    def direct(self) -> Iterator[None]:
        """Let the caller, in this thread, use the network with the weights currently in it instead of the mean."""
        if self.net is self.model.net:
            yield
            return
        own, forward, before = get_ident(), self.model.forward, vars(self.model).get("forward")

        def draw(*args: Any, **kwargs: Any) -> Any:
            return (self.model.net if get_ident() == own else forward)(*args, **kwargs)

        vars(self.model)["forward"] = draw
        try:
            yield
        finally:
            del vars(self.model)["forward"]
            vars(self.model).update({} if before is None else {"forward": before})


def _put(module: nn.Module, leaf: str, tensor: Tensor) -> Callable[[], None]:
    """Set a tensor of a module; return a function that restores the old value, whatever the network does."""
    places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
    place = next((place for place in places[:2] if leaf in place), None)
    old = getattr(module, leaf, None) if place is None else place[leaf]

    def set_to(value: Any) -> None:
        # A plain attribute must go through the module's setter: see `_free_recurrent`.
        setattr(module, leaf, value) if place is None else place.update({leaf: value})

    def restore() -> None:
        for other in (other for other in places if other is not place):
            other.pop(leaf, None)
        set_to(old)

    set_to(tensor)
    return restore


@contextmanager
def evaluating(net: nn.Module, modules: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Hold eval mode inside the block, then restore each module's mode; `modules` are those of `net`, if known."""
    training = [module for module in (net.modules() if modules is None else modules) if module.training]
    if training:
        net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
