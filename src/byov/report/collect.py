"""From runs to numbers: what has been recorded is read, what is missing is measured and kept beside the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import byov
from byov.data.shift import Shift
from byov.evaluation import results
from byov.evaluation.convergence import score_convergence
from byov.evaluation.layers import layer_quantiles
from byov.evaluation.pruning import curve, orders
from byov.evaluation.retrieval import without_labels
from byov.evaluation.rows import CLEAN, READINGS, Row, evaluate, plan, shifts_for
from byov.evaluation.scores import main_scores
from byov.files import read_json, write_json
from byov.prediction import Prediction
from byov.report.diagrams import gallery_entries
from byov.report.sources import ReportedRun, nan_to_none
from byov.runs import CHECKPOINT, Reading, Run, open_run
from byov.runs.run import Pretrained
from byov.ssl.probe import ProbeSettings

KIND = "byov report"
FEW = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
"""The shifts of a report, unless others are requested: those of the demo."""
SPARSITIES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
KEYED, UNKEYED = ("samples", "limit", "split", "seed", "fit_samples"), ("root", "device", "batch_size", "trust")
"""What a cached part always names of its reading, as older files do, and never; other settings only if unusual."""
CHOSEN = ("shift", "shifts", "severities", "left_out", "conventions")
"""What two protocols may differ in whose rows are the same where both have them."""
NOTHING: dict[str, Any] = {"none": True}
"""A part that a model without a posterior does not have: kept too, so that it is not looked for again."""

Advance = Callable[[str, int, int], Any]
"""Is told what is being measured, the steps done, and all of them."""


@dataclass(frozen=True)
class Request:
    """What a report asks of its runs, the same of all of them."""

    reading: Reading = field(default_factory=lambda: Reading(limit=2000))
    """How they are read; without a root, each on the data sets where its recipe says."""
    shift: str = "few"
    """few, augmentations, corruptions or none."""
    severities: tuple[int, ...] = (1, 3, 5)
    bins: int = 15

    def key(self, checkpoint: str) -> dict[str, Any]:
        """Return what every cached part depends on: the weights, this request, and how a probe is fitted."""
        usual, asked = asdict(Reading()), asdict(self.reading)
        named = {k: v for k, v in asked.items() if k in KEYED or (k not in UNKEYED and v != usual[k])}
        own = {"shift": self.shift, "severities": list(self.severities), "bins": self.bins}
        return {"checkpoint": checkpoint, **named, **own, "byov": byov.__version__, "probe": asdict(ProbeSettings())}


@dataclass(frozen=True)
class Cache:
    """Parts of a report that were measured before: a JSON file each, valid while its key is the same."""

    folder: Path
    key: dict[str, Any]

    def get(self, part: str) -> Any:
        """Return what was kept under the same key; None otherwise."""
        try:
            content = read_json(self.folder / f"{part}.json")
            same = content["kind"] == KIND and content["protocol"] == json.loads(json.dumps(self.key))
            return content["result"] if same else None
        except (OSError, ValueError, KeyError, TypeError):  # a file that is not ours is not read, and is written anew
            return None

    def put(self, part: str, result: Any) -> Any:
        """Keep a part, and return it as a later `get` will."""
        content = {"kind": KIND, "part": part, "protocol": self.key, "result": nan_to_none(result)}
        write_json(self.folder / f"{part}.json", content)
        return json.loads(json.dumps(content["result"]))


def collect(
    runs: Sequence[ReportedRun],
    request: Request,
    compute: bool = True,
    renew: bool = False,
    cache: Path | None = None,
    advance: Advance | None = None,
) -> None:
    """Fill in the parts of each run that has a checkpoint.

    Args:
        runs: changed in place; those of which only files of results are at hand stay as they are.
        request: how they are read.
        compute: measure what is missing; False takes only what has been recorded.
        renew: measure again what has been recorded.
        cache: a folder for the parts of all runs, instead of RUN/report.
        advance: told how far it is.
    """
    for run in runs:
        if run.header is not None:
            file = run.header.file
            checkpoint = file_digest(file)
            own = "report" if file.name == CHECKPOINT else f"report_{file.stem}"
            folder = file.parent / own if cache is None else cache / checkpoint
            kept = Cache(folder, request.key(checkpoint))
            Collector(run, request, kept, compute, renew, advance or (lambda *_: None)).fill()


def file_digest(path: Path) -> str:
    """Return the first 12 hex digits of a file's SHA-256: which weights a number was measured on."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


@dataclass
class Collector:
    """Collects the parts of one run, which is opened only when one of them is missing: a second report is instant."""

    run: ReportedRun
    request: Request
    cache: Cache
    compute: bool
    renew: bool
    advance: Advance

    @cached_property
    def opened(self) -> Run:
        assert self.run.header is not None
        root = self.request.reading.root or self.run.config.get("data", {}).get("root")
        return open_run(self.run.header.file, replace(self.request.reading, root=root), self.run.name)

    def fill(self) -> None:
        """Set the run's parts and, unless a file of its scores was given, its evaluation."""
        run, parts = self.run, self.run.parts
        parts["identity"] = self._part("identity", self._identity, compute=True)
        if run.evaluation is not None and run.protocol["model"]["digest"] != parts["identity"]["digest"]:
            run.notes.append(f"The file of results given for {run.name} is of other weights, and was set aside.")
            run.evaluation = None
        kept = None if self.renew else self.cache.get("evaluation")
        if run.evaluation is None and self.compute and (kept is None or not kept["finished"]):
            kept = self._evaluate(kept)
        if kept is not None and kept["finished"]:
            parts["images"], parts["strategy"] = kept["images"], kept.get("strategy")
            if run.evaluation is None:
                run.evaluation = {"protocol": kept["protocol"], "rows": [Row(**row) for row in kept["rows"]]}
                parts["paired"] = True
                run.notes += [kept["note"]] if kept.get("note") else []
        elif run.evaluation is not None and (images := self._part("images", clean_images, self.compute)):
            parts["images"] = images
        elif run.evaluation is None and (found := self._recorded()):
            run.evaluation = found[0]
        for part, make in PARTS.items():
            measured = self._part(part, make, self.compute)
            if measured is not None and measured != NOTHING:
                parts[part] = measured

    def _part(self, name: str, make: Callable[[Run, Request], Any], compute: bool) -> Any:
        """Return a part that was kept or, if it may be computed, what `make` gives, which is kept then."""
        found = None if self.renew else self.cache.get(name)
        if found is None and compute:
            self.advance(f"{name} of {self.run.name}", 0, 1)
            made = make(self.opened, self.request)
            found = self.cache.put(name, NOTHING if made is None else made)
        return found

    def _identity(self, run: Run, request: Request) -> dict[str, Any]:
        """Return its identity; refuse the images that are to be read before anything is kept."""
        if self.compute:
            _ = run.images
        return identity(run)

    def _recorded(self) -> list[dict[str, Any]]:
        """Return the evaluations of these weights that lie in the run's folder, most rows first."""
        assert self.run.header is not None
        digest, found = self.run.parts["identity"]["digest"], []
        for path in sorted(self.run.header.folder.glob("*.json")):
            try:
                content = results.read(path)
            except FileExistsError:  # another kind of file
                continue
            if content["rows"] and content["protocol"]["model"]["digest"] == digest:
                found.append({**content, "file": path.name})
        return sorted(found, key=lambda content: -len(content["rows"]))

    def _evaluate(self, before: dict[str, Any] | None) -> dict[str, Any]:
        """Evaluate the rows that neither an interrupted report nor a file in the run's folder has."""
        run, request, reading = self.opened, self.request, self.opened.reading
        shifts, left_out = requested_shifts(run, request)
        severities = request.severities if shifts else ()
        wanted = plan(shifts, severities)
        kind = "augmentations" if request.shift == "few" else request.shift
        protocol = results.evaluation_protocol(run, kind, shifts, left_out, severities, request.bins)
        content = before or self._begin(wanted, protocol)

        def observe(row: Row, predictions: Sequence[Prediction]) -> None:
            content["rows"].append(asdict(row))
            content["strategy"] = predictions[-1].strategy
            content["images"][_key(row.key)] = records(predictions, run.labels)
            self.cache.put("evaluation", content)
            self.advance(f"scores of {run.name}", len(content["rows"]), len(wanted))

        self.advance(f"scores of {run.name}", len(content["rows"]), len(wanted))
        known = [Row(**row) for row in content["rows"]]
        options: dict[str, Any] = {"bins": request.bins, "seed": reading.seed, "device": reading.device, "known": known}
        images, labels, samples = run.images.images, run.labels, reading.samples
        rows = evaluate(run.predictor, images, labels, shifts, severities, samples, observe=observe, **options)
        content["rows"] = [asdict(row) for row in rows]
        missing = [key for key in wanted if _key(key) not in content["images"]]
        if missing:  # where a file had the rows; some of the shifts do not stand for all of them
            shifted = content["images"] if missing == [(CLEAN, 0)] else {}
            content["images"] = {**clean_images(run, request), **shifted}
        return self.cache.put("evaluation", {**content, "finished": True})

    def _begin(self, wanted: Sequence[tuple[str, int]], protocol: dict[str, Any]) -> dict[str, Any]:
        """Start an evaluation with the rows that a file in the run's folder has, found by the same protocol."""
        content = {"evaluation": results.KIND, "protocol": protocol, "finished": False, "rows": [], "images": {}}
        ours = nan_to_none({key: value for key, value in protocol.items() if key not in CHOSEN})
        for found in () if self.renew else self._recorded():
            theirs = {key: value for key, value in found["protocol"].items() if key not in CHOSEN}
            rows = [asdict(row) for row in found["rows"] if row.key in wanted]
            if rows and not results.difference(theirs, ours):
                told = f"Scores of {self.run.name} are those in its {found['file']}"
                note = f"{told}, which records no single image; --renew measures them again."
                return {**content, "rows": rows, "note": note if len(rows) > 1 else ""}
        return content


def requested_shifts(run: Run, request: Request) -> tuple[dict[str, Shift], dict[str, str]]:
    """Return the requested shifts by name, and why others are left out."""
    if request.shift != "few":
        return shifts_for(request.shift, run.images)
    found, left_out = shifts_for("augmentations", run.images)
    return {n: s for n, s in found.items() if n in FEW}, {n: why for n, why in left_out.items() if n in FEW}


# What is measured beside the scores


def identity(run: Run) -> dict[str, Any]:
    """Return which network it is, how large, and how much of it is random."""
    q = run.q
    random = 0 if q is None else sum(tensor.numel() for tensor in q.mean().values())
    points = run.network.parameters() if q is None else (parameter for _, parameter in q.points())
    weights = random + sum(parameter.numel() for parameter in points)
    learned = sum(parameter.numel() for parameter in run.network.parameters())
    return {"digest": run.digest, "random": random, "weights": weights, "parameters": learned, "data": run.data}


def clean_images(run: Run, request: Request) -> dict[str, Any]:
    """Return the records of the clean images alone, from predictions that the gallery needs anyway."""
    predictions = [run.at_mean] if run.under_draws is None else [run.at_mean, run.under_draws]
    return {_key((CLEAN, 0)): records(predictions, run.labels)}


def records(predictions: Sequence[Prediction], labels: Tensor) -> dict[str, Any]:
    """Return by reading, at μ and under draws, each image's confidence and entropy, and 1 for a hit."""
    found = {}
    for reading, prediction in zip(READINGS, predictions, strict=False):
        confidence, predicted = (values.cpu() for values in prediction.mean.max(1))
        hits = (predicted == labels.cpu()).int().tolist()
        found[reading] = {"confidence": [round(c, 6) for c in confidence.tolist()], "correct": hits}
        if prediction.entropy is not None:
            found[reading]["entropy"] = [round(h, 4) for h in prediction.entropy.cpu().tolist()]
    return found


def gallery(run: Run, request: Request) -> dict[str, Any]:
    """Return the images it is most and least certain of, and its most confident mistakes, as pictures."""
    return {"reading": "under_draws" if run.posterior else "at_mean", **gallery_entries(run.images, run.prediction)}


def convergence(run: Run, request: Request) -> dict[str, Any] | None:
    """Return the scores of the mean of K draws on clean images, and those at μ; None without a posterior."""
    if not run.posterior:
        return None
    labels = run.labels.cpu()
    at_mean = main_scores(run.at_mean.mean.cpu(), labels, request.bins)
    return {**score_convergence(run.draws(run.pixels), labels, request.bins), "at_mean": at_mean}


def pruning(run: Run, request: Request) -> list[dict[str, Any]]:
    """Return scores at μ of the network pruned in each order it allows: a share of each layer, no retraining.

    Of a pretraining run the encoder is pruned, and the probe stays the one that was fitted before.
    """

    def read(network: nn.Module) -> Tensor:
        return run.predictor.read(network, run.pixels)

    curves = [curve(run, read, run.labels, by, SPARSITIES, "layer", request.bins) for by in orders(run)]
    return [{"scope": "layer", **each} for each in curves]


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"


PARTS: dict[str, Callable[[Run, Request], Any]] = {
    "gallery": gallery,
    "convergence": convergence,
    "pruning": pruning,
    "layers": lambda run, request: None if run.q is None else layer_quantiles(run.q),
    "representation": lambda run, request: without_labels(run) if isinstance(run, Pretrained) else None,
}
"""What is measured beside the rows of scores, and by what."""
