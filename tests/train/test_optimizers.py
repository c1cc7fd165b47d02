"""Optimizers on posteriors equal plain loops over the layers' tensors, and resume to the bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import byov
from byov.train.optimizers import LARS, build_optimizer, parameter_groups

NAMES = ["adamw", "adam", "sgd", "lars"]


class Net(nn.Module):
    """A convolution, two norms, a tied linear map, a class token and a bias: all that exclusion has to tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3)
        self.bn = nn.BatchNorm2d(6)
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.norm = nn.LayerNorm([4, 6])  # its weight is a matrix, and still a norm's
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.scale = nn.Parameter(torch.full((6,), 0.9))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x))).flatten(2).mT
        x = self.norm(x + self.token)
        return self.b(F.gelu(self.a(x)) * self.scale).mean(1)


REGULAR = {"stem.weight", "token", "a.weight"}


def made(seed: int = 0, dtype: torch.dtype = torch.float64) -> Net:
    torch.manual_seed(seed)
    return Net().to(dtype)


def batches(n: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(5, 1, 4, 4, generator=g).to(dtype), torch.randint(6, (5,), generator=g)) for _ in range(n)]


def train(model: nn.Module, optimizer: Any, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def reference(name: str, net: nn.Module, data: list[tuple[Tensor, Tensor]], lr: float, wd: float) -> dict[str, Tensor]:
    """The textbook update of each parameter by itself, in a loop."""
    m = {k: torch.zeros_like(p) for k, p in net.named_parameters()}
    v = {k: torch.zeros_like(p) for k, p in net.named_parameters()}
    for step, (x, y) in enumerate(data, start=1):
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for k, p in net.named_parameters():
                assert p.grad is not None
                g, decay = p.grad, wd if k in REGULAR else 0.0
                if name == "adamw":
                    p *= 1 - lr * decay
                else:
                    g = g + decay * p
                if name in ("adamw", "adam"):
                    m[k], v[k] = 0.9 * m[k] + 0.1 * g, 0.999 * v[k] + 0.001 * g * g
                    p -= lr * (m[k] / (1 - 0.9**step)) / ((v[k] / (1 - 0.999**step)).sqrt() + 1e-8)
                else:
                    if name == "lars" and k in REGULAR:
                        g = g * (1e-3 * p.norm() / g.norm())
                    m[k] = 0.9 * m[k] + g
                    p -= lr * m[k]
    return {k: p.detach() for k, p in net.named_parameters()}


@pytest.mark.parametrize("rules", [None, "all", "some"])
@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_a_posterior_at_its_mean_is_trained_as_the_plain_network(name: Any, wd: float, rules: str | None) -> None:
    """The same weights to 1e-6 (measured: below 1e-10) after six steps, covered whole, in part or not at all."""
    lr = 3.0 if name == "lars" else 0.01
    data = batches(6)
    expected = reference(name, made(), data, lr, wd)
    net = made()
    if rules is None:
        train(net, build_optimizer(name, net, lr, wd), data)
        found = dict(net.named_parameters())
    else:
        cover = byov.Gaussian() if rules == "all" else {"a.*": byov.Gaussian(), "norm.*": byov.Gaussian()}
        model = byov.bayesianize(net, cover)
        optimizer = build_optimizer(name, model, lr, wd)
        with model.at_mean():
            train(model, optimizer, data)
        found = model.point_state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9, msg=lambda m, key=key: f"{key}: {m}")


def test_every_parameter_is_in_a_group_but_the_frozen_ones() -> None:
    model = byov.bayesianize(made(), {"a.*": byov.Gaussian(), "norm.*": byov.EMP(3)})
    model.net.stem.requires_grad_(False)  # type: ignore[union-attr]
    groups = parameter_groups(model, weight_decay=0.5)
    assert {group["role"]: group["decay"] for group in groups} == {"weights": 0.5, "excluded": 0.0, "log_var": 0.0}
    every = [id(p) for group in groups for p in group["params"]]
    assert sorted(every) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    with pytest.raises(ValueError, match="no trainable parameters"):
        parameter_groups(model.requires_grad_(False))


@pytest.mark.parametrize("name", NAMES)
def test_decay_moves_weights_only_and_never_log_variances(name: Any) -> None:
    """With gradients of zero only decay is left: weights shrink by the factor it says, nothing else moves."""
    model = byov.bayesianize(
        made(), {"a.*": byov.Gaussian(), "b.*": byov.EMP(2, spread=0.0), "stem.*": byov.ECMP(2, spread=0.0)}
    )
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    start = {k: m.detach().clone() for k, m in model.mean().items()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    build_optimizer(name, model, 0.1, 0.2).step()
    shrink = {"adamw": 1 - 0.02, "sgd": 1 - 0.02, "lars": 1 - 0.1e-3}
    for k, value in model.mean().items():
        if k not in REGULAR:
            torch.testing.assert_close(value, start[k], rtol=0, atol=0)
        elif name == "adam":  # the penalty's gradient, normalised: a step of lr towards zero
            torch.testing.assert_close(value, start[k] - 0.1 * start[k].sign(), rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(value, start[k] * shrink[name])
    for k, p in model.named_parameters():
        if k.endswith("log_var") or k in ("net.bn.weight", "net.bn.bias", "net.scale"):
            assert torch.equal(p, before[k])
        assert p.grad is not None
        assert not p.grad.any(), "the gradient itself was changed"


@pytest.mark.parametrize("posterior", [False, True])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_decay_of_all_moves_biases_and_norms_as_torchs_own_does(name: Any, posterior: bool) -> None:
    """Beside torch's optimizer on all of a plain network's parameters; a posterior's ρ stays where it is."""
    net = made()
    twin = copy.deepcopy(net)
    model = byov.bayesianize(net, {"a.*": byov.Gaussian(), "b.*": byov.Gaussian()}) if posterior else net
    before = [p.detach().clone() for k, p in model.named_parameters() if k.endswith("log_var")]
    for p in [*model.parameters(), *twin.parameters()]:
        p.grad = torch.zeros_like(p)
    build_optimizer(name, model, 0.1, 0.2, momentum=0.0, decay="all").step()
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    kind(twin.parameters(), lr=0.1, weight_decay=0.2).step()
    found = (dict(model.net.named_parameters()) | model.mean()) if posterior else dict(net.named_parameters())
    for k, p in twin.named_parameters():
        torch.testing.assert_close(found[k].detach(), p.detach(), rtol=1e-6, atol=1e-6)
    after = [p for k, p in model.named_parameters() if k.endswith("log_var")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_each_component_of_an_ensemble_is_a_network_of_its_own() -> None:
    """LARS on K components moves each as LARS on K plain networks does."""
    nets = [nn.Linear(3, 2).double() for _ in range(2)]
    model = byov.bayesianize(nets[0], byov.Ensemble(2))
    with torch.no_grad():
        for k, net in enumerate(nets):
            model.q[0].components[k] = torch.cat([net.weight.flatten(), net.bias])
    own, plain = build_optimizer("lars", model, 0.5, 0.1), [build_optimizer("lars", net, 0.5, 0.1) for net in nets]
    x = torch.randn(7, 3, dtype=torch.float64)
    for _ in range(4):
        own.zero_grad()
        for k, (net, optimizer) in enumerate(zip(nets, plain, strict=True)):
            optimizer.zero_grad()
            ((k + 1) * net(x).square().sum()).backward()
            with model.draw(noise=[{"z": torch.tensor([k])}]):
                ((k + 1) * model(x).square().sum()).backward()
            optimizer.step()
        own.step()
    for k, net in enumerate(nets):
        torch.testing.assert_close(model.q[0].components[k], torch.cat([net.weight.flatten(), net.bias]))


def test_lars_with_groups_by_hand() -> None:
    """`adapt=False` is plain SGD with momentum; a zero weight or gradient is taken as it is."""
    a, b = (torch.tensor([3.0, 4.0], requires_grad=True) for _ in range(2))
    zero = torch.zeros(2, requires_grad=True)
    optimizer = LARS([{"params": [a, zero]}, {"params": [b], "adapt": False}], lr=2.0, momentum=0.5, eta=0.1)
    for p in (a, b, zero):
        p.grad = torch.tensor([0.0, 2.0])
    optimizer.step()
    torch.testing.assert_close(a, torch.tensor([3.0, 4.0 - 2.0 * 0.1 * 5.0]))  # ‖w‖/‖g‖·g = 5
    torch.testing.assert_close(b, torch.tensor([3.0, 0.0]))
    torch.testing.assert_close(zero, torch.tensor([0.0, -4.0]))
    for p in (a, b, zero):
        p.grad = torch.zeros(2)
    optimizer.step()
    torch.testing.assert_close(b, torch.tensor([3.0, -2.0]))
    a.grad = None
    before = a.detach().clone()
    optimizer.step()
    assert torch.equal(a, before)


def test_channels_last_weights() -> None:
    data = batches(3)
    for name in NAMES:
        nets = [made(), made().to(memory_format=torch.channels_last)]
        for net in nets:
            train(net, build_optimizer(name, net, 0.1, 0.1), data)  # type: ignore[arg-type]
        torch.testing.assert_close(nets[0].stem.weight, nets[1].stem.weight)


@pytest.mark.parametrize("wd", [0.0, 0.1])
@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_log_variances_may_be_moved_by_adam_beside_sgd_and_lars(name: Any, wd: float) -> None:
    """ρ as torch's Adam has it, μ as without; the same draws, so equal but for rounding."""
    data, models = batches(5), [byov.bayesianize(made(), byov.Gaussian(-6.0)) for _ in range(2)]
    ours = build_optimizer(name, models[0], 0.05, wd, log_var="adam")
    plain = build_optimizer(name, models[1], 0.05, wd)
    plain.param_groups = [group for group in plain.param_groups if group["role"] != "log_var"]
    adams = torch.optim.Adam([models[1].q[0].log_var], lr=0.05 * 0.2, eps=1e-15)  # type: ignore[list-item]
    for k in range(5):
        for group in ours.param_groups:
            group["lr"] = 0.05 * (0.2 if group["role"] == "log_var" else 1.0)
        for model, optimizers in zip(models, [[ours], [plain, adams]], strict=True):
            torch.manual_seed(k)
            model.zero_grad()
            F.cross_entropy(model(data[k][0]), data[k][1]).backward()
            for optimizer in optimizers:
                optimizer.step()
    for (key, a), b in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=lambda m, key=key: f"{key}: {m}")
    moved = (models[0].q[0].log_var + 6.0).abs()  # type: ignore[operator]
    assert moved.max() > 0.03  # five steps of 0.01; SGD's own would be of the size of σ times a gradient


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a state is loaded onto the CPU, and used on a GPU")
@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_loaded_state_goes_on_on_a_gpu(name: Any) -> None:
    models = [byov.bayesianize(made(0, torch.float32).cuda(), byov.Gaussian(-4.0)) for _ in range(2)]
    optimizers = [build_optimizer(name, model, 0.05, 0.1, log_var="adam") for model in models]
    data = [(x.cuda(), y.cuda()) for x, y in batches(4, torch.float32)]
    for k in range(4):
        if k == 2:
            state = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, optimizers[0].state_dict())
            optimizers[0] = build_optimizer(name, models[0], 0.05, 0.1, log_var="adam")
            optimizers[0].load_state_dict(state)
        for model, optimizer in zip(models, optimizers, strict=True):
            torch.manual_seed(k)
            train(model, optimizer, data[k : k + 1])
    assert torch.equal(*(model.q[0].log_var for model in models))  # type: ignore[arg-type]


def test_options_are_handed_on() -> None:
    net = made()
    assert build_optimizer("sgd", net, 0.1, nesterov=True).param_groups[0]["nesterov"]
    assert build_optimizer("adamw", net, 0.1, betas=(0.8, 0.9)).param_groups[0]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize("name", NAMES)
def test_hooks_run_once_and_a_closure_is_evaluated(name: Any) -> None:
    net = made()
    build_optimizer(name, net, 0.1)  # torch wraps its classes when they are first used
    optimizer, calls = build_optimizer(name, net, 0.1, 0.1), []
    optimizer.register_step_post_hook(lambda *args: calls.append(1))
    (x, y), other = batches(1)[0], copy.deepcopy(net)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)  # type: ignore[arg-type, func-returns-value]
    assert calls == [1]
    torch.testing.assert_close(loss, F.cross_entropy(copy.deepcopy(other)(x), y))
    train(other, build_optimizer(name, other, 0.1, 0.1), [(x, y)])
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_copied_optimizer_keeps_its_segments() -> None:
    model = byov.bayesianize(made(), byov.Gaussian())
    model_2, optimizer_2 = copy.deepcopy((model, build_optimizer("adamw", model, 0.1, 0.5)))
    before = model_2.q[0].log_var.detach().clone()
    for p in model_2.parameters():
        p.grad = torch.zeros_like(p)
    weight = model_2.mean()["a.weight"].detach().clone()
    optimizer_2.step()
    torch.testing.assert_close(model_2.mean()["a.weight"], weight * 0.95)
    assert torch.equal(model_2.q[0].log_var, before)


@pytest.mark.parametrize(
    "bad",
    [
        lambda net: build_optimizer("adagrad", net, 0.1),  # type: ignore[arg-type]
        lambda net: build_optimizer("lars", net, -0.1),
        lambda net: build_optimizer("sgd", net, 0.1, float("nan")),
        lambda net: build_optimizer("sgd", net, 0.1, momentum=-1.0),
        lambda net: build_optimizer("lars", net, 0.1, eta=-1.0),
        lambda net: build_optimizer("lars", net, 0.1, log_var="Adam"),  # type: ignore[arg-type]
        lambda net: build_optimizer("sgd", net, 0.1, momentum=0.0, nesterov=True),
        lambda net: build_optimizer("sgd", net, 0.1, decay="norms"),  # type: ignore[arg-type]
        lambda net: build_optimizer("lars", net, 0.1, decay="all"),
        lambda net: LARS(net.parameters(), lr=float("inf")),
    ],
)
def test_bad_input_gets_one_sentence(bad: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(ValueError, match=r"^An optimizer.*\.$"):
        bad(made())
