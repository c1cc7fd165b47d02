"""What a pass depends on beside its arguments, and may leave behind: attributes, random streams, contexts."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, compress
from operator import call, is_not, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from byov.prediction.tree import BARE


def modules_of(model: nn.Module, known: Sequence[nn.Module] = ()) -> list[nn.Module]:
    """Those of `model.modules()`, in any order and a fifth of the time.

    `known` are all modules of a part of it, which is not gone through.
    """
    seen, found = {id(model), *map(id, known)}, [model]
    for parent in found:  # which grows
        for module in parent._modules.values():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                found.append(module)
    return [*found, *known]


def compiled(modules: list[nn.Module]) -> bool:
    """Whether any of the modules was compiled in place."""
    return any(module._compiled_call_impl is not None for module in modules)


def holds_parameters(modules: list[nn.Module]) -> bool:
    """Whether any of the modules has a parameter of its own."""
    return any(parameter is not None for module in modules for parameter in module._parameters.values())


_PLUMBING = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules", "training"}
"""What every module has and no network uses as its memory: dicts of hooks, and the like."""

_CONTAINERS = {list, dict, set, deque, OrderedDict, defaultdict}


@lru_cache(1024)
def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    return itemgetter(*(name for name in names if name not in _PLUMBING))


def attributes_of(modules: list[nn.Module]) -> list[Any]:
    """What all the modules' attributes are, and the elements of those that are containers.

    A network has hundreds of modules: next to no Python runs for each of them.
    """
    every = [vars(module) for module in modules]
    kinds = list(zip(map(type, modules), map(len, every), strict=True))
    getters = {kind: _getter(tuple(one)) for kind, one in dict(zip(kinds, every, strict=True)).items()}
    names = list(map(getters.__getitem__, kinds))  # which a getter stands for
    try:  # two of a class that have as many attributes have the same ones, as a rule
        found = list(chain.from_iterable(map(call, names, every)))
    except KeyError:
        names = [_getter(tuple(one)) for one in every]
        found = list(chain.from_iterable(map(call, names, every)))
    held = list(compress(found, map(_CONTAINERS.__contains__, map(type, found))))
    found += names
    found += map(len, held)
    full = list(filter(None, held))  # most are empty: a module has several dicts, and seldom anything in them
    found += chain.from_iterable(full)
    found += chain.from_iterable(value.values() for value in full if isinstance(value, dict))
    return found


def place(tensor: Tensor) -> int:
    """Where its numbers lie."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a sparse tensor has several
        return -1


def unchanged(then: list[Any], now: list[Any]) -> bool:
    """Whether two lists of attributes are the same objects, or equal where they are plain values."""
    if len(then) != len(now):
        return False
    differ = list(map(is_not, then, now))
    return not any(differ) or all(map(_same, compress(then, differ), compress(now, differ)))


def _same(now: Any, then: Any) -> bool:
    """Whether two values are the same object, or numbers, strings, shapes and the like that are equal."""
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if type(now) is tuple or type(now) is list:
        return len(now) == len(then) and all(map(_same, now, then))
    return type(now) in BARE and now == then


def torch_state(device: bool = True) -> dict[str, Any]:
    """Where torch's global random streams are."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device and torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def random_state(device: bool = True) -> dict[str, Any]:
    """Where the global random streams are: torch's, Python's, and numpy's where it is loaded; or only the host's."""
    state = torch_state(device) | {"python": random.getstate()}
    if "numpy" in sys.modules:
        whole = sys.modules["numpy"].random.get_state(legacy=False)
        inner = [value.tobytes() if hasattr(value, "tobytes") else value for value in whole["state"].values()]
        state["numpy"] = whole["bit_generator"], inner, whole["has_gauss"], whole["gauss"]
    return state


def set_torch_state(state: dict[str, Any]) -> None:
    """Put torch's streams back to where they were."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def same_state(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether nobody has drawn from any stream of `now`; one that was not there then does not count."""
    pairs = ((then.get(name, value), value) for name, value in now.items())
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def context() -> tuple[Any, ...]:
    """The autocast and gradient modes."""
    cpu = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    cuda = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return cpu, cuda, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@contextmanager
def evaluating(model: nn.Module, modules: list[nn.Module]) -> Iterator[None]:
    """Eval mode inside, every module's own mode again outside."""
    training = [module for module in modules if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
