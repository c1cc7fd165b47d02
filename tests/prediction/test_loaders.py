"""A loader is one large batch, whatever its batches are and whatever it does between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import byov

from .networks import STRATEGIES, by_hand, same, snapshot, spread


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", ["*", "3.*"])
def test_a_loader_is_one_batch_whatever_its_batch_size(rule: str, strategy: Any) -> None:
    model = spread(byov.bayesianize(mlp(), {rule: byov.Gaussian(-3.0)})).double()
    x, y = torch.randn(11, 6).double(), torch.arange(11)
    whole = byov.predict(model, x, 20, strategy, generator=seeded(), keep=True)
    assert_close(whole.draws, by_hand(model, x, 20), rtol=0, atol=1e-12)
    for size in (1, 3, 4, 11):
        loader = DataLoader(TensorDataset(x, y), batch_size=size)
        found = byov.predict(model, loader, 20, strategy, generator=seeded(), keep=True)
        same(found, whole)
        assert_close(found.draws, whole.draws, rtol=0, atol=1e-12)
        assert found.strategy == whole.strategy
    same(byov.predict(model, ({"input": part} for part in x.split(3)), 20, strategy, generator=seeded()), whole)
    same(byov.predict(model, {"input": x}, 20, strategy, generator=seeded()), whole)


@pytest.mark.parametrize("generator", [True, False])
def test_the_generator_ends_where_one_batch_leaves_it(model: byov.BayesianModule, generator: bool) -> None:
    x, ends = torch.randn(13, 6).double(), []
    for data in (x, x.split(5)):
        torch.manual_seed(3)
        own = seeded() if generator else None
        byov.predict(model, data, 5, generator=own)
        ends.append(own.get_state() if own else torch.get_rng_state())
    assert torch.equal(*ends)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loader_may_fill_the_same_memory_again(strategy: Any) -> None:
    x, memory = torch.randn(12, 6), torch.empty(3, 6)

    def loader() -> Iterator[tuple[Tensor, None]]:
        for part in x.split(3):
            yield memory.copy_(part), None

    model = spread(byov.bayesianize(mlp(), byov.Gaussian(-3.0)))
    for batches in (loader(), ({"input": part} for part, _ in loader())):
        found = byov.predict(model, batches, 6, strategy, generator=seeded(), keep=True)
        assert_close(found.draws, by_hand(model, x, 6))
    plain = byov.predict(nn.Identity(), loader(), task="regression")  # whose outputs are the loader's memory
    assert torch.equal(plain.mean, x)


@pytest.mark.parametrize("same_generator", [True, False])
def test_a_loader_that_predicts_itself(model: byov.BayesianModule, same_generator: bool) -> None:
    serving, x, generator = byov.Serving(model, 9, keep=True), torch.randn(6, 6).double(), seeded()

    def batches() -> Iterator[Tensor]:
        for part in x.split(2):
            serving(part, generator if same_generator else None)
            byov.predict(model, [part], 3)
            yield part

    expected = by_hand(model, x, 9)
    model.train()
    assert_close(serving(batches(), seeded()).draws, expected, rtol=0, atol=1e-12)
    assert model.training


def test_between_batches_and_after_a_failure_the_model_is_the_users(model: byov.BayesianModule) -> None:
    before = snapshot(model.train())

    def batches() -> Iterator[Tensor]:
        for part in torch.randn(6, 6).double().split(2):
            assert snapshot(model) == before
            yield part
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        byov.predict(model, batches(), 3)
    assert snapshot(model) == before


@pytest.mark.parametrize("progress", [True, False, None])
def test_a_stream_without_a_length(progress: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            yield from x

    x, model = torch.randn(11, 6), byov.bayesianize(mlp(), byov.Gaussian(-3.0))
    found = byov.predict(model, DataLoader(Stream(), batch_size=4), 5, "loop", generator=seeded(), progress=progress)
    assert_close(found.mean, by_hand(model, x, 5).mean(0))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert bool(shown.err) == bool(progress)  # which is not a terminal, so that a line feed is all
