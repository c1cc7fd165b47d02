"""How time and memory grow with parameters, batch and draws, drawn as one figure.

    python benchmarks/growth.py                    # 1 to 30 M parameters, processor time of one CPU thread
    python benchmarks/growth.py --device cuda      # 1 to 300 M, bfloat16
    python benchmarks/growth.py --draw-only        # the figure again, from what was measured

A training step of a ViT (32 px, patch 4, depth 12, of growing width) with a Gaussian over every weight beside the plain
one, in interleaved rounds; prediction for a growing number of draws. Not compiled: what counts here is the shape. Every
point is written to benchmarks/results/growth_DEVICE.json as soon as it is there, and a second call goes on. Ends with
status 1 where the Gaussian has a cliff: a point above 1.5 × what growing in proportion from the point before gives.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from growth_figure import draw
from peers import CONTENDERS, Task
from step import hardware
from timing import Step, interleaved, peak_bytes, synchronize
from timm.models.vision_transformer import VisionTransformer
from torch import Generator, nn

import byov

HERE = Path(__file__).parent
CLIFF = 1.5
CONTENDED = ("deterministic", "byov Gaussian")
WIDTHS = {"cpu": (96, 160, 256, 448), "cuda": (96, 192, 384, 768, 1152, 1440)}
BATCHES = {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256, 512, 1024)}
DRAWS = {"cpu": (1, 4, 16, 64), "cuda": (1, 4, 16, 64, 256)}
FIXED = {"cpu": (96, 8), "cuda": (384, 64)}
"""Width and batch where the other one grows."""


def network(width: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    net = VisionTransformer(
        img_size=32, patch_size=4, num_classes=10, embed_dim=width, depth=12, num_heads=max(width // 32, 1)
    )
    return net.to(device)


def task(width: int, batch: int, device: torch.device) -> Task:
    generator = Generator().manual_seed(1)
    x, y = torch.randn(batch, 3, 32, 32, generator=generator), torch.randint(10, (batch,), generator=generator)
    return Task(partial(network, width, device), x.to(device), y.to(device), bf16=device.type == "cuda", fused=True)


def predictor(width: int, batch: int, draws: int, device: torch.device) -> Step:
    given = task(width, batch, device)
    model = byov.bayesianize(given.net(), byov.Gaussian())

    def predict() -> object:
        with given.autocast():
            return byov.predict(model, given.x, draws)

    return predict


def build(contender: str, width: int, batch: int, draws: int, device: torch.device) -> Step:
    if contender == "draws":
        return predictor(width, batch, draws, device)
    return CONTENDERS[contender](task(width, batch, device))


def peak(contender: str, width: int, batch: int, draws: int, options: argparse.Namespace) -> float:
    """MiB at the peak; on a CPU in a process of its own, where nothing else has been resident before."""
    device = torch.device(options.device)
    if device.type == "cuda":
        return peak_bytes(partial(build, contender, width, batch, draws, device), 2, device) / 2**20
    command = [sys.executable, "-W", "ignore", __file__, "--peak-of", contender, *map(str, (width, batch, draws))]
    done = subprocess.run([*command, "--threads", str(options.threads)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The process that measures the memory of {contender} failed:\n{done.stderr}")
    return int(done.stdout.split()[-1]) / 2**20


def point(sweep: str, x: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds and MiB of every contender at one place of a sweep."""
    device = torch.device(options.device)
    width, batch = (32, 2) if options.tiny else FIXED[device.type]
    draws = 1
    width, batch, draws = {
        "parameters": (x, batch, draws),
        "batch": (width, x, draws),
        "draws": (width, batch, x),
    }[sweep]
    contenders = ("draws",) if sweep == "draws" else CONTENDED
    memory = {name: peak(name, width, batch, draws, options) for name in contenders}
    steps = {name: build(name, width, batch, draws, device) for name in contenders}
    for step in steps.values():
        step()
    synchronize(device)
    burst, clock = (5, time.perf_counter) if device.type == "cuda" else (1, time.process_time)
    seconds = interleaved(steps, options.rounds, device, burst, clock)
    at = sum(p.numel() for p in network(width, torch.device("meta")).parameters()) if sweep == "parameters" else x
    ms = {name: 1000 * median(times) for name, times in seconds.items()}
    return {"at": at, "width": width, "batch": batch, "draws": draws, "ms": ms, "mib": memory}


def cliffs(sweeps: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Where time or memory jumps: below proportion is fine (what is fixed weighs less), far above it is a cliff."""
    found = []
    for sweep, points in sweeps.items():
        ordered = sorted(points.values(), key=lambda p: p["at"])
        for before, after in pairwise(ordered):
            for unit in ("ms", "mib"):
                name = "draws" if sweep == "draws" else "byov Gaussian"
                growth = after[unit][name] / max(before[unit][name], 1e-9) / (after["at"] / before["at"])
                if growth > CLIFF:
                    found.append(f"{sweep} {before['at']} → {after['at']}: {unit} × {growth:.2f} of proportion")
    return found


def measure(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    kind = torch.device(options.device).type
    places = {"parameters": WIDTHS[kind], "batch": BATCHES[kind], "draws": DRAWS[kind]}
    if options.tiny:
        places = {"parameters": (32, 64), "batch": (2, 4), "draws": (1, 2)}
    result: dict[str, Any] = {"sweeps": {sweep: {} for sweep in places}}
    if file.exists() and not options.force:
        result = json.loads(file.read_text())
    fixed = dict(zip(("width", "batch"), FIXED[kind], strict=True))
    how = "bfloat16" if kind == "cuda" else f"processor time, threads: {options.threads}"
    about = {"hardware": hardware(options.device), "torch": torch.__version__, "device": kind, "how": how}
    result["about"] = about | fixed | {"rounds": options.rounds}
    for sweep, xs in places.items():
        for x in xs:
            if str(x) in result["sweeps"][sweep]:
                continue
            found = result["sweeps"][sweep][str(x)] = point(sweep, x, options)
            print(sweep, x, found["ms"], file=sys.stderr, flush=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial_file = file.with_name(f".{file.name}.partial")
            partial_file.write_text(json.dumps(result, indent=2) + "\n")
            partial_file.replace(file)
            if kind == "cuda":
                torch.cuda.empty_cache()
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of every point")
    parser.add_argument("--force", action="store_true", help="measure again what the file holds")
    parser.add_argument("--draw-only", action="store_true", help="draw what was measured")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--figure", type=Path, default=HERE.parent / "docs" / "growth", help="without its ending")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available() and not options.draw_only:
        parser.error("There is no CUDA device here.")
    return options


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.peak_of is not None:
        contender, (width, batch, draws) = options.peak_of[0], map(int, options.peak_of[1:])
        device = torch.device("cpu")
        print(peak_bytes(partial(build, contender, width, batch, draws, device), 2, device))
        return 0
    file = options.json or HERE / "results" / f"growth_{options.device}.json"
    result = json.loads(file.read_text()) if options.draw_only else measure(file, options)
    draw(result, options.figure)
    found = cliffs(result["sweeps"])
    print("\n".join(found) or "No cliff: nothing grows more than in proportion.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
