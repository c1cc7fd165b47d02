"""The arguments and results of a torch call: trees of tensors, numbers and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BARE = {bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size, type(...)}
BARE |= {torch.layout, torch.memory_format}
"""Types of arguments that no tensor hides in, and that are equal where they look equal."""


@dataclass(frozen=True, slots=True)
class At:
    """Stands on the tape for a tensor that depends on the draw: the how-manieth of them it is."""

    number: int


_ATOMS = {Tensor, nn.Parameter, At, *BARE}


def leaves_of(tree: Any) -> Iterator[Any]:
    """As pytree has them, and those of slices. Most are tensors and numbers, for which it need not be asked."""
    kind = type(tree)
    if kind in _ATOMS:
        yield tree
    elif kind is tuple or kind is list:
        for part in tree:
            yield from leaves_of(part)
    elif kind is dict:
        for part in tree.values():
            yield from leaves_of(part)
    elif kind is slice:
        yield from (tree.start, tree.stop, tree.step)
    elif pytree.tree_is_leaf(tree):
        yield tree
    else:
        yield from leaves_of(pytree.tree_leaves(tree))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with other leaves."""
    kind = type(tree)
    if kind in _ATOMS:
        return function(tree)
    if kind is tuple or kind is list:
        return kind([function(part) if type(part) in _ATOMS else map_leaves(function, part) for part in tree])
    if kind is dict:
        return {key: map_leaves(function, part) for key, part in tree.items()}
    if kind is slice:
        return slice(function(tree.start), function(tree.stop), function(tree.step))
    return pytree.tree_map(function, tree)


def tensors_in(tree: Any) -> list[Tensor]:
    """Its tensors, in order."""
    return [tree] if type(tree) is Tensor else [leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor)]
