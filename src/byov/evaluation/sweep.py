"""Scores over sparsity: pruning by SNR, by magnitude and at random, and a deterministic twin (BYOV, Figure 4 left).

A file of curves is

    {"kind": "byov prune sweep", "protocol": {...},
     "curves": [{"model": "byov", "by": "snr", "sparsity": [0, …], "top1": [0.9, …], "ece": […], "nll": […]}, …]}

with shares, not per cent. A curve may also have a "seed", a "scope" and a "probe", and under "error" the standard
errors of its scores. "differences" compares the first curve with each other curve of the same scope and probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from byov.data import ImageSet
from byov.data.labelled import check_classes
from byov.evaluation.pruning import BINS, SPARSITIES, Curve, Probing, Prunable, Read, rankings_of, reader
from byov.evaluation.resampling import RESAMPLES, Resamples, error
from byov.evaluation.rows import which_images
from byov.evaluation.scores import main_scores
from byov.files import check_out
from byov.pruning import prune
from byov.pruning.unstructured import Ranking, Scope, check
from byov.runs import Reading, Run, open_run
from byov.ssl.linear_evaluation import Advance

KIND = "byov prune sweep"


def sweep_runs(
    path: Path,
    twin: Path | None = None,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope | Literal["both"] = "layer",
    probing: Probing | Literal["both"] = "fixed",
    reading: Reading | None = None,
    names: tuple[str, str] | None = None,
    report: Advance = lambda *_: None,
    by: Sequence[Ranking] | None = None,
) -> dict[str, Any]:
    """Compute the curves of a run by each ranking, and of its twin by magnitude.

    Args:
        path: a run of `byov pretrain`, whose encoder is pruned, or of `byov train`.
        twin: another run on the same images, for example of BYOL for a run of BYOV.
        sparsities: each in [0, 1).
        scope: "layer", as in the paper, "global" or "both".
        probing: see `reader`; "both" uses a fixed and a refitted probe.
        reading: the split, the data folder, the device, and the seed of the probe's held-out part, of random pruning
            and of the resamples for the errors.
        names: the names of the run and its twin in the file; by default those of their folders.
        report: progress callback: the current ranking, networks done, all networks.
        by: the rankings; by default SNR (if the run has a posterior), magnitude and random.
    """
    scopes = _several(scope, get_args(Scope), "The scope of pruning must be layer, global or both")
    probings = _several(probing, get_args(Probing), "The probe must be fixed, refitted or both")
    if not sparsities:
        raise ValueError("A sweep needs at least one sparsity.")
    reading = reading or Reading()
    run, other = _open_twins(path, twin, reading, names)
    rankings: tuple[Ranking, ...] = (*rankings_of(run), "random") if by is None else tuple(dict.fromkeys(by))
    for sparsity in sparsities:
        for ranking in rankings:
            check(run.network, sparsity, ranking, scopes[0], get_args(Ranking))
    test = run.load_own(reading.split)
    if (train := run.load_own("train") if run.kind == "pretrain" else None) is not None:
        check_classes(train, test, reading.split)
    assert test.labels is not None
    plan = [(run, each) for each in rankings] + ([] if other is None else [(other, "magnitude")])
    probings = probings if run.kind == "pretrain" else ("",)  # a classifier has no probe
    sweep = Sweep(test.labels, tuple(sparsities), reading.seed, report, len(plan) * len(scopes))
    for each in dict.fromkeys(one for one, _ in plan):
        how = {p: reader(each, train, test, p or "fixed", reading.seed) for p in probings}  # type: ignore[arg-type]
        for scope_name in scopes:
            for ranking in [r for one, r in plan if one is each]:
                sweep.add(each, {p: read for p, (read, _) in how.items()}, ranking, scope_name)  # type: ignore[arg-type]
    retrained = [{"refitted": "the linear probe"}.get(p, "nothing") for p in probings]
    protocol = {
        "runs": [str(each) for each in (path, twin) if each is not None],
        "pruned": f"{Prunable(run).name}, the weights of its {'encoder' if run.kind == 'pretrain' else 'layers'}",
        "retrained": "; ".join(retrained),
        "scope": scope,
        "reading": how[probings[0]][1] | ({"probe": probing} if probings[0] else {}),
        **_about(test, reading),
    }
    return {"kind": KIND, "protocol": protocol, "curves": sweep.curves, "differences": sweep.differences}


def _about(test: ImageSet, reading: Reading) -> dict[str, Any]:
    return {
        "bins": BINS,
        "error": f"standard deviation over {RESAMPLES:,} resamples of the test images",
        "seed": reading.seed,
        "test": which_images(test) | {"split": reading.split},
        "device": torch.device(reading.device).type,
        "torch": str(torch.__version__),
    }


def _several(asked: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if asked not in (*known, "both"):
        raise ValueError(f"{what}, not {asked!r}.")
    return known if asked == "both" else (asked,)


class Sweep:
    """The curves of a sweep and their differences; all errors use the same resamples of the images."""

    def __init__(self, labels: Tensor, sparsities: tuple[float, ...], seed: int, report: Advance, lines: int) -> None:
        self.labels, self.sparsities, self.seed, self.report = labels, sparsities, seed, report
        self.done, self.total = 0, lines * len(sparsities)
        self.resamples = Resamples(len(labels), seed)
        self.curves: list[Curve] = []
        self.differences: list[dict[str, Any]] = []
        self._unpruned: dict[str, dict[str, Tensor]] = {}
        self._first: dict[tuple[str, str], tuple[Curve, list[dict[str, Tensor]]]] = {}

    def add(self, run: Run, reads: Mapping[str, Read], by: Ranking, scope: Scope) -> None:
        """Prune a run's network to each sparsity in one way, and add one curve for each reading."""
        found = []
        for sparsity in self.sparsities:
            found.append(self._read(run, reads, by, scope, sparsity))
            self.done += 1
            self.report(f"{run.name} by {by}, {scope}", self.done, self.total)
        for name in reads:
            curve = {"model": run.name, "by": by, "scope": scope, **({"probe": name} if name else {})}
            self._score(curve, [probs[name] for probs in found])

    def _read(
        self, run: Run, reads: Mapping[str, Read], by: Ranking, scope: Scope, sparsity: float
    ) -> dict[str, Tensor]:
        if sparsity == 0 and run.name in self._unpruned:  # the same for every ranking; each reading may need a fit
            return self._unpruned[run.name]
        net = prune(run.network, sparsity, by, scope, Prunable(run).where, self.seed).eval()
        found = {name: read(net) for name, read in reads.items()}
        if sparsity == 0:
            self._unpruned[run.name] = found
        return found

    def _score(self, curve: Curve, probs: list[Tensor]) -> None:
        """Add the scores of a curve, and the difference from the first curve of its scope and probe."""
        scores = [main_scores(p, self.labels, BINS) for p in probs]
        resampled = [self.resamples.scores(p, self.labels, BINS) for p in probs]
        values = {name: [each[name] for each in scores] for name in scores[0]}
        errors = {name: [error(each[name]) for each in resampled] for name in scores[0]}
        curve |= {"sparsity": list(self.sparsities), **values, "error": errors}
        self.curves.append(curve)
        first, base = self._first.setdefault((curve["scope"], curve.get("probe", "")), (curve, resampled))
        if first is curve:
            return
        pairs = list(zip(base, resampled, strict=True))
        self.differences.append(
            {
                "of": {name: first[name] for name in ("model", "by")},
                "minus": {name: curve[name] for name in ("model", "by")},
                **{name: curve[name] for name in ("scope", "probe") if name in curve},
                "sparsity": list(self.sparsities),
                **{n: [a - b for a, b in zip(first[n], values[n], strict=True)] for n in values},
                "error": {n: [error(a[n] - b[n]) for a, b in pairs] for n in values},
            }
        )


def _open_twins(
    path: Path, twin: Path | None, reading: Reading, names: tuple[str, str] | None
) -> tuple[Run, Run | None]:
    """Open a run and its twin; raise if the twin differs in more than its posterior."""
    name, other_name = names or (_name(path), "" if twin is None else _name(twin))
    run = open_run(path, reading, name)
    if twin is None:
        return run, None
    other = open_run(twin, reading, f"{other_name} (twin)" if other_name == name else other_name)
    if (other.data, other.kind) != (run.data, run.kind):
        theirs, ours = (f"of byov {each.kind} on {each.data}" for each in (other, run))
        raise ValueError(f"A twin may differ only in its posterior: {twin} is a run {theirs}, not {ours}.")
    return run, other


def sweep_groups(curves: Sequence[Curve]) -> dict[tuple[str, str], list[Curve]]:
    """Group the curves by scope and by how they are read, both in words."""
    found: dict[tuple[str, str], list[Curve]] = {}
    for each in curves:
        how = "linear probe refitted" if each.get("probe") == "refitted" else "nothing retrained"
        scope = "all layers together" if each.get("scope") == "global" else "per layer"
        found.setdefault((scope, how), []).append(each)
    return found


def advantage(curves: Sequence[Curve], sparsity: float = 0.7) -> float | None:
    """Return top-1 by SNR minus top-1 by magnitude at a sparsity, in points, averaged over the models with both."""
    points: dict[str, list[float]] = {"snr": [], "magnitude": []}

    def of(curve: Curve) -> tuple[Any, ...]:
        return tuple(curve.get(name) for name in ("model", "seed", "scope", "probe"))

    with_snr = {of(c) for c in curves if c["by"] == "snr"}
    for each in curves:
        if each["by"] in points and of(each) in with_snr:
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


def parse_sparsities(text: str | None) -> tuple[float, ...]:
    """Parse "0,0.5,0.9"; None means the default sparsities."""
    try:
        return SPARSITIES if text is None else tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"Sparsities are numbers from 0 to less than 1, such as 0,0.5,0.9, not {text!r}.") from None


def check_sweep_files(out: Path, force: bool) -> None:
    """Raise if the name does not end in .json, or if files of another sweep would be overwritten."""
    if out.suffix != ".json":
        raise ValueError(f"A sweep is written as JSON: --out ends in .json, unlike {out.name}.")
    for suffix in (".json", ".png", ".svg"):
        check_out(out.with_suffix(suffix), force)
