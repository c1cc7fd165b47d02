"""Two processes that each hold half a batch against nn.BatchNorm on the whole of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from processes import RANKS, in_two_processes, take_part
from torch import Tensor, nn

from byov.posterior import norm_layers
from byov.train.batchnorm import GlooBatchNorm, synchronise

CPU = torch.device("cpu")
CASES: dict[str, tuple[nn.Module, tuple[int, ...], float, torch.dtype]] = {
    # layer, shape of the whole batch, what is added to it, dtype
    "vectors": (nn.BatchNorm1d(5), (12, 5), 0.0, torch.float32),
    "sequences": (nn.BatchNorm1d(5), (8, 5, 7), 0.0, torch.float32),
    "images": (nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), (6, 3, 4, 5), 0.0, torch.float32),
    "volumes": (nn.BatchNorm3d(2), (4, 2, 3, 3, 3), 0.0, torch.float32),
    "far from zero": (nn.BatchNorm2d(3), (6, 3, 4, 5), 1000.0, torch.float32),
    "double": (nn.BatchNorm1d(5), (12, 5), 1000.0, torch.float64),
    "short floats": (nn.BatchNorm1d(5), (12, 5), 0.0, torch.bfloat16),
    "no scale": (nn.BatchNorm1d(5, affine=False), (12, 5), 0.0, torch.float32),
    "no statistics": (nn.BatchNorm1d(5, track_running_stats=False), (12, 5), 0.0, torch.float32),
    "cumulative": (nn.BatchNorm1d(5, momentum=None), (12, 5), 0.0, torch.float32),
}


def prepare(case: str) -> tuple[nn.Module, list[Tensor], list[Tensor]]:
    """A layer that is not at its start, three batches and what their outputs are multiplied with in the loss."""
    layer, shape, offset, dtype = copy.deepcopy(CASES[case])
    generator = torch.Generator().manual_seed(3)
    if dtype == torch.float64:
        layer = layer.double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    scale = torch.rand(shape[1], generator=generator).add(0.5).view(-1, *(1 for _ in shape[2:]))
    batches = [(torch.randn(shape, generator=generator) * scale + offset).to(dtype) for _ in range(3)]
    return layer, batches, [torch.randn(shape, generator=generator) for _ in range(3)]


def run(layer: nn.Module, batches: list[Tensor], weights: list[Tensor], share: slice) -> dict[str, Any]:
    """Outputs, gradients and statistics after three batches, and then in eval mode."""
    inputs = [batch[share].clone().requires_grad_() for batch in batches]
    outputs = [layer(x) for x in inputs]
    torch.stack([(y * w[share].to(y.dtype)).sum() for y, w in zip(outputs, weights, strict=True)]).sum().backward()
    return {
        "outputs": [y.detach() for y in outputs],
        "inputs": [x.grad for x in inputs],
        "parameters": [p.grad for p in layer.parameters()],
        "buffers": dict(layer.named_buffers()),
        "eval": layer.eval()(inputs[0]).detach(),
    }


def work(rank: int) -> dict[str, Any]:
    found = {}
    for case in CASES:
        layer, batches, weights = prepare(case)
        found[case] = run(synchronise(layer, CPU), batches, weights, slice(rank, None, RANKS))
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_two_processes(__file__, tmp_path_factory.mktemp("ranks"))


def joined(parts: list[Tensor]) -> Tensor:
    """The whole batch again, of which each rank had every second example."""
    return torch.stack(parts, 1).flatten(0, 1)


@pytest.mark.parametrize("case", CASES)
def test_two_halves_equal_the_whole(ranks: list[dict[str, Any]], case: str) -> None:
    whole = run(*prepare(case), slice(None))
    halves = [rank[case] for rank in ranks]
    dtype = CASES[case][3]
    # One rounding of bfloat16 in the output; a mean of 1000 leaves float32 four digits of what is around it.
    near = {torch.bfloat16: 2e-2, torch.float64: 1e-9}.get(dtype, 2e-3 if CASES[case][2] else 1e-5)
    for what in ("outputs", "inputs"):
        for i, expected in enumerate(whole[what]):
            got = joined([half[what][i] for half in halves])
            assert got.dtype == dtype
            torch.testing.assert_close(got, expected, rtol=near, atol=near)
    for i, expected in enumerate(whole["parameters"]):  # DDP's average, times the number of ranks
        torch.testing.assert_close(
            sum(half["parameters"][i] for half in halves), expected, rtol=10 * near, atol=10 * near
        )
    for half in halves:
        assert half["buffers"].keys() == whole["buffers"].keys()
        for name, expected in whole["buffers"].items():
            torch.testing.assert_close(half["buffers"][name], expected, rtol=max(near / 10, 1e-6), atol=near / 10)
    assert all(torch.equal(halves[0]["buffers"][name], halves[1]["buffers"][name]) for name in halves[0]["buffers"])
    if case != "no statistics":  # which takes each process's own in eval mode, as torch's SyncBatchNorm does
        got = joined([half["eval"] for half in halves])
        torch.testing.assert_close(got, whole["eval"], rtol=near, atol=near)


def test_every_layer_is_replaced_and_keeps_its_state() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.Sequential(nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(4, 2), nn.BatchNorm1d(2, affine=False)),
    )
    before = dict(net.state_dict(keep_vars=True))
    new = synchronise(net, CPU)
    assert sum(isinstance(module, GlooBatchNorm) for module in new.modules()) == 3
    assert not any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in new.modules())
    after = new.state_dict(keep_vars=True)
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert (new[1].momentum, new[1].training, new[2][0].training) == (0.3, True, False)
    assert synchronise(new, CPU) is new
    alone = synchronise(nn.BatchNorm1d(2), CPU)
    assert isinstance(alone, GlooBatchNorm)
    assert norm_layers("weight", alone, alone.weight)  # to the rest of the library


def test_in_one_process_it_is_batchnorm() -> None:
    plain, ours = nn.BatchNorm2d(3), synchronise(nn.BatchNorm2d(3), CPU)
    x = torch.randn(4, 3, 5, 5)
    assert torch.equal(plain(x), ours(x))
    assert torch.equal(plain.eval()(x), ours.eval()(x))
    with pytest.raises(ValueError, match="at least two dimensions, not 1"):
        ours(torch.randn(3))


if __name__ == "__main__":
    take_part(work)
