"""The scores of one prediction: accuracy, calibration and detection of shifted images."""

from __future__ import annotations

from torch import Tensor

from byov.metrics import functional as metrics
from byov.prediction import Prediction

PAPER_BINS, PAPER_MIN_COUNT = 20, 6

Scores = dict[str, float | None]


def conventions(bins: int) -> dict[str, str]:
    """Return the definitions of the names in `scores`, which every results file records."""
    paper = f"{PAPER_BINS} equal-width bins open on the left, those with under {PAPER_MIN_COUNT} samples removed"
    return {
        "probabilities": "the mean over draws of the class probabilities; scores are of that mean",
        "shares": "top1, top5, calibration errors, aurc, auroc and fpr95 are shares, not per cent",
        "ece": f"top label, {bins} equal-width bins",
        "ece_floor": "the ECE that a perfectly calibrated model with these confidences reads on average",
        "adaptive_ece": f"top label, {bins} equal-mass bins",
        "ece_paper": f"top label, {paper}; the weights are not renormalised",
        "mce": f"top label, {paper}; null where none is left",
        "brier": "summed over the classes, 0 to 2; = uncertainty - resolution + reliability + within_bin",
        "nll": "nats",
        "entropy": "nats, of the mean probabilities (total); mutual_information: the epistemic part of it",
        "aurc": "by 1 - the largest probability",
        "ood": "shifted images are the positive class, against the clean ones",
        "representation": "without labels, each with its error: R@1 of the embedding at μ by cosine; R-AUROC: by a "
        "measure of uncertainty, images whose nearest neighbour has another class from the others",
        "shifts": "on images in [0, 1], before normalisation; not rounded to eight bits",
    }


def scores(prediction: Prediction, labels: Tensor, bins: int = 15, clean: Prediction | None = None) -> Scores:
    """Compute the scores of class probabilities (N, C) by name; None if one is undefined.

    Args:
        prediction: the prediction of N images; its `mean` holds the probabilities.
        labels: (N,).
        bins: the number of bins of `ece` and `adaptive_ece`.
        clean: the same model's prediction of the images before they were shifted. It adds `auroc_entropy` and
            `fpr95_entropy`, and for a prediction under draws `auroc_mutual_information` and `fpr95_mutual_information`;
            at μ the mutual information is 0 for every image.
    """
    probs, labels = prediction.mean, labels.to(prediction.mean.device)
    entropy, information = prediction.entropy, prediction.mutual_information
    if entropy is None or information is None:
        raise ValueError("Scores need a classification: the prediction has no entropy.")
    parts = metrics.brier_decomposition(probs, labels)
    first = main_scores(probs, labels, bins)
    found: Scores = {
        "top1": first["top1"],
        "top5": metrics.accuracy(probs, labels, top_k=min(5, probs.shape[1])).item(),
        "nll": first["nll"],
        "ece": first["ece"],
        "ece_floor": metrics.calibration_floor(probs, bins).item(),
        "adaptive_ece": metrics.adaptive_calibration_error(probs, labels, bins).item(),
        **paper_scores(probs, labels),
        "brier": metrics.brier_score(probs, labels).item(),
        **{name: part.item() for name, part in parts._asdict().items()},
        "aurc": metrics.aurc(probs, labels).item(),
        "entropy": entropy.double().mean().item(),
        "mutual_information": information.double().mean().item(),
    }
    if clean is not None:
        under_draws = isinstance(prediction.samples, Tensor) or prediction.samples > 1
        for name in ("entropy", "mutual_information") if under_draws else ("entropy",):
            known, foreign = getattr(clean, name), getattr(prediction, name)
            found[f"auroc_{name}"] = metrics.ood_auroc(known, foreign).item()
            found[f"fpr95_{name}"] = metrics.fpr95(known, foreign).item()
    return found


def main_scores(probs: Tensor, labels: Tensor, bins: int = 15) -> dict[str, float]:
    """Return top-1 accuracy, ECE and NLL of class probabilities (N, C)."""
    labels = labels.to(probs.device)
    return {
        "top1": metrics.accuracy(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels, bins).item(),
        "nll": metrics.nll(probs, labels).item(),
    }


def paper_scores(probs: Tensor, labels: Tensor) -> Scores:
    """Compute ECE and MCE by the patching paper's protocol (D.2); None if every bin has too few samples."""
    fullest = metrics.reliability_diagram(probs, labels, PAPER_BINS).count.max()
    if fullest < PAPER_MIN_COUNT:
        return {"ece_paper": None, "mce": None}
    error = metrics.calibration_error
    return {
        "ece_paper": error(probs, labels, PAPER_BINS, "l1", PAPER_MIN_COUNT).item(),
        "mce": error(probs, labels, PAPER_BINS, "max", PAPER_MIN_COUNT).item(),
    }
