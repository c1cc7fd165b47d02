"""What was tried before a default was chosen: 270 held-out training digits, never a test set.

python results/defaults/held_out.py            a minute on one quiet core; what is in held_out.json is not made again

convnet16 on the other 1,077 digits, 1,000 steps of Adam from 3e-3 along a cosine to 0, batches of 128, 30 draws, three
seeds. EMP and ECMP are on the norms and the output layer. Shifted: the mean over five shifts at severity 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import byov
from byov.data.augmentations import augment
from byov.evaluation.scores import main_scores
from byov.posterior import Family
from byov.posterior.select import Rules
from byov.report.collect import FEW

FILE, SEEDS, STEPS = Path(__file__).with_suffix(".json"), 3, 1000


def by_layer(net: nn.Module) -> byov.Normal:
    """Return N(0, s²) with the root mean square of each tensor's weights for s."""
    scales = {name: p.detach().square().mean().sqrt() for name, p in net.named_parameters()}
    return byov.Normal(0.0, {name: torch.where(s > 0, s, 0.1).clamp_min(1e-3) for name, s in scales.items()})


def both(family: Family) -> Rules:
    return {byov.norm_layers: family, byov.output_layer: family}


@dataclass
class Case:
    """Rules, β, a prior other than N(0, 1), and the share of `hold_apart`."""

    rules: Rules | None
    beta: float = 0.0
    prior: Callable[[nn.Module], byov.Normal] | None = None
    apart: float | None = None


GAUSSIAN = byov.Gaussian(relative=0.05)
CASES = {
    "plain": Case(None),
    "dropout 0.1": Case(byov.Dropout(0.1)),
    "dropout 0.03": Case(byov.Dropout(0.03)),
    "Ensemble(5) anew, β = 0": Case(byov.Ensemble(5, start="reset")),
    "Ensemble(5) anew, β = 0.1": Case(byov.Ensemble(5, start="reset"), 0.1),
    "EMP(5, spread=0.4), β = 0": Case(both(byov.EMP(5, spread=0.4))),
    "EMP(5, spread=0.6), β = 0.1": Case(both(byov.EMP(5, spread=0.6)), 0.1),
    "EMP(5, spread=0.4), β = 0.1, apart 0.2": Case(both(byov.EMP(5, spread=0.4)), 0.1, apart=0.2),
    "ECMP(5, spread=0.4), β = 0.1": Case(both(byov.ECMP(5, spread=0.4)), 0.1),
    "ECMP(5, spread=0.4), β = 0.1, apart 0.2": Case(both(byov.ECMP(5, spread=0.4)), 0.1, apart=0.2),
    "ECMP(5, spread=0.6), β = 0.1, apart 0.2": Case(both(byov.ECMP(5, spread=0.6)), 0.1, apart=0.2),
    "Gaussian, β = 0.01": Case(GAUSSIAN, 0.01),
    "Gaussian, β = 0.001": Case(GAUSSIAN, 0.001),
    "Gaussian, N(0, s²) by layer, β = 1": Case(GAUSSIAN, 1.0, by_layer),
    "Gaussian, N(0, s²) by layer, β = 0.1": Case(GAUSSIAN, 0.1, by_layer),
    "Gaussian, N(0, s²) by layer, β = 0.01": Case(GAUSSIAN, 0.01, by_layer),
}


def train(case: Case, seed: int, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(seed)
    net = byov.models.create("convnet16", classes=10, channels=1)
    model = net
    if case.rules is not None:
        model = byov.bayesianize(net, case.rules, prior=case.prior(net) if case.prior else None)
    optimizer = torch.optim.Adam(byov.parameter_groups(model, lr=3e-3, steps=STEPS))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        i = torch.randint(len(x), (128,))
        loss = cross_entropy(model(x[i]), y[i])
        loss = byov.elbo(loss, model, n=len(x), beta=case.beta) if case.beta else loss
        optimizer.zero_grad()
        loss.backward()
        if case.apart is not None:
            assert isinstance(model, byov.BayesianModule)
            byov.hold_apart(model, case.apart)
        optimizer.step()
        schedule.step()
    return model.eval()


def reading(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    clean, *moved = [x, *(augment(x, shift, 3, torch.Generator().manual_seed(0)) for shift in FEW)]
    seeded = [
        byov.predict(model, each, samples=30, generator=torch.Generator().manual_seed(0)) for each in (clean, *moved)
    ]
    scores = [main_scores(each.mean, y) | {"mi": each.mutual_information.mean().item()} for each in seeded]
    return scores[0] | {f"s_{key}": mean(each[key] for each in scores[1:]) for key in scores[0]}


def main() -> None:
    torch.set_num_threads(1)
    data = byov.data.load("digits")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(123))
    x, y = data.images[order] / 255, data.labels[order]
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name, case in CASES.items():
        if name not in kept:
            made = (train(case, seed, x[:-270], y[:-270]) for seed in range(SEEDS))
            each = [reading(model, x[-270:], y[-270:]) for model in made]
            kept[name] = [{key: round(value, 5) for key, value in one.items()} for one in each]
            FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        cells = {key: [one[key] for one in kept[name]] for key in kept[name][0]}
        print(f"{name:42}", *(f"{k} {mean(c):.4f}±{stdev(c) / len(c) ** 0.5:.4f}" for k, c in cells.items()))


if __name__ == "__main__":
    main()
