"""What a compiled step draws: new in every step, as its distribution says, and the same in the backward pass."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

import byov

from .registry import Setting, case

STEPS = 12


class Itself(nn.Module):
    """A network that returns its own parameters, in the order of the flat tensors that hold them."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, factor: Tensor) -> Tensor:
        return factor * torch.cat([p.flatten() for layer in self.layers for p in (layer.weight, layer.bias)])


FAMILIES = {  # with how many layers, and how wide
    "gaussian": (byov.Gaussian(-4.0), 1, 128),
    "gaussian in layers": (byov.Gaussian(-4.0), 24, 6),
    "emp": (byov.EMP(3, probs=(0.5, 0.3, 0.2)), 24, 6),
    "emp uniform": (byov.EMP(3), 24, 6),
    "ecmp": (byov.ECMP(3, probs=(0.5, 0.3, 0.2)), 24, 6),
}


@case(15, FAMILIES)
def noise(setting: Setting, variant: tuple[Any, int, int]) -> str:
    """Draws differ from step to step, have the right moments or frequencies, and are the ones the gradient knows."""
    family, layers, width = variant
    model = byov.bayesianize(Itself(layers, width), family).to(setting.device).train()
    factor, gaussian = model.factors[0], isinstance(family, byov.Gaussian)
    if not gaussian:
        with torch.no_grad():  # component k is k
            factor.get_parameter("components").copy_(torch.arange(3.0)[:, None].expand(3, factor.layout.numel))
    run, one = torch.compile(model, mode="reduce-overhead", fullgraph=True), torch.ones((), device=setting.device)
    slopes = torch.randn(factor.layout.numel, device=setting.device, generator=setting.random(1))

    def step() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)
        out = run(one)
        (out * slopes).sum().backward()
        if gaussian:
            role, expected = "log_var", slopes * 0.5 * (out.detach() - factor.get_parameter("mean").detach())
        else:
            role, expected = "components", torch.stack([(out.detach() == k) * slopes for k in range(3)])
        torch.testing.assert_close(factor.get_parameter(role).grad, expected, rtol=1e-3, atol=1e-5)
        return out.detach().clone()

    draws = torch.stack([step() for _ in range(STEPS)])
    same = [(i, j) for i, j in combinations(range(STEPS), 2) if torch.equal(draws[i], draws[j])]
    assert not same, f"the draws of steps {same} are equal; over all steps the std is {float(draws.std(0).mean()):.2g}"
    for call in (step, lambda: model(one)):
        found = [call() for seed in (7, 8, 7) if torch.manual_seed(seed)]
        assert torch.equal(found[0], found[2]), "the same seed has drawn other weights"
        assert not torch.equal(found[0], found[1]), "another seed has drawn the same weights"
    return moments(draws, factor) if gaussian else frequencies(draws, family, layers)


def moments(draws: Tensor, factor: Any) -> str:
    eps = ((draws - factor.flat_mean()) / factor.flat_std()).detach().double()
    off = float(eps.mean()) * sqrt(eps.numel()), float(eps.var() - 1.0) * sqrt(eps.numel() / 2)
    found = f"mean {off[0]:+.1f}, variance {off[1]:+.1f} standard errors off"
    assert max(map(abs, off)) < 5, found
    return found


def frequencies(draws: Tensor, family: byov.EMP | byov.ECMP, layers: int) -> str:
    if isinstance(family, byov.EMP):
        draws = draws.view(STEPS, layers, -1)
        assert (draws == draws[..., :1]).all(), "the weights of one layer come from several components"
        draws = draws[..., 0]
    probs = dict(enumerate(family.mixing))
    off = [(float((draws == k).double().mean()) - p) / sqrt(p * (1 - p) / draws.numel()) for k, p in probs.items()]
    found = f"frequencies {', '.join(f'{z:+.1f}' for z in off)} standard errors off"
    assert max(map(abs, off)) < 5, found
    return found
