"""The rows: what each asks for, from which measurement it is read, and its bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rows import machine, prediction, regressions, training
from rows.setting import Setting
from rows.training import EAGER

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


def ratio(contender: str, key: str = "ratio") -> Callable[[Found], Reading | None]:
    def read(found: Found) -> Reading | None:
        part = found.get(key, {}).get(contender)
        if part is None:
            return None
        how = found.get("how", {})
        kinds = set(how.values())
        if len(kinds) > 1:
            said = "; " + ", ".join(f"{name}: {kind}" for name, kind in how.items())
        else:
            said = f"; {kinds.pop()}" if kinds else ""
        times = times_of(found)
        return Reading(part["median"], part["low"], part["high"], times + said)

    return read


def inverse(contender: str) -> Callable[[Found], Reading | None]:
    """Ours ÷ theirs, of a measurement that has theirs ÷ ours."""

    def read(found: Found) -> Reading | None:
        reading = ratio(contender)(found)
        if reading is None or reading.low is None or reading.high is None:
            return None
        return Reading(1 / reading.value, 1 / reading.high, 1 / reading.low, reading.note)

    return read


def slowest_peer(found: Found) -> Reading | None:
    """The Gaussian ÷ the fastest of the peers: at most 1 where it is never above any."""
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
    """Compiled on both sides where it was, else neither."""
    ratios = found.get("compiled_ratios") or found["ratio"]
    part = ratios["draws"]
    if "draws by predict" in ratios:
        alone = f"; by predict alone {ratios['draws by predict']['median']:.3f}"
    else:
        alone = ""
    times = times_of(found)
    failed = f"; compiled: {found['compiled_error']}" if "compiled_error" in found else ""
    host = ", ".join(f"{name} {ms:.4g} ms" for name, ms in found.get("host_ms", {}).items())
    of_it = f"; the host: {host}" if host else ""
    note = f"{times} (batch {found['batch']}){alone}{of_it}{failed}"
    return Reading(part["median"], part["low"], part["high"], note)


def share(found: Found) -> Reading:
    part = found["views_share"]
    return Reading(part["median"], part["low"], part["high"], ratio("views")(found).note)  # type: ignore[union-attr]


def efficiency(found: Found) -> Reading:
    """FLOP/s of the Gaussian's step ÷ those of a matrix product: the known one, or this machine's where it is more."""
    note = "{step:.0f} TFLOP/s of {product:.0f} here; deterministic {deterministic:.0f}"
    numbers = {name: found[name] / 1e12 for name in ("step", "product", "deterministic")}
    return Reading(found["step"] / max(found["product"], found["known"]), note=note.format(**numbers))


def flops(setting: Setting, network: str = "vit_s16") -> Found:
    """The deterministic network's operations in the time of the Gaussian's step: noise and KL are not model FLOPs."""
    each = machine.model_flops(setting, network)
    found = pair(network, "byov Gaussian")(setting)
    product = machine.product(setting)
    rate = {name: 1000 * each * found["batch"] / ms for name, ms in found["ms"].items()}
    known = machine.H200 if setting.cuda and not setting.tiny else 0.0
    return found | {
        "flops_per_image": each,
        "step": rate["byov Gaussian"],
        "deterministic": rate["deterministic"],
        "product": product["flops"],
        "known": known,
    }


def epoch(setting: Setting) -> Found:
    from rows import pretraining  # it brings Lightning, which takes seconds to import

    return pretraining.epoch(setting)


def pair(network: str, contender: str) -> Measurement:
    return partial(training.step, network=network, contenders=["deterministic", contender])


def peer(network: str) -> Measurement:
    """bayesian-torch compiled into CUDA graphs like ours, which its manual does not do, and as its manual has it."""
    contenders = [GAUSSIAN, TORCH, TORCH + EAGER]
    return partial(training.step, network=network, contenders=contenders)


GAUSSIAN, TORCH = "byov Gaussian", "bayesian-torch"

CUDA_MEASUREMENTS: dict[str, Measurement] = {
    "vit_s16": flops,
    "vit_s16 stream": partial(flops, network="vit_s16 stream"),
    "vit_ti4": pair("vit_ti4", GAUSSIAN),
    "resnet18": pair("resnet18", GAUSSIAN),
    "resnet18 EMP": pair("resnet18", "byov EMP"),
    "resnet18 ECMP": pair("resnet18", "byov ECMP"),
    "pretraining": epoch,
    "vit_ti4 draws": partial(prediction.draws, network="vit_ti4"),
    "vit_s16 draws": partial(prediction.draws, network="vit_s16"),
    "vit_s16 head": partial(prediction.head, network="vit_s16"),
    "vit_s16 peer": peer("vit_s16"),
    "vit_ti4 peer": peer("vit_ti4"),
}

CPU_MEASUREMENTS: dict[str, Measurement] = {
    "step": partial(training.step, network="vit_ti4", contenders=[GAUSSIAN, "deterministic", *training.PEERS]),
    "loader": partial(prediction.loader, network="vit_ti4"),
    "regression": regressions.batched,
}

CUDA_ROWS = [
    Row("gaussian-vit-s16", "Gaussian step ÷ deterministic, ViT-S/16", 1.02, "vit_s16", ratio(GAUSSIAN)),
    Row("gaussian-vit-ti4", "Gaussian step ÷ deterministic, ViT-Ti/4", 1.05, "vit_ti4", ratio(GAUSSIAN)),
    Row("gaussian-resnet18", "Gaussian step ÷ deterministic, ResNet-18", 1.05, "resnet18", ratio(GAUSSIAN)),
    Row("emp-resnet18", "EMP step ÷ deterministic, ResNet-18", 1.03, "resnet18 EMP", ratio("byov EMP")),
    Row("ecmp-resnet18", "ECMP step ÷ deterministic, ResNet-18", 1.03, "resnet18 ECMP", ratio("byov ECMP")),
    Row("memory-vit-s16", "peak memory ÷ deterministic, ViT-S/16", 1.06, "vit_s16", memory),
    Row("flops-vit-s16", "model FLOP/s of the step, ViT-S/16", 0.40, "vit_s16", efficiency, True, True),
    Row("flops-stream", "the same, residual stream in bfloat16", 0.40, "vit_s16 stream", efficiency, True, True),
    Row("epoch", "BYOV epoch ÷ BYOL epoch", 1.03, "pretraining", ratio("BYOV")),
    Row("augmentation", "both views, share of the BYOV step", 0.08, "pretraining", share, percent=True),
    Row("draws-vit-s16", "20 draws ÷ 20 passes, ViT-S/16", 1.03, "vit_s16 draws", draws),
    Row("draws-vit-ti4", "20 draws ÷ 20 passes, ViT-Ti/4", 1.03, "vit_ti4 draws", draws),
    Row("head-vit-s16", "100 draws of the head ÷ one pass, ViT-S/16", 1.2, "vit_s16 head", draws),
    Row("peer-vit-s16", "step, ours ÷ bayesian-torch, compiled too, ViT-S/16", 0.33, "vit_s16 peer", inverse(TORCH)),
    Row("peer-vit-ti4", "step, ours ÷ bayesian-torch, compiled too, ViT-Ti/4", 0.33, "vit_ti4 peer", inverse(TORCH)),
    Row("manual-vit-s16", "the same, as its manual has it, ViT-S/16", 0.33, "vit_s16 peer", inverse(TORCH + EAGER)),
    Row("manual-vit-ti4", "the same, as its manual has it, ViT-Ti/4", 0.33, "vit_ti4 peer", inverse(TORCH + EAGER)),
]

CPU_ROWS = [
    Row("gaussian-vit-ti4", "Gaussian step ÷ deterministic, ViT-Ti/4", 1.15, "step", inverse("deterministic")),
    Row("peers-vit-ti4", "Gaussian step ÷ the fastest peer, ViT-Ti/4", 1.0, "step", slowest_peer),
    Row("draws-vit-ti4", "20 draws ÷ 20 passes, a loader, ViT-Ti/4", 1.05, "loader", draws),
    Row("regression", "regression MLP, looped ÷ batched", 10.0, "regression", ratio("looped"), at_least=True),
]


def table(device: str) -> tuple[list[Row], dict[str, Measurement]]:
    return (CUDA_ROWS, CUDA_MEASUREMENTS) if device.startswith("cuda") else (CPU_ROWS, CPU_MEASUREMENTS)
