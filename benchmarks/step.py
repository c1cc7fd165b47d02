"""Time and peak memory of one training step: deterministic, every family of byov, and the other libraries installed.

    python benchmarks/step.py                      # ViT-Ti/4 at 32 px, batch 64, two CPU threads
    python benchmarks/step.py --device cuda --model vit_s16 --batch 256 --dtype bf16 --compile

Every contender trains the same network on the same batch in one process, in interleaved rounds; ratios are to the
deterministic step of the same round. Ends with status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import torch
from networks import NETWORKS
from peers import CONTENDERS, Step, Task
from rich.console import Console
from rich.table import Table
from timing import Ratio, interleaved, peak_bytes
from torch import nn

GAUSSIAN_BAR = 1.15


def make_task(options: argparse.Namespace) -> Task:
    device, network = torch.device(options.device), NETWORKS[options.model]

    def net() -> nn.Module:
        torch.manual_seed(0)
        return network.build().to(device)

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(options.batch, 3, network.pixels, network.pixels, generator=generator).to(device)
    y = torch.randint(network.classes, (options.batch,), generator=generator).to(device)
    return Task(net, x, y, bf16=options.dtype == "bf16", compile=options.compile)


def attempt(name: str, options: argparse.Namespace) -> tuple[Step | None, str]:
    """The contender after its warm-up, or why there is none: not installed, or what it fails with."""
    try:
        step = CONTENDERS[name](make_task(options))
        for _ in range(options.warmup):
            step()
        if not torch.isfinite(torch.as_tensor(step())).all():
            return None, "fails: the loss is not finite"
    except ModuleNotFoundError as error:
        return None, f"not installed ({error.name})"
    except Exception as error:  # whatever another library raises is its result here
        if name == "deterministic" or name.startswith("byov"):
            raise
        return None, f"fails: {type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    return step, "ok"


def peak_of(name: str, options: argparse.Namespace) -> int:
    """Peak memory in a process of the contender's own; on CUDA the allocator counts what a process holds."""
    command = [sys.executable, "-W", "ignore", __file__, "--peak-of", name]
    for option in ("model", "batch", "device", "dtype", "threads"):
        command += [f"--{option}", str(getattr(options, option))]
    command += ["--compile"] if options.compile else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The process that measures the memory of {name} failed:\n{done.stderr}")
    return int(done.stdout.split()[-1])


def bars(seconds: dict[str, list[float]], options: argparse.Namespace) -> list[dict]:
    """What the Gaussian must reach, with what it reached; a bar that does not apply to this run is left out."""
    found: list[dict] = []
    gaussian = seconds.get("byov Gaussian")
    here = (options.model, options.batch, options.device, options.threads, options.dtype, options.compile)

    def bar(text: str, against: str, limit: float) -> None:
        if gaussian is not None and against in seconds:
            ratio = Ratio.of(gaussian, seconds[against]).median
            found.append({"bar": text, "ratio": ratio, "limit": limit, "passed": ratio <= limit})

    if here == ("vit_ti4", 64, "cpu", 2, "fp32", False):
        bar(f"Gaussian ≤ {GAUSSIAN_BAR} × deterministic", "deterministic", GAUSSIAN_BAR)
    bar("Gaussian never slower than bayesian-torch", "bayesian-torch", 1.0)
    return found


def hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return models[0].split(":")[1].strip() if models else platform.processor() or platform.machine()


def installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def measure(options: argparse.Namespace) -> dict:
    steps: dict[str, Step] = {}
    rows: dict[str, dict] = {}
    for name in options.only or CONTENDERS:
        step, status = attempt(name, options)
        print(f"{name}: {status}", file=sys.stderr, flush=True)
        rows[name] = {"contender": installed(name), "status": status}
        if step is not None:
            steps[name] = step
    seconds = interleaved(steps, options.repetitions, torch.device(options.device))
    steps.clear()
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
    base_peak = None
    for name, times in seconds.items():
        rows[name] |= {"ms": 1000 * median(times), "ratio": asdict(Ratio.of(times, seconds["deterministic"]))}
        if not options.no_memory:
            peak = peak_of(name, options)
            base_peak = base_peak or peak
            rows[name] |= {"peak_mib": peak / 2**20, "peak_ratio": peak / base_peak}
    settings = {k: v for k, v in vars(options).items() if k not in ("json", "force", "peak_of", "only")}
    about = {"hardware": hardware(options.device), "torch": torch.__version__, "python": platform.python_version()}
    return {"settings": settings, **about, "rows": list(rows.values()), "bars": bars(seconds, options)}


def show(result: dict) -> None:
    console, settings = Console(width=130), result["settings"]
    title = "{model}, batch {batch}, {dtype}, {device}, {threads} threads, compile {compile}".format(**settings)
    table = Table(title=f"{title}: {settings['repetitions']} interleaved rounds on {result['hardware']}")
    for heading in ("contender", "ms", "× deterministic", "quartiles", "peak MiB", "× deterministic"):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=True)
    for row in result["rows"]:
        if row["status"] != "ok":
            continue
        ratio = row["ratio"]
        memory = [f"{row['peak_mib']:.0f}", f"{row['peak_ratio']:.2f}"] if "peak_mib" in row else ["", ""]
        quartiles = f"{ratio['low']:.2f} – {ratio['high']:.2f}"
        table.add_row(row["contender"], f"{row['ms']:.1f}", f"{ratio['median']:.2f}", quartiles, *memory)
    console.print(table)
    for row in result["rows"]:
        if row["status"] != "ok":
            console.print(f"{row['contender']}: {row['status']}", highlight=False, markup=False)
    for bar in result["bars"]:
        verdict = "[green]pass[/]" if bar["passed"] else "[red]FAIL[/]"
        console.print(f"{verdict}  {bar['bar']}: {bar['ratio']:.3f} (limit {bar['limit']})", highlight=False)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NETWORKS, default="vit_ti4")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16 is autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile every contender's loss")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--repetitions", type=int, default=30, help="interleaved rounds")
    parser.add_argument("--warmup", type=int, default=3, help="steps of each contender before the first round")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="these contenders; deterministic is always in")
    parser.add_argument("--no-memory", action="store_true", help="leave the peak memory out")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--force", action="store_true", help="let --json overwrite a file")
    parser.add_argument("--peak-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json is not None and options.json.exists() and not options.force:
        parser.error(f"{options.json} exists already: choose another name, or add --force.")
    if min(options.batch, options.repetitions, options.threads) < 1 or options.warmup < 0:
        parser.error("--batch, --repetitions and --threads are at least 1, --warmup at least 0.")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("There is no CUDA device here.")
    if options.only and "deterministic" not in options.only:
        options.only.insert(0, "deterministic")
    return options


def main() -> int:
    options = parse()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    if options.peak_of is not None:
        build: Callable[[], Step] = lambda: CONTENDERS[options.peak_of](make_task(options))  # noqa: E731
        print(peak_bytes(build, 3, torch.device(options.device)))
        return 0
    result = measure(options)
    show(result)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(bar["passed"] for bar in result["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
