"""Where the host's time goes when a posterior predicts: the parts of a draw, each in a loop of its own.

    python benchmarks/host.py vit_ti4 --device cuda            # every weight is random, the network compiled
    python benchmarks/host.py vit_s16 --device cuda --head     # only the output layer is, not compiled

Prints milliseconds of the host (until the last call returns) and of the whole (until the device is done), per draw, or
per call with --head; then the operations of one prediction that take most of the host's time.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import torch
from networks import NETWORKS
from rows.prediction import both, passes, predicted
from rows.setting import Setting
from timing import Step, synchronize, turn
from torch.profiler import ProfilerActivity, profile

import byov
from byov.prediction.resident import Resident

DRAWS = 20


def parts(setting: Setting, network: str, head: bool) -> dict[str, Step]:
    """The plain passes, and what `predict` does beside them."""
    x, _ = setting.inputs(network)
    net, model = both(setting, network, {byov.output_layer: byov.Gaussian()} if head else byov.Gaussian())
    if setting.compile and not head:
        net.compile()
        model.net.compile()
    resident, generator = Resident(model), torch.Generator(setting.device).manual_seed(0)
    noise = model.noise(generator)

    def install() -> None:
        with resident.installed():
            pass

    def written() -> None:
        with resident.installed():
            for _ in range(DRAWS):
                resident.write(noise)

    @torch.no_grad()
    def under() -> None:
        with setting.autocast(), resident.installed():
            for _ in range(DRAWS):
                model.net(x)

    count = 100 if head else DRAWS
    return {
        f"{1 if head else DRAWS} passes of the plain network": passes(setting, net, x, 1 if head else DRAWS),
        f"{DRAWS} passes with resident weights": under,
        f"noise of {count} draws": lambda: model.noises(count, generator),
        "weights installed, nothing run": install,
        f"weights of {DRAWS} draws written": written,
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
        for name, step in steps.items():
            host, whole = timed(step, setting)
            print(f"{host:9.3f} {whole:9.3f} ms  {name}")
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setting.cuda
        with profile(activities=kinds) as seen:
            steps[list(steps)[-1]]()
            synchronize(device)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=words.top, max_name_column_width=60))


def timed(step: Step, setting: Setting) -> tuple[float, float]:
    """Milliseconds of the host and of the whole, medians of ten."""
    readings = []
    for _ in range(10):
        synchronize(setting.device)
        start = perf_counter()
        step()
        host = perf_counter()
        synchronize(setting.device)
        readings.append((1000 * (host - start), 1000 * (perf_counter() - start)))
    middle = [sorted(column)[5] for column in zip(*readings, strict=True)]
    return middle[0], middle[1]


if __name__ == "__main__":
    main()
