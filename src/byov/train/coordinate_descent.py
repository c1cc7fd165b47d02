"""Coordinate descent over several processes (patching paper, C.2): patches in parallel, shared parameters jointly.

    torch.distributed.init_process_group("gloo")          # one process per few patches; without it, one trains all
    coordinate_descent(model, loss, batch, rounds=100, steps=10)

A round has two phases, each with the other half of the parameters fixed. In the first, the patches are split into
groups, and each process trains its groups with draws from these patches only: no two processes write the same number,
so none has to wait. Then they exchange the trained patches. In the second, all processes train the shared parameters by
distributed SGD: each has a part of the batch, and the gradient is the mean over processes.

All randomness is a function of the seed, so with the same `groups` any number of processes gives the same weights
(tested with two against one). With G groups, each patch is trained G times as often as by steps on all patches. The
costs: in the first phase, patches of different layers are combined only within a group; each round ends with one
synchronisation; and Adam's moments of the patches are stored once per group. `byov train` does not use this; its
`posterior.alternate` does the same in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor

from byov.posterior import ECMP, EMP, BayesianModule
from byov.posterior.module import several_processes
from byov.posterior.random import categorical, stream

Batch = tuple[Tensor, ...]


def coordinate_descent(
    model: BayesianModule,
    loss: Callable[[BayesianModule, Batch], Tensor],
    batch: Callable[[Generator], Batch],
    rounds: int,
    steps: int,
    lr: float = 1e-3,
    groups: int | None = None,
    seed: int = 0,
) -> None:
    """Train patches and shared parameters in turn, with `steps` Adam steps for each per round.

    Args:
        model: has layers with K patches (EMP or ECMP) and other parameters; the same on all processes.
        loss: returns the mean loss of a batch, including any penalty, under the model's current draw.
        batch: returns a batch for a generator; its size must be divisible by the number of processes.
        groups: number of groups of patches; by default one per process.
    """
    world, rank = (dist.get_world_size(), dist.get_rank()) if several_processes() else (1, 0)
    groups = world if groups is None else groups
    patches, k = _patches(model)
    if not world <= groups <= k:
        raise ValueError(f"{k} patches are split into {world} to {k} groups, one or more per process, not {groups}.")
    shared = [p for p in model.parameters() if p.requires_grad and all(p is not patch for patch in patches)]
    if not shared:
        raise ValueError("Coordinate descent has nothing to alternate with: the posterior covers the whole network.")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()) if world > 1 else ():
            dist.broadcast(tensor, 0)
    members = [torch.arange(group, k, groups) for group in range(groups)]
    own = {group: torch.optim.Adam(patches, lr) for group in range(rank, groups, world)}
    together = torch.optim.Adam(shared, lr)
    for turn in range(rounds):
        for group, optimizer in own.items():
            for step in range(steps):
                generator = Generator().manual_seed(stream(seed, turn, 1 + group, step))
                with model.draw(noise=_among(model, members[group], generator)):
                    gradients = torch.autograd.grad(loss(model, batch(generator)), patches, allow_unused=True)
                for patch, gradient in zip(patches, gradients, strict=True):
                    patch.grad = torch.zeros_like(patch)  # Adam does not move what never had a gradient
                    patch.grad[members[group]] = 0.0 if gradient is None else gradient[members[group]]
                optimizer.step()
                optimizer.zero_grad()
        _exchange(model, patches, torch.cat([members[group] for group in own]))
        for step in range(steps):
            generator = Generator().manual_seed(stream(seed, turn, 0, step))
            part = tuple(tensor[rank::world] for tensor in batch(generator))
            with model.draw(generator=generator):
                gradients = torch.autograd.grad(loss(model, part), shared, allow_unused=True)
            for parameter, gradient in zip(shared, gradients, strict=True):
                parameter.grad = None if gradient is None else _mean(gradient)
            together.step()
            together.zero_grad()


def _patches(model: BayesianModule) -> tuple[list[Tensor], int]:
    """Return the patches of all layers, one (K, P) tensor per factor, and K."""
    factors: list[Any] = [factor for factor in model.factors if "components" in factor.roles]
    patches = [factor.get_parameter("components") for factor in factors]
    odd = any(factor.family.learn_probs or not isinstance(factor.family, EMP | ECMP) for factor in factors)
    if len({len(patch) for patch in patches}) != 1 or odd:
        raise ValueError("Coordinate descent is for EMP and ECMP: K patches everywhere, with fixed probabilities.")
    return patches, len(patches[0])


def _among(model: BayesianModule, members: Tensor, generator: Generator) -> list[dict[str, Tensor]]:
    """Draw noise whose assignments are restricted to some of the patches."""
    noise = model.noise(generator)
    for factor, part in zip(model.factors, noise, strict=True):
        if "components" in factor.roles:
            family: Any = factor.family
            probs = [family.mixing[member] for member in members.tolist()]
            chosen = categorical(part["z"].shape, [p / sum(probs) for p in probs], members, generator)
            part["z"] = members[chosen].to(part["z"].device)
    return noise


@torch.no_grad()
def _exchange(model: BayesianModule, patches: list[Tensor], mine: Tensor) -> None:
    """Exchange the patches trained by each process, and average floating-point buffers such as BatchNorm's."""
    if not several_processes():
        return
    for patch in patches:
        trained = torch.zeros_like(patch)
        trained[mine] = patch[mine]
        dist.all_reduce(trained)
        patch.copy_(trained)
    for buffer in model.net.buffers():
        if buffer.is_floating_point():
            buffer.copy_(_mean(buffer))


def _mean(tensor: Tensor) -> Tensor:
    if not several_processes():
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
