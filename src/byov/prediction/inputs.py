"""What `predict` accepts: batches, loaders of batches, and models in a wrapper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule

Batch = Tensor | Mapping[str, Tensor]


def first_of(batch: Any) -> Batch:
    """The network's input in what a loader gives: the batch itself, or the x of (x, y)."""
    if isinstance(batch, tuple | list) and batch:
        batch = batch[0]
    if not isinstance(batch, Tensor | Mapping):
        raise TypeError(f"A loader gives tensors, (x, y) pairs or mappings, not {type(batch).__name__}.")
    return batch


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's, DDP's or Fabric's wrapper: draws go to the network itself."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes a BayesianModule or another torch.nn.Module, not {type(model).__name__}.")
    if isinstance(model, BayesianModule):
        return model
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = model.module if parallel or type(model).__name__ == "_FabricModule" else getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if any(isinstance(module, BayesianModule) for module in model.modules()):
        raise ValueError("The posterior covers only a part of this model: bayesianize the whole of it, with a rule.")
    return model


def device_of(model: nn.Module) -> torch.device:
    """Where its tensors are; a posterior's own are quickly found."""
    where = model.q if isinstance(model, BayesianModule) else model
    return next((tensor.device for tensor in chain(where.parameters(), where.buffers())), torch.device("cpu"))


def ready(x: Batch, model: nn.Module) -> Batch:
    """The batch on the model's device, and made an ordinary tensor where it comes from inference mode."""
    device = device_of(model)

    def prepare(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise TypeError(f"A batch is a tensor or a mapping of tensors (N, …), not of {tensor!r}.")
        return (tensor.clone() if tensor.is_inference() else tensor).to(device)

    return mapped(prepare, x)


def size_of(x: Batch) -> int:
    """How many inputs a batch holds: the length of its (first) tensor."""
    size = next(map(len, tensors_of(x)), 0)
    if size == 0:
        raise ValueError("The batch is empty: there is nothing to predict.")
    return size


def mapped(function: Callable[[Tensor], Tensor], x: Batch) -> Batch:
    """The batch with `function` applied to its tensors."""
    return function(x) if isinstance(x, Tensor) else {name: function(tensor) for name, tensor in x.items()}


def tensors_of(x: Batch) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values())


def call(net: Callable[..., Any], x: Batch) -> Tensor:
    """The one tensor that a network returns for a batch."""
    out = net(x) if isinstance(x, Tensor) else net(**x)
    if not isinstance(out, Tensor):
        raise TypeError(f"predict needs a network that returns one tensor, not {type(out).__name__}.")
    return out
