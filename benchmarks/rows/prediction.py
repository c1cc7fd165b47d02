"""Monte-Carlo prediction beside passes of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from timing import Ratio, Step, interleaved
from torch import Tensor, nn

import byov
from rows.setting import Setting, compared

GRAPHS = " as graphs"
"""After a name: compiled into CUDA graphs (`mode="reduce-overhead"`)."""


def draws(setting: Setting, network: str, count: int = 20) -> dict[str, Any]:
    """`count` draws of every weight on one batch, beside as many passes; where compiled, both sides in the same way."""
    x, _ = setting.inputs(network)
    net, model = both(setting, network, byov.Gaussian())
    steps = {"passes": passes(setting, net, x, count), **drawn(setting, model, x, count)}
    if setting.compile:
        net.compile()
        model.net.compile()
        net, model = both(setting, network, byov.Gaussian())
        net.compile(mode="reduce-overhead")
        model.net.compile(mode="reduce-overhead")
        steps["passes" + GRAPHS] = passes(setting, net, x, count)
        steps["draws" + GRAPHS] = predicted(setting, byov.Serving(model, count), x)
    seconds = interleaved(warm(setting, steps), max(setting.rounds // 2, 3), setting.device)
    found = compared(seconds, "passes") | {"draws": count, "batch": len(x)}
    if setting.compile:
        found["graphs_ratio"] = asdict(Ratio.of(seconds["draws" + GRAPHS], seconds["passes" + GRAPHS]))
    return found


def head(setting: Setting, network: str, count: int = 100) -> dict[str, Any]:
    """`count` draws of the output layer beside one pass; eager, as `predict` runs such a network anyway."""
    x, _ = setting.inputs(network)
    net, model = both(setting, network, {byov.output_layer: byov.Gaussian()})
    steps = {"one pass": passes(setting, net, x, 1), **drawn(setting, model, x, count)}
    seconds = interleaved(warm(setting, steps), setting.rounds, setting.device)
    return compared(seconds, "one pass") | {"draws": count, "batch": len(x)}


def both(setting: Setting, network: str, rules: Any) -> tuple[nn.Module, byov.BayesianModule]:
    """The plain network, and another one with a posterior."""
    return setting.network(network).eval(), byov.bayesianize(setting.network(network), rules).eval()


def passes(setting: Setting, net: nn.Module, x: Tensor, count: int) -> Step:
    @torch.no_grad()
    def work() -> None:
        with setting.autocast():
            for _ in range(count):
                net(x)

    return work


def drawn(setting: Setting, model: byov.BayesianModule, x: Tensor, count: int) -> dict[str, Step]:
    """Draws by a serving, which keeps the memory of a draw's weights, and by calls of `predict`."""
    return {
        "draws": predicted(setting, byov.Serving(model, count), x),
        "draws by predict": predicted(setting, lambda x: byov.predict(model, x, count), x),
    }


def predicted(setting: Setting, predict: Callable[[Tensor], byov.Prediction], x: Tensor) -> Step:
    def work() -> None:
        with setting.autocast():
            predict(x)

    return work


def warm(setting: Setting, steps: dict[str, Step]) -> dict[str, Step]:
    for _ in range(3 if setting.compile else 1):  # the second call of a compiled network may still compile
        for step in steps.values():
            step()
    return steps
