"""A random last layer: the network runs once where that gives the same numbers, and only there.

Networks that do odd things before, in or after their head are in `test_odd_networks`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import byov
from byov.prediction.head import known

from .networks import FAMILIES, HEAD, Net, agree, by_hand, seeded, spread


def passes(model: byov.BayesianModule, x: Any, **options: Any) -> tuple[int, byov.Prediction]:
    """How often the body runs."""
    seen: list[object] = []
    hook = model.net.get_submodule("body").register_forward_hook(lambda *args: seen.append(args))
    found = byov.predict(model, x, generator=seeded(), **options)
    hook.remove()
    return len(seen), found


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_the_body_of_ones_own_network_runs_twice(family: Any) -> None:
    """The second pass shows that the layer is given the same."""
    model, x = spread(byov.bayesianize(Net(), {byov.output_layer: family})), torch.randn(5, 6)
    count, found = passes(model, x, samples=50, keep=True)
    assert (count, found.strategy, found.samples) == (2, "head", 50)
    assert_close(found.draws, by_hand(model, x, 50))
    assert passes(model, x, samples=50, strategy="loop")[0] == 50
    assert passes(model, x.split(2), samples=50)[0] == 6


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


def test_the_body_of_a_known_network_runs_once() -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    model, x = byov.bayesianize(net, {byov.output_layer: byov.Gaussian(-1.0)}), torch.randn(5, 6)
    with Products() as products:
        found = byov.predict(model, x, 50, generator=seeded(), keep=True)
    assert (products.count, found.strategy) == (3 + 1, "head")
    assert_close(found.draws, by_hand(model, x, 50))


def test_what_is_known() -> None:
    class Own(nn.Linear):
        pass

    timm_net = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32, depth=1)
    assert known(timm_net.modules())
    assert known(torchvision.models.resnet18().modules())
    assert not known(nn.Sequential(Own(2, 2)).modules())
    hooked_net = nn.Sequential(nn.Linear(2, 2))
    handle = hooked_net[0].register_forward_pre_hook(lambda *_: None)
    assert not known(hooked_net.modules())
    handle.remove()
    assert known(hooked_net.modules())
    hooked_net[0].forward = lambda x: x  # type: ignore[method-assign]
    assert not known(hooked_net.modules())


def tokens(net: Any, x: Tensor) -> Tensor:
    return net.head(net.body(x[:, None] * torch.arange(1.0, 5.0)[:, None]))


def casts_before(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = net.body(x)
    return net.head(h.float())


@pytest.mark.parametrize(
    ("net", "rule"),
    [
        (Net(), "head.*"),
        (Net(), "head.weight"),
        (Net(), "head.bias"),
        (nn.Sequential(nn.Tanh(), nn.Linear(6, 3, bias=False)), "*"),
        (nn.Linear(6, 3), "*"),
        (nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(6, 3)))), "1.*"),
        (Net(tokens), "head.*"),
        (Net(casts_before), "head.*"),
        (Net(lambda net, x: net.head(net.body(x.clamp_(-1, 1)))), "head.*"),
    ],
    ids=["whole", "weight", "bias", "no bias", "the network itself", "deep", "tokens", "casts before", "clips"],
)
def test_it_is_used(net: nn.Module, rule: str) -> None:
    assert agree(byov.bayesianize(net, {rule: byov.Gaussian(-1.0)}), torch.randn(5, 6)).strategy == "head"


def test_two_families_on_one_layer() -> None:
    rules = {"head.weight": byov.Gaussian(-1.0), "head.bias": byov.EMP(3, spread=2.0)}
    assert agree(byov.bayesianize(Net(), rules), torch.randn(5, 6)).strategy == "head"


def test_one_output_of_a_regression_and_a_mapping() -> None:
    model, x = byov.bayesianize(nn.Sequential(nn.Tanh(), nn.Linear(6, 1)), byov.Gaussian(-1.0)), torch.randn(5, 6)
    found = byov.predict(model, {"input": x}, 9, generator=seeded(), task="regression", keep=True)
    assert found.strategy == "head"
    assert_close(found.draws, by_hand(model, x, 9, softmax=False))


def test_a_tolerance_stops_inputs_where_a_loop_would() -> None:
    model, x = byov.bayesianize(Net(), HEAD).double(), torch.randn(30, 6).double()
    loop, found = (byov.predict(model, x, 200, s, tolerance=0.015, generator=seeded()) for s in ("loop", "auto"))  # type: ignore[arg-type]
    assert found.strategy == "head"
    assert torch.equal(torch.as_tensor(found.samples), torch.as_tensor(loop.samples))
    assert len(set(found.samples.tolist())) > 1  # type: ignore[union-attr]
    assert_close(found.mean, loop.mean, rtol=0, atol=1e-12)
    assert_close(found.expected_entropy, loop.expected_entropy, rtol=0, atol=1e-12)


@pytest.mark.parametrize("part", ["", "body", "head"])
def test_a_compiled_network(part: str) -> None:
    """Its compiled code calls no hooks; the first pass runs as it is written."""
    model, x = byov.bayesianize(Net(), HEAD), torch.randn(5, 6)
    expected = by_hand(model, x, 6)
    model.net.get_submodule(part).compile(backend="eager")
    for strategy in ("loop", "auto", "loop", "auto"):
        found = byov.predict(model, x, 6, strategy, generator=seeded(), keep=True)  # type: ignore[arg-type]
        assert found.strategy == ("head" if strategy == "auto" else "loop")
        assert_close(found.draws, expected)


def test_autocast_around_the_prediction() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert agree(byov.bayesianize(Net(), HEAD), torch.randn(5, 6), atol=5e-3).strategy == "head"


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_head(head: nn.Module) -> Net:
    net = Net()
    net.head = head  # type: ignore[assignment]
    return net


def hooked(where: str, register: str, hook: Any) -> Net:
    net = Net()
    getattr(net.get_submodule(where), register)(hook)
    return net


def of_torch(**after: nn.Module) -> nn.Sequential:
    """A network of known code, which is believed after one pass."""
    return nn.Sequential(OrderedDict(body=nn.Linear(6, 6), head=nn.Linear(6, 3), **after))


def hooked_of_torch(where: str, hook: Any) -> nn.Module:
    net = of_torch()
    net.get_submodule(where).register_forward_hook(hook)
    return net


@pytest.mark.parametrize(
    "net",
    [
        with_head(Scaled(6, 3)),
        with_head(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))),
        hooked("head", "register_forward_hook", lambda module, args, out: 2 * out),
        hooked("", "register_forward_hook", lambda module, args, out: 2 * out),
        hooked_of_torch("body", lambda module, args, out: out + torch.rand(6)),
        hooked_of_torch("head", lambda module, args, out: 2 * out),
        of_torch(relu=nn.ReLU(inplace=True)),
        Net(lambda net, x: net.head(x) + x),
        Net(lambda net, x: net.head(net.body(x)).view(len(x), 6)),
    ],
    ids=[
        *("subclass", "two layers", "hook", "hook on the network", "hook on torch's body", "hook on torch's head"),
        *("written to", "added to", "viewed"),
    ],
)
def test_it_is_not_used(net: nn.Module) -> None:
    assert agree(byov.bayesianize(net, HEAD), torch.randn(5, 6), atol=0).strategy == "loop"


def test_a_hook_before_the_layer() -> None:
    """What the layer is given is what comes out of it."""
    net = hooked("head", "register_forward_pre_hook", lambda module, args: (2 * args[0],))
    assert agree(byov.bayesianize(net, HEAD), torch.randn(5, 6)).strategy == "head"


def test_a_layer_with_a_forward_of_its_own() -> None:
    model, x = byov.bayesianize(Net(), HEAD), torch.randn(5, 6)
    layer: Any = model.net.head
    layer.forward = lambda h: 3 * F.linear(h, layer.weight, layer.bias)
    found = byov.predict(model, x, 6, generator=seeded(), keep=True)
    assert_close(found.draws, by_hand(model, x, 6))


def test_a_tied_layer() -> None:
    """Its weights are in the features too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(6, 6), nn.Linear(6, 6)
            self.body.weight = self.head.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x)))

    assert agree(byov.bayesianize(Tied(), HEAD), torch.randn(5, 6), atol=0).strategy == "loop"


def test_an_ensemble_that_owns_statistics_before_the_layer() -> None:
    """Its members differ in the features too, though the layer has all the weights."""
    net = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))
    agree(spread(byov.bayesianize(net, byov.Ensemble(3)), by=1.0), torch.randn(5, 6))


def test_a_body_that_is_random_too() -> None:
    rules = {**HEAD, "body.0.bias": byov.Gaussian(-1.0)}
    assert agree(byov.bayesianize(Net(), rules), torch.randn(5, 6), atol=0).strategy == "loop"


def test_one_draw_is_a_pass() -> None:
    assert byov.predict(byov.bayesianize(Net(), HEAD), torch.randn(5, 6), 1).strategy == "loop"


@pytest.mark.parametrize("width", [6, 5])
def test_no_hook_is_left_behind(width: int) -> None:
    model = byov.bayesianize(Net(), HEAD)
    with contextlib.suppress(RuntimeError):  # of another width
        byov.predict(model, torch.randn(5, width), 5)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("net", [Net(), of_torch()], ids=["own", "of torch"])
def test_a_hook_on_every_module(net: nn.Module) -> None:
    hook = register_module_forward_hook(lambda m, args, out: 2 * out if type(m) is nn.Linear else None)
    try:
        agree(byov.bayesianize(net, HEAD), torch.randn(5, 6))
    finally:
        hook.remove()
