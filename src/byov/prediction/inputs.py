"""What `predict` accepts: batches, loaders of batches, and models in a wrapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule
from byov.prediction.state import modules_of

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
    if any(isinstance(module, BayesianModule) for module in modules_of(model)):
        raise ValueError("The posterior covers only a part of this model: bayesianize the whole of it, with a rule.")
    return model


def device_of(model: nn.Module) -> torch.device:
    return _device(model) or torch.device("cpu")


def _device(model: nn.Module) -> torch.device | None:
    """Where its parameters are, if it has any: a posterior's first, which are quickly found."""
    where = model.q if isinstance(model, BayesianModule) else model
    return next((parameter.device for parameter in where.parameters()), None)


def ready(x: Batch, model: nn.Module) -> Batch:
    """The batch on the model's device, and made an ordinary tensor where it comes from inference mode."""
    device = _device(model)

    def prepare(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise TypeError(f"A batch is a tensor or a mapping of tensors (N, …), not of {tensor!r}.")
        tensor = tensor.clone() if tensor.is_inference() else tensor
        return tensor if device is None else tensor.to(device)

    return prepare(x) if isinstance(x, Tensor) else {name: prepare(tensor) for name, tensor in x.items()}


def size_of(x: Batch) -> int:
    """How many inputs a batch holds: the length of its (first) tensor."""
    size = len(x) if isinstance(x, Tensor) else next((len(tensor) for tensor in x.values()), 0)
    if size == 0:
        raise ValueError("The batch is empty: there is nothing to predict.")
    return size


def named(x: Batch) -> Mapping[str, Tensor]:
    """The tensors of a batch by name."""
    return {"": x} if isinstance(x, Tensor) else x


def signature(x: Batch) -> tuple[tuple[Any, ...], ...]:
    """What batches have in common that a network takes in the same way."""
    place = lambda t: t.stride() if t.layout is torch.strided else t.layout  # noqa: E731
    return tuple((name, t.shape, place(t), t.dtype) for name, t in named(x).items())
