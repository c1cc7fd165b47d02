"""Where EMP, ECMP and Ensemble should start: digits, convnet16, Adam 3e-3, 600 steps of 128, the ELBO, 30 draws.

python results/defaults/mixtures.py            fifteen minutes on one quiet core; what is there is not made again

"scratch" is 600 steps with the posterior; "pretrained" is 300 of the plain network, then 300 with it. EMP and ECMP are
on the norms and the output layer, an Ensemble is whole networks, of which a step trains one. Shifts at severity 3.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import byov
from byov.data.augmentations import AUGMENTATIONS
from byov.evaluation.rows import evaluate
from byov.posterior import Family
from byov.report.collect import FEW

FILE, SEEDS, STEPS = Path(__file__).with_suffix(".json"), 5, 600
SCORES = ("top1", "nll", "ece", "mutual_information")
FAMILIES: dict[str, Family | None] = {
    "plain": None,
    **{f"EMP(5, spread={s})": byov.EMP(5, spread=s) for s in (0.0, 0.1, 0.2, 0.4, 0.6)},
    **{f"ECMP(5, spread={s})": byov.ECMP(5, spread=s) for s in (0.0, 0.1, 0.2, 0.4, 0.6)},
    **{f"Ensemble(5, spread={s})": byov.Ensemble(5, spread=s) for s in (0.0, 0.2, 0.4)},
    "Ensemble(5, start='reset')": byov.Ensemble(5, start="reset", spread=0.0),
}


def train(model: nn.Module, steps: int, x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    optimizer = torch.optim.Adam(model.train().parameters(), 3e-3)
    for _ in range(steps):
        i = torch.randint(len(x), (128,))
        loss = cross_entropy(model(x[i]), y[i])
        loss = byov.elbo(loss, model, n=len(x)) if isinstance(model, byov.BayesianModule) else loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def reading(net: nn.Module, family: Family | None, steps: int, seed: int) -> dict[str, float]:
    """Train a copy of the network under a family, and read it on the test digits, clean and shifted."""
    torch.manual_seed(seed)
    digits, unseen = byov.data.load("digits"), byov.data.load("digits", "test")
    patched = {byov.norm_layers: family, byov.output_layer: family}
    rules = family if isinstance(family, byov.Ensemble) else patched
    model = copy.deepcopy(net) if family is None else byov.bayesianize(net, rules)
    train(model, steps, digits.images / 255, digits.labels)
    shifts = {name: AUGMENTATIONS[name] for name in FEW}
    clean, *moved = [
        r.under_draws or r.at_mean for r in evaluate(model, unseen.images, unseen.labels, shifts, (3,), 30)
    ]
    found = {name: clean[name] for name in SCORES} | {f"shifted_{n}": mean(m[n] for m in moved) for n in SCORES}
    return {name: round(value, 5) for name, value in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        net, digits = byov.models.create("convnet16", classes=10, channels=1), byov.data.load("digits")
        starts = {
            "scratch": net,
            "pretrained": train(copy.deepcopy(net), STEPS // 2, digits.images / 255, digits.labels),
        }
        for start, name in ((s, n) for s in starts for n in FAMILIES):
            have = kept.setdefault(f"{start}, {name}", [])
            if len(have) == seed:
                steps = STEPS if start == "scratch" else STEPS // 2
                have.append(reading(starts[start], FAMILIES[name], steps, 1000 + seed))
                FILE.write_text(json.dumps(kept, indent=1) + "\n")
    for name, have in kept.items():
        cells = [[each[score] for each in have] for score in have[0]]
        print(f"{name:40}", *(f"{mean(c):.4f}±{stdev(c) / len(c) ** 0.5:.4f}" for c in cells))


if __name__ == "__main__":
    main()
