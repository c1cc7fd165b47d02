"""What `predict` accepts: a loader is one large batch; bad input is answered with one sentence, and changes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import byov

from .networks import Net, by_hand, same, snapshot, spread


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


# Bad input


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"samples": 0}, "at least one draw, not samples=0"),
        ({"samples": 2.5}, r"at least one draw, not samples=2\.5"),
        ({"samples": True}, "at least one draw, not samples=True"),
        ({"strategy": "fast"}, "'auto', 'loop' or 'vmap', not 'fast'"),
        ({"task": "ranking"}, "'classification', .* or 'segmentation', not 'ranking'"),
        ({"tolerance": -1.0}, "tolerance is above 0, not -1"),
        ({"tolerance": float("nan")}, "tolerance is above 0, not nan"),
        ({"precision": 1.0}, "precision is above 0 and belongs to a regression"),
        ({"precision": 0.0, "task": "regression"}, "precision is above 0"),
        ({"keep": True, "tolerance": 0.1}, "Draws cannot be kept with a tolerance"),
    ],
)
def test_bad_settings(wrong: dict[str, Any], sentence: str) -> None:
    model = byov.bayesianize(mlp(), byov.Gaussian())
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=sentence):
        byov.predict(model, torch.randn(2, 6, generator=torch.Generator()), **wrong)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        ([], ValueError, "The loader is empty"),
        (torch.empty(0, 6), ValueError, "The batch is empty"),
        ({}, ValueError, "The batch is empty"),
        ([torch.randn(2, 6), torch.empty(0, 6)], ValueError, "The batch is empty"),
        (["text"], TypeError, "A loader gives tensors, .* not str"),
        (3, TypeError, "a tensor, a mapping of tensors, an array, a data set or a loader, not int"),
        (torch.tensor(1.0), TypeError, "A batch is a tensor"),
        ({"input": [1.0, 2.0]}, TypeError, "a mapping of tensors"),
    ],
)
def test_bad_inputs(x: Any, error: type[Exception], sentence: str) -> None:
    model = byov.bayesianize(mlp(), byov.Gaussian())
    with pytest.raises(error, match=sentence):
        byov.predict(model, x, 5)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("tolerance", [None, 0.01])
@pytest.mark.parametrize("net", [mlp, Net])
def test_weights_that_are_not_numbers(net: Any, strategy: Any, tolerance: float | None) -> None:
    model, x = byov.bayesianize(net(), byov.Gaussian()), torch.randn(4, 6)
    x[2, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite for 1 of 4 inputs"):
        byov.predict(model, x, 12, strategy, tolerance)
    model.q[0].mean.data[5] = torch.nan
    with pytest.raises(ValueError, match="not finite for 4 of 4 inputs"):
        byov.predict(model, torch.randn(4, 6), 12, strategy, tolerance)
    with pytest.raises(ValueError, match="not finite for 4 of 4 inputs"):
        byov.predict(model, [torch.randn(4, 6)], 12, strategy, tolerance, task="regression")
    assert model.training


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"a BayesianModule or another torch\.nn\.Module, not function"):
        byov.predict(lambda x: x, torch.randn(4, 6))
