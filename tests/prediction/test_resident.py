"""While it predicts, a network holds one draw's weights; afterwards, whatever happened, it is as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import Tied, mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close

import byov

from .networks import KINDS, agree, by_hand, snapshot, spread


class Fails(nn.Module):
    """Passes its inputs on, until a pass that is one too many."""

    left = 1 << 30

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        Fails.left -= 1
        if Fails.left < 0:
            raise KeyError("from the network")
        return x


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

    model, x = byov.bayesianize(Looks(), byov.Gaussian()), torch.randint(11, (4, 3))
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
        assert torch.equal(found.draws, expected)


INSIDE: dict[str, Callable[[byov.BayesianModule, Tensor], object]] = {
    "predict": lambda model, x: byov.predict(model, x, 2),
    "call": lambda model, x: model(x),
    "state_dict": lambda model, x: model.state_dict(),
}


@pytest.mark.parametrize("kind", ["mlp-batchnorm", "tied", "shared"])
@pytest.mark.parametrize("inner", INSIDE)
def test_a_hook_that_uses_the_model_itself(kind: str, inner: str) -> None:
    make, batch = KINDS[kind]
    model, x, found = spread(byov.bayesianize(make(), byov.Gaussian(-3.0))).eval(), batch(), []
    expected, mean, before = by_hand(model, x, 4), model(x), snapshot(model)

    def hook(*_: Any) -> None:
        if len(found) % 2 == 0:  # not within itself
            found.append(None)
            found.append(INSIDE[inner](model, x))

    handle = next(iter(model.net.children())).register_forward_hook(hook)
    draws = byov.predict(model, x, 4, "loop", generator=seeded(), keep=True).draws
    handle.remove()
    assert torch.equal(draws, expected)
    assert inner != "call" or all(torch.equal(out, mean) for out in found[1::2])
    assert snapshot(model) == before


@pytest.mark.parametrize("rules", [byov.Gaussian(-2.0), {"0.*": byov.EMP(2, spread=1.0), "*": byov.Gaussian(-2.0)}])
def test_weights_that_do_not_lie_on_16_bytes_are_drawn_too(rules: Any) -> None:
    # Sizes 15, 5, 25, 5, 10, 2: most tensors begin at odd places of the flat draw.
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 2))
    agree(byov.bayesianize(net, rules), torch.randn(4, 3), "loop")
