"""One model used by several threads: everybody's own draws, and the model as it was."""

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, Recurrent, mlp, seeded
from torch import Tensor, nn

import byov

from .networks import Net, by_hand, snapshot, spread

MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[], Tensor]]] = {
    "gaussian": (mlp, byov.Gaussian(-2.0), lambda: torch.randn(5, 6)),
    "ensemble": (mlp, byov.Ensemble(3), lambda: torch.randn(5, 6)),
    "head": (Net, {byov.output_layer: byov.Gaussian(-1.0)}, lambda: torch.randn(5, 6)),
    "lstm": (Recurrent, byov.Gaussian(-2.0), lambda: torch.randn(5, 6)),
    "tied": (NETWORKS["tied"][0], byov.EMP(3), NETWORKS["tied"][1]),
}


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_every_result_is_that_of_a_single_thread(kind: str, threads: int, restless: None) -> None:
    make, rules, batch = MODELS[kind]
    model, x = spread(byov.bayesianize(make(), rules)).eval(), batch()
    keys, serving = list(model.state_dict()), byov.Serving(model, 3, keep=True)
    model.q.train()  # modes to put back
    before = snapshot(model)

    def work(i: int) -> list[Any]:
        with torch.no_grad():  # which is a thread's own
            out: list[Any] = [byov.predict(model, x, 3, "loop", generator=seeded(i), keep=True).draws]
            out += [model(x), byov.predict(model, [x, x[:2]], 3, generator=seeded(i)).mean]
            out += [serving(x, seeded(i)).draws, torch.tensor(list(model.state_dict()) == keys)]
            if kind != "lstm":  # which vmap refuses
                out.append(byov.predict(model, x, 3, "vmap", generator=seeded(i)).std)
        return out

    calls = range(24)
    alone = [work(i) for i in calls]
    with ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(work, calls))
    for one, other in zip(alone, together, strict=True):
        assert all(map(torch.equal, one, other))
    assert all(bool(each[4]) for each in together)
    assert snapshot(model) == before


class Waits(nn.Module):
    """A layer that, when asked, has something else done by another thread in the middle of a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 3)

    work: Callable[[], object] | None = None
    thread: Thread | None = None

    def forward(self, x: Tensor) -> Tensor:
        h, work, Waits.work = self.one(x), Waits.work, None
        if work is not None:
            Waits.thread = Thread(target=work)
            Waits.thread.start()
            Waits.thread.join(0.2)  # it may have to wait for this pass to end
        return self.other(h)


def meanwhile(model: byov.BayesianModule, x: Tensor, work: Callable[[], object]) -> Any:
    """Do something in another thread while this one is in the middle of a pass; what it gave."""
    found: list[Any] = []
    Waits.work = lambda: found.append(work())
    byov.predict(model, x, 3, "loop")
    Waits.thread.join()
    return found[0]


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(Waits(), byov.Gaussian(0.0))).eval()


def test_in_the_middle_of_a_pass(model: byov.BayesianModule) -> None:
    x = torch.randn(4, 6)
    before, mean, draws = snapshot(model), model(x).detach(), by_hand(model, x, 3)
    assert torch.equal(meanwhile(model, x, lambda: model(x)), mean)
    assert torch.equal(
        meanwhile(model, x, lambda: byov.predict(model, x, 3, generator=seeded(), keep=True).draws), draws
    )
    state, twin = meanwhile(model, x, model.state_dict), meanwhile(model, x, lambda: copy.deepcopy(model))
    assert list(state) == list(twin.state_dict()) == list(model.state_dict())
    assert snapshot(model) == before
    assert not torch.equal(meanwhile(model.train(), x, lambda: model(x)), mean)


def test_another_model_does_not_wait(model: byov.BayesianModule) -> None:
    other, x, done = copy.deepcopy(model), torch.randn(4, 6), Event()

    def work() -> None:
        byov.predict(other, x, 3)
        done.set()

    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            Thread(target=work).start()
            assert done.wait(60)
            return super().forward(x)

    byov.predict(byov.bayesianize(Asks(6, 3), byov.Gaussian()), x, 1)
