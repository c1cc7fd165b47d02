"""What sparsity costs, without retraining: by SNR, by magnitude, and of a deterministic twin (BYOV, Figure 4 left).

A file of curves is

    {"kind": "byov prune sweep", "protocol": {...},
     "curves": [{"model": "byov", "by": "snr", "sparsity": [0, …], "top1": [0.9, …], "ece": [0.01, …]}, …]}

with shares, not per cent; a curve may have a "seed" and a "probe" beside that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from byov.data.labelled import check_classes
from byov.metrics.functional import accuracy, calibration_error
from byov.pruning.runs import Probing, Prunable, Read, open_run, reader
from byov.pruning.unstructured import By, Scope, check, prune

KIND = "byov prune sweep"
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
BINS = 15

Curve = dict[str, Any]
Report = Callable[[str, By, float], Any]


def curve(
    run: Prunable,
    read: Read,
    labels: torch.Tensor,
    name: str,
    by: By,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope = "layer",
    report: Report | None = None,
) -> Curve:
    """Top-1 and ECE of a run's network at each sparsity."""
    found: Curve = {"model": name, "by": by, "sparsity": list(sparsities), "top1": [], "ece": []}
    for sparsity in sparsities:
        net = prune(run.model, sparsity, by, scope, run.where).eval()
        probs = read(net)
        target = labels.to(probs.device)
        found["top1"].append(accuracy(probs, target).item())
        found["ece"].append(calibration_error(probs, target, bins=BINS).item())
        if report is not None:
            report(name, by, sparsity)
    return found


def sweep_runs(
    run: Path,
    twin: Path | None = None,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope = "layer",
    probing: Probing = "fixed",
    split: str = "test",
    root: str | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    names: tuple[str, str] | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """The curves of a run by SNR (if it has a posterior) and by magnitude, and of its twin by magnitude.

    Args:
        run: of `byov pretrain`, whose encoder is pruned, or of `byov train`.
        twin: another one on the same images, say of BYOL for one of BYOV.
        sparsities: each in [0, 1).
        scope: "layer", as in the paper, or "global".
        probing: see `byov.pruning.runs.reader`.
        split: what is read.
        root: the folder of the data sets, if not where the recipe says.
        seed: of the probe's held-out part.
        device: where.
        names: of the run and its twin in the file; their folders' names by default.
        report: called with (name, by, sparsity) after each network.
    """
    if probing not in get_args(Probing):
        raise ValueError(f"A probe is fixed or refitted, not {probing!r}.")
    if not sparsities:
        raise ValueError("A sweep needs at least one sparsity.")
    first = open_run(run, device)
    for sparsity in sparsities:
        check(first.model, sparsity, "magnitude", scope)
    other = None if twin is None else open_run(twin, device)
    if other is not None and (other.data.name, other.kind) != (first.data.name, first.kind):
        theirs, ours = (f"of byov {each.kind} on {each.data.name}" for each in (other, first))
        raise ValueError(f"A twin differs by its posterior only: {twin} is a run {theirs}, not {ours}.")
    test = first.images(split, root, device)
    train = first.images("train", root, device) if first.kind == "pretrain" else None
    if train is not None:
        check_classes(train, test, split)
    assert test.labels is not None
    labels = names or (_name(run), "" if twin is None else _name(twin))
    if twin is not None and labels[0] == labels[1]:
        labels = (labels[0], f"{labels[1]} (twin)")
    curves: list[Curve] = []
    how: dict[str, Any] = {}
    for of, name in ((first, labels[0]), (other, labels[1])):
        if of is None:
            continue
        read, how = reader(of, train, test, probing, seed)
        for by in ("snr", "magnitude") if of is first and of.posterior else ("magnitude",):
            curves.append(curve(of, read, test.labels, name, by, sparsities, scope, report))
    protocol = {
        "runs": [str(path) for path in (run, twin) if path is not None],
        "pruned": f"{first.network}, the weights of its {'encoder' if first.kind == 'pretrain' else 'layers'}",
        "retrained": "nothing" if probing == "fixed" or first.kind == "train" else "the linear probe",
        "scope": scope,
        "reading": how,
        "bins": BINS,
        "seed": seed,
        "test": {"name": test.name, "split": split, "digest": test.digest, "images": len(test)},
        "device": torch.device(device).type,
        "torch": str(torch.__version__),
    }
    return {"kind": KIND, "protocol": protocol, "curves": curves}


def advantage(curves: Sequence[Curve], sparsity: float = 0.7) -> float | None:
    """Top-1 by SNR minus top-1 by magnitude of the same models at a sparsity, in points, mean over what is there."""
    points: dict[str, list[float]] = {"snr": [], "magnitude": []}
    with_snr = {(c["model"], c.get("seed"), c.get("probe")) for c in curves if c["by"] == "snr"}
    for each in curves:
        if (each["model"], each.get("seed"), each.get("probe")) in with_snr:
            points[each["by"]] += [
                100 * top1
                for at, top1 in zip(each["sparsity"], each["top1"], strict=True)
                if math.isclose(at, sparsity)
            ]
    if not points["snr"] or len(points["snr"]) != len(points["magnitude"]):
        return None
    return sum(points["snr"]) / len(points["snr"]) - sum(points["magnitude"]) / len(points["magnitude"])


def _name(run: Path) -> str:
    return (run.parent if run.is_file() else run).resolve().name
