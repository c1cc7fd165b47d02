"""A pruned network as a safetensors file: of a tensor with many zeros a bit per weight and what is not 0."""

from __future__ import annotations

import copy
import os
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as masks

from byov.posterior.module import BayesianModule
from byov.pruning.masks import masked
from byov.pruning.structured import shaped_like

_KIND = "byov sparse weights"
_ENTRY = 200
"""About the bytes that one more tensor takes in a safetensors header: what packing has to save at least."""


@torch.no_grad()
def save_sparse(module: nn.Module, path: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
    """Write a pruned network to a safetensors file: of a tensor with many zeros a bit per weight and what is not 0.

    That is n/8 bytes and 4 per weight that is left, in float32; a tensor for which it would be no smaller is stored as
    it is. Masks are applied, so that the names are the plain network's; −0 becomes 0. A tied weight is stored once.
    `about` is kept beside the tensors.
    """
    if not isinstance(module, nn.Module) or isinstance(module, BayesianModule):
        raise TypeError(f"save_sparse takes a plain network, as prune gives it, not {type(module).__name__}.")
    from byov.train import checkpoint

    packed: dict[int, Any] = {}  # ties are one object here, and so stay one in the file
    state = _applied(module)
    content = {name: packed.setdefault(id(value), _pack(value)) for name, value in state.items()}
    checkpoint.save(path, {"kind": _KIND, "about": about or {}, "state": content})


def load_sparse(path: str | os.PathLike[str], net: nn.Module) -> nn.Module:
    """Load what `save_sparse` wrote into a plain network of its kind; `net` is filled and returned, without masks.

    Of a network from which heads or units were removed, `net` is as it was before that, and loses as many.
    """
    if not isinstance(net, nn.Module) or isinstance(net, BayesianModule):
        raise TypeError(f"load_sparse fills a plain network, not {type(net).__name__}.")
    if masks.is_pruned(net):
        raise ValueError("The network to fill has masks: load_sparse fills one that was not pruned.")
    from byov.train import checkpoint

    tree = checkpoint.load(path)
    if not isinstance(tree, dict) or tree.get("kind") != _KIND:
        raise ValueError(f"{path} is a checkpoint, but not one of sparse weights.")
    state = {name: _unpack(value, path) for name, value in tree["state"].items()}
    smaller = bool(tree["about"].get("groups"))
    own = (shaped_like(copy.deepcopy(net), state) if smaller else net).state_dict()
    for name in [*own, *state]:
        if name not in state or name not in own:
            raise ValueError(f"{path} is of another network: only {'the network' if name in own else 'it'} has {name}.")
        if isinstance(own[name], Tensor) and own[name].shape != state[name].shape:
            shapes = f"{tuple(state[name].shape)}, not {tuple(own[name].shape)}"
            raise ValueError(f"{path} is of another network: its {name} is {shapes}.")
    (shaped_like(net, state) if smaller else net).load_state_dict(state)
    return net


def _applied(net: nn.Module) -> dict[str, Any]:
    """The state with masks multiplied in, under the plain network's names; tied weights are one object."""
    modules = net.named_modules(remove_duplicate=False)
    covered = {f"{prefix}.{leaf}" if prefix else leaf for prefix, module in modules for leaf in masked(module)}
    state, applied = net.state_dict(keep_vars=True), {}
    products: dict[int, Tensor] = {}
    for key, value in state.items():
        name = key.removesuffix("_orig")
        if name != key and name in covered:
            product = value * state[f"{name}_mask"]
            known = products.setdefault(id(value), product)
            applied[name] = known if torch.equal(known, product) else product
        elif not (key.endswith("_mask") and key.removesuffix("_mask") in covered):
            applied[key] = value
    return applied


def _pack(value: Any) -> Any:
    """A tensor as the values that are not 0 and a bit per weight, the first in the lowest bit; if that is smaller."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype.itemsize == 1:
        return value
    flat = value.detach().flatten()
    kept = flat != 0
    values, size = flat[kept], (len(flat) + 7) // 8
    if values.nbytes + size + _ENTRY >= value.nbytes:
        return value
    bits = nn.functional.pad(kept.to(torch.uint8), (0, 8 * size - len(flat))).view(size, 8)
    return {"shape": list(value.shape), "bits": (bits << _places(bits)).sum(1, dtype=torch.uint8), "values": values}


def _unpack(value: Any, path: object) -> Any:
    if not isinstance(value, dict):
        return value
    shape, bits, values = value["shape"], value["bits"], value["values"]
    flat = torch.zeros(prod(shape), dtype=values.dtype)
    kept = ((bits.unsqueeze(1) >> _places(bits)) & 1).flatten()[: len(flat)].bool()
    if len(kept) != len(flat) or int(kept.sum()) != len(values):
        raise ValueError(f"{path} is damaged: its bits and its values do not agree.")
    flat[kept] = values
    return flat.view(shape)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
