"""The last layer of a network, and what it is given: found by watching a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from byov.prediction.inputs import Batch, call
from byov.prediction.outputs import Reading


class LastLayer:
    """Watch the linear layer whose output the network returns."""

    def __init__(self, net: nn.Module, reading: Reading) -> None:
        self.net, self.reading = net, reading
        self.layer: nn.Linear | None = None
        self._last: tuple[Any, ...] = ()
        self._calls = 0

    @contextmanager
    def watching(self) -> Iterator[LastLayer]:
        """Watch the network's passes inside."""
        linear = [module for module in self.net.modules() if type(module) is nn.Linear]
        hooks = [layer.register_forward_hook(self._called) for layer in linear]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._last = ()

    def _called(self, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._last = (layer, args, out)
        self._calls += layer is self.layer

    def __call__(self, x: Batch) -> tuple[Tensor, Tensor]:
        """Return what the last layer is given and what it returns, (N, …, D) and (N, …, C)."""
        self._last, self._calls = (), 0
        out = call(self.net, x, self.reading.tensor)
        layer, args, returned = self._last or (None, (), None)
        if returned is not out or len(args) != 1 or self.layer not in (None, layer) or self._calls > 1:
            raise ValueError(
                f"{type(self.net).__name__} does not end in one nn.Linear whose output it returns: a last-layer Laplace"
                " approximation needs that."
            )
        self.layer = layer
        return args[0], out

    def found(self) -> nn.Linear:
        """Return the layer, once a pass has shown it."""
        assert self.layer is not None
        return self.layer

    def name(self) -> str:
        """Return the layer's name, or refuse one whose weights have other places, too."""
        names = [name for name, module in self.net.named_modules(remove_duplicate=False) if module is self.layer]
        own = {id(parameter) for parameter in self.found().parameters()}
        places = [p for m in self.net.modules() for p in m._parameters.values() if p is not None and id(p) in own]
        if len(names) > 1 or len(places) > len(own):
            raise ValueError(
                f"The weights of the last layer, {names[0]}, are tied to others': it has no posterior alone."
            )
        return names[0]
