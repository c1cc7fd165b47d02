"""Handing a draw to a network: its tensors stand where the network's weights would, for the length of a call.

As `torch.func.functional_call`, which finds every name anew for each call, and takes the host a millisecond for a ViT's
150 weights. Here the names are looked up once, and a call swaps entries of dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, getitem, is_
from typing import Any

from torch import Tensor, nn

_children = attrgetter("_modules")  # not the dict itself: nn.ModuleList makes a new one when it loses a module


class Handover:
    """Calls a network under tensors that it is handed by name, each under one name of the module that holds it.

    A network may put another tensor where it finds a handed one. The next call finds what it is handed all the same.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._names: list[str] = []
        self._places: list[tuple[nn.Module, str]] = []
        # How the modules were found, to see that they are still there: their parents, and their names in these.
        self._parents: list[nn.Module] = []
        self._keys: list[str] = []
        self._modules: list[Any] = []

    def __call__(self, tensors: dict[str, Tensor], call: Callable[[nn.Module], Any]) -> Any:
        """What `call` makes of the network while it holds the tensors."""
        if list(tensors) != self._names or not self._current():
            self._look_up(tensors)
        before: list[tuple[nn.Module, str, Any, Any]] = []
        try:
            for (module, leaf), tensor in zip(self._places, tensors.values(), strict=True):
                place: Any = module._parameters
                if leaf not in place:
                    place = module._buffers
                    if leaf not in place:  # a setter has to hear of it, as nn.LSTM's has: see `bayesianize`
                        before.append((module, leaf, None, getattr(module, leaf, None)))
                        setattr(module, leaf, tensor)
                        continue
                before.append((module, leaf, place, place[leaf]))
                place[leaf] = tensor
            return call(self._net)
        finally:
            for module, leaf, place, old in reversed(before):
                if place is None:
                    module._parameters.pop(leaf, None)
                    setattr(module, leaf, old)
                    continue
                if leaf not in place:  # it has deleted what it was handed, and may have set something of another kind
                    for other in (module._parameters, module._buffers, module.__dict__):
                        other.pop(leaf, None)
                place[leaf] = old

    def _current(self) -> bool:
        """Whether the names still lead to the same modules: a network may exchange its own."""
        try:
            return all(map(is_, map(getitem, map(_children, self._parents), self._keys), self._modules))
        except KeyError:
            return False

    def _look_up(self, names: Mapping[str, Any]) -> None:
        found: dict[str, nn.Module] = {"": self._net}
        self._names, self._places, self._parents, self._keys, self._modules = [], [], [], [], []
        places = []
        for name in names:
            prefix, _, leaf = name.rpartition(".")
            places.append((self._find(prefix, found), leaf))
        self._names, self._places = list(names), places

    def _find(self, path: str, found: dict[str, nn.Module]) -> nn.Module:
        if path in found:
            return found[path]
        above, _, key = path.rpartition(".")
        parent = self._find(above, found)
        found[path] = module = parent._modules[key]  # type: ignore[assignment]
        self._parents.append(parent)
        self._keys.append(key)
        self._modules.append(module)
        return module  # type: ignore[return-value]
