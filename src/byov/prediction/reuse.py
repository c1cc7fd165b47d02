"""Nothing is computed twice: what does not depend on the draw is computed in the first pass and handed out again.

A `TorchFunctionMode` sees every torch call the network makes, module or not. In the first pass it follows what the
drawn parameters touch. Calls they do not touch are remembered, in order; in later passes those return what they
returned, and only the others run. So whatever comes before the first random parameter, and every branch beside it,
costs one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary


class Diverged(Exception):
    """The network did not make the calls it made in the first pass."""


def _tensors(*trees: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


@dataclass
class _Call:
    """One torch call of the first pass: to be run again, or its outcome."""

    function: Callable[..., Any]
    random: bool
    outcome: Any = None


@dataclass
class Recording:
    """The calls of one forward pass, and what their outcome depends on."""

    calls: list[_Call] = field(default_factory=list)
    sound: bool = True
    largest: int = 0
    """Elements of the largest result that depends on the draw: what a batch of draws multiplies."""
    saved: float = 0.0
    """The share of all results' elements that need not be computed again."""

    @property
    def useful(self) -> bool:
        return self.sound and self.saved > 0.01


class _Record(TorchFunctionMode):
    def __init__(self, recording: Recording, random: Iterable[Tensor]) -> None:
        super().__init__()
        self.recording = recording
        self.random = WeakTensorKeyDictionary()
        for tensor in random:
            self.random[tensor] = True
        # Which call made a tensor, to keep those results (and only those) that a random call reads.
        self.made_by = WeakTensorKeyDictionary()
        self.read: list[tuple[Tensor, int]] = []
        self.kept: dict[int, Tensor] = {}
        self.fixed = self.total = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors(args, kwargs)
        random = any(tensor in self.random for tensor in inputs)
        quiet = [(t, t._version) for t in inputs if t not in self.random] if random else []
        out = func(*args, **kwargs)
        results = _tensors(out)
        size = sum(t.numel() for t in results)
        self.total += size
        call = _Call(func, random)
        self.recording.calls.append(call)
        if random:
            # A random call that writes into a tensor it shares with the fixed part cannot be repeated.
            self.recording.sound &= all(t._version == version for t, version in quiet)
            self.read += quiet
            for tensor, _ in quiet:
                self.kept[id(tensor)] = tensor
            for tensor in results:
                self.random[tensor] = True
                self.recording.largest = max(self.recording.largest, tensor.numel())
        else:
            self.fixed += size
            call.outcome = pytree.tree_map(lambda leaf: self._remember(leaf) if isinstance(leaf, Tensor) else leaf, out)
        return out

    def _remember(self, tensor: Tensor) -> Any:
        if tensor in self.made_by:
            return self.made_by[tensor]
        # A stand-in for now: most results are only ever read by calls that will not run again.
        hole = _Hole(id(tensor), torch.empty_like(tensor, device="meta"))
        self.made_by[tensor] = hole
        return hole

    def finish(self) -> None:
        """Fill in what later passes will read; check that nothing was written to after it was read."""
        self.recording.sound &= all(tensor._version == version for tensor, version in self.read)
        holes = {id(hole): hole for hole in self.made_by.values()}
        alive = {hole.tensor: tensor for tensor, hole in self.made_by.items()}

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, _Hole):
                return leaf
            tensor = alive.get(leaf.tensor) if id(leaf) in holes else None
            return tensor if tensor is not None and leaf.tensor in self.kept else leaf.shape_only

        for call in self.recording.calls:
            if not call.random:
                call.outcome = pytree.tree_map(fill, call.outcome, is_leaf=lambda leaf: isinstance(leaf, _Hole))
        self.recording.saved = self.fixed / max(self.total, 1)


@dataclass
class _Hole:
    """Where a result was: the number of the tensor, and its shape for Python code that looks at it."""

    tensor: int
    shape_only: Tensor


class _Replay(TorchFunctionMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.calls = iter(recording.calls)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = next(self.calls, None)
        if call is None or call.function is not func:
            raise Diverged
        return func(*args, **(kwargs or {})) if call.random else call.outcome


def record(forward: Callable[[], Any], random: Iterable[Tensor]) -> tuple[Any, Recording]:
    """Run `forward` once; what it returns, and a recording for the passes after it.

    The recording is not `sound` where the network draws random numbers itself, or writes in place in a way that a
    repetition would see.
    """
    recording = Recording()
    mode = _Record(recording, random)
    state = _random_state()
    with mode:
        out = forward()
    mode.finish()
    recording.sound &= all(torch.equal(a, b) for a, b in zip(state, _random_state(), strict=True))
    return out, recording


def replay(forward: Callable[[], Any], recording: Recording) -> Any:
    """Run `forward` again, computing only what depends on the draw."""
    with _Replay(recording):
        return forward()


def _random_state() -> list[Tensor]:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]
