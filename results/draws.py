"""Is a representation worse under draws, or is it read by a head that does not fit them? One head, or one for each draw.

python results/draws.py RUN --root DATA --out OUT.json      a pretraining run with a posterior, on its held-out images

"shared" is the head of `byov probe`: one for all draws, fitted under draws of its own. "own" fits a head to each draw of
the encoder, as one would to each member of an ensemble, and averages the probabilities over the draws.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import torch

from byov.runs import Reading, open_run
from byov.runs.run import Pretrained
from byov.ssl.classifiers import LinearProbe, linear_probe
from byov.ssl.probe import Probe, ProbeSettings, Scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--images", type=int, default=20_000, help="training images of the heads")
    words = parser.parse_args()
    run = open_run(words.run, Reading(root=words.root))
    train, test = run.load_own("train"), run.load_own("holdout")
    assert isinstance(run, Pretrained) and train.labels is not None and test.labels is not None
    some = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: words.images]
    x, y, images, labels = train.images[some], train.labels[some], test.images, test.labels
    settings, begun = ProbeSettings(draws_fit=8, draws_read=words.draws), monotonic()
    probe = Probe.fit(run.encoder, x, y, len(train.class_names), settings, **run.normalisation)
    linear = probe.at_mean["linear"]
    assert isinstance(linear, LinearProbe)
    mean = probe.predict(images).mean
    found = {"mean": Scores.of(mean, labels), "shared": Scores.of(probe.predict(images, words.draws).mean, labels)}
    one, own = [], torch.zeros_like(mean)
    draws = (probe.features(each, words.draws) for each in (x, images))
    for seen, unseen in zip(*draws, strict=True):
        head = linear_probe(seen, y, l2=linear.l2 or 1e-3, classes=len(train.class_names))
        probs = head.probabilities(unseen)
        one.append(Scores.of(probs, labels))
        own += probs.to(own) / words.draws
    found["own"] = Scores.of(own, labels)
    rows = {name: asdict(scores) for name, scores in found.items()}
    rows["own, each draw"] = {key: sum(asdict(s)[key] for s in one) / len(one) for key in rows["own"]}
    about = {"run": words.run.name, "draws": words.draws, "images": len(x), "test": len(test)}
    words.out.write_text(json.dumps({**about, "seconds": monotonic() - begun, "scores": rows}, indent=1) + "\n")
    for name, scores in rows.items():
        print(f"{name:16}" + "  ".join(f"{k} {scores[k]:.4f}" for k in ("top1", "ece", "nll", "reliability")))


if __name__ == "__main__":
    main()
