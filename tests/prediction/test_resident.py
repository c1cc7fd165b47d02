"""While it predicts, a network holds one draw's weights; afterwards, whatever happened, it is as it was."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import byov
from byov.prediction import stack

from .networks import NETWORKS, STRATEGIES, Net, Recurrent, Tied, by_hand, mlp, seeded, shared, snapshot, spread

KINDS = {
    **NETWORKS,
    "lstm": (Recurrent, lambda: torch.randn(4, 6)),
    "shared": (shared, lambda: torch.randn(4, 6)),
    "head": (Net, lambda: torch.randn(4, 6)),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", [byov.Gaussian(-3.0), byov.Ensemble(3)], ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_changed(kind: str, family: Any, strategy: Any) -> None:
    make, batch = KINDS[kind]
    model, x = spread(byov.bayesianize(make(), family)), batch()
    model.train()
    first = next(module for module in model.net.modules() if module is not model.net)
    first.eval()  # as frozen statistics are, in a model that trains
    before = snapshot(model)
    with pytest.raises(RuntimeError) if (strategy, kind) == ("vmap", "lstm") else nullcontext():
        byov.predict(model, x, 3, strategy)
    assert snapshot(model) == before
    assert model.training
    assert not first.training


@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_gives_the_bits_of_a_call(kind: str) -> None:
    make, batch = KINDS[kind]
    model, x = spread(byov.bayesianize(make(), byov.Gaussian(-3.0))), batch()
    found = byov.predict(model, x, 4, "loop", generator=seeded(), keep=True)
    assert torch.equal(found.draws, by_hand(model, x, 4))  # type: ignore[arg-type]


class Fails(nn.Module):
    """Passes its inputs on, until a pass that is one too many."""

    left = 1 << 30

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        Fails.left -= 1
        if Fails.left < 0:
            raise KeyError("from the network")
        return x


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("kind", ["mlp-batchnorm", "tied", "lstm", "shared", "head"])
@pytest.mark.parametrize("family", [byov.Gaussian(-3.0), byov.Ensemble(3)], ids=lambda f: type(f).__name__)
def test_an_exception_in_a_pass(
    kind: str, family: Any, passes: int, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (strategy, kind) == ("vmap", "lstm"):
        pytest.skip("torch.vmap has no rule for an LSTM")
    make, batch = KINDS[kind]
    model, x = spread(byov.bayesianize(nn.Sequential(make(), Fails()), family)), batch()
    serving = byov.Serving(model, 6, strategy, keep=True)
    expected = by_hand(model, x, 6)
    model.train()
    before = snapshot(model)
    monkeypatch.setattr(Fails, "left", 0 if strategy == "vmap" else passes)
    with pytest.raises(KeyError, match="from the network"):
        serving(x)
    assert snapshot(model) == before
    monkeypatch.setattr(Fails, "left", 1 << 30)
    assert_close(serving(x, seeded()).draws, expected)


def test_an_exception_in_the_installation() -> None:
    class Refuses(nn.LSTM):
        ready = False

        def __setattr__(self, name: str, value: Any) -> None:
            if self.ready and name == "bias_hh_l0" and isinstance(value, Tensor):
                raise ValueError("not this one")
            super().__setattr__(name, value)

    model = byov.bayesianize(nn.Sequential(nn.Linear(2, 2), Refuses(2, 2)), byov.Gaussian())
    before = snapshot(model)
    Refuses.ready = True
    with pytest.raises(ValueError, match="not this one"):
        byov.predict(model, torch.randn(3, 2))
    assert snapshot(model) == before


def test_the_model_can_be_trained_afterwards() -> None:
    model, x = byov.bayesianize(Recurrent(), byov.Gaussian(-3.0)), torch.randn(4, 6)
    byov.predict(model, x, 5)
    model.train()(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_what_the_network_sees() -> None:
    """Parameters without a gradient; tied ones are one tensor; and no draw lies elsewhere than the last."""
    seen: list[tuple[int, bool]] = []

    class Looks(Tied):
        def forward(self, tokens: Tensor) -> Tensor:
            weight = self.out.weight
            assert type(weight) is nn.Parameter
            assert not weight.requires_grad
            seen.append((weight.data_ptr(), weight is self.embed.weight))
            return super().forward(tokens)

    model, x = byov.bayesianize(Looks(), byov.Gaussian()), torch.randint(7, (4, 3))
    serving = byov.Serving(model, 3)
    for _ in range(2):
        serving(x)
    assert len(seen) == 6
    assert len(set(seen)) == 1
    assert seen[0][1]


def test_a_prediction_inside_a_held_draw_or_at_the_mean() -> None:
    model, x = spread(byov.bayesianize(mlp(), byov.Gaussian(-3.0))).eval(), torch.randn(5, 6)
    expected = by_hand(model, x, 4)
    for block in (model.draw(generator=seeded(1)), model.at_mean()):
        with block:
            held = model(x)
            found = byov.predict(model, x, 4, "loop", generator=seeded(), keep=True)
            assert torch.equal(held, model(x))
        assert torch.equal(found.draws, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["mlp-batchnorm", "tied", "shared"])
@pytest.mark.parametrize("inner", ["predict", "call", "state_dict"])
def test_a_hook_that_uses_the_model_itself(kind: str, inner: str) -> None:
    make, batch = KINDS[kind]
    model, x, busy = spread(byov.bayesianize(make(), byov.Gaussian(-3.0))).eval(), batch(), []
    expected, mean = by_hand(model, x, 4), model(x)
    before = snapshot(model)

    def hook(*_: Any) -> None:
        if not busy:
            busy.append(1)
            if inner == "predict":
                byov.predict(model, x, 2)
            elif inner == "call":
                assert torch.equal(model(x), mean)
            else:
                model.state_dict()
            busy.pop()

    handle = next(iter(model.net.children())).register_forward_hook(hook)
    found = byov.predict(model, x, 4, "loop", generator=seeded(), keep=True)
    handle.remove()
    assert torch.equal(found.draws, expected)  # type: ignore[arg-type]
    assert snapshot(model) == before


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("family", [byov.Gaussian(-3.0), byov.Ensemble(3)], ids=lambda f: type(f).__name__)
def test_a_model_that_changes_its_dtype(family: Any, strategy: Any) -> None:
    model, x = spread(byov.bayesianize(mlp(), family)), torch.randn(5, 6)
    serving = byov.Serving(model, 4, strategy, keep=True)
    for dtype in (torch.float32, torch.float64, torch.float32):
        expected = by_hand(model.to(dtype), x.to(dtype), 4)
        found = serving(x.to(dtype), seeded()).draws
        assert_close(found, expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("rules", [byov.Gaussian(-2.0), {"0.*": byov.EMP(2, spread=1.0), "*": byov.Gaussian(-2.0)}])
def test_weights_that_do_not_lie_on_16_bytes_are_drawn_too(rules: Any) -> None:
    # Sizes 15, 5, 25, 5, 10, 2: most tensors begin at odd places of the flat draw.
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    model, x = byov.bayesianize(net, rules), torch.randn(4, 3)
    assert_close(
        byov.predict(model, x, 6, "loop", generator=seeded(), keep=True).draws,
        by_hand(model, x, 6),
    )


def test_a_loader_without_batches_is_refused_by_what_is_stacked() -> None:
    model = byov.bayesianize(mlp(), byov.Gaussian(-3.0))
    stacked = stack(model, torch.randn(4, 6), torch.zeros(4, dtype=torch.long), 2)
    with pytest.raises(ValueError, match="The loader is empty"):
        stacked.predict([])
