"""A network under handed tensors computes what `functional_call` has it compute, and is as it was afterwards."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

import byov
from byov.prediction.handover import Handover
from byov.prediction.state import attributes_of, modules_of, unchanged

from .networks import NETWORKS, Tied, by_hand, spread


def handed(model: byov.BayesianModule, x: Tensor, handover: Handover | None = None) -> Tensor:
    """One draw's output; checked against torch's own, and that the network is as it was."""
    modules = modules_of(model)
    before, tensors = attributes_of(modules), model.tensors(model.noise())
    names = dict(tensors)
    with torch.no_grad():
        found = (handover or Handover(model.net))(tensors, lambda net: net(x))
        assert unchanged(before, attributes_of(modules))
        assert all(tensors[name] is tensor for name, tensor in names.items())
        assert torch.equal(found, functional_call(model.net, dict(tensors), (x,), tie_weights=False))
    return found


@pytest.mark.parametrize("family", [byov.Gaussian(-3.0), byov.Ensemble(3)], ids=str)
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_network(kind: str, family: Any) -> None:
    """Tied weights and the buffers of an ensemble among them."""
    net, x = NETWORKS[kind][0](), NETWORKS[kind][1]()
    model = spread(byov.bayesianize(net, family)).eval()
    handover = Handover(model.net)
    assert not torch.equal(*(handed(model, x, handover) for _ in range(2))) or isinstance(family, byov.Ensemble)


def test_an_ensemble_hands_over_its_buffers() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model = spread(byov.bayesianize(net, byov.Ensemble(3))).eval()
    own = model.net[1].running_mean
    seen: list[Tensor] = []
    tensors = model.tensors(model.noise())
    Handover(model.net)(tensors, lambda net: seen.append(net[1].running_mean))
    assert seen[0] is tensors["1.running_mean"]
    assert model.net[1].running_mean is own is None
    handed(model, torch.randn(5, 3))


def test_tied_weights_are_one_tensor() -> None:
    model, same = byov.bayesianize(Tied(), byov.Gaussian()), []
    Handover(model.net)(model.tensors(model.noise()), lambda net: same.append(net.out.weight is net.embed.weight))
    assert same == [True]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def test_a_recurrent_layer_hears_of_its_weights() -> None:
    """It computes from a list of its own, which only its setter keeps up to date."""
    model, x = byov.bayesianize(Recurrent(), byov.Gaussian(-2.0)).eval(), torch.randn(2, 6, 5)
    assert not torch.equal(handed(model, x), handed(model, x))
    assert all(weight is None for weight in model.net.lstm._flat_weights)


def test_after_an_exception_everything_is_back() -> None:
    class Fails(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("no")

    model = byov.bayesianize(Fails(), byov.Gaussian())
    modules = modules_of(model)
    before = attributes_of(modules)
    with pytest.raises(KeyError, match="no"):
        Handover(model.net)(model.tensors(), lambda net: net(torch.randn(2, 6, 5)))
    assert unchanged(before, attributes_of(modules))
    assert all(weight is None for weight in model.net.lstm._flat_weights)


def test_what_was_handed_over_before_a_refusal_is_taken_back() -> None:
    class Refuses(nn.LSTM):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "bias_hh_l0" and isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                raise ValueError("not this one")
            super().__setattr__(name, value)

    model = byov.bayesianize(nn.Sequential(nn.Linear(2, 2), Refuses(2, 2)), byov.Gaussian())
    handed_over: list[Tensor] = []
    with pytest.raises(ValueError, match="not this one"):
        Handover(model.net)(model.tensors(), lambda net: handed_over.append(net[0].weight))
    assert not handed_over
    assert model.net[0].weight is None
    assert all(weight is None for weight in model.net[1]._flat_weights)


class Replaces(nn.Linear):
    """Puts another tensor where it finds the one that it was handed."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight = nn.Parameter(2.0 * self.weight)
        return super().forward(x)


class Unregisters(nn.Linear):
    """As weight normalisation by hand does: a plain attribute in place of the parameter."""

    def forward(self, x: Tensor) -> Tensor:
        weight = 2.0 * self.weight
        del self.weight
        self.weight = weight
        return super().forward(x)


class BecomesABuffer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        weight = 2.0 * self.weight
        del self.weight
        self.register_buffer("weight", weight)
        return super().forward(x)


class Writes(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.weight.mul_(2.0)
        return super().forward(x)


@pytest.mark.parametrize("layer", [Replaces, Unregisters, BecomesABuffer, Writes])
@pytest.mark.parametrize("batched", [False, True])
def test_a_network_that_replaces_what_it_is_handed(layer: type[nn.Linear], batched: bool) -> None:
    """Every pass finds what was drawn."""
    model, x = byov.bayesianize(nn.Sequential(nn.Linear(4, 4), layer(4, 3)), byov.Gaussian(-2.0)), torch.randn(6, 4)
    # `functional_call` leaves an unregistered parameter behind as an attribute: the loop by hand has its own model.
    expected = by_hand(byov.bayesianize(model.point(), byov.Gaussian(-2.0)), x, 5, seed=3)
    loader = x.split(2) if batched else x
    found = byov.predict(model, loader, 5, "loop", generator=Generator().manual_seed(3), keep=True)
    torch.testing.assert_close(found.draws, expected)
    assert model.net[1]._parameters["weight"] is None
    assert "weight" not in vars(model.net[1])
    assert not model.net[1]._buffers


class Shuffles(nn.Module):
    """A list that loses a module has another dict of modules than before."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        last = self.layers.pop(-1)
        self.layers[0], self.layers[1] = self.layers[1], self.layers[0]
        self.layers.append(last)
        return self.layers[1](last(self.layers[0](x)))


def test_a_network_that_makes_its_list_of_modules_anew() -> None:
    model, x = byov.bayesianize(Shuffles(), byov.Gaussian(-2.0)), torch.randn(6, 4)
    expected = by_hand(model, x, 4, seed=3)
    found = byov.predict(model, x, 4, "loop", generator=Generator().manual_seed(3), keep=True)
    torch.testing.assert_close(found.draws, expected)


def test_a_network_that_exchanges_its_modules() -> None:
    """A name leads to another module in every second pass."""

    class Exchanges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.first, self.second[0] = self.second[0], self.first
            return torch.relu(self.first(x)) + self.second(x)

    model, x = byov.bayesianize(Exchanges(), byov.Gaussian(-2.0)), torch.randn(6, 4)
    expected = by_hand(model, x, 4, seed=3)
    found = byov.predict(model, x, 4, "loop", generator=Generator().manual_seed(3), keep=True)
    torch.testing.assert_close(found.draws, expected)


def test_a_module_that_occurs_twice() -> None:
    shared = nn.Linear(4, 4)
    model, x = byov.bayesianize(nn.Sequential(shared, nn.ReLU(), shared), byov.Gaussian(-2.0)), torch.randn(6, 4)
    handed(model.eval(), x)
    assert shared.weight is not None
    assert model.net[2].weight is None


def test_draws_that_are_batched() -> None:
    model, x = byov.bayesianize(nn.Sequential(nn.Linear(4, 3)), byov.Gaussian(-2.0)), torch.randn(6, 4)
    draws = model.sample(5)
    handover = Handover(model.net)
    found = torch.vmap(lambda tensors: handover(tensors, lambda net: net(x)))(draws)
    torch.testing.assert_close(found, x @ draws["0.weight"].mT + draws["0.bias"][:, None])
    assert model.net[0].weight is None


def test_values_that_change_places_are_a_change() -> None:
    """An OrderedDict's keys come in its own order, and its values have to."""
    net = nn.Linear(2, 2)
    net.cache = OrderedDict(a=1.0, b=2.0)
    before = attributes_of(modules_of(net))
    net.cache["b"] = 1.0
    del net.cache["a"]
    net.cache["a"] = 2.0
    net.cache.move_to_end("a", last=False)
    assert list(net.cache.items()) == [("a", 2.0), ("b", 1.0)]
    assert not unchanged(before, attributes_of(modules_of(net)))


def test_all_modules_once() -> None:
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.Sequential(shared, nn.ReLU()))
    model = byov.bayesianize(net, byov.Gaussian())
    for found, whole in ((modules_of(net), net), (modules_of(model, modules_of(model.net)), model)):
        assert len(found) == len(set(map(id, found)))
        assert set(map(id, found)) == set(map(id, whole.modules()))
