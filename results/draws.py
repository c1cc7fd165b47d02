"""A representation under draws: as it is, recentred, or with a head for each draw; clean and shifted held-out images.

python results/draws.py RUN --root DATA --out OUT.json      a pretraining run of CIFAR-10 with held-out images

| reading | the head | each draw's features |
|---|---|---|
| mean | fitted at μ, and read there | |
| raw | one, fitted under draws of its own | as they are |
| recentred | likewise | without the shift that is common to all images: what `byov probe` does |
| own | one for each draw, as for the members of an ensemble | as they are |

A run without a posterior has the first alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from time import monotonic

import torch
from torch import Generator, Tensor

from byov.data.augmentations import augment
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained
from byov.ssl.classifiers import LinearProbe, linear_probe
from byov.ssl.features import feature_draws, features
from byov.ssl.probe import Probe, ProbeSettings, Scores

SHIFTS = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
SEVERITY = 3


def shifted(images: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "clean", images
    for shift in SHIFTS:
        moved = augment(images.float() / 255, shift, SEVERITY, Generator().manual_seed(0))
        yield shift, (255 * moved).round().clamp(0, 255).to(torch.uint8)


def sizes(probe: Probe, images: Tensor, draws: int) -> dict[str, float]:
    """Measure what a draw does to features: the length of the common shift, and the rest, per image."""
    at_mean = features(probe.encoder, images, **probe.options)
    found: dict[str, list[float]] = {"common shift": [], "the rest": []}
    for drawn in feature_draws(probe.encoder, images, draws, probe._generator(0), **probe.options):
        moved = drawn - at_mean
        found["common shift"].append(float(moved.mean(0).norm()))
        found["the rest"].append(float((moved - moved.mean(0)).square().sum(1).mean().sqrt()))
    spread = float((at_mean - at_mean.mean(0)).square().sum(1).mean().sqrt())
    return {"features": spread, **{name: mean(values) for name, values in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--images", type=int, default=20_000, help="training images of the heads")
    words = parser.parse_args()
    run, begun = open_run(words.run, Reading(root=words.root)), monotonic()
    train, test = run.load_own("train"), run.load_own("holdout")
    assert isinstance(run, Pretrained)
    assert train.labels is not None
    assert test.labels is not None
    some = torch.randperm(len(train), generator=Generator().manual_seed(0))[: words.images]
    x, y, labels, classes = train.images[some], train.labels[some], test.labels, len(train.class_names)
    settings, options = ProbeSettings(draws_fit=4, draws_read=words.draws if run.posterior else 0), run.normalisation
    probes = {"mean": Probe.fit(run.encoder, x, y, classes, settings, **options)}
    about = {"run": words.run.name, "draws": words.draws, "images": len(x), "test": len(test.images)}
    if run.posterior:
        probes["recentred"] = probes["mean"]
        probes["raw"] = Probe.fit(run.encoder, x, y, classes, replace(settings, recentre=False), **options)
        about["size of features"] = sizes(probes["raw"], x[:2000], words.draws)
        linear = probes["mean"].at_mean["linear"]
        assert isinstance(linear, LinearProbe)
        assert linear.l2 is not None
        seen = probes["raw"].features(x, words.draws)
        heads = [linear_probe(each, y, l2=linear.l2, classes=classes) for each in seen]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for shift, images in shifted(test.images):
        found = {n: probe.predict(images, None if n == "mean" else words.draws).mean for n, probe in probes.items()}
        if run.posterior:
            drawn = probes["raw"].features(images, words.draws)
            each = [head.probabilities(part) for head, part in zip(heads, drawn, strict=True)]
            found["own"] = torch.stack(each).mean(0)
        for name, probs in found.items():
            rows.setdefault(name, {})[shift] = asdict(Scores.of(probs, labels))
        print(shift, f"{monotonic() - begun:.0f} s", flush=True)
    words.out.write_text(json.dumps({**about, "scores": rows}, indent=1) + "\n")
    for name, scores in rows.items():
        for kind, kept in {"clean": ["clean"], "shifted": SHIFTS}.items():
            cells = (f"{key} {mean(scores[shift][key] for shift in kept):.4f}" for key in ("top1", "ece", "nll"))
            print(f"{name:10} {kind:8}", *cells, sep="  ")


if __name__ == "__main__":
    main()
