"""What README's quick start buys on its own digits: the plain network beside posteriors, clean and shifted, five seeds.

python results/defaults/quickstart.py [--seeds 5] [--steps 400] [--out results/defaults/quickstart.json]

Everything is README's: convnet16, Adam at 3e-3, batches of 128, the ELBO by `byov.elbo`, 30 draws. Shifted: the mean
over five shifts of the demo at severity 3. Shares are not per cent.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from time import monotonic

import torch
import torch.nn.functional as F

import byov
from byov.data.augmentations import augment
from byov.metrics import functional as metrics

SHIFTS = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
FAMILIES = {
    "plain": None,
    "dropout 0.1": byov.Dropout(0.1),
    "gaussian": byov.Gaussian(relative=0.05),
}


def train(family: byov.posterior.Family | None, seed: int, steps: int, beta: float) -> torch.nn.Module:
    data = byov.data.load("digits")
    x, y = data.images / 255, data.labels
    torch.manual_seed(seed)
    net = byov.models.create("convnet16", classes=10, channels=1)
    model = net if family is None else byov.bayesianize(net, family)
    optimizer = torch.optim.Adam(byov.parameter_groups(model, lr=3e-3, steps=steps))
    for _ in range(steps):
        i = torch.randint(len(x), (128,))
        loss = F.cross_entropy(model(x[i]), y[i])
        if isinstance(family, byov.Gaussian):
            loss = byov.elbo(loss, model, n=len(x), beta=beta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def scores(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    if isinstance(model, byov.BayesianModule):
        found = byov.predict(model, images, samples=30, generator=torch.Generator().manual_seed(0))
        probs, information = found.mean, float(found.mutual_information.mean())
    else:
        with torch.no_grad():
            probs, information = model(images).softmax(1), 0.0
    return {
        "top1": metrics.accuracy(probs, labels).item(),
        "nll": metrics.nll(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels).item(),
        "mutual_information": information,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--betas", default="1")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    test = byov.data.load("digits", "test")
    clean, labels = test.images / 255, test.labels
    moved = [augment(clean, shift, 3, torch.Generator().manual_seed(0)) for shift in SHIFTS]
    rows = {}
    for beta in map(float, words.betas.split(",")):
        for name, family in FAMILIES.items():
            label = f"{name}, beta {beta:g}" if isinstance(family, byov.Gaussian) else name
            if label in rows:
                continue
            each, began = [], monotonic()
            for seed in range(words.seeds):
                model = train(family, seed, words.steps, beta)
                shifted = [scores(model, images, labels) for images in moved]
                of_shifts = {f"shifted {key}": mean(s[key] for s in shifted) for key in shifted[0]}
                each.append(scores(model, clean, labels) | of_shifts)
            rows[label] = {
                key: [mean(e[key] for e in each), stdev(e[key] for e in each) / len(each) ** 0.5] for key in each[0]
            }
            rows[label]["seconds"] = (monotonic() - began) / words.seeds
            print(
                f"{label:22}",
                "  ".join(f"{k} {v[0]:.4f}±{v[1]:.4f}" for k, v in rows[label].items() if k != "seconds"),
                f"{rows[label]['seconds']:.1f} s",
                flush=True,
            )
    if words.out:
        words.out.write_text(
            json.dumps({"protocol": vars(words) | {"out": str(words.out)}, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
