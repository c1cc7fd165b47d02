"""The position of each parameter in a factor's flat tensors, and its division into layers and input units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from byov.posterior.materialize import split

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LOOKUP = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Slot:
    """One parameter of the network.

    `names` holds all its names in the network (tied weights have several); the first is the one shown to users.
    `units` is the parameter's shape, split so that `mask`, broadcast over it, gives one number per *input unit*: the
    granularity of dropout. A bias has no input unit, and its `mask` is None.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    layer: str
    units: tuple[int, ...]
    mask: tuple[int, ...] | None

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @classmethod
    def of(cls, names: Sequence[str], module: nn.Module, parameter: Tensor) -> Slot:
        layer, _, leaf = names[0].rpartition(".")
        shape = tuple(parameter.shape)
        units, mask = _input_units(module, leaf, shape)
        return cls(tuple(names), shape, layer, units, mask)


def _input_units(
    module: nn.Module, leaf: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Split `shape` into input units; return the shape of that view, and the shape of the mask over it."""
    if "bias" in leaf or not shape:
        return shape, None
    if len(shape) == 1:  # a scale, as in a norm layer: each channel is its own input
        return shape, shape
    if isinstance(module, (*_TRANSPOSED, *_LOOKUP)):  # (in, out, …): a row is an input
        return shape, (shape[0], *(1 for _ in shape[1:]))
    groups = module.groups if isinstance(module, _CONVOLUTION) else 1
    if groups > 1:  # each group of outputs reads its own inputs
        units = (groups, shape[0] // groups, *shape[1:])
        return units, (groups, 1, shape[1], *(1 for _ in shape[2:]))
    return shape, (1, shape[1], *(1 for _ in shape[2:]))


@dataclass(frozen=True)
class Layout:
    """The parameters that one factor of q covers, in the order of its flat tensors."""

    slots: tuple[Slot, ...]
    sizes: list[int] = field(init=False, repr=False, compare=False)
    numel: int = field(init=False, repr=False, compare=False)
    layers: int = field(init=False, repr=False, compare=False)
    """Number of layers (modules) that the covered parameters belong to."""
    units: int = field(init=False, repr=False, compare=False)
    """Number of input units that the covered parameters read."""

    def __post_init__(self) -> None:
        # Not cached properties: in Python 3.11 they take a lock, which torch.compile cannot trace.
        object.__setattr__(self, "sizes", [slot.numel for slot in self.slots])
        object.__setattr__(self, "numel", sum(self.sizes))
        object.__setattr__(self, "layers", len({slot.layer for slot in self.slots}))
        object.__setattr__(self, "units", sum(prod(slot.mask) for slot in self.slots if slot.mask is not None))

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return named views of a flat tensor; leading dimensions (draws, components) are kept.

        One split, whose backward is one `cat`; slicing would give a full-size gradient per parameter.
        """
        lead = flat.shape[:-1]
        parts = split(flat, self.sizes)
        return {
            slot.name: part if len(slot.shape) == 1 else part.view((*lead, *slot.shape))
            for slot, part in zip(self.slots, parts, strict=True)
        }

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the flat tensor whose named views are `values`, broadcast to the shapes of the parameters."""
        return torch.cat([values[slot.name].expand(slot.shape).reshape(-1) for slot in self.slots])

    def with_ties(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the same tensors under all their names in the network."""
        return {alias: named[slot.name] for slot in self.slots for alias in slot.names}

    def layer_cells(self) -> Tensor:
        """Return for each element the index of its layer."""
        number: dict[str, int] = {}
        parts = [torch.full((s.numel,), number.setdefault(s.layer, len(number)), dtype=torch.int32) for s in self.slots]
        return torch.cat(parts)

    def layer_means(self, flat: Tensor) -> Tensor:
        """Return for each element of a flat tensor (P,) the mean over its layer."""
        cells = self.layer_cells().to(flat.device, torch.int64)
        zeros = flat.new_zeros(self.layers)
        means = zeros.index_add(0, cells, flat) / zeros.index_add(0, cells, torch.ones_like(flat))
        return means.index_select(0, cells)

    def unit_cells(self) -> Tensor:
        """Return for each element the index of its input unit; biases have none and get one past the last index."""
        parts, start = [], 0
        for slot in self.slots:
            if slot.mask is None:
                parts.append(torch.full((slot.numel,), self.units, dtype=torch.int32))
                continue
            stop = start + prod(slot.mask)
            parts.append(torch.arange(start, stop, dtype=torch.int32).view(slot.mask).expand(slot.units).reshape(-1))
            start = stop
        return torch.cat(parts)

    def bias_cells(self) -> Tensor:
        """Return a mask of the elements that belong to a bias; dropout and DropConnect never drop these."""
        return torch.cat([torch.full((slot.numel,), slot.mask is None) for slot in self.slots])


def occurrences(net: nn.Module) -> Iterable[tuple[Tensor, list[tuple[str, nn.Module]]]]:
    """List every parameter of the network once, with all (name, owning module) pairs where it occurs."""
    found: dict[int, tuple[Tensor, list[tuple[str, nn.Module]]]] = {}
    for prefix, module in net.named_modules(remove_duplicate=False):
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{prefix}.{leaf}" if prefix else leaf
                found.setdefault(id(parameter), (parameter, []))[1].append((name, module))
    return found.values()
