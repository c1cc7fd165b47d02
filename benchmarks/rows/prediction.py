"""Monte-Carlo prediction beside passes of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from timing import Step, interleaved
from torch import Tensor, nn

import byov
from rows.setting import Setting, compared


def draws(setting: Setting, network: str, count: int = 20) -> dict[str, Any]:
    """`count` draws of every weight on one batch, beside as many passes; as they are and, on a GPU, compiled."""
    x, _ = setting.inputs(network)
    rounds = max(setting.rounds // 2, 3)
    plain, compiled, failed = both(setting, network, x, count), None, {}
    if setting.compile:
        try:
            compiled = warm(setting, both(setting, network, x, count, compile=True))
        except Exception as error:  # the numbers without it are still worth having
            failed = {"compiled_error": f"{type(error).__name__}: {str(error).strip()[:200]}"}
    found = timed(setting, warm(setting, plain), rounds, "passes")
    found |= {"draws": count, "batch": len(x)} | failed
    if compiled is not None:
        faster = timed(setting, compiled, rounds, "passes")
        for part in ("ms", "host_ms"):
            found[part] |= {f"compiled {name}": ms for name, ms in faster[part].items()}
        found["compiled_ratios"] = faster["ratio"]
    return found


def both(setting: Setting, network: str, x: Tensor, count: int, compile: bool = False) -> dict[str, Step]:
    """Passes and draws; compiled also passes as CUDA graphs, which is what a small network's draws come to."""
    net = setting.network(network).eval()
    model = byov.bayesianize(setting.network(network), byov.Gaussian()).eval()
    steps = {"passes": passes(setting, net, [x], count), **drawn(setting, model, x, count)}
    if compile:
        net.compile()
        model.net.compile()
        if setting.cuda:
            graphs = setting.network(network).eval()
            graphs.compile(mode="reduce-overhead")
            steps["passes as graphs"] = passes(setting, graphs, [x], count)
    return steps


def drawn(setting: Setting, model: byov.BayesianModule, x: Tensor, count: int) -> dict[str, Step]:
    """Draws by a serving, which knows the network, and by a call of `predict`, which has to look at it."""
    return {
        "draws": predicted(setting, byov.Serving(model, count), x),
        "draws by predict": predicted(setting, lambda x: byov.predict(model, x, count, progress=False), x),
    }


def loader(setting: Setting, network: str, count: int = 20, batches: int = 4) -> dict[str, Any]:
    """The same over a loader: its batches share every draw. Passes are timed for a few draws' worth: all are alike."""
    x, _ = setting.inputs(network, batches)
    parts, few = list(x.split(len(x) // batches)), 4
    net = setting.network(network).eval()
    model = byov.bayesianize(net, byov.Gaussian()).eval()
    draws = predicted(setting, lambda x: byov.predict(model, x, count, progress=False), parts)
    steps = {"passes": passes(setting, net, parts, few), "draws": draws}
    seconds = interleaved(warm(setting, steps), 3 if setting.tiny else 4, setting.device)
    seconds["passes"] = [time * count / few for time in seconds["passes"]]
    return compared(seconds, "passes") | {"draws": count, "batches": batches, "batch": len(parts[0])}


def head(setting: Setting, network: str, count: int = 100) -> dict[str, Any]:
    """`count` draws of the output layer beside one pass; neither compiled: predict watches every call of a network."""
    x, _ = setting.inputs(network)
    net = setting.network(network).eval()
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()}).eval()
    steps = {"one pass": passes(setting, net, [x], 1), **drawn(setting, model, x, count)}
    return timed(setting, warm(setting, steps), setting.rounds, "one pass") | {"draws": count, "batch": len(x)}


def timed(setting: Setting, steps: dict[str, Step], rounds: int, to: str) -> dict[str, Any]:
    """The steps beside one of them, and the host's own milliseconds."""
    host: dict[str, list[float]] = {}
    found = compared(interleaved(steps, rounds, setting.device, host=host), to)
    return found | {"host_ms": {name: 1000 * median(seconds) for name, seconds in host.items()}}


def passes(setting: Setting, net: nn.Module, parts: list[Tensor], count: int) -> Step:
    @torch.no_grad()
    def work() -> None:
        with setting.autocast():
            for _ in range(count):
                for part in parts:
                    net(part)

    return work


def predicted(setting: Setting, predict: Callable[[Any], byov.Prediction], x: Tensor | list[Tensor]) -> Step:
    def work() -> None:
        with setting.autocast():
            predict(x)

    return work


def warm(setting: Setting, steps: dict[str, Step]) -> dict[str, Step]:
    for _ in range(3 if setting.compile else 1):  # the second call of a compiled network still compiles
        for step in steps.values():
            step()
    return steps
