"""The rows: what each asks for, from which measurement it is read, and its bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rows import prediction, regressions, training
from rows.setting import Setting

Found = dict[str, Any]
Measurement = Callable[[Setting], Found]


@dataclass(frozen=True)
class Reading:
    """A row's number, its quartiles where it has any, and what to say beside it."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table. Rows of one measurement share it: it is made once, and kept."""

    name: str
    title: str
    bar: float
    measurement: str
    read: Callable[[Found], Reading | None]
    """None: what it is compared with is not here."""
    at_least: bool = False
    percent: bool = False

    def passed(self, value: float) -> bool:
        return value >= self.bar if self.at_least else value <= self.bar


def times_of(found: Found) -> str:
    return ", ".join(
        f"{name} {ms:,.0f} ms" if ms >= 1000 else f"{name} {ms:.4g} ms" for name, ms in found["ms"].items()
    )


def ratio(contender: str) -> Callable[[Found], Reading | None]:
    def read(found: Found) -> Reading | None:
        part = found["ratio"].get(contender)
        if part is None:
            return None
        how = found.get("how", {})
        kinds = set(how.values())
        said = ", ".join(f"{name}: {kind}" for name, kind in how.items()) if len(kinds) > 1 else "".join(kinds)
        note = "; ".join(filter(None, (times_of(found), said)))
        return Reading(part["median"], part["low"], part["high"], note)

    return read


def inverse(contender: str) -> Callable[[Found], Reading | None]:
    """Ours ÷ theirs, of a measurement that has theirs ÷ ours."""

    def read(found: Found) -> Reading | None:
        reading = ratio(contender)(found)
        if reading is None or reading.low is None or reading.high is None:
            return None
        return Reading(1 / reading.value, 1 / reading.high, 1 / reading.low, reading.note)

    return read


def fastest_peer(found: Found) -> Reading | None:
    """The Gaussian ÷ the fastest of the peers that are installed."""
    peers = {name: found["ratio"][name]["median"] for name in training.PEERS if name in found["ratio"]}
    if not peers:
        return None
    best = min(peers, key=lambda name: peers[name])
    note = ", ".join(f"{name} {value:.3f}" for name, value in sorted(peers.items(), key=lambda item: item[1]))
    missing = "; ".join(f"{name} {why}" for name, why in found["absent"].items())
    reading = inverse(best)(found)
    assert reading is not None
    return Reading(reading.value, reading.low, reading.high, f"÷ Gaussian: {note}{'; ' if missing else ''}{missing}")


def memory(found: Found) -> Reading | None:
    peak = found.get("peak_mib")
    if peak is None:
        return None
    note = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in peak.items())
    return Reading(peak["byov Gaussian"] / peak["deterministic"], note=note)


def draws(found: Found) -> Reading:
    """By a serving; beside it by `predict`, and both sides as CUDA graphs where they were measured."""
    part = found["ratio"]["draws"]
    note = f"{times_of(found)} (batch {found['batch']}); by predict {found['ratio']['draws by predict']['median']:.3f}"
    if "graphs_ratio" in found:
        note += f"; both as CUDA graphs {found['graphs_ratio']['median']:.3f}"
    return Reading(part["median"], part["low"], part["high"], note)


def share(found: Found) -> Reading:
    part = found["views_share"]
    return Reading(part["median"], part["low"], part["high"], ratio("views")(found).note)  # type: ignore[union-attr]


def epoch(setting: Setting) -> Found:
    from rows import pretraining  # it brings Lightning, which takes seconds to import

    return pretraining.epoch(setting)


def pair(network: str, contender: str) -> Measurement:
    return partial(training.step, network=network, contenders=["deterministic", contender])


GAUSSIAN = "byov Gaussian"

CUDA_MEASUREMENTS: dict[str, Measurement] = {
    "vit_s16": pair("vit_s16", GAUSSIAN),
    "vit_ti4": pair("vit_ti4", GAUSSIAN),
    "resnet18": pair("resnet18", GAUSSIAN),
    "resnet18 EMP": pair("resnet18", "byov EMP"),
    "resnet18 ECMP": pair("resnet18", "byov ECMP"),
    "pretraining": epoch,
    "vit_s16 draws": partial(prediction.draws, network="vit_s16"),
    "vit_ti4 draws": partial(prediction.draws, network="vit_ti4"),
    "vit_s16 head": partial(prediction.head, network="vit_s16"),
}

CPU_MEASUREMENTS: dict[str, Measurement] = {
    "step": partial(training.step, network="vit_ti4", contenders=[GAUSSIAN, "deterministic", *training.PEERS]),
    "draws": partial(prediction.draws, network="vit_ti4"),
    "head": partial(prediction.head, network="resnet18_224"),
    "regression": regressions.batched,
}

CUDA_ROWS = [
    Row("gaussian-vit-s16", "Gaussian step ÷ deterministic, ViT-S/16", 1.03, "vit_s16", ratio(GAUSSIAN)),
    Row("gaussian-vit-ti4", "Gaussian step ÷ deterministic, ViT-Ti/4", 1.05, "vit_ti4", ratio(GAUSSIAN)),
    Row("gaussian-resnet18", "Gaussian step ÷ deterministic, ResNet-18", 1.06, "resnet18", ratio(GAUSSIAN)),
    Row("emp-resnet18", "EMP step ÷ deterministic, ResNet-18", 1.03, "resnet18 EMP", ratio("byov EMP")),
    Row("ecmp-resnet18", "ECMP step ÷ deterministic, ResNet-18", 1.03, "resnet18 ECMP", ratio("byov ECMP")),
    Row("memory-vit-s16", "peak memory ÷ deterministic, ViT-S/16", 1.06, "vit_s16", memory),
    Row("epoch", "BYOV epoch ÷ BYOL epoch", 1.03, "pretraining", ratio("BYOV")),
    Row("augmentation", "both views, share of the BYOV step", 0.08, "pretraining", share, percent=True),
    Row("draws-vit-s16", "20 draws ÷ 20 passes, ViT-S/16", 1.05, "vit_s16 draws", draws),
    Row("draws-vit-ti4", "20 draws ÷ 20 passes, ViT-Ti/4", 1.10, "vit_ti4 draws", draws),
    Row("head-vit-s16", "100 draws of the head ÷ one pass, ViT-S/16", 1.25, "vit_s16 head", draws),
]

CPU_ROWS = [
    Row("gaussian-vit-ti4", "Gaussian step ÷ deterministic, ViT-Ti/4", 1.15, "step", inverse("deterministic")),
    Row("peers-vit-ti4", "Gaussian step ÷ the fastest peer, ViT-Ti/4", 1.0, "step", fastest_peer),
    Row("draws-vit-ti4", "20 draws ÷ 20 passes, ViT-Ti/4", 1.10, "draws", draws),
    Row("head-resnet18", "100 draws of the head ÷ one pass, ResNet-18, 224 px", 1.5, "head", draws),
    Row("regression", "regression MLP, looped ÷ batched", 10.0, "regression", ratio("looped"), at_least=True),
]


def table(device: str) -> tuple[list[Row], dict[str, Measurement]]:
    return (CUDA_ROWS, CUDA_MEASUREMENTS) if device.startswith("cuda") else (CPU_ROWS, CPU_MEASUREMENTS)
