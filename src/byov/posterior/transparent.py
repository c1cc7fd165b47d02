"""Make a BayesianModule look like the network inside: its signature, its attributes, its methods under a draw."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ON_A_COPY = ("merge_and_unload", "unload")
"""Methods that take the network apart: they run on a copy at the posterior mean."""
BEFORE = ("merge_", "unmerge_", "resize_", "init_weights", "initialize_weights", "reset_parameters")
"""Prefixes, after any underscores, of methods that write weights; the new weights would be lost after the call."""
CHECKPOINTING = (
    "Gradient checkpointing runs layers again in the backward pass, when their draw is gone: leave it off,"
    " or switch it on before bayesianize for layers without a posterior."
)

_WITHOUT = (
    "{name} has weights with a posterior, which it holds only during a call: inspect model.net.{name}, or"
    " compute with model.point().{name}."
)
_CHANGES = "{name} changes the network's weights or layers: do it before bayesianize, or on model.point()."


class Method(nn.Module):
    """A method of a network, as a module that `functional_call` can hand weights to."""

    def __init__(self, net: nn.Module, name: str) -> None:
        super().__init__()
        self.net, self.name = net, name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.net, self.name)(*args, **kwargs)


class Transparent(nn.Module):
    """A module around `net` that falls back to the attributes of `net`.

    The weights with a posterior are passed to the network only during a call. So its methods run as such calls, and
    access to parts of the network that lack their weights raises an error.
    """

    net: nn.Module
    q: nn.ModuleList

    def call_with_weights(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call this method of the network with its weights in place."""
        raise NotImplementedError

    def point(self) -> nn.Module:
        """Return a plain copy of the network, with its weights in place."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Return the device of the posterior."""
        return next(self.q.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights with a posterior."""
        return next(self.q.parameters()).dtype

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "net" not in self.__dict__.get("_modules", ()):
                raise
        value = getattr(self.net, name)
        if inspect.ismethod(value) and isinstance(value.__self__, nn.Module):
            return update_wrapper(partial(self._run, name), value)  # with the method's own signature
        if name in self._without() or self._lacking(value):
            raise AttributeError(_WITHOUT.format(name=name))
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes that only the network has on the network, where its methods read them."""
        modules = self.__dict__.get("_modules", {})
        made = "prior" in modules  # set last by __init__
        own = name in self.__dict__ or name in modules or name in self._buffers or hasattr(type(self), name)
        if not made or own or not hasattr(self.net, name):
            super().__setattr__(name, value)
        elif isinstance(value, nn.Module | nn.Parameter) or name in {*self.net._modules, *self.net._parameters}:
            raise ValueError(_CHANGES.format(name=f"Setting {name}"))
        else:
            setattr(self.net, name, value)

    def _run(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the network under a draw or the mean; if it replaces layers, restore them and raise."""
        if name in ON_A_COPY:
            return getattr(self.point(), name)(*args, **kwargs)
        if "checkpointing" in name and "disable" not in name and _enables(args, kwargs):
            raise ValueError(CHECKPOINTING)
        if name.lstrip("_").startswith(BEFORE):
            raise ValueError(_CHANGES.format(name=name))
        before = [(module, dict(module._modules)) for module in self.net.modules()]
        try:
            out = self.call_with_weights(name, args, kwargs)
        finally:
            changed = any(module._modules != children for module, children in before)
            if changed:
                for module, children in before:
                    module._modules.clear()
                    module._modules.update(children)
        if changed:
            raise ValueError(_CHANGES.format(name=name))
        if self._lacking(out):
            raise ValueError(_WITHOUT.format(name=f"{name}()"))
        return out

    def _method(
        self, name: str, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Tensor]]:
        """Call a method with these tensors in place; raise if it writes weights; also return the buffers it wrote.

        `tensors` must not share memory with q: depending on the mode, the weights written would be lost or kept.
        """
        named = {f"net.{key}": tensor for key, tensor in tensors.items()}
        before = _versions(tensors)
        out = functional_call(Method(self.net, name), named, args, kwargs, tie_weights=False)
        after = {key: named[f"net.{key}"] for key in tensors}
        weights = self._without() & tensors.keys()
        if any(after[key] is not tensors[key] for key in weights) or any(
            version != before[key] for key, version in _versions(tensors).items() if key in weights
        ):
            raise ValueError(_CHANGES.format(name=name))
        return out, after

    def _without(self) -> set[str]:
        """Return the names of the tensors that the network has only during a call."""
        return {name for factor in self.q for slot in factor.layout.slots for name in slot.names}  # type: ignore[union-attr]

    def _lacking(self, part: Any) -> bool:
        """Return whether this is a part of the network that lacks weights between calls."""
        if not isinstance(part, nn.Module):
            return False
        modules = dict(self.net.named_modules(remove_duplicate=False))
        owners = {id(modules[name.rpartition(".")[0]]) for name in self._without()}
        return any(id(module) in owners for module in part.modules())

    # One class per signature: `inspect.signature` reads the method of the class, not of the instance

    def take_signature(self) -> None:
        """Give `forward` the network's signature, which Hugging Face's Trainer and accelerate read."""
        net: Any = self.net
        net = net.get_base_model() if hasattr(net, "get_base_model") else net  # PEFT's takes (*args, **kwargs)
        self.__class__ = with_signature(plain_class(type(self)), type(net).forward)  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return new, (plain_class(type(self)),), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.take_signature()


def _versions(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Return how often each tensor has been written; nothing where torch does not count."""
    if torch.compiler.is_compiling():
        return {}
    return {key: tensor._version for key, tensor in tensors.items() if not tensor.is_inference()}


def _enables(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call switches something on: `f()` and `f(True)`, not `f(False)` or `f(enable=False)`."""
    return not (args[:1] == (False,) or kwargs.get("enable") is False)


def new(kind: type[Transparent]) -> Transparent:
    """Create an empty object for pickle to fill."""
    return kind.__new__(kind)


def plain_class(kind: type[Transparent]) -> type[Transparent]:
    """Return the class without the signature that `with_signature` added."""
    return kind.__dict__.get("signed", kind)


@cache
def with_signature(kind: type[Transparent], like: Callable[..., Any]) -> type[Transparent]:
    """Return a subclass whose `forward` shows the signature of another function."""

    def forward(self: Transparent, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs)

    try:
        forward.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # compiled code
        return kind
    about = {"forward": forward, "signed": kind, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**about, "__doc__": kind.__doc__})
