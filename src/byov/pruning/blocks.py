"""Find the units of a network that can be removed: attention heads, and the hidden units between two layers.

    layer → operations on each unit separately (activation, dropout, BatchNorm, pooling) → layer

The weights of a unit are a row of the first layer and a column of the second; those of a head are the rows of its
query, key and value and the columns of the output layer. Nothing else reads the unit, so removing it changes no other
shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

Kind = Literal["heads", "units"]

_UNITWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.CELU, nn.SELU, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Identity),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_MAPWISE = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten)
_TIMM_ATTENTION = {"timm.layers.attention.Attention", "timm.models.vision_transformer.Attention"}
_TIMM_MLP = "timm.layers.mlp.Mlp"


@dataclass(frozen=True, eq=False)
class Part:
    """The part of one parameter (or buffer) that belongs to each unit: `index[u]` are its positions along `dim`."""

    name: str
    dim: int
    index: Tensor

    def per_unit(self, values: Tensor) -> Tensor:
        """Sum the values of each unit; `values` has the parameter's shape."""
        along = values.movedim(self.dim, 0).flatten(1).sum(1) if values.ndim > 1 else values
        return along[self.index.to(along.device)].sum(1)

    def places(self, units: Tensor) -> Tensor:
        """Return a mask of the positions along `dim` that belong to the given units (a mask over units)."""
        found = torch.zeros(int(self.index.max()) + 1, dtype=torch.bool)
        found[self.index[units.cpu()].flatten()] = True
        return found


@dataclass(frozen=True, eq=False)
class Block:
    """Units that can be removed one by one."""

    kind: Kind
    name: str
    """Name of the module, or of the first layer."""
    units: int
    inside: tuple[Part, ...]
    """The parameters that compute the unit."""
    out: tuple[Part, ...]
    """The weights that read the unit; if they are all 0, it is not used."""
    beside: tuple[Part, ...] = ()
    """Other tensors of the unit: BatchNorm's scale, shift and statistics."""

    @property
    def weights(self) -> tuple[Part, ...]:
        return (*self.inside, *self.out)

    @property
    def parts(self) -> tuple[Part, ...]:
        return (*self.inside, *self.out, *self.beside)


def find_blocks(net: nn.Module) -> list[Block]:
    """List the blocks of a plain network, in the network's order.

    Supported are timm's `Attention` and `Mlp` (so its ViTs and ours), the two linear layers of
    `nn.TransformerEncoderLayer`, and neighbours in an `nn.Sequential`: Linear → Linear, Conv2d → Conv2d, and Conv2d →
    pooled and flattened → Linear. Layers and weights that occur twice are skipped.
    """
    modules = Counter(id(module) for _, module in net.named_modules(remove_duplicate=False))
    tensors = Counter(id(p) for _, p in net.named_parameters(remove_duplicate=False))
    once = {
        id(module)
        for module in net.modules()
        if modules[id(module)] == 1 and all(tensors[id(p)] == 1 for p in module.parameters(recurse=False))
    }
    return [
        block
        for name, module in net.named_modules()
        for block in _of(module, f"{name}." if name else "")
        if all(id(net.get_submodule(part.name.rpartition(".")[0])) in once for part in block.parts)
    ]


def _of(module: nn.Module, prefix: str) -> Iterator[Block]:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    if kind in _TIMM_ATTENTION:
        yield from _attention(module, prefix)
    elif kind == _TIMM_MLP:
        parts: Any = module
        yield from _pair(prefix, ("fc1", parts.fc1), {"norm": parts.norm}, ("fc2", parts.fc2))
    elif type(module) is nn.TransformerEncoderLayer:
        yield from _pair(prefix, ("linear1", module.linear1), {}, ("linear2", module.linear2))
    elif isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        children = list(module.named_children())
        layers = [i for i, (_, child) in enumerate(children) if isinstance(child, nn.Linear | nn.Conv2d)]
        for i, j in pairwise(layers):
            yield from _pair(prefix, children[i], dict(children[i + 1 : j]), children[j])


def _attention(module: Any, prefix: str) -> Iterator[Block]:
    # Without `attn_dim` (before timm 1.0.2x) its output is reshaped to the input's width, whatever the number of heads.
    heads, width = module.num_heads, module.head_dim
    if not hasattr(module, "attn_dim") or not isinstance(module.norm, nn.Identity):
        return
    own = torch.arange(heads * width).view(heads, width)
    three = torch.cat([own + i * heads * width for i in range(3)], 1)
    inside = [*_rows(f"{prefix}qkv", module.qkv, three)]
    if getattr(module, "gate", None) is not None:
        inside += _rows(f"{prefix}gate", module.gate, own)
    yield Block("heads", prefix[:-1], heads, tuple(inside), (Part(f"{prefix}proj.weight", 1, own),))


def _pair(
    prefix: str,
    first: tuple[str, nn.Module],
    between: dict[str, nn.Module],
    second: tuple[str, nn.Module],
) -> Iterator[Block]:
    """Yield the units between two layers, if all modules in between act on each unit separately."""
    (name, one), (after, two) = first, second
    if not _plain(one) or not _plain(two):
        return
    units = len(one.weight)
    if units != two.weight.shape[1]:
        return  # flattened maps: several inputs per channel
    index = torch.arange(units).view(-1, 1)
    beside: list[Part] = []
    for leaf, module in between.items():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            tensors = ("weight", "bias", "running_mean", "running_var")
            beside += [Part(f"{prefix}{leaf}.{t}", 0, index) for t in tensors if getattr(module, t) is not None]
        elif not isinstance(module, (*_UNITWISE, *(_MAPWISE if isinstance(one, nn.Conv2d) else ()))):
            return
    inside = tuple(_rows(f"{prefix}{name}", one, index))
    yield Block("units", f"{prefix}{name}", units, inside, (Part(f"{prefix}{after}.weight", 1, index),), tuple(beside))


def _plain(module: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    """Return whether this is a layer whose weight has its output units as rows and its input units as columns."""
    return type(module) is nn.Linear or (type(module) is nn.Conv2d and module.groups == 1)


def _rows(name: str, layer: Any, index: Tensor) -> Iterator[Part]:
    yield Part(f"{name}.weight", 0, index)
    if layer.bias is not None:
        yield Part(f"{name}.bias", 0, index)
