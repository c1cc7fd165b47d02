"""A pruned network as a safetensors file: a tensor with many zeros is stored as one bit per weight and its values ≠ 0.

The metadata holds, as JSON under "byov", the tree {kind, about, state}. In it, {"$tensor": name} stands for a tensor of
the file and {shape, bits, values} for a packed one. This is the checkpoint format, so checkpoint code reads it too.
"""

from __future__ import annotations

import copy
import json
import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils import prune as masks

from byov.files import replacing
from byov.posterior.module import BayesianModule
from byov.pruning.masks import masked
from byov.pruning.structured import shaped_like

_KIND = "byov sparse weights"
_ENTRY = 200
"""Approximate bytes that another tensor takes in a safetensors header: packing has to save more than that."""


@torch.no_grad()
def save_sparse(module: nn.Module, path: str | os.PathLike[str], about: dict[str, Any] | None = None) -> None:
    """Write a pruned network to a safetensors file, with its zeros packed.

    A float32 tensor takes n/8 bytes plus 4 per remaining weight; if that is not smaller, it is stored unpacked. Masks
    are applied, so the names are those of the plain network; −0 becomes 0. A tied weight is stored once. `about`, plain
    JSON values, is stored with the tensors.
    """
    _check_plain(module, "save_sparse takes a plain network, as prune returns it")
    tensors: dict[str, Tensor] = {}

    def stored_tree(value: Any, name: str) -> Any:
        """Collect the tensors for the file and return the tree with their names."""
        if isinstance(value, dict):
            return {key: stored_tree(part, f"{name}/{key}") for key, part in value.items()}
        if not isinstance(value, Tensor):
            return value
        while name in tensors:  # names are only informative
            name += "'"
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": name}

    stored: dict[int, Any] = {}  # ties are one object here, and one tensor in the file
    state: dict[str, Any] = {}
    for name, value in _masked_state(module).items():
        if id(value) not in stored:
            stored[id(value)] = stored_tree(_pack(value), f"state/{name}")
        state[name] = stored[id(value)]
    tree = json.dumps({"kind": _KIND, "about": about or {}, "state": state}, separators=(",", ":"))
    with replacing(Path(path)) as fresh:
        fresh.write_bytes(save(tensors, {"byov": tree}))  # `save_file` would make it unreadable for others


def load_sparse(path: str | os.PathLike[str], net: nn.Module) -> nn.Module:
    """Load a file of `save_sparse` into a plain network of the same kind; return `net`, filled and without masks.

    If heads or units were removed from the saved network, pass `net` as it was before; it is cut to the same size.
    """
    _check_plain(net, "load_sparse fills a plain network")
    if masks.is_pruned(net):
        raise ValueError("The network to fill has masks: load_sparse fills a network that was not pruned.")
    tree = _read(path)
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


def _check_plain(net: object, sentence: str) -> None:
    if not isinstance(net, nn.Module) or isinstance(net, BayesianModule):
        raise TypeError(f"{sentence}, not {type(net).__name__}.")


def _read(path: str | os.PathLike[str]) -> Any:
    """Return the tree of the file with its tensors filled in."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file of sparse weights at {path}.")
    try:
        with safe_open(path, "pt") as file:
            tree = json.loads((file.metadata() or {}).get("byov", "null"))
            if not isinstance(tree, dict) or tree.get("kind") != _KIND:
                raise ValueError(f"{path} is a safetensors file, but not one of sparse weights.")
            return _with_tensors(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or not a safetensors file: {error}.") from None


def _with_tensors(node: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    return tensors[node["$tensor"]] if "$tensor" in node else {k: _with_tensors(v, tensors) for k, v in node.items()}


def _masked_state(net: nn.Module) -> dict[str, Any]:
    """Return the state with masks applied, under the plain network's names; tied weights are one object."""
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
    """Pack a tensor, if that is smaller, as its non-zero values and one bit per weight, lowest bit first."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype.itemsize == 1:
        return value
    flat = value.detach().cpu().flatten()
    kept = flat != 0
    bits, values = torch.from_numpy(np.packbits(kept.numpy(), bitorder="little")), flat[kept]
    if values.nbytes + bits.nbytes + _ENTRY >= value.nbytes:
        return value
    return {"shape": list(value.shape), "bits": bits, "values": values}


def _unpack(value: Any, path: object) -> Any:
    if not isinstance(value, dict):
        return value
    shape, bits, values = value["shape"], value["bits"], value["values"]
    flat = torch.zeros(prod(shape), dtype=values.dtype)
    kept = torch.from_numpy(np.unpackbits(bits.numpy(), bitorder="little")[: len(flat)]).bool()
    if len(kept) != len(flat) or int(kept.sum()) != len(values):
        raise ValueError(f"{path} is damaged: its bits and its values do not agree.")
    flat[kept] = values
    return flat.view(shape)
