"""Numbers and settings as the page writes them."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

from markupsafe import Markup, escape

DASH = "–"

MISSING = {
    "verdict": ("The answer needs scores of at least one model", "byov report RUN"),
    "numbers": ("No scores have been recorded", "byov evaluate RUN --shift augmentations --out results.json"),
    "calibration": ("What was predicted for each image has not been recorded", "byov report RUN"),
    "ood": ("No scores under shift have been recorded", "byov evaluate RUN --shift augmentations --out results.json"),
    "pruning": ("No network has been pruned yet", "byov report RUN"),
    "layers": (
        "There is no run with a posterior whose layers were read",
        "byov pretrain --set posterior.family=gaussian",
    ),
    "convergence": ("There is no run with a posterior that was read under draws", "byov report RUN --samples 30"),
    "representation": ("No embeddings of a byov pretrain run have been read", "byov report RUN"),
    "risk": ("What was predicted for each image has not been recorded", "byov report RUN"),
    "entropy": ("The entropy of each prediction has not been recorded", "byov report RUN --renew"),
    "gallery": ("No images have been read yet", "byov report RUN"),
    "training": ("There is no log of the training", "byov pretrain --run RUN"),
    "config": ("There is no run folder, whose checkpoint holds the recipe", "byov report RUN"),
    "protocol": ("Nothing has been evaluated, so there is no protocol", "byov report RUN"),
}
"""For a section without numbers: why, and the command that makes them."""


def cell(value: Any, unit: str = "", like: float | None = None, sign: str = "") -> str:
    """Write a score, in per cent where it is a share; with as many decimals as another one, if that is given.

    There is one more decimal where a number is small.
    """
    if value is None:
        return DASH
    size = abs(value if like is None else like)
    factor, digits = (100, 2) if unit == "%" else (1, 4 if size < 0.02 else 3)
    return f"{factor * value:{sign}.{digits}f}"


def signed(value: float | None, unit: str = "", like: float | None = None) -> str:
    """Write a difference with its sign, and a minus that is one; `like` is as in `cell`."""
    return cell(value, unit, like, "+").replace("-", "−")


def setting(value: Any) -> str:
    """Write a setting as a recipe would write it."""
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(setting(item) for item in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)


def count(value: Any) -> str:
    """Write a whole number with its thousands apart."""
    return f"{value:,}" if isinstance(value, int) else DASH if value is None else str(value)


def span(seconds: float | None) -> str:
    """Write a length of time in the unit that suits it."""
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def day(iso: str) -> str:
    """Write a date in words."""
    when = date.fromisoformat(iso)
    return f"{when.day} {when:%B %Y}"


GLOSSARY = {
    "ECE": "expected calibration error: how far confidence and accuracy lie apart, averaged over bins. Less is better.",
    "NLL": "negative log-likelihood of the true class, in nats. Less is better.",
    "Top-1": "the share of images whose most probable class is the right one.",
    "Reliability": "the part of the Brier score that is miscalibration. Less is better.",
    "Brier": "the squared distance between the probabilities and the truth, 0 to 2. Less is better.",
    "R-AUROC": "how well an uncertainty tells the images whose nearest neighbour is of another class: 0.5 is chance.",
    "AUROC": "the chance that a shifted image gets more uncertainty than a clean one: 0.5 says nothing, 1 is perfect.",
    "AURC": "area under the risk-coverage curve: the mean error over all shares of images kept. Less is better.",
    "FPR": "the share of clean images taken for shifted when 95 % of the shifted ones are found. Less is better.",
    "SNR": "signal to noise of a weight, |μ|/σ: how much larger it is than its own uncertainty.",
    "R@1": "the share of images whose nearest neighbour, by the embedding, is of the same class.",
    "KL": "Kullback-Leibler divergence of the posterior from its prior, in nats.",
    "MI": "mutual information: how much the draws of the weights disagree, in nats.",
    "BYOL": "Bootstrap Your Own Latent: an encoder learned without labels, one value for each weight.",
    "BYOV": "Bootstrap Your Own Variance: BYOL with a Gaussian posterior over the weights.",
    "EMP": "Ensemble Model Patching: one of K patches for each layer.",
    "ECMP": "Ensemble Cross Model Patching: one of K values for each patched weight by itself.",
}
"""What the page's abbreviations stand for, shown where they are pointed at."""
_KNOWN = re.compile(rf"<[^>]*>|(?<![\w@-])(?:{'|'.join(map(re.escape, GLOSSARY))})(?![\w-])")


def abbr(text: str) -> Markup:
    """Mark the first mention of each abbreviation in a piece of text or HTML, so that it tells what it stands for."""
    seen: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        word = found[0]
        if word not in GLOSSARY or word in seen:
            return word
        seen.add(word)
        return f'<abbr tabindex="0" data-tip="{escape(f"{word}{chr(10)}{GLOSSARY[word]}")}">{word}</abbr>'

    return Markup(_KNOWN.sub(mark, str(escape(text))))


def hint(text: str) -> str:
    """Return what the abbreviations in a heading stand for, a line each."""
    found = [word for word in dict.fromkeys(_KNOWN.findall(text)) if word in GLOSSARY]
    return "\n".join(line for word in found for line in (word, GLOSSARY[word]))
