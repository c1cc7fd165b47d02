"""Collect the numbers of runs: read what is recorded, measure what is missing, and cache it beside the run."""

from __future__ import annotations

import hashlib
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
from byov.evaluation.pruning import curve, rankings_of
from byov.evaluation.results import plain_json
from byov.evaluation.retrieval import label_free_scores
from byov.evaluation.rows import CLEAN, READINGS, Row, evaluate, plan, shifts_for
from byov.evaluation.scores import main_scores
from byov.files import read_json, write_json
from byov.prediction import Prediction
from byov.report.diagrams import gallery_entries
from byov.report.sources import ReportedRun
from byov.runs import CHECKPOINT, Reading, Run, open_run
from byov.runs.run import Pretrained
from byov.ssl.linear_evaluation import Advance
from byov.ssl.probe import ProbeSettings

KIND = "byov report"
FEW = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
"""The default shifts of a report and of the demo."""
SPARSITIES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
KEYED, UNKEYED = ("samples", "limit", "split", "seed", "fit_samples"), ("root", "device", "batch_size", "trust")
"""Settings of the reading that the key of a cached part always or never holds; it holds others if not default."""
CHOSEN = ("shift", "shifts", "severities", "left_out", "conventions")
"""Keys that may differ between two protocols whose common rows are equal."""
NOT_APPLICABLE: dict[str, Any] = {"none": True}
"""Stands for a part that does not apply to a run; cached too, so that it is not computed again."""


@dataclass(frozen=True)
class Request:
    """How a report reads all of its runs."""

    reading: Reading = field(default_factory=lambda: Reading(limit=2000))
    """The reading settings; without a root, each run uses the data folder of its recipe."""
    shift: str = "few"
    """few, augmentations, corruptions or none."""
    severities: tuple[int, ...] = (1, 3, 5)
    bins: int = 15

    def key(self, checkpoint: str) -> dict[str, Any]:
        """Return everything that cached parts depend on: the weights, this request, and the probe settings."""
        usual, asked = asdict(Reading()), asdict(self.reading)
        named = {k: v for k, v in asked.items() if k in KEYED or (k not in UNKEYED and v != usual[k])}
        own = {"shift": self.shift, "severities": list(self.severities), "bins": self.bins}
        return {"checkpoint": checkpoint, **named, **own, "byov": byov.__version__, "probe": asdict(ProbeSettings())}


@dataclass(frozen=True)
class Cache:
    """Cached parts of a report: one JSON file each, valid as long as its key is the same."""

    folder: Path
    key: dict[str, Any]

    def get(self, part: str) -> Any:
        """Return the part cached under the same key; None if there is none."""
        try:
            content = read_json(self.folder / f"{part}.json")
            same = content["kind"] == KIND and content["protocol"] == plain_json(self.key)
            return content["result"] if same else None
        except (OSError, ValueError, KeyError, TypeError):  # not a valid file of ours: it will be replaced
            return None

    def put(self, part: str, result: Any) -> Any:
        """Cache a part, and return it as a later `get` will."""
        result = plain_json(result)
        write_json(self.folder / f"{part}.json", {"kind": KIND, "part": part, "protocol": self.key, "result": result})
        return result


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
        runs: changed in place; runs with only results files stay as they are.
        request: how the runs are read.
        compute: measure missing parts; if False, use only recorded ones.
        renew: measure recorded parts again.
        cache: a folder for the parts of all runs, instead of RUN/report.
        advance: progress callback.
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
    """Return the first 12 hex digits of a file's SHA-256, which identify the weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


@dataclass
class Collector:
    """Collects the parts of one run, which is opened only if one of them is missing."""

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
        """Set the run's parts and, unless a results file was given, its evaluation."""
        run, parts = self.run, self.run.parts
        parts["identity"] = self._part("identity", self._identity, compute=True)
        if run.evaluation is not None and run.protocol["model"]["digest"] != parts["identity"]["digest"]:
            run.notes.append(f"The results file given for {run.name} is of other weights and was ignored.")
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
            if measured is not None and measured != NOT_APPLICABLE:
                parts[part] = measured

    def _part(self, name: str, make: Callable[[Run, Request], Any], compute: bool) -> Any:
        """Return a cached part or, if `compute`, the result of `make`, which is then cached."""
        found = None if self.renew else self.cache.get(name)
        if found is None and compute:
            self.advance(f"{name} of {self.run.name}", 0, 1)
            made = make(self.opened, self.request)
            found = self.cache.put(name, NOT_APPLICABLE if made is None else made)
        return found

    def _identity(self, run: Run, request: Request) -> dict[str, Any]:
        """Return the run's identity; raise before anything is cached if the images cannot be read."""
        if self.compute:
            _ = run.images
        return identity(run)

    def _recorded(self) -> list[dict[str, Any]]:
        """Return the evaluations of these weights in the run's folder, most rows first."""
        assert self.run.header is not None
        digest, found = self.run.parts["identity"]["digest"], []
        for path in sorted(self.run.header.folder.glob("*.json")):
            try:
                content = results.read(path)
            except FileExistsError:  # another kind of file
                continue
            if content["rows"] and content["protocol"]["model"]["digest"] == digest:
                found.append({**content, "file": str(path)})
        return sorted(found, key=lambda content: -len(content["rows"]))

    def _evaluate(self, before: dict[str, Any] | None) -> dict[str, Any]:
        """Evaluate the rows missing from an interrupted report and from the files in the run's folder."""
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
        if missing:  # rows from a file have no records; records of only some shifts are dropped
            shifted = content["images"] if missing == [(CLEAN, 0)] else {}
            content["images"] = {**clean_images(run, request), **shifted}
        return self.cache.put("evaluation", {**content, "finished": True})

    def _begin(self, wanted: Sequence[tuple[str, int]], protocol: dict[str, Any]) -> dict[str, Any]:
        """Start an evaluation with the rows of a file with the same protocol in the run's folder."""
        content = {"evaluation": results.KIND, "protocol": protocol, "finished": False, "rows": [], "images": {}}
        ours = plain_json({key: value for key, value in protocol.items() if key not in CHOSEN})
        for found in () if self.renew else self._recorded():
            theirs = {key: value for key, value in found["protocol"].items() if key not in CHOSEN}
            rows = [asdict(row) for row in found["rows"] if row.key in wanted]
            if rows and not results.difference(theirs, ours):
                origin = f"Scores of {self.run.name} come from its {Path(found['file']).name}"
                note = f"{origin}, which has no records of single images; --renew measures them again."
                return {**content, "rows": rows, "note": note if len(rows) > 1 else ""}
        return content


def requested_shifts(run: Run, request: Request) -> tuple[dict[str, Shift], dict[str, str]]:
    """Return the requested shifts by name, and the reasons why others are left out."""
    if request.shift != "few":
        return shifts_for(request.shift, run.images)
    found, left_out = shifts_for("augmentations", run.images)
    return {n: s for n, s in found.items() if n in FEW}, {n: why for n, why in left_out.items() if n in FEW}


# Parts besides the scores


def identity(run: Run) -> dict[str, Any]:
    """Return the digest of a network, its size, and its number of random weights."""
    q = run.q
    random = 0 if q is None else sum(tensor.numel() for tensor in q.mean().values())
    points = run.network.parameters() if q is None else (parameter for _, parameter in q.points())
    weights = random + sum(parameter.numel() for parameter in points)
    learned = sum(parameter.numel() for parameter in run.network.parameters())
    return {"digest": run.digest, "random": random, "weights": weights, "parameters": learned, "data": run.data}


def clean_images(run: Run, request: Request) -> dict[str, Any]:
    """Return the records of the clean images, from predictions that the gallery needs as well."""
    predictions = [run.at_mean] if run.under_draws is None else [run.at_mean, run.under_draws]
    return {_key((CLEAN, 0)): records(predictions, run.labels)}


def records(predictions: Sequence[Prediction], labels: Tensor) -> dict[str, Any]:
    """Return each image's confidence, correctness (0 or 1) and entropy, at μ and under draws."""
    found = {}
    for reading, prediction in zip(READINGS, predictions, strict=False):
        confidence, predicted = (values.cpu() for values in prediction.mean.max(1))
        hits = (predicted == labels.cpu()).int().tolist()
        found[reading] = {"confidence": [round(c, 6) for c in confidence.tolist()], "correct": hits}
        if prediction.entropy is not None:
            found[reading]["entropy"] = [round(h, 4) for h in prediction.entropy.cpu().tolist()]
    return found


def gallery(run: Run, request: Request) -> dict[str, Any]:
    """Return the most and least certain images, and the most confident mistakes, as inline images."""
    return {"reading": "under_draws" if run.posterior else "at_mean", **gallery_entries(run.images, run.prediction)}


def convergence(run: Run, request: Request) -> dict[str, Any] | None:
    """Return the scores of the mean of K draws on clean images, and at μ; None without a posterior."""
    if not run.posterior:
        return None
    labels = run.labels.cpu()
    at_mean = main_scores(run.at_mean.mean.cpu(), labels, request.bins)
    return {**score_convergence(run.draws(run.pixels), labels, request.bins), "at_mean": at_mean}


def pruning(run: Run, request: Request) -> list[dict[str, Any]]:
    """Return the scores at μ of the network pruned per layer by each ranking it allows, without retraining.

    For a pretraining run the encoder is pruned, and the probe is the one fitted before.
    """

    def read(network: nn.Module) -> Tensor:
        return run.predictor.read(network, run.pixels)

    curves = [curve(run, read, run.labels, by, SPARSITIES, "layer", request.bins) for by in rankings_of(run)]
    return [{"scope": "layer", **each} for each in curves]


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}/{key[1]}"


PARTS: dict[str, Callable[[Run, Request], Any]] = {
    "gallery": gallery,
    "convergence": convergence,
    "pruning": pruning,
    "layers": lambda run, request: None if run.q is None else layer_quantiles(run.q),
    "representation": lambda run, request: label_free_scores(run) if isinstance(run, Pretrained) else None,
}
"""The parts besides the scores, and the functions that measure them."""
