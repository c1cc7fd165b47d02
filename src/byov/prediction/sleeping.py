"""Weights that wake the recorder: until the network uses one of them, its pass runs as if nobody watched.

To watch a pass takes the host longer than to run it, and of a network whose last layer alone is random all but the end
is the same for every draw. So the drawn weights are handed over as tensors of a class of their own, and whatever torch
function first meets one starts the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from byov.prediction.tree import leaves_of, map_leaves, tensors_in

METADATA = {
    *("__get__", "__len__", "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point"),
    *("is_same_size", "is_signed", "ndimension", "nelement", "numel", "size", "storage_offset", "stride", "type"),
}
"""What may be asked of a random tensor without learning its values; `__get__` is every property (shape, dtype, …)."""

Wake = Callable[[list[Tensor]], None]
"""Is told which tensors the first call reads beside the drawn ones: what led there has made them."""


class Sleeping(Tensor):
    """A drawn weight, as a network is handed it."""

    plain: Tensor
    wake: Wake

    @staticmethod
    def of(tensor: Tensor, wake: Wake) -> Sleeping:
        made = tensor.as_subclass(Sleeping)
        made.plain, made.wake = tensor, wake
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = list(leaves_of((args, kwargs)))
        args, kwargs = map_leaves(plain, args), map_leaves(plain, kwargs)
        if getattr(func, "__name__", "") in METADATA and not tensors_in(out := func(*args, **kwargs)):
            return out
        wake = next(leaf.wake for leaf in leaves if type(leaf) is cls)
        wake([leaf for leaf in leaves if isinstance(leaf, Tensor) and type(leaf) is not cls])
        return func(*args, **kwargs)


def plain(leaf: Any) -> Any:
    """What stands behind a sleeping weight; anything else is itself."""
    return leaf.plain if type(leaf) is Sleeping else leaf
