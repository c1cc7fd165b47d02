"""BayesianModule beyond the conformance grid: networks of other kinds, states it refuses, and blocks in odd places."""

import copy
from typing import Any

import pytest
import torch
from small_networks import mlp, seeded, shake
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import byov

from .cell import FAMILIES


class Odd(nn.Module):
    """A parameter without dimensions, and a buffer that is replaced, not changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = nn.Linear(3, 3), nn.Parameter(torch.tensor(2.0))
        self.register_buffer("seen", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + len(x)
        return self.layer(x) * self.temperature


OTHERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.LSTM(3, 4, num_layers=2, bidirectional=True), (5, 2, 3)),
    (nn.GRU(3, 4), (5, 2, 3)),
    (nn.RNN(3, 4), (5, 2, 3)),
    (nn.LSTM(3, 4, proj_size=2), (5, 2, 3)),
    (weight_norm(nn.Linear(3, 4)), (2, 3)),
    (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), 1), (2, 3, 4)),
    (nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.GroupNorm(1, 3), nn.PReLU()), (1, 2, 4, 4)),
    (Odd(), (2, 3)),
]


def tensor(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(("net", "shape"), OTHERS, ids=lambda v: type(v).__name__)
def test_other_kinds_of_network(net: nn.Module, shape: tuple[int, ...], family: Any) -> None:
    net, x = copy.deepcopy(net), torch.randn(shape)
    model = byov.bayesianize(net, family)
    torch.testing.assert_close(tensor(model.eval()(x)), tensor(net.eval()(x)))
    shake(model, 0.1)
    model.train()
    outputs = [tensor(model(x)) for _ in range(20)]
    assert any(not torch.equal(outputs[0], out) for out in outputs[1:])
    outputs[0].square().sum().backward()
    if not (getattr(family, "zero", False) and nn.utils.parametrize.is_parametrized(net)):  # a zero has no direction
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    net.load_state_dict(model.point_state_dict(), strict=True)
    torch.testing.assert_close(tensor(model.eval()(x)), tensor(net(x)))


@pytest.mark.parametrize("family", [byov.Gaussian(), byov.Ensemble(2)], ids=repr)
def test_a_buffer_that_is_replaced_is_kept(family: Any) -> None:
    model = byov.bayesianize(Odd(), family)
    noise = [{"z": torch.tensor([1])}] if isinstance(family, byov.Ensemble) else model.noise()
    with model.draw(noise=noise):
        for _ in range(3):
            model(torch.randn(4, 3))
    if isinstance(family, byov.Ensemble):
        assert model.factors[0].get_buffer("seen").tolist() == [0.0, 12.0]
    else:
        assert model.net.get_buffer("seen").item() == 12.0


def test_a_generator_leaves_the_global_seed_alone_and_so_does_eval() -> None:
    model, x = byov.bayesianize(mlp(), byov.EMP(3)), torch.ones(4, 6)
    state = torch.get_rng_state()
    with model.draw(generator=seeded()):
        model(x)
    model.sample(3, generator=seeded())
    model.eval()(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_snr_of_a_weight_without_spread() -> None:
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, -3.0]]))
    snr = byov.bayesianize(net, byov.EMP(2, spread=0.0)).snr()["weight"]  # copies: σ is 0
    assert snr.tolist() == [[0.0, float("inf")]]
    gaussian = byov.bayesianize(net, byov.Gaussian(0.0)).snr()["weight"]
    assert gaussian.tolist() == [[0.0, 3.0]]


def test_sample_needs_a_draw() -> None:
    with pytest.raises(ValueError, match="at least one draw, not 0"):
        byov.bayesianize(mlp(), byov.Gaussian()).sample(0)


# States it refuses, changing nothing


def state(rules: Any, net: nn.Module | None = None, prior: Any = None) -> dict[str, Any]:
    return byov.bayesianize(net or mlp(), rules, prior=prior).state_dict()


OTHER_FAMILY = r"The state is of \w+\(.*\), but the model has EMP\(k=3"
OTHER_RULES = "a network with other parameters or other rules"


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        *[(state(f), OTHER_FAMILY) for f in (byov.ECMP(3), byov.EMP(4), byov.EMP(3, sigma=0.1), byov.Gaussian())],
        (state(byov.EMP(3, learn_probs=True)), "learn_probs"),
        (state({"0.*": byov.EMP(3)}), OTHER_RULES),
        (state(byov.EMP(3), nn.Linear(3, 4)), OTHER_RULES),
        (state(byov.EMP(3), prior=byov.TeacherMean()), "saved with a TeacherMean prior, but the model has a Normal"),
        (mlp().state_dict(), "not the state of a BayesianModule"),
    ],
)
def test_the_state_of_another_model_is_refused_and_changes_nothing(other: dict[str, Any], sentence: str) -> None:
    model = byov.bayesianize(mlp(), byov.EMP(3))
    before = copy.deepcopy(model.state_dict())
    for strict in (True, False):
        with pytest.raises(ValueError, match=sentence):
            model.load_state_dict(other, strict=strict)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_model_inside_another_module_saves_and_refuses_too() -> None:
    whole = nn.ModuleDict({"student": byov.bayesianize(mlp(), byov.Ensemble(2)), "head": nn.Linear(2, 2)})
    again = nn.ModuleDict({"student": byov.bayesianize(mlp(), byov.Ensemble(2)), "head": nn.Linear(2, 2)})
    again.load_state_dict(dict(whole.state_dict()))  # a plain dict has no versions, as one read from a file
    for key, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
    wrong = nn.ModuleDict({"student": byov.bayesianize(mlp(), byov.EMP(2)), "head": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match="The state is of Ensemble"):
        wrong.load_state_dict(whole.state_dict())


def test_the_point_of_an_ensemble_loads_a_state_without_versions() -> None:
    net = byov.bayesianize(nn.BatchNorm1d(3), byov.Ensemble(2)).point()
    net.load_state_dict({**net.state_dict(), "num_batches_tracked": torch.tensor(7)}, strict=True)
    assert int(net.num_batches_tracked) == 7


def test_it_prints_the_layers_as_they_are_called() -> None:
    """A covered bias is no missing one; and printing leaves nothing behind."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False), nn.LSTM(2, 2), nn.BatchNorm1d(2))
    model = byov.bayesianize(net, byov.Gaussian())
    state = list(model.state_dict())
    for line in str(net).splitlines()[1:-1]:
        assert line.strip() in str(model)
    assert all(parameter is None for module in model.net.modules() for parameter in module._parameters.values())
    assert list(model.state_dict()) == state
