"""What a BayesianModule shows of the network inside, and what it refuses to show without its weights."""

import copy
import inspect
import pickle

import pytest
import torch
from small_networks import seeded
from torch import Tensor, nn
from torch.func import functional_call

import byov


class Network(nn.Module):
    """A body, a head, and what people call besides `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"classes": 3}
        self.body, self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(self.features(x)) * self.scale

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def classifier(self) -> nn.Module:
        return self.head

    def reset(self, classes: int) -> None:
        self.head = nn.Linear(5, classes)

    def start_again(self, how: str) -> None:
        if how == "init":
            nn.init.zeros_(self.head.weight)
        elif how == "assign":
            self.head.weight = nn.Parameter(torch.zeros(3, 5))
        else:
            self.head = nn.Linear(5, 7)
            raise KeyError(how)

    def reset_parameters(self) -> None:
        self.head.reset_parameters()

    def gradient_checkpointing(self, enable: bool = True) -> None:
        self.config["checkpointing"] = enable


@pytest.fixture
def model() -> byov.BayesianModule:
    return byov.bayesianize(Network(), byov.Gaussian(-2.0))


X = torch.randn(6, 4, generator=seeded())


def test_it_has_the_networks_signature_also_as_a_copy(model: byov.BayesianModule) -> None:
    for each in (model, copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert inspect.signature(each.forward) == inspect.signature(model.net.forward)
        assert inspect.signature(type(each).forward) == inspect.signature(Network.forward)
        assert (type(each), type(each).__name__) == (type(model), "BayesianModule")
        assert torch.equal(each.eval()(X), model.eval()(X))
    other = byov.bayesianize(nn.Linear(4, 2), byov.Gaussian())
    assert list(inspect.signature(other.forward).parameters) == ["input"]
    assert list(inspect.signature(model.forward).parameters) == ["x", "mask"]


def test_attributes_are_the_networks(model: byov.BayesianModule) -> None:
    assert model.config is model.net.config
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert model.double().dtype == torch.float64
    assert not hasattr(model, "nothing")
    assert not hasattr(byov.BayesianModule.__new__(byov.BayesianModule), "config")


def test_methods_run_under_the_mean_or_a_draw(model: byov.BayesianModule) -> None:
    model.eval()
    assert torch.equal(model.features(X), model.point().features(X))
    assert list(inspect.signature(model.features).parameters) == ["x"]
    noise = model.noise(seeded())
    with model.draw(noise=noise):
        drawn = model.features(X)
    expected = functional_call(
        model.net.body, {k[5:]: v for k, v in model.tensors(noise).items() if k[:4] == "body"}, X
    )
    assert torch.equal(drawn, expected)
    model.train()
    assert not torch.equal(model.features(X), model.features(X))
    assert all(parameter is None for module in model.net.modules() for parameter in module._parameters.values())
    model.features(X).sum().backward()
    assert model.factors[0].get_parameter("log_var").grad.abs().sum() > 0


def test_what_would_lack_its_weights_is_refused(model: byov.BayesianModule) -> None:
    for name in ("head", "body", "scale"):
        with pytest.raises(AttributeError, match=rf"{name} has weights with a posterior.*model.point\(\).{name}"):
            getattr(model, name)
    with pytest.raises(ValueError, match=r"classifier\(\) has weights with a posterior"):
        model.classifier()
    head = model.net.head
    with pytest.raises(ValueError, match="reset changes the network's weights or layers: do it before bayesianize"):
        model.reset(7)
    assert model.net.head is head
    with pytest.raises(ValueError, match="Gradient checkpointing runs layers again"):
        model.gradient_checkpointing()
    model.gradient_checkpointing(enable=False)
    points = byov.bayesianize(Network(), {"body.*": byov.Gaussian()})
    assert points.head is points.net.head  # it lacks nothing
    assert points.classifier() is points.net.head
    assert float(points.scale.detach()) == 2.0


@pytest.mark.parametrize("training", [True, False])
def test_a_method_that_writes_weights_is_refused_and_writes_none(model: byov.BayesianModule, training: bool) -> None:
    """In train mode they would be lost with the draw, in eval mode they would be the mean."""
    model.train(training)
    before, head = copy.deepcopy(model.state_dict()), model.net.head
    for call in (lambda: model.start_again("init"), lambda: model.start_again("assign"), model.reset_parameters):
        with pytest.raises(ValueError, match="changes the network's weights or layers: do it before bayesianize"):
            call()
    with pytest.raises(KeyError):
        model.start_again("raise")
    assert model.net.head is head
    assert head.weight is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.inference_mode():
        model.features(X)


def test_an_attribute_is_set_where_the_network_reads_it() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor, self.fc = 1.0, nn.Linear(4, 2)
            self.register_buffer("mask", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x * self.mask) * self.factor

    model = byov.bayesianize(Scaled(), byov.Gaussian()).eval()
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(byov.bayesianize(nn.Linear(4, 2))))):
        each.mine, each.training, each.weight_name = 3, False, "a"
        assert (each.mine, "mine" in vars(each.net), "training" in vars(each)) == (3, False, True)
    again = copy.deepcopy(model)
    again.factor = 0.0
    assert (again.net.factor, model.factor, "factor" in vars(again)) == (0.0, 1.0, False)
    assert not again(X).any()
    again.factor, again.mask = 1.0, torch.zeros(4)
    assert dict(again.named_buffers())["net.mask"].sum() == 0
    assert torch.equal(again(X), again.mean()["fc.bias"].expand(6, 2))
    for value in (nn.Linear(4, 2), None):
        with pytest.raises(ValueError, match="Setting fc changes the network's weights or layers"):
            again.fc = value
    again.prior = byov.Normal(0.0, 2.0)
    assert isinstance(again._modules["prior"], byov.Normal)


def test_an_ensembles_buffers_follow_a_method() -> None:
    class Normalised(nn.Sequential):
        def again(self, x: Tensor) -> Tensor:
            return self(x)

    model = byov.bayesianize(Normalised(nn.Linear(4, 3), nn.BatchNorm1d(3)), byov.Ensemble(2))
    with model.draw(noise=[{"z": torch.tensor([1])}]):
        model.again(X)
    assert model.factors[0].get_buffer("1/num_batches_tracked").tolist() == [0, 1]
