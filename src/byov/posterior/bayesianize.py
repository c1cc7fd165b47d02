"""bayesianize: put q(θ) over the parameters of any network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from byov.posterior.factor import Factor
from byov.posterior.layout import Layout
from byov.posterior.module import BayesianModule
from byov.posterior.prior import Normal, Prior
from byov.posterior.recommended import Recommended, recommended
from byov.posterior.select import Rules, output_layer, select
from byov.posterior.transparent import CHECKPOINTING


def bayesianize(
    net: nn.Module, rules: Rules | Recommended = "scratch", *, prior: Prior | None = None, shared_draw: bool = False
) -> BayesianModule:
    """Give `net` a posterior over the parameters that `rules` cover; its weights become the means.

    Args:
        net: any module. It is copied and not changed.
        rules: a family, for every trainable parameter; or a mapping from rules to families, tried in order, where a
            rule is a glob on the parameter's name, a module class, or a predicate (name, module, parameter) -> bool.
            Parameters that no rule matches stay points. Or the name of a recommendation: "scratch" for a network
            trained from scratch, "pretrained" for one that is fine-tuned.
        prior: the prior that `model.kl()` uses, saved with the model; N(0, 1) by default.
        shared_draw: with several processes, draw the same noise on every rank instead of different noise on each.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = bayesianize(net, {"0.*": Gaussian(), output_layer: EMP(5)})
        >>> model(torch.randn(2, 4)).shape  # train mode: one draw
        torch.Size([2, 3])
    """
    if isinstance(net, BayesianModule):
        raise ValueError("The network already has a posterior: pass all rules to bayesianize at once.")
    if not isinstance(net, nn.Module):
        raise TypeError(f"bayesianize takes a torch.nn.Module, not {type(net).__name__}.")
    if instead := getattr(type(net), "instead", None):  # byov.SWAG
        raise TypeError(instead)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in net.parameters()):
        raise ValueError("The network has lazy parameters without a shape: call it once before bayesianize.")
    if prior is not None:
        Prior.check(prior)
    factors: list[Factor] = []
    removed: dict[int, None] = {}
    chosen = select(net, recommended(rules) if isinstance(rules, str) else rules)
    _check_checkpointing(net, {name for _, layout in chosen for slot in layout.slots for name in slot.names})
    for family, layout in chosen:
        initial = _flat(net, layout)
        buffers = _owned_buffers(net, layout) if getattr(family, "owns_buffers", False) else {}
        factors.append(Factor(family, layout, initial, _fresh(net, layout), buffers))
        removed |= {id(net.get_parameter(slot.name)): None for slot in layout.slots}
        removed |= {id(buffer): None for buffer in buffers.values()}
    # The memo maps the factors' tensors to None, so that `deepcopy` leaves them out of the copy.
    stripped_net = copy.deepcopy(net, memo=removed)
    _free_recurrent(stripped_net)
    _free_batchnorm(stripped_net)
    return BayesianModule(
        stripped_net, factors, prior if prior is not None else Normal(), shared_draw, list(net.state_dict())
    )


def _check_checkpointing(net: nn.Module, covered: set[str]) -> None:
    """Raise if checkpointed layers are covered: they would run again without their weights, some without an error.

    Norms and biases would give no error. Transformers marks each checkpointed layer; timm marks the whole network, of
    which the output layer is not checkpointed.
    """
    flags = ("gradient_checkpointing", "grad_checkpointing")
    marked = [
        f"{name}." if name else "" for name, m in net.named_modules() if any(getattr(m, f, 0) is True for f in flags)
    ]
    again = tuple(name for name in marked if not any(other != name and other.startswith(name) for other in marked))
    output = output_layer.find(net) if again else None
    last = set() if output is None else set(output.parameters())
    if any(name.startswith(again) and net.get_parameter(name) not in last for name in covered):
        raise ValueError(CHECKPOINTING)


def _flat(net: nn.Module, layout: Layout) -> Tensor:
    return layout.flatten({slot.name: net.get_parameter(slot.name).detach() for slot in layout.slots})


def _fresh(net: nn.Module, layout: Layout) -> Callable[[], Tensor]:
    """Return a function that reinitialises a copy of the network and returns the covered weights."""

    def fresh() -> Tensor:
        again = copy.deepcopy(net)
        for module in again.modules():
            reset: Any = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
        return _flat(again, layout)

    return fresh


def _owned_buffers(net: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """Return the buffers that belong to an explicit ensemble's components.

    These are the buffers of the modules whose parameters it covers, or all buffers if it covers the whole network.
    """
    covered = {id(net.get_parameter(slot.name)) for slot in layout.slots}
    whole = all(id(p) in covered for p in net.parameters())
    owned: dict[str, Tensor] = {}
    for prefix, module in net.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        if whole or any(id(p) in covered for p in own):
            owned |= {f"{prefix}.{k}" if prefix else k: b for k, b in module._buffers.items() if b is not None}
    return owned


def _free_recurrent(stripped_net: nn.Module) -> None:
    """Turn the covered weights of recurrent layers such as nn.LSTM into plain attributes.

    These layers read their weights from a private list that only `__setattr__` refreshes, so they are set through it.
    """
    for module in stripped_net.modules():
        if isinstance(module, nn.RNNBase):
            for name in [n for n, p in module._parameters.items() if p is None]:
                del module._parameters[name]
                setattr(module, name, None)


def _free_batchnorm(stripped_net: nn.Module) -> None:
    """Let a BatchNorm load a state if an ensemble holds its `num_batches_tracked`.

    BatchNorm adds that count to a state without a version, such as one read from safetensors, and would then report it
    as an unexpected key.
    """
    for module in stripped_net.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.num_batches_tracked is None:
            module.register_load_state_dict_pre_hook(_drop_count)


def _drop_count(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    if module.num_batches_tracked is None:  # `BayesianModule.point` puts it back
        state.pop(f"{prefix}num_batches_tracked", None)
