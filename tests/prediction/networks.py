"""The prediction by hand that the engine is compared with, and networks that do odd things."""

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from small_networks import NETWORKS, Recurrent, seeded, shake
from torch import Tensor, nn
from torch.testing import assert_close

import byov
from byov.posterior import Family

FAMILIES: list[Family] = [
    byov.Gaussian(log_var=-5.0),
    byov.Dropout(0.2),
    byov.DropConnect(0.2, sigma=0.01),
    byov.Ensemble(3),
    byov.EMP(3, probs=(0.5, 0.3, 0.2)),
    byov.ECMP(3),
]
STRATEGIES = ("loop", "vmap", "auto")
Way = Callable[[Any, Tensor], Tensor]


def shared() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


class Net(nn.Module):
    """A fixed body and a head, which tests make random; any way to use them, and things to count or remember in.

    With `last` what the way gives is the output, so that the head can be all there is to draw.
    """

    def __init__(self, way: Way = lambda net, x: net.head(net.body(x)), last: bool = True) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6)
        self.way, self.last, self.calls, self.memory = way, last, 0, None
        self.listed, self.named, self.array, self.tensor = [], {"calls": 0}, np.zeros(1), torch.zeros(1)
        self.own, self.own_numpy, self.own_python = seeded(), np.random.default_rng(0), random.Random(0)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x) if self.last else 2 * self.way(self, x)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    **NETWORKS,
    "lstm": (Recurrent, lambda: torch.randn(4, 6)),
    "shared": (shared, lambda: torch.randn(4, 6)),
    "head": (Net, lambda: torch.randn(4, 6)),
}
HEAD = {"head.*": byov.Gaussian(-1.0)}


def spread(model: byov.BayesianModule, by: float = 0.1) -> byov.BayesianModule:
    """Move everything that is learned or counted, so that components differ and no statistic is 0 or 1."""
    shake(model, by)
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer), alpha=by)
    return model


def by_hand(
    model: byov.BayesianModule, x: Tensor | Mapping[str, Tensor], samples: int, seed: int = 7, softmax: bool = True
) -> Tensor:
    """What each draw predicts (S, N, …): a loop that anybody would write, with fresh inputs for every pass."""
    generator, draws = seeded(seed), []
    model.eval()
    for _ in range(samples):
        with torch.no_grad(), model.draw(generator=generator):
            out = model(x.clone()) if isinstance(x, Tensor) else model(**{k: v.clone() for k, v in x.items()})
        draws.append(out.softmax(1, torch.promote_types(out.dtype, torch.float32)) if softmax else out)
    return torch.stack(draws)


def agree(
    model: byov.BayesianModule, x: Any, strategy: Any = "auto", atol: float = 1e-6, task: Any = None
) -> byov.Prediction:
    """Predict, and compare with a loop by hand on a copy: the draws, the state afterwards and the inputs."""
    samples, twin, given = 6, copy.deepcopy(model), x.clone()

    def seed() -> None:
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)  # noqa: NPY002 - the global stream is what a network may use

    seed()
    expected = by_hand(twin, x, samples)
    seed()
    found = byov.predict(model, x, samples, strategy, generator=seeded(), task=task, keep=True)
    assert_close(found.draws, expected, rtol=0, atol=atol)
    assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=0, atol=0)
    assert torch.equal(x, given)
    return found


def same(a: byov.Prediction, b: byov.Prediction, atol: float = 1e-12) -> None:
    for name in ("mean", "std", "entropy", "expected_entropy", "mutual_information"):
        assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=atol)
    assert torch.equal(torch.as_tensor(a.samples), torch.as_tensor(b.samples))


def snapshot(model: nn.Module) -> list[Any]:
    """All that a pass could leave changed: what every module holds, by identity, and the values of the state."""
    found: list[Any] = []
    for module in model.modules():
        for name, value in sorted(vars(module).items()):
            inside = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else [])
            found.append((name, id(value), [(key, id(each)) for key, each in inside]))
    state = model.state_dict()
    return [*found, list(state), [value.tolist() for value in state.values()]]
