"""Where the host's time goes when a posterior predicts: passes, and what a draw adds to them, part by part.

    python benchmarks/host.py vit_ti4 --device cuda            # every weight is random, the network compiled
    python benchmarks/host.py vit_s16 --device cuda --head     # only the output layer is, not compiled

Prints milliseconds until the result is asked for (up to there the host only gives work to the device), until the call
returns, and until the device is done; then the operations of one prediction that take most of the host's time.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import torch
from networks import NETWORKS
from rows.prediction import both, passes, predicted
from rows.setting import Setting
from timing import Step, synchronize, turn
from torch.profiler import ProfilerActivity, profile

import byov
from byov.prediction.outputs import OutputSpec
from byov.prediction.resident import Resident
from byov.prediction.result import BatchState

DRAWS, ROUNDS = 20, 10


def parts(setting: Setting, network: str, head: bool) -> dict[str, Step]:
    """The plain passes, and then what `predict` adds to them, one thing after the other."""
    x, _ = setting.inputs(network)
    net, model = both(setting, network, {byov.output_layer: byov.Gaussian()} if head else byov.Gaussian())
    if setting.compile and not head:
        net.compile()
        model.net.compile()
    resident, generator = Resident(model), torch.Generator(setting.device).manual_seed(0)
    count, passed = (100, 1) if head else (DRAWS, DRAWS)
    fixed = model.noise(generator)

    def under(write: bool, draw: bool, take: bool) -> Step:
        @torch.no_grad()
        def work() -> None:
            running = BatchState(len(x), OutputSpec("classification", None, net), None, keep=False)
            with setting.autocast(), resident.installed():
                for _ in range(passed):
                    noise = model.noise(generator) if draw else fixed
                    if write:
                        resident.write(noise)
                    out = model.net(x)
                    if take:
                        running.take(out[None])

        return work

    return {
        "passes": passes(setting, net, x, passed),
        "passes with resident weights": under(False, False, False),
        "+ weights written": under(True, False, False),
        "+ noise": under(True, True, False),
        "+ moments, one draw at a time": under(True, True, True),
        f"noise of {count} draws alone": lambda: model.noises(count, generator),
        f"{count} draws by Serving": predicted(setting, byov.Serving(model, count), x),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=list(NETWORKS))
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--top", type=int, default=25)
    words = parser.parse_args()
    device = torch.device(words.device)
    setting = Setting(device, tiny=words.tiny, compile=device.type == "cuda")
    steps = parts(setting, words.network, words.head)
    for step in steps.values():
        for _ in range(3):
            step()
    with turn():
        for name, (host, waits, whole) in timed(steps, setting).items():
            print(f"{host:9.3f} {waits:9.3f} {whole:9.3f} ms  {name}")
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setting.cuda
        with profile(activities=kinds) as seen:
            steps[list(steps)[-1]]()
            synchronize(device)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=words.top, max_name_column_width=60))


def timed(steps: dict[str, Step], setting: Setting) -> dict[str, list[float]]:
    """Milliseconds until the result is asked for, until the call returns, and until all is done: medians of rounds."""
    readings: dict[str, list[tuple[float, ...]]] = {name: [] for name in steps}
    asked: list[float] = []
    result = BatchState.result
    BatchState.result = lambda *args, **words: asked.append(perf_counter()) or result(*args, **words)  # type: ignore
    for _ in range(ROUNDS):
        for name, step in steps.items():
            synchronize(setting.device)
            asked.clear()
            start = perf_counter()
            step()
            returned = perf_counter()
            synchronize(setting.device)
            times = (asked or [returned])[0], returned, perf_counter()
            readings[name].append(tuple(1000 * (time - start) for time in times))
    return {name: [median(column) for column in zip(*found, strict=True)] for name, found in readings.items()}


if __name__ == "__main__":
    main()
