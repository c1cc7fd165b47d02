"""What `predict` accepts: batches, loaders of batches and data sets, and models in a wrapper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from byov.posterior.module import BayesianModule

Batch = Tensor | Mapping[str, Tensor] | tuple[Tensor, ...] | list[Tensor]
"""One input; keyword arguments; several positional ones; or a list, such as of images, that is one argument."""

NO_FORWARD = ("torch.nn.modules.module", "lightning.", "pytorch_lightning.")
"""Where a class has its `forward` from, if it has none of its own."""

LABELS = ("labels", "label", "targets", "target")
"""What labels are called in a batch that is a mapping."""

ROWS = 64
"""How many of a data set's examples are predicted at once. For another number, or workers, give a DataLoader."""


class Takes(NamedTuple):
    """How many positional inputs a network needs, how many it takes at most, and whether its first one is a list.

    `names` are those of all its arguments; None where it takes any.
    """

    needed: int
    most: float
    listed: bool
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, net: nn.Module) -> Takes:
        """Read it from the signature of `forward`."""
        whole: Any = getattr(net, "get_base_model", None)  # PEFT's own forward takes (*args, **kwargs)
        try:
            parameters = list(inspect.signature((whole() if whole else net).forward).parameters.values())
        except (TypeError, ValueError):  # of compiled code
            return cls(1, 1, False)
        own = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        most = inf if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(own)
        first = str(own[0].annotation).lower().removeprefix("typing.") if own else ""
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = None if anything else frozenset(p.name for p in parameters)
        return cls(sum(p.default is p.empty for p in own), most, first.startswith("list["), names)


def batches_of(x: Any, net: nn.Module) -> tuple[Any, Iterable[Any]]:
    """Return the batch that `x` is, or None, and else the batches in it.

    A tuple of tensors is several inputs of one batch where the network needs several, and several batches where it
    takes one; where it may take several, nobody knows. A list is batches, but for a network whose input is a list.
    """
    if isinstance(x, Dataset) or type(x).__module__.startswith("datasets."):
        return None, DataLoader(x, ROWS)
    if isinstance(x, Tensor | Mapping | np.ndarray):
        return x, ()
    if not isinstance(x, Iterable):
        allowed = "a tensor, a mapping of tensors, an array, a data set or a loader"
        raise TypeError(f"predict takes {allowed}, not {type(x).__name__}.")
    takes = Takes.of(net)
    tensors = isinstance(x, tuple | list) and len(x) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in x)
    if tensors and isinstance(x, list) and takes.listed:
        return x, ()
    if tensors and isinstance(x, tuple) and takes.needed > 1:
        if not takes.needed <= len(x) <= takes.most:
            raise ValueError(f"The network needs {takes.needed} inputs, not {len(x)}; give several batches as a list.")
        return x, ()
    if tensors and isinstance(x, tuple) and 1 < len(x) <= takes.most:
        raise ValueError(
            f"A tuple may be {len(x)} inputs of one batch or {len(x)} batches: name the inputs in a mapping, or give"
            " batches as a list."
        )
    return None, x


def first_of(batch: Any, takes: Takes) -> Any:
    """Return the network's inputs in what a loader gives: the batch itself, or the x of (x, y).

    Of a mapping, labels go that the network has no argument for. x may be several tensors itself, ((a, b), y): inputs,
    or one list where the network takes but one. Of (a, b, y) a network that needs two inputs is given two.
    """
    if isinstance(batch, tuple | list) and batch:
        first = batch[0]
        if isinstance(first, tuple | list):
            batch = list(first) if takes.listed or takes.most <= 1 else tuple(first)
        elif takes.needed > 1 and not isinstance(first, Mapping):
            if len(batch) < takes.needed:
                raise ValueError(f"The network needs {takes.needed} inputs, and the loader gives {len(batch)}.")
            batch = tuple(batch[: takes.needed])
        elif not (takes.listed and isinstance(batch, list)):
            batch = first
    if not isinstance(batch, Tensor | Mapping | np.ndarray | tuple | list):
        raise TypeError(f"A loader gives tensors, (x, y) pairs or mappings, not {type(batch).__name__}.")
    return without_labels(batch, takes)


def without_labels(batch: Any, takes: Takes) -> Any:
    """Return a mapping without the labels that the network has no argument for; another batch as it is."""
    if not isinstance(batch, Mapping) or takes.names is None or not any(name in batch for name in LABELS):
        return batch
    return {name: value for name, value in batch.items() if name in takes.names or name not in LABELS}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile's, DDP's or Fabric's wrapper, and in a module without a forward of its own.

    A module whose forward leads to one BayesianModule is called as it is: see `posterior_of`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes a BayesianModule or another torch.nn.Module, not {type(model).__name__}.")
    if isinstance(model, BayesianModule):
        return model
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model.module if parallel or type(model).__name__ == "_FabricModule" else getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if (held := posterior_of(model)) is None or "forward" in vars(model):
        return model
    return held if (getattr(type(model).forward, "__module__", None) or "").startswith(NO_FORWARD) else model


def posterior_of(model: nn.Module) -> BayesianModule | None:
    """Return the BayesianModule that this is, or the only one in it; None in a plain network."""
    if isinstance(model, BayesianModule):
        return model
    inside = {name: module for name, module in model.named_modules() if isinstance(module, BayesianModule)}
    if len(inside) > 1:
        raise ValueError(
            f"{type(model).__name__} holds several posteriors ({', '.join(inside)}): bayesianize the whole, by rules."
        )
    return next(iter(inside.values()), None)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of its tensors; a posterior's own are quickly found."""
    where = model.q if isinstance(model, BayesianModule) else model
    return next((tensor.device for tensor in chain(where.parameters(), where.buffers())), torch.device("cpu"))


def ready(x: Any, model: nn.Module) -> Batch:
    """Move the batch to the model's device, and make an ordinary tensor of one from inference mode, or of an array.

    An array's floating-point numbers, which NumPy keeps in float64, get the dtype of the model's.
    """
    device = device_of(model)

    def prepare(value: Any) -> Tensor:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.array(value))
            value = value.to(_dtype_of(model)) if value.is_floating_point() else value
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise TypeError(f"A batch is a tensor or a mapping of tensors (N, …), not of {value!r}.")
        return (value.clone() if value.is_inference() else value).to(device)

    return mapped(prepare, x)


def _dtype_of(model: nn.Module) -> torch.dtype:
    where = model.q if isinstance(model, BayesianModule) else model
    found = (tensor.dtype for tensor in where.parameters() if tensor.is_floating_point())
    return next(found, torch.get_default_dtype())


def size_of(x: Batch) -> int:
    """Count the inputs of a batch: the length of a list, or of the (first) tensor."""
    size = len(x) if isinstance(x, list) else next(map(len, tensors_of(x)), 0)
    if size == 0:
        raise ValueError("The batch is empty: there is nothing to predict.")
    return size


def mapped(function: Callable[[Any], Tensor], x: Batch) -> Batch:
    """Apply `function` to the tensors of a batch."""
    if isinstance(x, Mapping):
        return {name: function(tensor) for name, tensor in x.items()}
    if isinstance(x, tuple | list):
        return [*map(function, x)] if isinstance(x, list) else tuple(map(function, x))
    return function(x)


def kept(x: Batch, keep: Tensor) -> Batch:
    """Keep some of the inputs only."""
    if isinstance(x, list):
        return [part for part, stays in zip(x, keep.tolist(), strict=True) if stays]
    return mapped(lambda tensor: tensor[keep], x)


def tensors_of(x: Batch) -> list[Tensor]:
    return list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple | list) else [x]


def call(net: Callable[..., Any], x: Batch, tensor: Callable[[Any], Tensor]) -> Tensor:
    """Return what `tensor` finds in the network's output for a batch."""
    if isinstance(x, Mapping):
        return tensor(net(**x))
    return tensor(net(*x) if isinstance(x, tuple) else net(x))
