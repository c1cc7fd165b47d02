"""What sparsity costs: by SNR, by magnitude, at random, and of a deterministic twin (BYOV, Figure 4 left).

A file of curves is

    {"kind": "byov prune sweep", "protocol": {...},
     "curves": [{"model": "byov", "by": "snr", "sparsity": [0, …], "top1": [0.9, …], "ece": […], "nll": […]}, …]}

with shares, not per cent; a curve may have a "seed", a "scope" and a "probe" beside that, and under "error" the
standard errors of its scores. "differences" are those of the first curve and each other of the same scope and probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from byov.data import ImageSet
from byov.data.labelled import check_classes
from byov.evaluation.resampling import RESAMPLES, Resamples, error
from byov.evaluation.scores import main_scores
from byov.files import check_out
from byov.metrics import functional as metrics
from byov.pruning import Block, prune, prune_gradually, prune_groups, save_sparse, weights
from byov.pruning.unstructured import By, Ranking, Scope, check
from byov.runs import Classifier, Reading, Run, open_run
from byov.runs.header import checkpoint_of
from byov.ssl.classifiers import LinearProbe, linear_probe
from byov.ssl.features import features
from byov.ssl.probe import ProbeSettings
from byov.train.fine_tuning import FineTune

KIND = "byov prune sweep"
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
BINS = 15
PROBE_SETTINGS = ("l2", "holdout", "max_iter", "seed")

Probing = Literal["fixed", "refitted"]
Curve = dict[str, Any]
Read = Callable[[nn.Module], Tensor]
"""From a pruned network to its class probabilities (N, C) of the test images."""
Advance = Callable[[str, int, int], Any]
"""Told how far a sweep is: what it prunes, networks done, all networks."""


class Prunable:
    """The part of a run's network that is pruned: of a pretraining run its encoder, of a supervised one all of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.prefix = "encoder." if run.kind == "pretrain" else ""
        self.name = run.recipe.model.encoder if run.kind == "pretrain" else run.recipe.model.name

    def where(self, name: str, module: nn.Module, parameter: Tensor) -> bool:
        """Tell which parameters may be pruned; for `byov.prune`."""
        return name.startswith(self.prefix) and weights(name, module, parameter)

    def blocks(self, block: Block) -> bool:
        """Tell which blocks may lose groups; for `byov.pruning.prune_groups`."""
        return block.name.startswith(self.prefix)

    def kept(self, network: nn.Module) -> nn.Module:
        """Return what is kept of a pruned network: the encoder, or all of it."""
        return network.get_submodule("encoder") if self.prefix else network


def reader(
    run: Run, train: ImageSet | None, test: ImageSet, probing: Probing = "fixed", seed: int = 0
) -> tuple[Read, dict[str, Any]]:
    """Return how pruned versions of a run's network are read, and what a protocol should say about it.

    A supervised network has an output layer of its own. On an encoder a linear probe is fitted to the training images:
    "fixed" once, on the encoder as it was before pruning, so that nothing at all is retrained; or "refitted" to each.
    """
    if run.kind == "train":

        def read_classifier(net: nn.Module) -> Tensor:
            return Classifier(net, **run.normalisation)(test.images.float() / 255).mean

        return read_classifier, {"head": "the network's own output layer"}
    assert train is not None
    chosen = {key: value for key, value in asdict(ProbeSettings(seed=seed)).items() if key in PROBE_SETTINGS}

    def fit(net: nn.Module) -> LinearProbe:
        assert train.labels is not None
        fitted = features(net, train.images, **run.normalisation)
        return linear_probe(fitted, train.labels.to(fitted.device), classes=len(train.class_names), **chosen)

    before = fit(run.network) if probing == "fixed" else None

    def read_probe(net: nn.Module) -> Tensor:
        return (before or fit(net)).probabilities(features(net, test.images, **run.normalisation))

    about = {"name": train.name, "digest": train.digest, "images": len(train)}
    return read_probe, {"head": "linear probe at μ", "probe": probing, "settings": chosen, "train": about}


def curve(
    run: Run,
    read: Read,
    labels: Tensor,
    by: Ranking,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope = "layer",
    bins: int = BINS,
) -> Curve:
    """Prune a run's network to each sparsity and score what is left."""
    found: Curve = {"by": by, "sparsity": list(sparsities), "top1": [], "ece": [], "nll": []}
    where = Prunable(run).where
    for sparsity in sparsities:
        probs = read(prune(run.network, sparsity, by, scope, where).eval())
        for name, value in main_scores(probs, labels, bins).items():
            found[name].append(value)
    return found


def orders(run: Run) -> tuple[By, ...]:
    """Return the rankings that a run allows: by SNR only with a posterior."""
    return ("magnitude",) if run.q is None else ("snr", "magnitude")


def sweep_runs(
    path: Path,
    twin: Path | None = None,
    sparsities: Sequence[float] = SPARSITIES,
    scope: Scope | Literal["both"] = "layer",
    probing: Probing | Literal["both"] = "fixed",
    reading: Reading | None = None,
    names: tuple[str, str] | None = None,
    report: Advance | None = None,
    by: Sequence[Ranking] | None = None,
) -> dict[str, Any]:
    """Compute the curves of a run by each ranking, and of its twin by magnitude.

    Args:
        path: a run of `byov pretrain`, whose encoder is pruned, or of `byov train`.
        twin: another one on the same images, say of BYOL for one of BYOV.
        sparsities: each in [0, 1).
        scope: "layer", as in the paper, "global" or "both".
        probing: see `reader`; "both" reads the probe fixed and refitted.
        reading: the split to read, where the data and the model are, and the seed of the probe's held-out part, of
            random pruning and of the resamples that errors come from.
        names: of the run and its twin in the file; their folders' names by default.
        report: told how far it is.
        by: the rankings; by default SNR (if it has a posterior), magnitude and random.
    """
    scopes = _several(scope, get_args(Scope), "The scope of pruning is layer, global or both")
    probings = _several(probing, get_args(Probing), "A probe is fixed, refitted or both")
    if not sparsities:
        raise ValueError("A sweep needs at least one sparsity.")
    reading = reading or Reading()
    run, other = _open_twins(path, twin, reading, names)
    rankings: tuple[Ranking, ...] = (*orders(run), "random") if by is None else tuple(dict.fromkeys(by))
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
        "test": {"name": test.name, "split": reading.split, "digest": test.digest, "images": len(test)},
        "device": torch.device(reading.device).type,
        "torch": str(torch.__version__),
    }


def _several(asked: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if asked not in (*known, "both"):
        raise ValueError(f"{what}, not {asked!r}.")
    return known if asked == "both" else (asked,)


class Sweep:
    """The curves of a sweep and their differences, with errors by the same resamples of the images for all."""

    def __init__(
        self, labels: Tensor, sparsities: tuple[float, ...], seed: int, report: Advance | None, lines: int
    ) -> None:
        self.labels, self.sparsities, self.seed, self.report = labels, sparsities, seed, report
        self.done, self.total = 0, lines * len(sparsities)
        self.resamples = Resamples(len(labels), seed)
        self.curves: list[Curve] = []
        self.differences: list[dict[str, Any]] = []
        self._whole: dict[str, dict[str, Tensor]] = {}
        self._first: dict[tuple[str, str], tuple[Curve, list[dict[str, Tensor]]]] = {}

    def add(self, run: Run, reads: Mapping[str, Read], by: Ranking, scope: Scope) -> None:
        """Read a run's network, pruned in one way to each sparsity: one curve for each reading."""
        found = []
        for sparsity in self.sparsities:
            found.append(self._read(run, reads, by, scope, sparsity))
            self.done += 1
            if self.report is not None:
                self.report(f"{run.name} by {by}, {scope}", self.done, self.total)
        for name in reads:
            about = {"model": run.name, "by": by, "scope": scope, **({"probe": name} if name else {})}
            self._score(about, [probs[name] for probs in found], (scope, name))

    def _read(
        self, run: Run, reads: Mapping[str, Read], by: Ranking, scope: Scope, sparsity: float
    ) -> dict[str, Tensor]:
        if sparsity == 0 and run.name in self._whole:  # the same for every ranking, and a fit each
            return self._whole[run.name]
        net = prune(run.network, sparsity, by, scope, Prunable(run).where, self.seed).eval()
        found = {name: read(net) for name, read in reads.items()}
        if sparsity == 0:
            self._whole[run.name] = found
        return found

    def _score(self, about: dict[str, Any], probs: list[Tensor], group: tuple[str, str]) -> None:
        scores = [main_scores(p, self.labels, BINS) for p in probs]
        resampled = [self.resamples.scores(p, self.labels, BINS) for p in probs]
        values = {name: [each[name] for each in scores] for name in scores[0]}
        errors = {name: [error(each[name]) for each in resampled] for name in scores[0]}
        found = {**about, "sparsity": list(self.sparsities), **values, "error": errors}
        self.curves.append(found)
        first, base = self._first.setdefault(group, (found, resampled))
        if first is found:
            return
        pairs = list(zip(base, resampled, strict=True))
        self.differences.append(
            {
                "of": {name: first[name] for name in ("model", "by")},
                "minus": {name: found[name] for name in ("model", "by")},
                **{name: value for name, value in about.items() if name in ("scope", "probe")},
                "sparsity": list(self.sparsities),
                **{n: [a - b for a, b in zip(first[n], values[n], strict=True)] for n in values},
                "error": {n: [error(a[n] - b[n]) for a, b in pairs] for n in values},
            }
        )


def _open_twins(
    path: Path, twin: Path | None, reading: Reading, names: tuple[str, str] | None
) -> tuple[Run, Run | None]:
    """Open a run and its twin; refuse a twin that differs by more than its posterior."""
    name, other_name = names or (_name(path), "" if twin is None else _name(twin))
    run = open_run(path, reading, name)
    if twin is None:
        return run, None
    other = open_run(twin, reading, f"{other_name} (twin)" if other_name == name else other_name)
    if (other.data, other.kind) != (run.data, run.kind):
        theirs, ours = (f"of byov {each.kind} on {each.data}" for each in (other, run))
        raise ValueError(f"A twin differs by its posterior only: {twin} is a run {theirs}, not {ours}.")
    return run, other


def sweep_groups(curves: Sequence[Curve]) -> dict[tuple[str, str], list[Curve]]:
    """Return the curves that belong beside each other: of one scope, and of one way to read, in words."""
    found: dict[tuple[str, str], list[Curve]] = {}
    for each in curves:
        how = "linear probe refitted" if each.get("probe") == "refitted" else "nothing retrained"
        scope = "all layers together" if each.get("scope") == "global" else "per layer"
        found.setdefault((scope, how), []).append(each)
    return found


def advantage(curves: Sequence[Curve], sparsity: float = 0.7) -> float | None:
    """Return top-1 by SNR minus top-1 by magnitude at a sparsity, in points: the mean over the same models."""
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
    """Read "0,0.5,0.9"; None stands for the usual ones."""
    try:
        return SPARSITIES if text is None else tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"Sparsities are numbers from 0 to below 1, such as 0,0.5,0.9, not {text!r}.") from None


def check_file(out: Path, run: Path, force: bool) -> None:
    """Refuse a file that a pruned network cannot be written to, the run's own checkpoint first of all."""
    file = checkpoint_of(run)
    if out.is_file() and file.exists() and out.samefile(file):
        raise ValueError(f"{out} is the run's own checkpoint: choose another --out.")
    check_out(out, force)


def check_sweep_files(out: Path, force: bool) -> None:
    """Refuse a name that is not JSON's, and the files of another sweep."""
    if out.suffix != ".json":
        raise ValueError(f"A sweep is written as JSON: --out ends in .json, unlike {out.name}.")
    for suffix in (".json", ".png", ".svg"):
        check_out(out.with_suffix(suffix), force)


def prune_run(
    run: Run,
    out: Path,
    sparsity: float,
    by: Ranking,
    scope: Scope,
    groups: bool = False,
    rounds: int = 0,
    epochs: int = 1,
    lr: float = 1e-3,
    tell: Callable[[str], Any] = print,
) -> nn.Module:
    """Prune a run's network, at once or in rounds of fine-tuning, write what is left to a file, and return it."""
    part = Prunable(run)
    about = {"kind": run.kind, "network": part.name, "run": run.name, "sparsity": sparsity, "by": by, "scope": scope}
    if rounds:
        net = _prune_in_rounds(run, sparsity, rounds, by, scope, epochs, lr, tell)  # type: ignore[arg-type]
        about |= {"rounds": rounds, "epochs": epochs, "lr": lr, "seed": run.reading.seed}
    elif groups:
        net = part.kept(prune_groups(run.network, sparsity, sparsity, by, scope, part.blocks))  # type: ignore[arg-type]
        about |= {"groups": True}
    else:
        net = part.kept(prune(run.network, sparsity, by, scope, part.where, run.reading.seed))
        about |= {"seed": run.reading.seed} if by == "random" else {}
    save_sparse(net, out, about)
    return net


def _prune_in_rounds(
    run: Run, sparsity: float, rounds: int, by: By, scope: Scope, epochs: int, lr: float, tell: Callable[[str], Any]
) -> nn.Module:
    if run.kind != "train":
        raise ValueError("Fine-tuning needs an output layer: prune a run of byov train in rounds.")
    r, test = run.reading, run.load_own("test")
    fine_tune = FineTune(
        run.recipe, run.load_own("train"), **run.normalisation, epochs=epochs, lr=lr, seed=r.seed, device=r.device
    )
    read, _ = reader(run, None, test)

    def report(step: float, net: nn.Module) -> None:
        assert test.labels is not None
        top1 = metrics.accuracy(read(net), test.labels).item()
        tell(f"{100 * step:5.1f} % zeros, fine-tuned: top-1 {100 * top1:.2f} %")

    where = Prunable(run).where
    return prune_gradually(run.network, fine_tune, sparsity, rounds, by, scope, where, report=report).cpu()
