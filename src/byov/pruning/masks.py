"""The masks of `torch.nn.utils.prune` on a network: put on, found again, made permanent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import prune as masks


class Layer(NamedTuple):
    """A pruned tensor: its name in the network, how many weights it has and how many of them are masked."""

    name: str
    weights: int
    zeros: int


def layers(net: nn.Module) -> list[Layer]:
    """The pruned tensors of a network; a tied one once."""
    found: dict[int, Layer] = {}
    for prefix, module in net.named_modules():
        for leaf in masked(module):
            mask, original = getattr(module, f"{leaf}_mask"), getattr(module, f"{leaf}_orig")
            name = f"{prefix}.{leaf}" if prefix else leaf
            found.setdefault(id(original), Layer(name, mask.numel(), int((mask == 0).sum())))
    return list(found.values())


def mask(places: list[tuple[str, nn.Module]], keep: Tensor) -> None:
    """Mask a parameter in each module that holds it; `weight_orig` stays one parameter, and the mask is one buffer."""
    first: Tensor | None = None
    for module, leaf in dict.fromkeys((module, name.rpartition(".")[2]) for name, module in places):
        masks.custom_from_mask(module, leaf, keep)
        first = module.get_buffer(f"{leaf}_mask") if first is None else first
        setattr(module, f"{leaf}_mask", first)


def masked(module: nn.Module) -> Iterator[str]:
    """The names of a module's own tensors that are masked."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, masks.BasePruningMethod):
            yield hook._tensor_name


def renew_output(attention: nn.Module, inputs: Any) -> None:
    output: Any = attention.out_proj
    for hook in list(output._forward_pre_hooks.values()):
        if isinstance(hook, masks.BasePruningMethod):
            hook(output, inputs)


def finish(net: nn.Module) -> nn.Module:
    """Hold the outputs of attention layers whose output weights are masked; the last step of masking a network."""
    for module in net.modules():
        # It reads its output layer's weight without calling that layer, whose hook would renew it.
        if isinstance(module, nn.MultiheadAttention) and masks.is_pruned(module.out_proj):
            module.register_forward_pre_hook(renew_output)
    return net


def make_permanent(net: nn.Module) -> nn.Module:
    """The network itself with its masks multiplied in and taken off; tied weights stay tied."""
    for module in net.modules():
        for leaf in list(masked(module)):
            masks.remove(module, leaf)
        if isinstance(module, nn.MultiheadAttention):
            for key in [key for key, hook in module._forward_pre_hooks.items() if hook is renew_output]:
                del module._forward_pre_hooks[key]
    return net
