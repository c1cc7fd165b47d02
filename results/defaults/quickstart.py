"""What README's quick start buys on its own digits: the plain network beside posteriors, clean and shifted, five seeds.

python results/defaults/quickstart.py            a minute on two quiet cores; writes quickstart.json

Everything is README's: convnet16, Adam at 3e-3, 400 batches of 128, 30 draws; posteriors of a family by `byov.elbo`.
"fit": `byov.fit`, 20 epochs of 128 at 3e-3; a plain network's rate falls along a cosine, that
of SWAG stays up. Shifted: the mean over five shifts of the demo at
severity 3. AUROC: against digits whose every pixel is that of another test digit. Shares are not
per cent.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import byov
from byov.data.augmentations import augment
from byov.evaluation.scores import main_scores
from byov.metrics import functional as metrics
from byov.posterior import Family
from byov.posterior.select import Rules
from byov.report.collect import FEW

FILE, SEEDS, STEPS = Path(__file__).with_suffix(".json"), 5, 400


def both(family: Family) -> Rules:
    return {byov.norm_layers: family, byov.output_layer: family}


METHODS: dict[str, tuple[Rules, float]] = {
    "dropout 0.1": (byov.Dropout(0.1), 0.0),
    "Gaussian, β = 1 (the ELBO)": (byov.Gaussian(relative=0.05), 1.0),
    "Gaussian, β = 0.01": (byov.Gaussian(relative=0.05), 0.01),
    "Gaussian, β = 0.001": (byov.Gaussian(relative=0.05), 0.001),
    "EMP(5), β = 0.001": (both(byov.EMP(5)), 0.001),
    "ECMP(5), β = 0.001": (both(byov.ECMP(5)), 0.001),
}
"""Rules and β."""
FOLLOWED = {"SWAG without σ": 0.0, "SWAG": byov.posthoc.swag.SCALE}
"""Read from the training of "plain", whose seeds they share; of "fit", from one of their own."""


def train_plain(seed: int, fit: bool) -> dict[str, nn.Module]:
    """Train a plain network, followed by SWAG; return what was learned under each name."""
    data = byov.data.load("digits")
    x, y = data.images / 255, data.labels
    torch.manual_seed(seed)
    net = byov.models.create("convnet16", classes=10, channels=1)
    swag = byov.SWAG(net)
    if fit:
        loader = torch.utils.data.DataLoader(list(zip(x, y, strict=True)), 128, shuffle=True)
        byov.fit(swag, loader, epochs=20, lr=3e-3, progress=False)
        torch.manual_seed(seed)
        net = byov.models.create("convnet16", classes=10, channels=1)  # whose rate falls, as a plain network's does
        byov.fit(net, loader, epochs=20, lr=3e-3, progress=False)
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(STEPS):
            i = torch.randint(len(x), (128,))
            F.cross_entropy(net(x[i]), y[i]).backward()
            optimizer.step()
            optimizer.zero_grad()
            swag.update()
    prefix, found = "fit, " * fit, {}
    for name, swag.scale in FOLLOWED.items():
        found[prefix + name] = swag.posterior()
    return {f"{prefix}plain": net.eval(), **found}


def train(rules: Rules, beta: float, seed: int) -> nn.Module:
    data = byov.data.load("digits")
    x, y = data.images / 255, data.labels
    torch.manual_seed(seed)
    net = byov.models.create("convnet16", classes=10, channels=1)
    model = byov.bayesianize(net, rules)
    optimizer = torch.optim.Adam(byov.parameter_groups(model, lr=3e-3, steps=STEPS))
    for _ in range(STEPS):
        i = torch.randint(len(x), (128,))
        loss = F.cross_entropy(model(x[i]), y[i])
        if beta:
            loss = byov.elbo(loss, model, n=len(x), beta=beta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def predict(model: nn.Module, images: Tensor) -> byov.Prediction:
    return byov.predict(model, images, samples=30, generator=torch.Generator().manual_seed(0))


def reading(model: nn.Module) -> dict[str, float]:
    test = byov.data.load("digits", "test")
    clean, labels = test.images / 255, test.labels
    order = torch.rand(len(clean), 64, generator=torch.Generator().manual_seed(0)).argsort(0)
    other = clean.flatten(1).gather(0, order).view_as(clean)
    known, foreign = predict(model, clean), predict(model, other)
    moved = [predict(model, augment(clean, shift, 3, torch.Generator().manual_seed(0))) for shift in FEW]
    shifted = [main_scores(each.mean, labels) for each in moved]
    return {
        **main_scores(known.mean, labels),
        **{f"shifted {key}": mean(scores[key] for scores in shifted) for key in shifted[0]},
        "auroc entropy": metrics.ood_auroc(known.entropy, foreign.entropy).item(),
        "auroc information": metrics.ood_auroc(known.mutual_information, foreign.mutual_information).item(),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows: dict[str, list[dict[str, float]]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for fit in (False, True):
        if "fit, " * fit + "SWAG" not in rows:
            each = [train_plain(seed, fit) for seed in range(SEEDS)]
            rows |= {name: [reading(found[name]) for found in each] for name in each[0]}
    for name, (rules, beta) in METHODS.items():
        if name not in rows:
            rows[name] = [reading(train(rules, beta, seed)) for seed in range(SEEDS)]
    FILE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    for name in rows:
        cells = {key: [each[key] for each in rows[name]] for key in rows[name][0]}
        print(
            f"{name:27}", *(f"{k} {mean(c):.4f}±{stdev(c) / len(c) ** 0.5:.4f}" for k, c in cells.items()), flush=True
        )


if __name__ == "__main__":
    main()
