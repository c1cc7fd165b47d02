"""Prediction by every strategy, compiled or not, against a loop by hand."""

from __future__ import annotations

import copy
from threading import Thread

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import byov

from .networks import FAMILIES, batch, bayesian
from .registry import Setting, case

DRAWS, CLOSE = 8, 1e-4
NETWORKS = {"gaussian": "byov-vit", "emp": "byov-vit", "dropout": "byov-vit"}
"""The others predict with a ResNet-18, and with the statistics of its BatchNorms."""


class Beside:
    """A model that predicts in every way, and a copy of it, never compiled, that does so by hand."""

    def __init__(self, model: byov.BayesianModule, setting: Setting) -> None:
        self.model, self.setting, self.worst = model, setting, 0.0
        self.x, self.y = batch(setting.size(64, 6), setting)
        for _ in range(2):  # statistics that are not those of the start
            self.train()
        self.twin = copy.deepcopy(model)

    def train(self) -> None:
        """A step of an optimizer, eager: it is the prediction that may be compiled."""
        self.model.train()
        with torch.compiler.set_stance("force_eager"):
            F.cross_entropy(self.model(self.x), self.y).backward()
        torch.optim.SGD(self.model.parameters(), 0.01).step()
        self.model.zero_grad(set_to_none=True)
        self.model.eval()

    @torch.no_grad()
    def check(self, how: str, found: Tensor | None, x: Tensor, seed: int) -> None:
        self.twin.load_state_dict(self.model.state_dict())
        self.twin.eval()
        generator, rows = self.setting.random(seed), []
        for _ in range(DRAWS):
            with self.twin.draw(generator=generator):
                rows.append(self.twin(x).softmax(1))
        away = float((found - torch.stack(rows)).abs().max())
        assert away < CLOSE, f"{how} is {away:.2g} away from a loop by hand"
        self.worst = max(self.worst, away)

    def serve(self, how: str) -> None:
        """Two calls of one Serving with different inputs, and after a step two more."""
        serving = byov.Serving(self.model, DRAWS, "loop", keep=True)
        for call in range(4):
            x = self.x.roll(call, 0) * (1.0 - 0.1 * call)
            self.check(f"{how}, call {call}", serving(x, self.setting.random(call)).draws, x, call)
            if call == 1:
                self.train()

    def predict(self, strategy: str, seed: int) -> byov.Prediction:
        found = byov.predict(self.model, self.x, DRAWS, strategy, generator=self.setting.random(seed), keep=True)
        self.check(strategy, found.draws, self.x, seed)
        return found


@case(40, {name: name for name, family in FAMILIES.items() if family is not None})
def predictions(setting: Setting, variant: str) -> str:
    """The strategies, a Serving, and a compiled network without and with CUDA graphs give a loop's numbers."""
    beside = Beside(bayesian(NETWORKS.get(variant, "resnet18"), FAMILIES[variant], setting), setting)
    for seed, strategy in enumerate(("loop", "vmap", "auto")):
        beside.predict(strategy, seed)
    beside.serve("a Serving")
    beside.model.net.compile()
    beside.serve("a Serving of a compiled network")
    beside.predict("auto", 5)
    beside.model.net.compile(mode="reduce-overhead")
    beside.serve("a Serving with CUDA graphs")
    return f"at most {beside.worst:.1g} away"


@case(10)
def prediction_of_a_random_head(setting: Setting) -> str:
    """Where the last layer alone is random, one pass and one product give a loop's numbers."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.GELU(), nn.Linear(64, 10))
    beside = Beside(byov.bayesianize(net, {byov.output_layer: byov.Gaussian(-3.0)}).to(setting.device), setting)
    serving = byov.Serving(beside.model, DRAWS, keep=True)
    for call in range(3):
        assert beside.predict("auto", call).strategy == "head"
        x = beside.x.roll(call, 0)
        beside.check("a Serving", serving(x, setting.random(call)).draws, x, call)
        beside.train()
    return f"at most {beside.worst:.1g} away"


@case(15)
def prediction_in_threads(setting: Setting) -> str:
    """Two threads that share a model and a Serving, each with inputs of its own, get the right numbers."""
    beside = Beside(bayesian("byov-vit", FAMILIES["gaussian"], setting), setting)
    serving, found = byov.Serving(beside.model, DRAWS, keep=True), {}

    def work(number: int) -> None:
        for seed in range(6 * number, 6 * number + 6):
            one = serving if seed % 2 else byov.Serving(beside.model, DRAWS, "loop", keep=True)
            found[seed] = one(beside.x.roll(number, 0), setting.random(seed)).draws

    workers = [Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 12, "a thread has stopped"
    for seed, draws in found.items():
        beside.check(f"draws of seed {seed}", draws, beside.x.roll(seed // 6, 0), seed)
    return f"at most {beside.worst:.1g} away"


@case(5)
def labels_of_a_loader_on_the_device(setting: Setting) -> str:
    """A loader whose labels are there already trains, is validated, and fits a temperature and sets."""
    data = batch(setting.size(64, 12), setting)
    model = byov.bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(data[0][0].numel(), 10)), byov.Gaussian(-6.0))
    model.to(setting.device)
    nll = byov.fit(model, [data], 1, [data], precision="32-true", progress=False)["nll"][0]
    found = byov.temperature(model, [data], samples=DRAWS).value
    assert byov.conformal(model, [data], samples=DRAWS).examples == len(data[1])
    return f"NLL {nll:.3g}, T {found:.3g}"
