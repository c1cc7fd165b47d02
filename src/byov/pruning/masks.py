"""Add masks of `torch.nn.utils.prune` to a network, find them, make them permanent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import prune as masks


class Layer(NamedTuple):
    """A pruned tensor: its name in the network, its number of weights, and how many of them are masked."""

    name: str
    weights: int
    zeros: int


def layers(net: nn.Module) -> list[Layer]:
    """List the pruned tensors of a network, each tied one once."""
    return [Layer(name, mask.numel(), int((mask == 0).sum())) for name, _, mask in masked_tensors(net)]


def masked_tensors(net: nn.Module) -> Iterable[tuple[str, nn.Parameter, Tensor]]:
    """List the (name, original, mask) of each pruned tensor; a tied one, with its one original and mask, only once."""
    found: dict[int, tuple[str, nn.Parameter, Tensor]] = {}
    for prefix, module in net.named_modules():
        for leaf in masked(module):
            original, mask = getattr(module, f"{leaf}_orig"), getattr(module, f"{leaf}_mask")
            found.setdefault(id(original), (f"{prefix}.{leaf}" if prefix else leaf, original, mask))
    return found.values()


def mask(places: list[tuple[str, nn.Module]], keep: Tensor) -> None:
    """Mask a parameter in each module that holds it; all share one parameter `weight_orig` and one mask buffer."""
    first: Tensor | None = None
    for module, leaf in dict.fromkeys((module, name.rpartition(".")[2]) for name, module in places):
        masks.custom_from_mask(module, leaf, keep)
        first = module.get_buffer(f"{leaf}_mask") if first is None else first
        setattr(module, f"{leaf}_mask", first)


def masked(module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's own tensors that are masked."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, masks.BasePruningMethod):
            yield hook._tensor_name


def apply_output_masks(attention: nn.Module, inputs: Any) -> None:
    """Apply the masks of an attention's output layer, whose weights are read without calling that layer's hook."""
    output: Any = attention.out_proj
    for hook in list(output._forward_pre_hooks.values()):
        if isinstance(hook, masks.BasePruningMethod):
            hook(output, inputs)


def keep_output_masks(net: nn.Module) -> nn.Module:
    """Keep the masks of attention layers' output weights applied; this is the last step of masking a network."""
    for module in net.modules():
        if isinstance(module, nn.MultiheadAttention) and masks.is_pruned(module.out_proj):
            module.register_forward_pre_hook(apply_output_masks)
    return net


def make_permanent(net: nn.Module) -> nn.Module:
    """Apply the masks, remove them, and return the network itself; tied weights stay tied."""
    for module in net.modules():
        for leaf in list(masked(module)):
            masks.remove(module, leaf)
        if isinstance(module, nn.MultiheadAttention):
            for key in [key for key, hook in module._forward_pre_hooks.items() if hook is apply_output_masks]:
                del module._forward_pre_hooks[key]
    return net
