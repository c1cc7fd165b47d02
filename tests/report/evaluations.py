"""Evaluations made up for the tests, with scores that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byov.evaluation.rows import Row
from byov.report.sources import ReportedRun


def evaluated(
    name: str, posterior: bool, clean: float, shifted: float, top1: float = 0.9, **changed: Any
) -> ReportedRun:
    """A model known by a file of results only: its ECE on clean images, and under each of two shifts."""

    def scores(ece: float) -> dict[str, float | None]:
        return {"top1": top1, "ece": ece, "nll": 0.5, "brier": 0.2, "reliability": 0.01, "auroc_entropy": 0.8}

    def row(shift: str, severity: int, ece: float) -> Row:
        return Row(shift, severity, scores(ece), scores(ece) if posterior else None)

    protocol = {
        "seed": 0,
        "samples": 30 if posterior else None,
        "bins": 15,
        "shifts": ["blur", "noise"],
        "severities": [3],
        "data": {"name": "digits", "split": "test", "digest": "abc", "images": 1000, **changed.pop("data", {})},
        "model": {"name": name, "kind": "pretrain", "digest": name, "posterior": posterior},
        **changed,
    }
    rows = [row("clean", 0, clean), row("blur", 3, shifted - 0.01), row("noise", 3, shifted + 0.01)]
    return ReportedRun(name, evaluation={"protocol": protocol, "rows": rows})


def seeds(method: str, posterior: bool, clean: Sequence[float], shifted: Sequence[float]) -> list[ReportedRun]:
    """Runs of one method, named as the files of `results/` are."""
    pairs = enumerate(zip(clean, shifted, strict=True))
    return [evaluated(f"runs/{method}_{i}", posterior, *each) for i, each in pairs]


def with_images(run: ReportedRun, clean: Sequence[tuple[float, int]]) -> ReportedRun:
    """The same with what was predicted for each image, (confidence, hit), the same under every shift."""
    confidence, correct = ([pair[i] for pair in clean] for i in (0, 1))
    part = {"confidence": confidence, "correct": correct}
    readings = ("at_mean", "under_draws") if run.posterior else ("at_mean",)
    keys = ("clean/0", "blur/3", "noise/3")
    run.parts |= {"images": {key: dict.fromkeys(readings, part) for key in keys}, "paired": True}
    return run
