"""C.2 of the patching paper: patches trained by two processes that do not wait for each other, beside one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import in_two_processes, take_part
from torch import Generator, Tensor, nn

import byov
from byov.train.coordinate_descent import coordinate_descent

HOW: dict[str, Any] = {"rounds": 12, "steps": 8, "lr": 0.02, "groups": 2, "seed": 3}
X = torch.randn(64, 4, generator=Generator().manual_seed(0))
Y = (X[:, :1] * X[:, 1:2]).sin() + X[:, 2:3]


def make(family: byov.posterior.Family | None = None) -> byov.BayesianModule:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))
    patch = family or byov.EMP(3, spread=0.3)
    return byov.bayesianize(net, {byov.norm_layers: patch, byov.output_layer: patch})


def batch(generator: Generator) -> tuple[Tensor, ...]:
    rows = torch.randint(len(X), (16,), generator=generator)
    return X[rows], Y[rows]


def loss(model: byov.BayesianModule, part: tuple[Tensor, ...]) -> Tensor:
    x, y = part
    return (model(x) - y).square().mean() + 1e-4 * sum(p.square().sum() for p in model.parameters())


def whole(model: byov.BayesianModule) -> float:
    """The loss of all rows, mean over draws."""
    generator, each = Generator().manual_seed(0), []
    for _ in range(30):
        with torch.no_grad(), model.draw(generator=generator):
            each.append(loss(model, (X, Y)))
    return float(torch.stack(each).mean())


def work(rank: int) -> dict[str, Any]:
    told, reduce = [], dist.all_reduce

    def counted(tensor: Tensor) -> None:
        told.append(tensor.shape)
        reduce(tensor)

    dist.all_reduce = counted  # type: ignore[assignment]
    model = make()
    if rank:  # what the first process has is what counts
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    coordinate_descent(model, loss, batch, **HOW)
    return {"state": dict(model.named_parameters()), "told": len(told)}


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    alone = make()
    before = whole(alone)
    ranks = in_two_processes(__file__, tmp_path, lambda: coordinate_descent(alone, loss, batch, **HOW))
    for name, parameter in alone.named_parameters():
        assert torch.equal(ranks[0]["state"][name], ranks[1]["state"][name]), name
        torch.testing.assert_close(ranks[0]["state"][name], parameter.detach(), rtol=1e-3, atol=1e-4)
    shared = sum(1 for name, _ in alone.named_parameters() if name.startswith("net."))
    # A phase of patches has no message: one at its end, then one for each shared tensor and step of the other phase.
    assert ranks[0]["told"] == HOW["rounds"] * (1 + HOW["steps"] * shared)
    assert whole(alone) < 0.3 * before


def test_a_phase_moves_its_own_half() -> None:
    model = make()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen: list[dict[str, bool]] = []

    def watched(model: byov.BayesianModule, part: tuple[Tensor, ...]) -> Tensor:
        seen.append({n: not torch.equal(p, start[n]) for n, p in model.named_parameters()})
        return loss(model, part)

    coordinate_descent(model, watched, batch, rounds=1, steps=2, groups=3)
    *patches, _, last = seen
    assert not any(moved for when in patches for name, moved in when.items() if name.startswith("net."))
    assert any(moved for name, moved in last.items() if name.startswith("net."))


def test_what_cannot_be_dealt_out_is_refused() -> None:
    for model, words in (
        (make(byov.EMP(3, learn_probs=True)), "with fixed probabilities"),
        (byov.bayesianize(nn.Linear(4, 1), byov.Gaussian()), "is for EMP and ECMP"),
        (make(byov.Ensemble(3)), "is for EMP and ECMP"),
        (byov.bayesianize(nn.Linear(4, 1), byov.EMP(3)), "nothing to alternate with"),
    ):
        with pytest.raises(ValueError, match=words):
            coordinate_descent(model, loss, batch, rounds=1, steps=1)
    with pytest.raises(ValueError, match="3 patches are split into 1 to 3 groups"):
        coordinate_descent(make(), loss, batch, rounds=1, steps=1, groups=4)


if __name__ == "__main__":
    take_part(work)
