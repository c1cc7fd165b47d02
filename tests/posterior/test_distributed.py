"""Two processes under DDP: what each rank draws, and what the gradients are."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import leave
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

import byov
from byov.posterior.random import stream

RANKS = 2
FAMILIES: list[Any] = [byov.Gaussian(-2.0), byov.EMP(2, start="reset"), byov.Ensemble(2, start="reset")]


def make(family: Any) -> byov.BayesianModule:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    return byov.bayesianize(net, family)


def batch(rank: int) -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(100 + rank))


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def draws(shared: bool, seed: int) -> Tensor:
    """Five draws of a model whose rank was seeded with `seed`."""
    torch.manual_seed(seed)
    model = byov.bayesianize(nn.Linear(3, 4), byov.Gaussian(-2.0), shared_draw=shared)
    replica = DDP(model)
    return torch.stack([flat(replica.module.tensors(replica.module.noise()).values()) for _ in range(5)])


def gradients(family: Any, rank: int) -> tuple[Tensor, Tensor]:
    """DDP's gradient under a held draw of this rank's own, and what this rank would have had alone."""
    model = make(family)
    noise = model.noise(torch.Generator().manual_seed(rank))
    alone = make(family)
    with alone.draw(noise=noise):
        (alone(batch(rank)).square().sum() + 0.1 * alone.kl()).backward()
    replica = DDP(model)
    with model.draw(noise=noise):
        (replica(batch(rank)).square().sum() + 0.1 * model.kl()).backward()
    return flat(p.grad for p in model.parameters()), flat(p.grad for p in alone.parameters())


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    result: dict[str, Any] = {
        "alike": draws(shared=False, seed=7),
        "shared": draws(shared=True, seed=7 + rank),
        "shared alike": draws(shared=True, seed=7),
    }
    for family in FAMILIES:
        result[type(family).__name__] = gradients(family, rank)
    leave(result, rank, Path(folder))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, in two fresh processes that meet over a file."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "posterior.test_distributed"]
    root = Path(__file__).parents[1]
    processes = [subprocess.Popen([*command, str(rank), str(folder)], cwd=root) for rank in range(RANKS)]
    try:
        assert [process.wait(timeout=1800) for process in processes] == [0] * RANKS
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def test_streams_differ_in_the_32_bits_that_cpu_generators_keep() -> None:
    seeds = {stream(seed, rank, step) & 0xFFFFFFFF for seed in range(4) for rank in range(8) for step in range(64)}
    assert len(seeds) == 4 * 8 * 64


def test_ranks_seeded_alike_draw_each_their_own(ranks: list[dict[str, Any]]) -> None:
    together = torch.cat([ranks[0]["alike"], ranks[1]["alike"]])
    distinct = {tuple(row.tolist()) for row in together}
    assert len(distinct) == 10  # no draw is anyone else's, nor one's own again
    noise = together - together.mean(0)
    correlation = torch.corrcoef(noise)
    assert (correlation[:5, 5:].abs() < 0.9).all()


def test_a_shared_draw_is_the_same_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for key in ("shared", "shared alike"):
        a, b = ranks[0][key], ranks[1][key]
        assert torch.equal(a, b)
        assert len({tuple(row.tolist()) for row in a}) == 5  # and another one at every call


@pytest.mark.parametrize("name", [type(f).__name__ for f in FAMILIES])
def test_gradients_are_the_average_over_ranks(ranks: list[dict[str, Any]], name: str) -> None:
    (first, alone_first), (second, alone_second) = (rank[name] for rank in ranks)
    assert torch.equal(first, second)
    assert not torch.allclose(alone_first, alone_second)
    torch.testing.assert_close(first, (alone_first + alone_second) / 2, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    worker(int(sys.argv[1]), sys.argv[2])
