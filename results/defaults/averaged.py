"""A posterior from the path of training: which average, how wide? Held-out training rows only, never a test set.

python results/defaults/averaged.py --root DATA --seeds 5      what averaged.json has is not made again

The training is that of `byov reproduce defaults`: 600 steps of Adam at 3e-3, batches of 64, 30 draws; its sets and
its shifts, but seeds from 100 on. The plain network is trained once and read in many ways: at its last weights; at the
average of its weights, where the newest of t has the weight (η + 1)/(t + η) (Shamir & Zhang 2013), so that about the
last 1/(η + 1) of training counts, however long it is; and under a Gaussian around that average with the same average's
variance times s² (the diagonal of SWAG, Maddox et al. 2019). BatchNorm's statistics are averaged like weights; "anew":
they are made again from the training rows; "last": left as they are after the last step. "cosine": the same in a
training whose rate falls to 0 along a cosine.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn

import byov
from byov.posterior import BayesianModule
from byov.posterior.objective import log_var_rate
from byov.reproduce.defaults_methods import BATCH, LR, STEPS, Fitted, Read
from byov.reproduce.defaults_sets import Place, Task, names

FILE, FIRST_SEED = Path(__file__).with_suffix(".json"), 100
SCALES = (0.0, 1.0, 2.0, 4.0)
VARIANTS = [
    *((eta, scale, "averaged") for eta in (1, 3, 7, 15) for scale in SCALES),
    *((7, scale, statistics) for scale in (0.0, 2.0) for statistics in ("anew", "last")),
]


class Average:
    """The polynomial-decay average of weights and statistics, and the weights' variance under the same average."""

    def __init__(self, eta: int) -> None:
        self.eta, self.count = eta, 0
        self.first: dict[str, Tensor] = {}
        self.variance: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, net: nn.Module) -> None:
        self.count += 1
        share = (self.eta + 1) / (self.count + self.eta)
        for name, value in floating(net):
            if self.count == 1:
                self.first[name], self.variance[name] = value.clone(), torch.zeros_like(value)
                continue
            delta = value - self.first[name]
            self.first[name] += share * delta
            self.variance[name] = (1 - share) * (self.variance[name] + share * delta.square())


def floating(net: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in net.state_dict().items() if value.is_floating_point()]


def train(task: Task, seed: int, cosine: bool = False) -> tuple[Fitted, dict[int, Average]]:
    torch.manual_seed(seed)
    fitted = Fitted(task.network())
    noise = {"params": [fitted.log_precision], "lr": log_var_rate(STEPS)}
    optimizer = torch.optim.Adam([{"params": fitted.net.parameters(), "lr": LR}, noise])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)) if cosine else 1.0
    )
    averages = {eta: Average(eta) for eta in sorted({eta for eta, _, _ in VARIANTS})}
    for _ in range(STEPS):
        fitted.train()
        i = torch.randint(len(task.x), (BATCH,))
        loss = fitted.loss(task.x[i], task.y[i], task.regression)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for average in averages.values():
            average.add(fitted.net)
    return fitted, averages


@torch.no_grad()
def statistics_anew(fitted: Fitted, task: Task) -> None:
    """Make BatchNorm's statistics again, as draws see them."""
    norms = [m for m in fitted.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    fitted.train()
    for part in task.x.split(256):
        fitted.net(part)


def readings_of(
    fitted: Fitted, averages: dict[int, Average], task: Task, variants: list[tuple[int, float, str]]
) -> Iterator[tuple[str, dict[str, float]]]:
    plain = Read.of(fitted, task)
    yield "plain", numbers(plain, task)
    yield "plain + temperature", numbers(plain.tempered(task), task)
    last = dict(fitted.net.named_buffers())
    for eta, scale, statistics in variants:
        average = averages[eta]
        net = task.network()
        net.load_state_dict({**average.first, **(last if statistics == "last" else {})}, strict=False)
        read = Fitted(net)
        if scale:
            model = byov.bayesianize(net, byov.Gaussian())
            assert isinstance(model, BayesianModule)
            flat = torch.cat([average.variance[n].flatten() for n, _ in net.named_parameters()])
            with torch.no_grad():
                model.factors[0].roles["log_var"].copy_((flat * scale**2 + 1e-20).log())
            read = Fitted(model)
        read.log_precision = fitted.log_precision
        if statistics == "anew":
            statistics_anew(read, task)
        row = f"η = {eta}, s = {scale:g}" + (f", {statistics}" if statistics != "averaged" else "")
        yield row, numbers(Read.of(read, task), task)


def numbers(read: Read, task: Task) -> dict[str, float]:
    return {k: v for k, v in read.scores(task).items() if k.startswith("held_") or k == "information"}


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=None)
    parser.add_argument("--sets", default=",".join(names()))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", action="store_true")
    torch.set_num_threads(1)
    return parser.parse_args()


def main() -> None:
    words = arguments(__doc__)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed in range(FIRST_SEED, FIRST_SEED + words.seeds) if not words.show else ():
        for name in words.sets.split(","):
            rows = kept.setdefault(name, {})
            for prefix, variants in (("", VARIANTS), ("cosine: ", [(7, 0.0, "averaged"), (7, 2.0, "averaged")])):
                if str(seed) in rows.get(f"{prefix}plain", {}):
                    continue
                task = Place(name, seed % 20, words.root).task()
                for row, scores in readings_of(*train(task, seed, bool(prefix)), task, variants):
                    rows.setdefault(prefix + row, {})[str(seed)] = {k: round(v, 5) for k, v in scores.items()}
            FILE.write_text(json.dumps(kept, indent=0))
    show(kept)


def show(kept: dict) -> None:
    for name, rows in kept.items():
        print(name)
        plain = rows["plain"]
        for row, seeds in rows.items():
            line = []
            for score in next(iter(seeds.values())):
                each = [v[score] - (score != "information") * plain[s][score] for s, v in seeds.items()]
                error = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else float("nan")
                line.append(f"{score.removeprefix('held_').replace('shifted', 'sh')} {mean(each):+.3f}±{error:.3f}")
            print(f"  {row:20s} {'  '.join(line)}")


if __name__ == "__main__":
    main()
