"""Nothing is computed twice: what does not depend on the draw is computed in the first pass, and not again.

A `TorchFunctionMode` sees every torch call of the first pass, in modules or not, and follows what the noise of the draw
touches. The calls that it touches go on a tape, with what they read of the others' results. A later pass runs the tape
with new noise, and none of the network's own code. So whatever comes before the first random parameter, and every
branch beside it, costs one pass; so does what the draw itself is made from, such as a Gaussian's σ = exp(½ρ).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress
from numbers import Number
from operator import attrgetter
from time import perf_counter
from typing import Any
from weakref import ref

import torch
from torch import Generator, Tensor, nn
from torch.overrides import TorchFunctionMode

from byov.prediction.sleeping import METADATA, Sleeping, plain
from byov.prediction.state import (
    attributes_of,
    context,
    place,
    random_state,
    same_state,
    set_torch_state,
    torch_state,
    unchanged,
)
from byov.prediction.tree import BARE, At, leaves_of, map_leaves, tensors_in


class Diverged(Exception):
    """A later pass is not the recorded one with other numbers."""


@dataclass
class _Call:
    """A torch call that depends on the draw."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: int
    """The number of its first result."""
    shapes: list[torch.Size]
    gone: list[int] = field(default_factory=list)
    """What no call after it reads."""


@dataclass
class Recording:
    """What one pass computed from the noise, and what else its outcome depends on."""

    tape: list[_Call] = field(default_factory=list)
    out: Any = None
    sound: bool = True
    settling: bool = False
    """Whether another look may help: the pass changed an attribute, and may have filled a cache; or it was not watched
    from the start, and something made before was met later."""
    tried: bool = False
    """Whether the tape has been run."""
    largest: int = 0
    """Elements of the largest result that depends on the draw: what a batch of draws multiplies."""
    saved: float = 0.0
    """The share of all results' elements that need not be computed again; of what nobody watched, its share of time."""
    kept: int = 0
    """Bytes that are held for later passes, beside what the model and the input hold anyway."""
    given: list[Tensor] = field(default_factory=list)
    """What of the model a pass may read: its weights, buffers, and the tensors among its modules' attributes."""

    @property
    def useful(self) -> bool:
        return self.sound and self.saved > 0.01


class _Drawn(ref[Tensor]):
    """A reference to a tensor that depends on the draw: the how-manieth of them it is."""

    __slots__ = ("number",)

    number: int

    def __new__(cls, tensor: Tensor, number: int) -> _Drawn:
        self = super().__new__(cls, tensor)
        self.number = number
        return self

    def __init__(self, tensor: Tensor, number: int) -> None:
        super().__init__(tensor)  # type: ignore[call-arg]


class _Record(TorchFunctionMode):
    """Fixed calls, most of them where it matters, should cost next to nothing more than the call."""

    def __init__(self, noise: Sequence[Tensor], given: list[Tensor]) -> None:
        super().__init__()
        self.recording = Recording()
        # By id: a reference, since an id may come again once its tensor is gone; one with a number if it is random.
        self.known: dict[int, ref[Tensor]] = {}
        self.noise, self.count = noise, len(noise)
        self.fixed = self.total = 0
        self.asleep = self.finished = self.stranger = False
        self.began = self.slept = 0.0
        self.spent = 1.0
        """Seconds: when the pass began, how long it slept, and how long it took."""
        self.context = context()
        # Weights, buffers and inputs. They are there in every pass, and no pass may have written to them at its end.
        self.given, self.given_then = given, self._versions(given)
        self.read: list[tuple[Tensor, int]] = []
        self.versions = dict(map(self._state, noise))

    def meet(self) -> None:
        """Get to know what was there before the pass."""
        self.known |= {id(tensor): ref(tensor) for tensor in self.given}
        self.known |= {id(tensor): _Drawn(tensor, number) for number, tensor in enumerate(self.noise)}

    def sleep(self, noise: list[Tensor]) -> list[Tensor]:
        """Do not watch until one of these tensors is used; what is to be handed over in their place."""
        self.asleep = True
        made = {id(tensor): Sleeping.of(tensor, self.wake) for tensor in noise}  # a tied one is one tensor still
        return [made[id(tensor)] for tensor in noise]

    def wake(self, read: list[Tensor]) -> None:
        """Watch from now on. What the first call reads was made without the draw, or it would not be the first."""
        if self.asleep and not self.finished:
            self.asleep, self.slept = False, perf_counter() - self.began
            self.meet()
            self.known |= {id(tensor): ref(tensor) for tensor in read if id(tensor) not in self.known}
            self.__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.known
        for part in (*args, *kwargs.values()) if kwargs else args:
            kind = type(part)
            if kind is Tensor or kind is _Parameter:
                reference = known.get(id(part))
                # One that is known, and not by a number, is fixed.
                if type(reference) is not ref or reference() is not part:
                    break
            elif kind is tuple or kind is list:
                if not all(map(_is_bare, map(type, part))):
                    break
            elif kind not in BARE:
                break
        else:
            out = func(*args, **kwargs) if kwargs else func(*args)
            if type(out) is Tensor:
                self.fixed += out.numel()
                known[id(out)] = ref(out)
            else:
                self._fixed(out)
            return out
        return self._carefully(func, args, kwargs or {})

    def _fixed(self, out: Any) -> None:
        if type(out) not in BARE:
            for tensor in tensors_in(out):
                self.fixed += tensor.numel()
                self.known[id(tensor)] = ref(tensor)

    def _carefully(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that may depend on the draw, or have arguments that one has to look into."""
        args, kwargs = map_leaves(plain, args), map_leaves(plain, kwargs)
        inputs: list[Tensor] = []
        for part in (*args, *kwargs.values()):
            if type(part) not in BARE:
                self._look(part, inputs)
        depends = False
        for tensor in inputs:
            reference = self.known.get(id(tensor), _UNKNOWN)
            if reference() is not tensor:
                # No call made it and nobody gave it (from numpy, from a scripted module): who knows what it depends on.
                self.recording.sound, self.stranger = False, self.slept > 0
            elif type(reference) is _Drawn:
                depends = True
        if depends:
            return self._random(func, args, kwargs, inputs)
        out = func(*args, **kwargs)
        self._fixed(out)
        return out

    def _look(self, part: Any, inputs: list[Tensor]) -> None:
        kind = type(part)
        if kind is tuple or kind is list:
            for element in part:
                if type(element) not in BARE:
                    self._look(element, inputs)
            return
        for leaf in leaves_of(part):
            if isinstance(leaf, Tensor):
                inputs.append(leaf)
            elif isinstance(leaf, Generator) or (callable(leaf) and not isinstance(leaf, type)):
                # A generator of the network's own: the global ones would not tell. A function: who knows what it reads.
                self.recording.sound = False

    def _random(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Tensor]) -> Any:
        recording = self.recording
        drawn: list[Tensor] = []
        read: list[tuple[Tensor, int]] = []
        for tensor in inputs:
            if self._number(tensor) >= 0:
                drawn.append(tensor)
            else:  # as it is before the call: one that writes into the fixed part cannot be repeated
                read.append((tensor, self._version(tensor)))
        for root, version in map(self._state, drawn):
            if self.versions.get(root) != version:  # something wrote into it, and it was no call that could be seen
                recording.sound = False
        out = func(*args, **kwargs)
        results, name = tensors_in(out), getattr(func, "__name__", "")
        if not results and name in METADATA:
            return out
        # A number read off a random tensor can steer the network in ways that no call shows.
        recording.sound &= type(out) is Tensor or all(isinstance(leaf, _TOLD) for leaf in leaves_of(out))
        # A tensor that is given other memory does not show it, and a tape knows nothing of contexts.
        recording.sound &= name != "__set__" and self.context == context()
        named = map_leaves(self._name, args), map_leaves(self._name, kwargs)
        recording.tape.append(_Call(func, *named, self.count, [t.shape for t in results]))
        self.read += read
        for tensor in results:
            self.known[id(tensor)] = _Drawn(tensor, self.count)
            self.count += 1
            self.total += tensor.numel()
            recording.largest = max(recording.largest, tensor.numel())
        self.versions.update(map(self._state, (*drawn, *results)))
        return out

    def finish(self, out: Any, settled: bool) -> Recording:
        """Check that nothing was written to after it was read; see what is held, and for how long."""
        recording = self.recording
        leaves = list(leaves_of(out))
        if not all(isinstance(t, Tensor) and self.known.get(id(t), _UNKNOWN)() is t for t in leaves):
            recording.sound, self.stranger = False, self.asleep or self.slept > 0
        recording.sound &= self.given_then == self._versions(self.given)
        recording.sound &= all(self._version(tensor) == version for tensor, version in self.read)
        recording.settling = self.stranger or (recording.sound and not settled)
        recording.sound &= settled
        recording.saved = 1 - (1 - self.slept / self.spent) * self.total / max(self.fixed + self.total, 1)
        if not recording.useful:  # no later pass will ask
            recording.tape.clear()
            return recording
        recording.out = map_leaves(self._name, out)
        needed = set(_numbers(recording.out))
        held = [leaf for leaf in leaves_of(recording.out) if isinstance(leaf, Tensor)]
        for call in reversed(recording.tape):
            leaves = list(leaves_of((call.args, call.kwargs)))
            touched = {leaf.number for leaf in leaves if type(leaf) is At}
            touched.update(range(call.first, call.first + len(call.shapes)))
            call.gone = list(touched - needed)
            needed |= touched
            held += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        recording.kept = _bytes(held, self.given)
        return recording

    def _number(self, tensor: Tensor) -> int:
        reference = self.known.get(id(tensor))
        return reference.number if type(reference) is _Drawn and reference() is tensor else -1

    def _name(self, leaf: Any) -> Any:
        if type(leaf) in BARE:
            return leaf
        if isinstance(leaf, Tensor):
            number = self._number(leaf)
            return leaf if number < 0 else At(number)
        if not isinstance(leaf, _SHOWN):  # it may hide a random tensor, as a function can
            self.recording.sound = False
        return leaf

    def _state(self, tensor: Tensor) -> tuple[int, int]:
        """How often it was written to; views count together with what they are views of."""
        base = tensor._base
        root = tensor if base is None else base
        return id(root), self._version(root)

    def _versions(self, tensors: list[Tensor]) -> list[int]:
        try:
            return list(map(_version, tensors))
        except RuntimeError:
            return list(map(self._version, tensors))

    def _version(self, tensor: Tensor) -> int:
        try:
            return tensor._version
        except RuntimeError:  # tensors of inference mode do not count them
            self.recording.sound = False
            return 0


_UNKNOWN: Callable[[], Any] = lambda: None  # noqa: E731
_Parameter, _is_bare, _version = nn.Parameter, BARE.__contains__, attrgetter("_version")
_SHOWN = (Number, str, Enum, type)
_TOLD = (Tensor, type(None))


def _numbers(tree: Any) -> Iterator[int]:
    return (leaf.number for leaf in leaves_of(tree) if type(leaf) is At)


def _bytes(held: list[Tensor], anyway: list[Tensor]) -> int:
    """How much memory some tensors keep alive that others do not: of a view that is all of what it is a view of."""
    mine = {id(tensor) for tensor in anyway}
    blocks = dict(_block(tensor) for tensor in held if id(tensor) not in mine)
    if not blocks:
        return 0
    places = sorted(map(place, anyway))
    inside = lambda start, end: bisect_left(places, start) < bisect_left(places, end)  # noqa: E731
    return sum(size for start, size in blocks.items() if not inside(start, start + size))


def _block(tensor: Tensor) -> tuple[int, int]:
    """Where its memory begins, and how many bytes it is."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except RuntimeError:  # of a sparse tensor none is larger than this
        return -id(tensor), tensor.numel() * tensor.element_size()


def record(
    forward: Callable[[list[Tensor]], Any],
    modules: list[nn.Module],
    inputs: Iterable[Tensor],
    noise: Iterable[Tensor],
    sleep: bool = False,
    trust: list[Tensor] | None = None,
) -> tuple[Any, Recording]:
    """Run `forward`, a pass through the modules, once; what it returns, and a recording for the passes after it.

    The recording is not `sound` where the network draws random numbers itself, lets a random number steer it, changes
    the autocast state around what is random, writes in place in a way that a repetition would see, leaves one of its
    modules' attributes (or what a list, dict or set there holds) other than it was, or has forward hooks, which want to
    see every pass. What it does not notice is a network that counts its passes elsewhere, such as in a global variable
    or in an object that it holds, and computes something else in the next. With `sleep` it watches only from the first
    call on that the noise takes part in, and a generator that the network holds elsewhere is one more such thing.

    `trust` is what a recording before, which was sound, was `given`: the modules are taken for what they were then, and
    not looked at, which would take the host a millisecond or two before the pass begins.
    """
    if trust is not None:
        noise, state = list(noise), torch_state()
        mode = _Record(noise, [*inputs, *trust])
        mode.recording.given = trust
        out = _run(forward, mode, noise, sleep)
        mode.recording.sound &= same_state(state, torch_state())
        return out, mode.finish(out, settled=True)
    noise, attributes, state = list(noise), attributes_of(modules), random_state()
    types = list(map(type, attributes))
    kinds = {kind for kind in set(types) if issubclass(kind, Tensor)}
    given = list(compress(attributes, map(kinds.__contains__, types)))
    mode = _Record(noise, [*inputs, *given])
    mode.recording.given = given
    mode.recording.sound &= not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    out = _run(forward, mode, noise, sleep and Generator not in types)
    mode.recording.sound &= same_state(state, random_state())
    return out, mode.finish(out, settled=unchanged(attributes, attributes_of(modules)))


def _run(forward: Callable[[list[Tensor]], Any], mode: _Record, noise: list[Tensor], sleep: bool) -> Any:
    if not sleep:
        mode.meet()
        with mode:
            return forward(noise)
    handed, mode.began = mode.sleep(noise), perf_counter()
    try:
        return map_leaves(plain, forward(handed))
    finally:
        mode.spent, mode.finished = perf_counter() - mode.began, True
        if not mode.asleep:
            mode.__exit__(None, None, None)


def replay(recording: Recording, noise: Iterable[Tensor]) -> Any:
    """What the recorded pass would return with this noise, computing only what depends on it.

    `Diverged` where a shape is another than it was, since what the network made of it may be, too; and where the tape
    draws random numbers, as that of a network does that seeds its own and then covers it up.
    """
    state = None if recording.tried else random_state()
    values: list[Any] = [*noise]
    value = lambda leaf: values[leaf.number] if type(leaf) is At else leaf  # noqa: E731
    for call in recording.tape:
        args, kwargs = map_leaves(value, call.args), call.kwargs and map_leaves(value, call.kwargs)
        results = tensors_in(call.function(*args, **kwargs))
        if [result.shape for result in results] != call.shapes:
            raise Diverged
        values += results
        for number in call.gone:
            values[number] = None
    if state is not None and not same_state(state, random_state()):
        set_torch_state(state)
        raise Diverged
    recording.tried = True
    return map_leaves(value, recording.out)


def again(
    forward: Callable[[], Any],
    recording: Recording,
    noise: Iterable[Tensor],
    memory: AbstractContextManager[Any] | None = None,
) -> Any:
    """Run `forward` again: by `replay` (inside `memory`) where the recording saves something, else as it is."""
    if recording.useful:
        try:
            with nullcontext() if memory is None else memory:
                return replay(recording, noise)
        except Diverged:
            recording.sound = False
    return forward()
