"""The inputs that `predict` accepts: batches, loaders of batches, data sets, and wrapped models."""

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
"""One input; keyword arguments; several positional arguments; or a list (such as of images) that is one argument."""

NO_FORWARD = ("torch.nn.modules.module", "lightning.", "pytorch_lightning.")
"""Modules that a class inherits `forward` from if it defines none itself."""

LABELS = ("labels", "label", "targets", "target")
"""Names of labels in a batch that is a mapping."""

ROWS = 64
"""Batch size for data sets. For another batch size, or for workers, pass a DataLoader."""


class InputSpec(NamedTuple):
    """The inputs of a network: how many it needs, how many it takes at most, and whether the first one is a list.

    `names` holds the names of all arguments; None if the network takes any.
    """

    needed: int
    most: float
    listed: bool
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, net: nn.Module) -> InputSpec:
        """Read the inputs from the signature of `forward`."""
        whole: Any = getattr(net, "get_base_model", None)  # PEFT's own forward takes (*args, **kwargs)
        try:
            parameters = list(inspect.signature((whole() if whole else net).forward).parameters.values())
        except (TypeError, ValueError):  # compiled code
            return cls(1, 1, False)
        own = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        most = inf if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(own)
        first = str(own[0].annotation).lower().removeprefix("typing.") if own else ""
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = None if anything else frozenset(p.name for p in parameters)
        return cls(sum(p.default is p.empty for p in own), most, first.startswith("list["), names)


def batches_of(x: Any, net: nn.Module) -> tuple[Any, Iterable[Any]]:
    """Return `x` if it is one batch, or None and the batches in it.

    A tuple of tensors is one batch if the network needs several inputs, and several batches if it takes only one. If
    several inputs are optional, the tuple is ambiguous and an error is raised. A list holds batches, unless the
    network's input is a list.
    """
    if isinstance(x, Dataset) or type(x).__module__.startswith("datasets."):
        return None, DataLoader(x, ROWS)
    if isinstance(x, Tensor | Mapping | np.ndarray):
        return x, ()
    if not isinstance(x, Iterable):
        allowed = "a tensor, a mapping of tensors, an array, a data set or a loader"
        raise TypeError(f"predict takes {allowed}, not {type(x).__name__}.")
    takes = InputSpec.of(net)
    tensors = isinstance(x, tuple | list) and len(x) > 0 and all(isinstance(part, Tensor | np.ndarray) for part in x)
    if tensors and isinstance(x, list) and takes.listed:
        return x, ()
    if tensors and isinstance(x, tuple) and takes.needed > 1:
        if not takes.needed <= len(x) <= takes.most:
            raise ValueError(f"The network needs {takes.needed} inputs, not {len(x)}; pass several batches as a list.")
        return x, ()
    if tensors and isinstance(x, tuple) and 1 < len(x) <= takes.most:
        raise ValueError(
            f"A tuple may be {len(x)} inputs of one batch or {len(x)} batches: name the inputs in a mapping, or pass"
            " batches as a list."
        )
    return None, x


def inputs_from_batch(batch: Any, takes: InputSpec) -> Any:
    """Return the network's inputs in a loader's batch: the batch itself, or the x of (x, y).

    From a mapping, labels are dropped if the network has no argument for them. x may itself be several tensors, as in
    ((a, b), y): several inputs, or one list if the network takes only one. From (a, b, y), a network that needs two
    inputs gets a and b.
    """
    if isinstance(batch, tuple | list) and batch:
        first = batch[0]
        if isinstance(first, tuple | list):
            batch = list(first) if takes.listed or takes.most <= 1 else tuple(first)
        elif takes.needed > 1 and not isinstance(first, Mapping):
            if len(batch) < takes.needed:
                raise ValueError(f"The network needs {takes.needed} inputs, but the loader gives {len(batch)}.")
            batch = tuple(batch[: takes.needed])
        elif not (takes.listed and isinstance(batch, list)):
            batch = first
    if not isinstance(batch, Tensor | Mapping | np.ndarray | tuple | list):
        raise TypeError(f"A loader gives tensors, (x, y) pairs or mappings, not {type(batch).__name__}.")
    return without_labels(batch, takes)


def without_labels(batch: Any, takes: InputSpec) -> Any:
    """Return a mapping without labels that the network has no argument for; other batches unchanged."""
    if not isinstance(batch, Mapping) or takes.names is None or not any(name in batch for name in LABELS):
        return batch
    return {name: value for name, value in batch.items() if name in takes.names or name not in LABELS}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside the wrapper of torch.compile, DDP or Fabric, or in a module without its own forward.

    A module that contains a BayesianModule and has its own forward is called as it is: see `posterior_of`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes a BayesianModule or another torch.nn.Module, not {type(model).__name__}.")
    if isinstance(model, BayesianModule):
        return model
    if instead := getattr(type(model), "instead", None):  # byov.SWAG
        raise TypeError(instead)
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model.module if parallel or type(model).__name__ == "_FabricModule" else getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if (held := posterior_of(model)) is None or "forward" in vars(model):
        return model
    return held if (getattr(type(model).forward, "__module__", None) or "").startswith(NO_FORWARD) else model


def posterior_of(model: nn.Module) -> BayesianModule | None:
    """Return the model itself if it is a BayesianModule, or the only one in it; None for a plain network."""
    if isinstance(model, BayesianModule):
        return model
    inside = {name: module for name, module in model.named_modules() if isinstance(module, BayesianModule)}
    if len(inside) > 1:
        raise ValueError(
            f"{type(model).__name__} holds several posteriors ({', '.join(inside)}): bayesianize the whole, by rules."
        )
    return next(iter(inside.values()), None)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's tensors; a posterior's own tensors are the quickest to find."""
    where = model.q if isinstance(model, BayesianModule) else model
    return next((tensor.device for tensor in chain(where.parameters(), where.buffers())), torch.device("cpu"))


def ready(x: Any, model: nn.Module) -> Batch:
    """Move the batch to the model's device, and turn arrays and inference tensors into ordinary tensors.

    Floating-point arrays, which NumPy keeps in float64, get the dtype of the model.
    """
    device = device_of(model)

    def prepare(value: Any) -> Tensor:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.array(value))
            value = value.to(_dtype_of(model)) if value.is_floating_point() else value
        if not isinstance(value, Tensor) or value.ndim == 0:
            raise TypeError(f"A batch is a tensor or a mapping of tensors (N, …), not {value!r}.")
        return (value.clone() if value.is_inference() else value).to(device)

    return map_tensors(prepare, x)


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


def map_tensors(function: Callable[[Any], Tensor], x: Batch) -> Batch:
    """Apply `function` to the tensors of a batch."""
    if isinstance(x, Mapping):
        return {name: function(tensor) for name, tensor in x.items()}
    if isinstance(x, tuple | list):
        return [*map(function, x)] if isinstance(x, list) else tuple(map(function, x))
    return function(x)


def kept(x: Batch, keep: Tensor) -> Batch:
    """Keep only the inputs in the mask `keep`."""
    if isinstance(x, list):
        return [part for part, stays in zip(x, keep.tolist(), strict=True) if stays]
    return map_tensors(lambda tensor: tensor[keep], x)


def tensors_of(x: Batch) -> list[Tensor]:
    return list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, tuple | list) else [x]


def call(net: Callable[..., Any], x: Batch, tensor: Callable[[Any], Tensor]) -> Tensor:
    """Return the tensor that `tensor` selects from the network's output for a batch."""
    if isinstance(x, Mapping):
        return tensor(net(**x))
    return tensor(net(*x) if isinstance(x, tuple) else net(x))
