"""Whatever a network does in its forward: as a loop by hand on a copy would have it, or refused in one sentence."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from small_networks import seeded
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import byov

from .networks import HEAD, Net, Way, agree, by_hand, spread


def then(*steps: Any) -> Any:
    """The last of several steps."""
    return steps[-1]


def fork(net: Any, x: Tensor) -> Tensor:
    """Draws without a trace in the global stream."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return F.dropout(net.head(net.body(x)), 0.5, training=True)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


BATCHED: dict[str, Way] = {
    "plain": lambda net, x: net.head(net.body(x)),
    "in the middle": lambda net, x: net.body(net.head(x)),
    "not used": lambda net, x: net.body(x),
    "called twice": lambda net, x: net.head(net.head(net.body(x))),
    "called by keyword": lambda net, x: net.head(input=net.body(x)),
    "called as a function": lambda net, x: F.linear(net.body(x), 2 * net.head.weight, net.head.bias),
    "reads the weights before": lambda net, x: net.head(net.body(x) * net.head.weight.square().mean()),
    "clips its weights": lambda net, x: then(net.head.weight.clamp_(-0.2, 0.2), net.head(net.body(x))),
    "shrinks its weights": lambda net, x: then(net.head.weight.mul_(0.99), net.head(net.body(x))),
    "returns weights": lambda net, x: net.head.weight[: len(x)],
    "skips the head": lambda net, x: net.head(F.relu_(h := net.body(x))) + h,
    "writes before": lambda net, x: then(h := net.body(x), h[:, :2].zero_(), net.head(h)),
    "writes after": lambda net, x: then(h := net.body(x), out := net.head(h), h.zero_(), out),
    "masks its output": lambda net, x: net.head(net.body(x)).index_fill_(1, torch.tensor([0]), -9.0),
    "clips its input": lambda net, x: net.head(net.body(x.clamp_(-1, 1))),
    "writes a view of its input": lambda net, x: then(x[:, 0].add_(1.0), net.head(net.body(x))),
    "caches by size": lambda net, x: net.head(net.body(x) + net.named.setdefault(len(x), torch.ones(len(x), 1))),
}
UNBATCHED: dict[str, Way] = {
    "counts in a buffer": lambda net, x: net.head(net.body(x) * net.passes.add_(1.0)),
    "sets a buffer anew": lambda net, x: then(setattr(net, "passes", net.passes + 1), net.head(x * net.passes)),
    "counts in an attribute": lambda net, x: then(setattr(net, "calls", net.calls + 1), net.head(x * net.calls)),
    "counts in a list": lambda net, x: then(net.listed.append(1), net.head(x * len(net.listed))),
    "counts in a dict": lambda net, x: then(
        net.named.update(calls=net.named["calls"] + 1), net.head(x * net.named["calls"])
    ),
    "counts in an array": lambda net, x: net.head(x * float(np.add(net.array, 1, out=net.array)[0])),
    "counts in a tensor": lambda net, x: net.head(x * net.tensor.add_(1.0)),
    "remembers": lambda net, x: then(h := net.body(x if net.memory is None else net.memory), note(net, h), net.head(h)),
    "remembers a draw": lambda net, x: note(net, net.head(x if net.memory is None else x + net.memory)),
    "draws from torch": lambda net, x: net.head(net.body(x) + torch.randn(6)),
    "draws from numpy": lambda net, x: net.head(net.body(x) * float(np.random.rand())),  # noqa: NPY002
    "draws from Python": lambda net, x: net.head(net.body(x) * random.random()),
    "draws from its own": lambda net, x: net.head(net.body(x) + torch.randn(6, generator=net.own)),
    "draws from its own numpy": lambda net, x: net.head(net.body(x) * float(net.own_numpy.random())),
    "draws from its own Python": lambda net, x: net.head(net.body(x) * net.own_python.random()),
    "drops out": lambda net, x: net.head(F.dropout(net.body(x), 0.5, training=True)),
    "seeds itself": fork,
    "writes a draw into what is fixed": lambda net, x: net.body(x).add_(net.head(x)),
    "branches": lambda net, x: net.head(x) + (x if net.head(x).mean() > 0 else net.body(x)),
    "reads a number": lambda net, x: net.body(x) * net.head(x).mean().item(),
    "through numpy": lambda net, x: net.body(torch.from_numpy(net.head(x).numpy().copy())),
    "by a function of its own": lambda net, x: net.body(Twice.apply(net.head(Twice.apply(x)))),
    # What two passes do not show: one that differs comes later, or only the state tells that there was one.
    "draws from Python, which shows later": lambda net, x: net.head(net.body(x) * (1 + (random.random() > 0.9))),
    "draws from torch, which shows later": lambda net, x: net.head(net.body(x) * (1 + (float(torch.rand(())) > 0.9))),
    "draws from numpy, which shows later": lambda net, x: net.head(net.body(x) * (1 + (np.random.rand() > 0.6))),  # noqa: NPY002
    "counts, which shows later": lambda net, x: then(
        setattr(net, "calls", net.calls + 1), net.head(x * (1 + (net.calls % 5 == 0)))
    ),
    "writes its input later": lambda net, x: then(
        setattr(net, "calls", net.calls + 1), net.head(x.mul_(2.0) if net.calls % 3 == 2 else x)
    ),
    "counts without effect": lambda net, x: then(net.passes.add_(1.0), net.head(net.body(x))),
}


def note(net: Any, value: Tensor) -> Tensor:
    net.memory = value
    return value


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("strategy", ["loop", "auto"])
@pytest.mark.parametrize("name", [*BATCHED, *UNBATCHED])
def test_as_by_hand(name: str, strategy: str, last: bool) -> None:
    model, head = byov.bayesianize(Net((BATCHED | UNBATCHED)[name], last), HEAD), last and strategy == "auto"
    for _ in range(2):
        found = agree(model, torch.randn(4, 6), strategy, atol=1e-6 if head else 0)
        assert head or found.strategy == "loop"


@pytest.mark.parametrize("name", BATCHED)
def test_vmap_batches(name: str) -> None:
    assert agree(byov.bayesianize(Net(BATCHED[name]), HEAD), torch.randn(4, 6), "vmap").strategy == "vmap"


@pytest.mark.parametrize("name", UNBATCHED)
def test_vmap_refuses(name: str) -> None:
    model, x = byov.bayesianize(Net(UNBATCHED[name]), HEAD), torch.randn(4, 6)
    given = x.clone()
    with pytest.raises(RuntimeError, match="use strategy='loop'") as refusal:
        byov.predict(model, x, 6, "vmap")
    assert "\n" not in str(refusal.value)
    assert torch.equal(x, given)
    assert all(module.training for module in model.modules())


def test_a_drift_too_small_for_rounding_to_tell() -> None:
    net = Net(lambda net, x: then(net.listed.append(1), net.head(x * (1 + 2e-5 * len(net.listed)))))
    assert agree(byov.bayesianize(net, HEAD), torch.randn(4, 6), atol=0).strategy == "loop"


def test_outputs_that_lie_in_the_weights(strategy: Any) -> None:
    model, x = byov.bayesianize(Net(BATCHED["returns weights"]), HEAD), torch.randn(4, 6)
    found = byov.predict(model, x, 5, strategy, generator=seeded(), task="regression", keep=True)
    assert_close(found.draws, by_hand(model, x, 5, softmax=False))


def test_a_loader_of_a_network_with_state_counts_every_pass() -> None:
    """Batch after batch, as by hand."""
    model, x = byov.bayesianize(Net(UNBATCHED["counts in a buffer"]), HEAD), torch.randn(10, 6)
    twin = byov.bayesianize(Net(UNBATCHED["counts in a buffer"]), HEAD)
    twin.load_state_dict(model.state_dict())
    found = byov.predict(model, x.split(4), 3, generator=seeded(), keep=True)
    assert torch.equal(found.draws, torch.cat([by_hand(twin, part, 3) for part in x.split(4)], dim=1))
    assert float(model.net.passes) == 9.0


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
@pytest.mark.parametrize("wrap", [torch.jit.script, torch.fx.symbolic_trace])
def test_a_random_body_in_a_class_of_torch(wrap: Any) -> None:
    net, x = nn.Sequential(nn.Linear(6, 6), wrap(Noisy()), nn.Linear(6, 3)), torch.randn(4, 6)
    model = byov.bayesianize(net, {"2.*": byov.Gaussian(-1.0)})
    agree(model, x)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("outside", [False, True])
def test_autocast_inside_the_network(inside: bool, outside: bool, strategy: Any) -> None:
    def casts(net: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            return net.head(net.body(x))

    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        agree(byov.bayesianize(Net(casts), HEAD), torch.randn(4, 6), strategy, atol=5e-3 * inside + 1e-6)


@pytest.mark.parametrize("strategy", ["loop", "auto"])
def test_a_hook_sees_every_pass(strategy: Any) -> None:
    model, seen = byov.bayesianize(Net(), byov.Gaussian()), []
    model.net.body.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    byov.predict(model, torch.randn(5, 6).split(3), 4, strategy)
    assert seen == [3] * 4 + [2] * 4


@pytest.mark.parametrize("strategy", ["loop", "auto"])
def test_sparse_inputs(strategy: Any) -> None:
    class Sparse(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(x, self.weight.t()) + self.bias

    model, x = spread(byov.bayesianize(Sparse(6, 3), byov.Gaussian(-2.0))), torch.randn(5, 6).relu()
    dense = byov.bayesianize(nn.Linear(6, 3), byov.Gaussian(-2.0))
    dense.q.load_state_dict(model.q.state_dict())
    found = byov.predict(model, x.to_sparse(), 6, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, by_hand(dense, x, 6))


def unregisters(net: Any, x: Tensor) -> Tensor:
    """As weight normalisation by hand does: a plain attribute in place of the parameter."""
    weight = 2 * net.head.weight
    del net.head.weight
    net.head.weight = weight
    return net.head(x)


def replaces(net: Any, x: Tensor) -> Tensor:
    net.head.weight = nn.Parameter(2 * net.head.weight)
    return net.head(x)


@pytest.mark.parametrize("way", [replaces, unregisters])
@pytest.mark.parametrize("strategy", ["loop", "auto"])
@pytest.mark.parametrize("samples", [1, 4])
def test_a_network_that_replaces_its_weights(way: Way, strategy: Any, samples: int) -> None:
    """One draw is all that it can be given."""
    model, x = byov.bayesianize(Net(way), HEAD), torch.randn(4, 6)
    state, drawn = list(model.state_dict()), model.sample(samples, seeded())
    if samples > 1:
        with pytest.raises(RuntimeError, match="replaces its own weights"):
            byov.predict(model, x, samples, strategy)
        assert list(model.state_dict()) == state
        return
    found = byov.predict(model, x, samples, strategy, generator=seeded(), keep=True)
    assert list(model.state_dict()) == state
    assert model.net.head._parameters["weight"] is None
    assert "weight" not in vars(model.net.head)
    weights = zip(drawn["head.weight"], drawn["head.bias"], strict=True)
    assert_close(found.draws, torch.stack([F.linear(x, 2 * w, b).softmax(1) for w, b in weights]).detach())
