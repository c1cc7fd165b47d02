"""Where a training step's time goes: the kernels of the Gaussian's step beside those of the deterministic one.

    python benchmarks/kernels.py resnet18 --device cuda
    python benchmarks/kernels.py vit_s16 --device cuda --contender "byov EMP" --top 40

For each contender the kernels (on CPU: the operations) by their total time in one step, with how many there are; at the
end the time of all kernels and of the whole step: what is between them is the device waiting.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from time import perf_counter

import torch
from networks import NETWORKS
from peers import CONTENDERS
from rows.setting import Setting
from timing import Step, synchronize, turn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=list(NETWORKS))
    parser.add_argument("--contender", choices=list(CONTENDERS), default="byov Gaussian")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--top", type=int, default=25)
    words = parser.parse_args()
    device = torch.device(words.device)
    setting = Setting(device, tiny=words.tiny, compile=device.type == "cuda")
    steps = {name: CONTENDERS[name](setting.task(words.network)) for name in ("deterministic", words.contender)}
    for step in steps.values():
        for _ in range(setting.warmup):
            step()
    with turn():
        for name, step in steps.items():
            show(name, step, setting, words.network, words.top)


def show(name: str, step: Step, setting: Setting, network: str, top: int) -> None:
    """Print the kernels of one contender."""
    synchronize(setting.device)
    start = perf_counter()
    for _ in range(STEPS):
        step()
    synchronize(setting.device)
    whole = 1000 * (perf_counter() - start) / STEPS
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setting.cuda
    with profile(activities=kinds) as seen:
        for _ in range(STEPS):
            step()
        synchronize(setting.device)
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in seen.events():
        if setting.cuda and event.device_type != DeviceType.CUDA:
            continue
        kind = re.sub(r"_\d+$", "", event.name)[:90]  # the same fused kernel at several places has several numbers
        times[kind] += event.self_device_time_total if setting.cuda else event.self_cpu_time_total
        counts[kind] += 1
    print(f"\n{name}, {network}, batch {setting.batch_of(network)}: ms and kernels of one step")
    for kind, time in times.most_common(top):
        print(f"{time / 1000 / STEPS:9.3f} {counts[kind] / STEPS:7.1f}  {kind}")
    total = sum(times.values()) / 1000 / STEPS
    print(f"{total:9.3f} {sum(counts.values()) / STEPS:7.1f}  all; the step takes {whole:.3f} ms")


if __name__ == "__main__":
    main()
