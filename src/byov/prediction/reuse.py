"""Nothing is computed twice: what does not depend on the draw is computed in the first pass and handed out again.

A `TorchFunctionMode` sees every torch call of a pass, in modules or not. In the first pass it follows what the noise of
the draw touches. A call that it does not touch is remembered, and answered from memory in later passes as long as it is
the same call: the same function, of the same arguments. So whatever comes before the first random parameter, and every
branch beside it, costs one pass; so does what the draw itself is made from, such as a Gaussian's σ = exp(½ρ).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

_METADATA = {
    *("__get__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point"),
    *("is_same_size", "is_signed", "ndimension", "nelement", "numel", "size", "storage_offset", "stride", "type"),
}
"""What may be asked of a random tensor without learning its values; `__get__` is every property (shape, dtype, …)."""


class Diverged(BaseException):
    """The network did not make the calls it made in the first pass; no `except Exception` of its own may catch this."""


def _leaves(tree: Any) -> Iterator[Any]:
    """As pytree has them, and those of slices. Most are tensors and numbers, for which it need not be asked."""
    kind = type(tree)
    if kind in _PLAIN:
        yield tree
    elif kind is tuple or kind is list:
        for part in tree:
            yield from _leaves(part)
    elif kind is dict:
        for part in tree.values():
            yield from _leaves(part)
    elif kind is slice:
        yield from (tree.start, tree.stop, tree.step)
    elif pytree.tree_is_leaf(tree):
        yield tree
    else:
        yield from _leaves(pytree.tree_leaves(tree))


_PLAIN = (Tensor, nn.Parameter, bool, int, float, str, type(None), torch.dtype, torch.device)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


@dataclass
class _Call:
    """One torch call of the first pass: to be run again, or what it was called with and its outcome."""

    function: Callable[..., Any]
    random: bool
    arguments: Any = None
    outcome: Any = None


@dataclass
class _Result:
    """A tensor that a fixed call made: itself where a random call reads it, else its shape, for code that looks."""

    shape_only: Tensor
    kept: Tensor | None = None

    @property
    def value(self) -> Tensor:
        return self.shape_only if self.kept is None else self.kept


@dataclass
class Recording:
    """The calls of one pass, and what their outcome depends on."""

    calls: list[_Call] = field(default_factory=list)
    sound: bool = True
    largest: int = 0
    """Elements of the largest result that depends on the draw: what a batch of draws multiplies."""
    saved: float = 0.0
    """The share of all results' elements that need not be computed again."""
    kept: int = 0
    """Bytes that are held for later passes, beside what the model and the input hold anyway."""

    @property
    def useful(self) -> bool:
        return self.sound and self.saved > 0.01


class _Record(TorchFunctionMode):
    def __init__(self, noise: Iterable[Tensor], given: Iterable[Tensor]) -> None:
        super().__init__()
        self.recording = Recording()
        self.random, self.made = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        for tensor in noise:
            self.random[tensor] = True
        # Weights, buffers and inputs. They are there in every pass, and no pass may have written to them at its end.
        self.given = {id(tensor): tensor for tensor in given}
        self.read = [(tensor, self._version(tensor)) for tensor in self.given.values()]
        self.fixed = self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self.recording
        # A network with a random generator of its own: the global ones would not tell.
        leaves = list(_leaves((args, kwargs)))
        recording.sound &= not any(isinstance(leaf, Generator) for leaf in leaves)
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        quiet = [(t, self._version(t)) for t in inputs if t not in self.random]
        # A tensor that no call made and nobody gave (from numpy, from a scripted module): who knows what it depends on.
        recording.sound &= all(id(t) in self.given or t in self.made for t, _ in quiet)
        call = _Call(func, random=len(quiet) < len(inputs))
        if not call.random:
            call.arguments = pytree.tree_map(self._name, (args, kwargs))
        out = func(*args, **kwargs)
        results = _tensors(out)
        size = sum(t.numel() for t in results)
        self.total += size
        recording.calls.append(call)
        if not call.random:
            self.fixed += size
            call.outcome = pytree.tree_map(self._remember, out)
            return out
        # A number read off a random tensor can steer the network in ways that no call shows.
        known = all(isinstance(leaf, Tensor | None) for leaf in _leaves(out))
        recording.sound &= known or getattr(func, "__name__", "") in _METADATA
        self.read += quiet  # as they were before the call: one that writes into the fixed part cannot be repeated
        self.keep(tensor for tensor, _ in quiet)
        for tensor in results:
            self.random[tensor] = True
            recording.largest = max(recording.largest, tensor.numel())
        return out

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """These are needed in later passes; most results are only read by calls that will not run again."""
        for tensor in tensors:
            if tensor in self.made:
                self.made[tensor].kept = tensor

    def finish(self, out: Any) -> Recording:
        """Fill in what later passes will read; check that nothing was written to after it was read."""
        recording, results = self.recording, _tensors(out)
        recording.sound &= all(id(t) in self.given or t in self.made or t in self.random for t in results)
        self.keep(results)
        recording.sound &= all(self._version(tensor) == version for tensor, version in self.read)
        for call in (call for call in recording.calls if not call.random):
            call.arguments, call.outcome = pytree.tree_map(_value, (call.arguments, call.outcome))
        recording.saved = self.fixed / max(self.total, 1)
        if recording.sound:
            held = dict(_storage(result.kept) for result in self.made.values() if result.kept is not None)
            anyway = {_storage(tensor)[0] for tensor in self.given.values()}
            recording.kept = sum(size for storage, size in held.items() if storage not in anyway)
        return recording

    def _name(self, leaf: Any) -> Any:
        return self.made.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf

    def _remember(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) in self.given:
            return leaf
        if leaf not in self.made:
            self.made[leaf] = _Result(torch.empty_like(leaf, device="meta"))
        return self.made[leaf]

    def _version(self, tensor: Tensor) -> int:
        if tensor.is_inference():  # these do not count their versions
            self.recording.sound = False
            return 0
        return tensor._version


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Which memory a tensor keeps alive, and how many bytes: of a view that is all of what it is a view of."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a sparse tensor has several, none of them larger than this
        return id(tensor), tensor.numel() * tensor.element_size()


def _value(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _Result) else leaf


def _same(now: Any, then: Any) -> bool:
    """Whether two arguments are the same tensors, and equal otherwise."""
    if now is then:
        return True
    if type(now) is not type(then) or isinstance(now, Tensor):
        return False
    if isinstance(now, tuple | list):
        return len(now) == len(then) and all(map(_same, now, then))
    if isinstance(now, dict):
        return now.keys() == then.keys() and all(_same(now[key], then[key]) for key in now)
    if isinstance(now, slice):
        return _same((now.start, now.stop, now.step), (then.start, then.stop, then.step))
    return isinstance(now, _SCALARS) and now == then


_SCALARS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Replay(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.calls = iter(recording.calls)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = next(self.calls, None)
        if call is None or call.function != func:  # not `is`: a property's getter is a new object each time
            raise Diverged
        if call.random:
            return func(*args, **kwargs)
        if not _same((args, kwargs), call.arguments):
            raise Diverged
        return call.outcome


def record(
    forward: Callable[[], Any], model: nn.Module, inputs: Iterable[Tensor], noise: Iterable[Tensor]
) -> tuple[Any, Recording]:
    """Run `forward` once; what it returns, and a recording for the passes after it.

    The recording is not `sound` where the network draws random numbers itself, lets a random number steer it, writes in
    place in a way that a repetition would see, or has forward hooks, which want to see every pass.
    """
    mode = _Record(noise, [*inputs, *_held(model)])
    state = _random_state()
    with mode:
        out = forward()
    recording = mode.finish(out)
    recording.sound &= all(map(_same_state, state, _random_state()))
    recording.sound &= not any(module._forward_hooks for module in model.modules())
    if not recording.useful:  # no later pass will ask
        recording.calls.clear()
        recording.kept = 0
    return out, recording


def replay(forward: Callable[[], Any], recording: Recording) -> Any:
    """Run `forward` again, computing only what depends on the draw."""
    with _Replay(recording):
        return forward()


def again(forward: Callable[[], Any], recording: Recording, memory: AbstractContextManager[Any] | None = None) -> Any:
    """Run `forward` again: by `replay` (inside `memory`) where the recording saves something, else as it is."""
    if recording.useful:
        try:
            with nullcontext() if memory is None else memory:
                return replay(forward, recording)
        except Diverged:
            recording.sound = False
    return forward()


def _held(model: nn.Module) -> Iterator[Tensor]:
    """Every tensor the modules hold, registered or not."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def _random_state() -> list[Any]:
    """Where the global random streams are: torch's, Python's, and numpy's where it is loaded."""
    state: list[Any] = [torch.get_rng_state(), random.getstate()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state.append(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        name, keys, *position = sys.modules["numpy"].random.get_state()
        state.append((name, keys.tobytes(), position))
    return state


def _same_state(now: Any, then: Any) -> bool:
    return torch.equal(now, then) if isinstance(now, Tensor) else now == then
