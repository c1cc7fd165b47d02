"""One training step, forward, backward and optimizer: time, and peak memory on a GPU, of two or more contenders."""

from __future__ import annotations

from typing import Any

import torch
from peers import CONTENDERS, Step
from timing import interleaved, synchronize

from rows.setting import Setting, compared

PEERS = [name for name in CONTENDERS if name != "deterministic" and not name.startswith("byov")]


def step(setting: Setting, network: str, contenders: list[str]) -> dict[str, Any]:
    """Times against the first contender. A library that is missing, or fails, is named with its reason."""
    steps: dict[str, Step] = {}
    peaks: dict[str, int] = {}
    absent: dict[str, str] = {}
    how: dict[str, str] = {}
    for name in contenders:
        try:
            steps[name], peaks[name], how[name] = started(setting, network, name)
        except ModuleNotFoundError as error:
            absent[name] = f"not installed ({error.name})"
        except Exception as error:  # whatever another library raises is its result
            if name not in PEERS:
                raise
            first = (str(error).splitlines() or [""])[0]
            absent[name] = f"fails: {type(error).__name__}: {first[:100]}"
    seconds = interleaved(steps, setting.rounds, setting.device, setting.burst)
    found = compared(seconds, contenders[0]) | {"batch": setting.batch_of(network), "how": how, "absent": absent}
    return found | ({"peak_mib": {name: peak / 2**20 for name, peak in peaks.items()}} if setting.cuda else {})


def started(setting: Setting, network: str, contender: str) -> tuple[Step, int, str]:
    """A contender after its warm-up, the bytes it had at its peak, and how it runs.

    The peak is taken from the second step on: the first one compiles, which takes memory for itself. The second is
    where CUDA graphs are recorded; their replays ask the allocator for nothing, and would look like no memory at all.
    """
    before = torch.cuda.memory_allocated() if setting.cuda else 0
    skipped = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    step = CONTENDERS[contender](setting.task(network))
    peak = 0
    for number in range(max(setting.warmup, 2)):
        value = step()
        if not torch.isfinite(torch.as_tensor(value)).all():
            raise ValueError("the loss is not finite")
        synchronize(setting.device)
        if setting.cuda and number == 0:
            torch.cuda.reset_peak_memory_stats()
    if setting.cuda:
        peak = torch.cuda.max_memory_allocated() - before
    if not setting.compile:
        return step, peak, "not compiled"
    whole = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == skipped
    return step, peak, "CUDA graphs" if setting.cuda and whole else "compiled"
