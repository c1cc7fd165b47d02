"""Format numbers and settings for the page."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any

from markupsafe import Markup, escape

DASH = "–"

EVALUATE = "byov evaluate RUN --shift augmentations --out RUN/results.json"
MISSING = {
    "verdict": ("An answer needs the scores of at least one model", "byov report RUN"),
    "numbers": ("No scores have been recorded", EVALUATE),
    "calibration": ("The predictions for single images have not been recorded", "byov report RUN"),
    "ood": ("No scores under shift have been recorded", EVALUATE),
    "pruning": ("No network has been pruned yet", "byov report RUN"),
    "layers": (
        "No run with a posterior has recorded layers",
        "byov pretrain --set posterior.family=gaussian",
    ),
    "convergence": ("No run with a posterior has been read under draws", "byov report RUN --samples 30"),
    "representation": ("No embeddings of a byov pretrain run have been measured", "byov report RUN"),
    "risk": ("The predictions for single images have not been recorded", "byov report RUN"),
    "entropy": ("The entropy of each prediction has not been recorded", "byov report RUN --renew"),
    "gallery": ("No images have been predicted yet", "byov report RUN"),
    "training": ("There is no training log", "byov pretrain --run RUN"),
    "config": ("There is no run folder with the recipe in its checkpoint", "byov report RUN"),
    "protocol": ("Nothing has been evaluated, so there is no protocol", "byov report RUN"),
}
"""For a section without numbers: the reason, and the command that creates them."""


def cell(value: Any, unit: str = "", like: float | None = None, sign: str = "") -> str:
    """Format a score, in per cent if it is a share.

    Small numbers get one more decimal; with `like`, the number of decimals is that of another score.
    """
    if value is None:
        return DASH
    size = abs(value if like is None else like)
    factor, digits = (100, 2) if unit == "%" else (1, 4 if size < 0.02 else 3)
    return f"{factor * value:{sign}.{digits}f}"


def signed(value: float | None, unit: str = "", like: float | None = None) -> str:
    """Format a difference with its sign and a true minus; `like` is as in `cell`."""
    return cell(value, unit, like, "+").replace("-", "−")


def setting(value: Any) -> str:
    """Format a setting as in a recipe."""
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
    """Format an integer with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else DASH if value is None else str(value)


def span(seconds: float | None) -> str:
    """Format a duration in a suitable unit."""
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def day(iso: str) -> str:
    """Format a date in words."""
    when = date.fromisoformat(iso)
    return f"{when.day} {when:%B %Y}"


GLOSSARY = {
    "ECE": "expected calibration error: the gap between confidence and accuracy, averaged over bins. Lower is better.",
    "NLL": "negative log-likelihood of the true class, in nats. Lower is better.",
    "Top-1": "the share of images whose most probable class is correct.",
    "Reliability": "the part of the Brier score due to miscalibration. Lower is better.",
    "Brier": "the squared distance between the probabilities and the truth, 0 to 2. Lower is better.",
    "R-AUROC": "how well an uncertainty detects images whose nearest neighbour has another class: 0.5 is chance.",
    "AUROC": "the chance that a shifted image gets more uncertainty than a clean one: 0.5 is chance, 1 is perfect.",
    "AURC": "area under the risk-coverage curve: the mean error over all shares of images kept. Lower is better.",
    "FPR": "the share of clean images taken for shifted when 95 % of the shifted ones are detected. Lower is better.",
    "SNR": "signal-to-noise ratio of a weight, |μ|/σ: its size relative to its uncertainty.",
    "R@1": "the share of images whose nearest neighbour in the embedding has the same class.",
    "KL": "Kullback-Leibler divergence of the posterior from its prior, in nats.",
    "MI": "mutual information: how much the draws of the weights disagree, in nats.",
    "BYOL": "Bootstrap Your Own Latent: an encoder learned without labels, with one value for each weight.",
    "BYOV": "Bootstrap Your Own Variance: BYOL with a Gaussian posterior over the weights.",
    "EMP": "Ensemble Model Patching: one of K patches for each layer.",
    "ECMP": "Ensemble Cross Model Patching: one of K values for each patched weight independently.",
}
"""The abbreviations of the page, explained on hover."""
_KNOWN = re.compile(rf"<[^>]*>|(?<![\w@-])(?:{'|'.join(map(re.escape, GLOSSARY))})(?![\w-])")


def abbr(text: str) -> Markup:
    """Mark the first mention of each abbreviation in text or HTML with its explanation."""
    seen: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        word = found[0]
        if word not in GLOSSARY or word in seen:
            return word
        seen.add(word)
        return f'<abbr tabindex="0" data-tip="{escape(f"{word}{chr(10)}{GLOSSARY[word]}")}">{word}</abbr>'

    return Markup(_KNOWN.sub(mark, str(escape(text))))


def hint(text: str) -> str:
    """Return explanations of the abbreviations in a heading."""
    found = [word for word in dict.fromkeys(_KNOWN.findall(text)) if word in GLOSSARY]
    return "\n".join(line for word in found for line in (word, GLOSSARY[word]))
