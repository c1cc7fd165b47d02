"""Structured pruning: remove whole heads and units, which leaves a smaller dense network that is faster everywhere.

A group of weights G (a head, a unit) is ranked by its signal-to-noise ratio

    SNR(G) = √(Σ μ² / Σ σ²)   over the weights of G that have a posterior,

the root mean square of its means divided by that of its standard deviations. It is dimensionless and does not grow with
the group, so layers of any width can be compared; for a group of one weight it is the |μ|/σ of section 4.4. By
magnitude the score is √(mean μ²).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.pruning.blocks import Block, Kind, Part, find_blocks
from byov.pruning.masks import keep_output_masks, make_permanent, mask
from byov.pruning.unstructured import By, Scope, check, check_ordered, lowest, plain_copy

Pick = Callable[[Block], bool] | None
"""A function that selects the blocks to prune; None selects all."""


@torch.no_grad()
def prune_groups(
    model: nn.Module, heads: float = 0.5, units: float = 0.5, by: By = "snr", scope: Scope = "layer", where: Pick = None
) -> nn.Module:
    """Return the plain network at the posterior mean without a share of its heads and units: smaller, dense, no masks.

    Args:
        model: a BayesianModule, or by magnitude any network, with blocks that `find_blocks` supports. It is not
            changed.
        heads: the share of attention heads to remove, in [0, 1); 0 removes none.
        units: the share of hidden units to remove, in [0, 1).
        by: "snr" or "magnitude"; see above.
        scope: "layer" removes round(share · n) of the n groups of every block, "global" of all groups of a kind
            together. At least one group of each block stays.
        where: which blocks; all by default.

    The outputs equal those of `mask_groups` with the same arguments, up to the order of sums.

    Example:
        >>> model = byov.bayesianize(byov.models.create("vit-nano/4", 10), byov.Gaussian())
        >>> net = byov.pruning.prune_groups(model, heads=0.5, units=0.5)
        >>> net.blocks[0].attn.num_heads, net.blocks[0].mlp.fc1.out_features
        (1, 128)
    """
    net, keep = _ranked_units(model, heads, units, by, scope, where)
    for block, kept in keep:
        _cut(net, block, kept)
    return net


@torch.no_grad()
def mask_groups(
    model: nn.Module, heads: float = 0.5, units: float = 0.5, by: By = "snr", scope: Scope = "layer", where: Pick = None
) -> nn.Module:
    """Mask what `prune_groups` would remove, by `torch.nn.utils.prune`: fine-tune the result, then call `shrink`."""
    net, keep = _ranked_units(model, heads, units, by, scope, where)
    ones: dict[str, Tensor] = {}
    for block, kept in keep:
        for part in block.weights:
            parameter = net.get_parameter(part.name)
            whole = ones.setdefault(part.name, torch.ones_like(parameter, dtype=torch.bool))
            gone = part.places(~kept).nonzero().squeeze(1).to(parameter.device)
            whole.index_fill_(part.dim, gone, False)
    for _, places in occurrences(net):
        if (name := places[0][0]) in ones:
            mask(places, ones[name])
    return keep_output_masks(net)


@torch.no_grad()
def shrink(net: nn.Module) -> nn.Module:
    """Return a smaller dense copy of a pruned network, without the heads and units that are no longer used.

    These are the ones whose outgoing weights are all 0, whatever tool pruned them: the outputs stay the same. Masks
    become permanent; zeros within remaining groups stay zeros.
    """
    if not isinstance(net, nn.Module) or isinstance(net, BayesianModule):
        raise TypeError(f"shrink takes a plain network, as prune and mask_groups return it, not {type(net).__name__}.")
    small = make_permanent(_deepcopy(net))
    for block in _blocks(small):
        used = torch.stack([part.per_unit(small.get_parameter(part.name).abs()) for part in block.out]).sum(0) != 0
        if not used.any():
            used[0] = True  # a layer cannot be empty; one unit that is not used changes nothing
        _cut(small, block, used.cpu())
    return small


@torch.no_grad()
def shaped_like(net: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Cut the blocks of the network in place to the sizes in a smaller network's state, which can then be loaded."""
    for block in find_blocks(net):
        part = block.out[0]
        if part.name in state:
            count, rest = divmod(state[part.name].shape[part.dim], part.index.shape[1])
            if rest == 0 and 0 < count < block.units:
                _cut(net, block, torch.arange(block.units) < count)
    return net


def group_scores(model: nn.Module, block: Block, by: By = "snr") -> Tensor:
    """Return the score of each unit of a block, as defined above."""
    mean, deviation = _moments(model, by)
    return _scores(block, mean, deviation)


def _moments(model: nn.Module, by: By) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    if isinstance(model, BayesianModule):
        mean = {name: tensor.detach() for name, tensor in (*model.points(), *model.mean().items())}
        return mean, model.std() if by == "snr" else None
    return {name: p.detach() for name, p in model.named_parameters()}, None


def _scores(block: Block, mean: dict[str, Tensor], deviation: dict[str, Tensor] | None) -> Tensor:
    if deviation is None:
        count = _total(block.weights, {part.name: torch.ones_like(mean[part.name]) for part in block.weights})
        return (_total(block.weights, mean) / count).sqrt()
    covered = tuple(part for part in block.weights if part.name in deviation)
    if not covered:
        raise ValueError(f"No weight of {block.name} has a posterior, so its {block.kind} have no σ to prune by.")
    signal, noise = _total(covered, mean), _total(covered, deviation)
    return torch.where(signal == 0, 0.0, (signal / noise).sqrt())


def _total(parts: Iterable[Part], values: dict[str, Tensor]) -> Tensor:
    """Compute Σ x² over each unit's weights, in double: a unit may have thousands."""
    return torch.stack([part.per_unit(values[part.name].double().square()) for part in parts]).sum(0)


def _ranked_units(
    model: nn.Module, heads: float, units: float, by: By, scope: Scope, where: Pick
) -> tuple[nn.Module, list[tuple[Block, Tensor]]]:
    """Return the plain network, and for each block a mask of the units that stay."""
    for share in (heads, units):
        check(model, share, by, scope)
    net = plain_copy(model)
    found = [block for block in _blocks(net) if where is None or where(block)]
    shares: dict[Kind, float] = {"heads": heads, "units": units}
    mean, deviation = _moments(model, by)
    keep: list[tuple[Block, Tensor]] = []
    for kind, share in shares.items():
        chosen = [block for block in found if block.kind == kind]
        if not chosen or not share:
            continue
        scores = [_scores(block, mean, deviation) for block in chosen]
        for block, score in zip(chosen, scores, strict=True):
            check_ordered(score, block.name)
        keep += zip(chosen, _units_that_stay([score.cpu() for score in scores], share, scope), strict=True)
    if not keep and (heads or units):
        asked = " or ".join(kind for kind, share in shares.items() if share)
        attention = any(isinstance(module, nn.MultiheadAttention) for module in net.modules())
        why = "; nn.MultiheadAttention cannot run with fewer heads" if heads and attention else ""
        raise ValueError(f"There is nothing to remove: the network has no {asked} that find_blocks supports{why}.")
    return net, keep


def _units_that_stay(scores: list[Tensor], share: float, scope: Scope) -> list[Tensor]:
    """Mark the units that stay: all except a share of each block or of all blocks together, and at least one each."""
    if scope == "layer":
        return [~lowest(score, score, min(round(share * len(score)), len(score) - 1)) for score in scores]
    for score in scores:
        score[score.argmax()] = torch.inf  # each block's best stays
    whole = torch.cat(scores)
    count = min(round(share * len(whole)), len(whole) - len(scores))
    return [~each for each in lowest(whole, whole, count).split([len(score) for score in scores])]


def _blocks(net: nn.Module) -> list[Block]:
    found = find_blocks(net)
    if not found:
        raise ValueError(
            "The network has no heads or units that can be removed: supported are timm's Attention and Mlp, "
            "nn.TransformerEncoderLayer, and linear or convolutional layers in a row in an nn.Sequential."
        )
    return found


def _deepcopy(net: nn.Module) -> nn.Module:
    """Deep-copy a network, even if it was called with gradients on, when torch refuses to copy its masked weights."""
    memo: dict[int, object] = {}
    for module in net.modules():
        for tensor in vars(module).values():
            if isinstance(tensor, Tensor) and not tensor.is_leaf:
                memo[id(tensor)] = tensor.detach().clone()
    return copy.deepcopy(net, memo)


def _cut(net: nn.Module, block: Block, keep: Tensor) -> None:
    """Remove the other units from all tensors of the block, and update the sizes stored in the modules."""
    for part in block.parts:
        path, _, leaf = part.name.rpartition(".")
        module = net.get_submodule(path)
        tensor = getattr(module, leaf)
        kept = part.places(keep).nonzero().squeeze(1).to(tensor.device)
        small = tensor.detach().index_select(part.dim, kept).clone()
        if isinstance(tensor, nn.Parameter):
            small = nn.Parameter(small, tensor.requires_grad)
        setattr(module, leaf, small)
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.Conv2d):
            module.out_channels, module.in_channels = module.weight.shape[:2]
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.num_features = len(small)
    if block.kind == "heads":
        attention = net.get_submodule(block.name)
        attention.num_heads = int(keep.sum())  # type: ignore[assignment]
        attention.attn_dim = attention.num_heads * attention.head_dim  # type: ignore[operator]
