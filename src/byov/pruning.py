"""Pruning without retraining: zeros where |μ|/σ (Graves; Blundell et al.) or |μ| is smallest, per layer or globally."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as masks

from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.posterior.select import Predicate, norm_layers

By = Literal["snr", "magnitude"]
Scope = Literal["layer", "global"]


def weights(name: str, module: nn.Module, parameter: Tensor) -> bool:
    """What is pruned by default: tensors of two dimensions or more that are no bias and in no normalisation layer.

    So the weights of linear layers, convolutions, attention and recurrent layers, embeddings, and a ViT's tokens.
    """
    leaf = name.rpartition(".")[2]
    return parameter.ndim >= 2 and "bias" not in leaf and not norm_layers(name, module, parameter)


@torch.no_grad()
def prune(
    model: nn.Module, sparsity: float = 0.5, by: By = "snr", scope: Scope = "layer", where: Predicate = weights
) -> nn.Module:
    """The plain network at the posterior mean, without the share `sparsity` of its weights.

    The BYOV paper's section 4.4: unstructured, the weights of least |μ|/σ go, without retraining. The masks are those
    of `torch.nn.utils.prune`, whose `is_pruned` and `remove` work on the result; tied weights share one mask.

    Args:
        model: a BayesianModule, of which only weights with a posterior are pruned; or by magnitude any network. It is
            copied, and left as it is.
        sparsity: the share of zeros, in [0, 1). Exactly round(sparsity · n) of n weights go; of equal ones those of
            least |μ| first, then the first.
        by: "snr", |μ|/σ, infinite where σ is 0; or "magnitude", |μ|.
        scope: "layer" prunes that share of every tensor, "global" of all of them together.
        where: which tensors, a predicate (name, module, parameter) -> bool; see `weights`.

    `copy.deepcopy` takes the result until it has been called with gradients on; then torch wants `remove` first.

    Example:
        >>> net = byov.prune(byov.bayesianize(nn.Linear(4, 2), byov.Gaussian()), 0.75)
        >>> int((net.weight == 0).sum())
        6
    """
    _check(model, sparsity, by, scope)
    posterior = model if isinstance(model, BayesianModule) else None
    net = copy.deepcopy(model) if posterior is None else posterior.point()
    covered = None if posterior is None else set(posterior.covered())
    chosen = [
        (parameter, places)
        for parameter, places in occurrences(net)
        if (covered is None or places[0][0] in covered) and any(where(name, m, parameter) for name, m in places)
    ]
    if not chosen:
        which = "is there" if posterior is None else "has a posterior"
        raise ValueError(f"There is nothing to prune: no weight that `where` takes {which}.")
    magnitudes = [parameter.abs().flatten() for parameter, _ in chosen]
    scores = magnitudes
    if by == "snr":
        assert posterior is not None
        snr = posterior.snr()
        scores = [snr[places[0][0]].flatten() for _, places in chosen]
    for score, (_, places) in zip(scores, chosen, strict=True):
        if score.isnan().any():
            raise ValueError(f"{places[0][0]} holds weights that are not numbers: nothing can be said of their order.")

    if scope == "layer":
        pruned = [_least(*pair, round(sparsity * len(pair[0]))) for pair in zip(scores, magnitudes, strict=True)]
    else:
        sizes, home = [len(score) for score in scores], scores[0].device
        score, magnitude = (torch.cat([part.to(home) for part in parts]) for parts in (scores, magnitudes))
        pruned = list(_least(score, magnitude, round(sparsity * sum(sizes))).split(sizes))
    for (parameter, places), gone in zip(chosen, pruned, strict=True):
        _mask(places, ~gone.view(parameter.shape).to(parameter.device))
    for module in net.modules():
        # It reads its output layer's weight without calling that layer, whose hook would renew it.
        if isinstance(module, nn.MultiheadAttention) and masks.is_pruned(module.out_proj):
            module.register_forward_pre_hook(_renew_output)
    return net


def sweep(
    model: nn.Module,
    sparsities: Iterable[float],
    evaluate: Callable[[nn.Module], float],
    by: By = "snr",
    scope: Scope = "layer",
    where: Predicate = weights,
) -> list[tuple[float, float]]:
    """(sparsity, evaluate(the network pruned so far, in eval mode)) for each sparsity: the curve of Figure 4, left."""
    wanted = list(sparsities)
    for sparsity in wanted:
        _check(model, sparsity, by, scope)
    return [(sparsity, evaluate(prune(model, sparsity, by, scope, where).eval())) for sparsity in wanted]


class Layer(NamedTuple):
    """A pruned tensor: its name in the network, how many weights it has and how many of them are masked."""

    name: str
    weights: int
    zeros: int


def layers(net: nn.Module) -> list[Layer]:
    """The pruned tensors of a network; a tied one once."""
    found: dict[int, Layer] = {}
    for prefix, module in net.named_modules():
        for leaf in _masked(module):
            mask, original = getattr(module, f"{leaf}_mask"), getattr(module, f"{leaf}_orig")
            name = f"{prefix}.{leaf}" if prefix else leaf
            found.setdefault(id(original), Layer(name, mask.numel(), int((mask == 0).sum())))
    return list(found.values())


def _check(model: nn.Module, sparsity: float, by: str, scope: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"prune takes a torch.nn.Module, not {type(model).__name__}.")
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise ValueError(f"A sparsity is at least 0 and below 1, not {sparsity!r}.")
    if by not in get_args(By):
        raise ValueError(f"Weights are pruned by snr or by magnitude, not by {by!r}.")
    if scope not in get_args(Scope):
        raise ValueError(f"The scope of pruning is layer or global, not {scope!r}.")
    if by == "snr" and not isinstance(model, BayesianModule):
        raise ValueError("A network without a posterior has no σ to prune by: bayesianize it, or prune by magnitude.")
    if any(isinstance(part, BayesianModule) for part in model.modules() if part is not model):
        raise ValueError("The posterior is over a part of this module only: prune that part.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The network has lazy parameters without a shape: call it once before pruning.")
    if masks.is_pruned(model):
        raise ValueError("The network is pruned already: make that permanent first, with torch.nn.utils.prune.remove.")


def _least(scores: Tensor, magnitudes: Tensor, count: int) -> Tensor:
    """Where the `count` least scores are; of equal scores the least magnitudes, of equal magnitudes the first."""
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    last = scores.kthvalue(count).values
    least = scores < last
    ties = (scores == last).nonzero().squeeze(1)
    order = magnitudes[ties].argsort(stable=True)
    least[ties[order[: count - int(least.sum())]]] = True
    return least


def _mask(places: list[tuple[str, nn.Module]], keep: Tensor) -> None:
    """Mask a parameter in each module that holds it; `weight_orig` stays one parameter, and the mask is one buffer."""
    first: Tensor | None = None
    for module, leaf in dict.fromkeys((module, name.rpartition(".")[2]) for name, module in places):
        masks.custom_from_mask(module, leaf, keep)
        first = module.get_buffer(f"{leaf}_mask") if first is None else first
        setattr(module, f"{leaf}_mask", first)


def _masked(module: nn.Module) -> Iterator[str]:
    """The names of a module's own tensors that are masked."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, masks.BasePruningMethod):
            yield hook._tensor_name


def _renew_output(attention: nn.Module, inputs: Any) -> None:
    output: Any = attention.out_proj
    for hook in list(output._forward_pre_hooks.values()):
        if isinstance(hook, masks.BasePruningMethod):
            hook(output, inputs)


# Sparse files

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
    """Load what `save_sparse` wrote into a plain network of its kind; `net` is filled and returned, without masks."""
    if not isinstance(net, nn.Module) or isinstance(net, BayesianModule):
        raise TypeError(f"load_sparse fills a plain network, not {type(net).__name__}.")
    if masks.is_pruned(net):
        raise ValueError("The network to fill has masks: load_sparse fills one that was not pruned.")
    from byov.train import checkpoint

    tree = checkpoint.load(path)
    if not isinstance(tree, dict) or tree.get("kind") != _KIND:
        raise ValueError(f"{path} is a checkpoint, but not one of sparse weights.")
    state = {name: _unpack(value, path) for name, value in tree["state"].items()}
    own = net.state_dict()
    for name in [*own, *state]:
        if name not in state or name not in own:
            raise ValueError(f"{path} is of another network: only {'the network' if name in own else 'it'} has {name}.")
        if isinstance(own[name], Tensor) and own[name].shape != state[name].shape:
            shapes = f"{tuple(state[name].shape)}, not {tuple(own[name].shape)}"
            raise ValueError(f"{path} is of another network: its {name} is {shapes}.")
    net.load_state_dict(state)
    return net


def _applied(net: nn.Module) -> dict[str, Any]:
    """The state with masks multiplied in, under the plain network's names; tied weights are one object."""
    modules = net.named_modules(remove_duplicate=False)
    masked = {f"{prefix}.{leaf}" if prefix else leaf for prefix, module in modules for leaf in _masked(module)}
    state, applied = net.state_dict(keep_vars=True), {}
    products: dict[int, Tensor] = {}
    for key, value in state.items():
        name = key.removesuffix("_orig")
        if name != key and name in masked:
            product = value * state[f"{name}_mask"]
            known = products.setdefault(id(value), product)
            applied[name] = known if torch.equal(known, product) else product
        elif not (key.endswith("_mask") and key.removesuffix("_mask") in masked):
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
