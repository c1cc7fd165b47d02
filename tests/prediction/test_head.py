"""A random last layer: the network runs once where that gives the same numbers, and only there.

Networks that do odd things before, in or after their head are in `test_odd_networks`.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import seeded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import byov

from .networks import FAMILIES, HEAD, Net, agree, by_hand, spread


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


def tokens(net: Any, x: Tensor) -> Tensor:
    return net.head(net.body(x[:, None] * torch.arange(1.0, 5.0)[:, None]))


def casts_before(net: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = net.body(x)
    return net.head(h.float())


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def of_torch(**after: nn.Module) -> nn.Sequential:
    """A network of known code, which is believed after one pass."""
    return nn.Sequential(OrderedDict(body=nn.Linear(6, 6), head=nn.Linear(6, 3), **after))


def changed(net: Any, change: Callable[[Any], object]) -> nn.Module:
    change(net)
    return net


def hooked(net: Any, where: str, hook: Any) -> nn.Module:
    return changed(net, lambda net: net.get_submodule(where).register_forward_hook(hook))


def doubles(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return 2 * out


def doubles_before(net: Any) -> None:
    net.head.register_forward_pre_hook(lambda module, args: (2 * args[0],))


USED: dict[str, tuple[nn.Module, Any]] = {
    "whole": (Net(), HEAD),
    "weight": (Net(), {"head.weight": byov.Gaussian(-1.0)}),
    "bias": (Net(), {"head.bias": byov.Gaussian(-1.0)}),
    "two families": (Net(), {"head.weight": byov.Gaussian(-1.0), "head.bias": byov.EMP(3, spread=2.0)}),
    "no bias": (nn.Sequential(nn.Tanh(), nn.Linear(6, 3, bias=False)), byov.Gaussian(-1.0)),
    "the network itself": (nn.Linear(6, 3), byov.Gaussian(-1.0)),
    "deep": (nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3))), {"1.*": byov.Gaussian(-1.0)}),
    "tokens": (Net(tokens), HEAD),
    "casts before": (Net(casts_before), HEAD),
    "clips": (Net(lambda net, x: net.head(net.body(x.clamp_(-1, 1)))), HEAD),
    "a hook before": (changed(Net(), doubles_before), HEAD),  # what the layer is given is what comes out of it
}


@pytest.mark.parametrize("kind", USED)
def test_it_is_used(kind: str) -> None:
    net, rules = USED[kind]
    task = "segmentation" if kind == "tokens" else None  # of which `agree` expects classes in dimension 1
    assert agree(byov.bayesianize(net, rules), torch.randn(5, 6), task=task).strategy == "head"


@pytest.mark.parametrize("part", ["", "body", "head"])
def test_a_compiled_network(part: str) -> None:
    """Its compiled code calls no hooks; the first pass runs as it is written."""
    model, x = byov.bayesianize(Net(), HEAD), torch.randn(5, 6)
    expected = by_hand(model, x, 6)
    model.net.get_submodule(part).compile(backend="eager")
    for strategy in ("loop", "auto", "loop", "auto"):
        found = byov.predict(model, x, 6, strategy, generator=seeded(), keep=True)
        assert found.strategy == ("head" if strategy == "auto" else "loop")
        assert_close(found.draws, expected)


def test_autocast_around_the_prediction() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert agree(byov.bayesianize(Net(), HEAD), torch.randn(5, 6), atol=5e-3).strategy == "head"


NOT_USED = {
    "a random body": Net(),
    "a subclass": changed(Net(), lambda net: setattr(net, "head", Scaled(6, 3))),
    "two layers": changed(Net(), lambda net: setattr(net, "head", nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)))),
    "tied": changed(Net(), lambda net: setattr(net.body[0], "weight", net.head.weight)),  # it is in the features too
    "a hook": hooked(Net(), "head", doubles),
    "a hook on the network": hooked(Net(), "", doubles),
    "a hook on torch's body": hooked(of_torch(), "body", lambda module, args, out: out + torch.rand(6)),
    "a hook on torch's head": hooked(of_torch(), "head", doubles),
    "a random forward of torch's body": changed(
        of_torch(), lambda net: setattr(net.body, "forward", lambda x: x + torch.rand(6))
    ),
    "written to": of_torch(relu=nn.ReLU(inplace=True)),
    "added to": Net(lambda net, x: net.head(x) + x),
    "viewed": Net(lambda net, x: net.head(net.body(x)).view(len(x), 6)),
}


@pytest.mark.parametrize("kind", NOT_USED)
def test_it_is_not_used(kind: str) -> None:
    rules = byov.Gaussian(-1.0) if kind == "a random body" else HEAD
    assert agree(byov.bayesianize(NOT_USED[kind], rules), torch.randn(5, 6), atol=0).strategy == "loop"


def test_a_layer_with_a_forward_of_its_own() -> None:
    model, x = byov.bayesianize(Net(), HEAD), torch.randn(5, 6)
    layer: Any = model.net.head
    layer.forward = lambda h: 3 * F.linear(h, layer.weight, layer.bias)
    assert_close(byov.predict(model, x, 6, generator=seeded(), keep=True).draws, by_hand(model, x, 6))


def test_an_ensemble_that_owns_statistics_before_the_layer() -> None:
    """Its members differ in the features too, though the layer has all the weights."""
    net = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))
    agree(spread(byov.bayesianize(net, byov.Ensemble(3)), by=1.0), torch.randn(5, 6))


def test_one_draw_is_a_pass() -> None:
    assert byov.predict(byov.bayesianize(Net(), HEAD), torch.randn(5, 6), 1).strategy == "loop"


@pytest.mark.parametrize("net", [Net(), of_torch()], ids=["own", "of torch"])
def test_a_hook_on_every_module(net: nn.Module) -> None:
    hook = register_module_forward_hook(lambda m, args, out: 2 * out if type(m) is nn.Linear else None)
    try:
        agree(byov.bayesianize(net, HEAD), torch.randn(5, 6))
    finally:
        hook.remove()
