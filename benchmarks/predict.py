"""Time and peak memory of Monte-Carlo prediction, and what its two economies save.

    python benchmarks/predict.py                   # 1 … 128 draws on CPU, under 15 minutes on two quiet cores
    python benchmarks/predict.py --quick           # 1 … 8 draws, a few minutes
    python benchmarks/predict.py --device cuda --json FILE

Five parts. `draws`: a Gaussian over every weight on one batch of 32, with each strategy, beside as many passes of the
plain network. `batch`: eight draws on one batch of 8 … 128, which shows from which batch on the bar holds. `loader`:
four draws on loaders of 8 × 32 and 4 × 64 inputs, whose batches share each draw. `head`: a posterior on the output
layer of ResNet-18 at 224 px, 100 draws beside one pass. `tolerance`: draws used at a tolerance, and the fixed number of
draws that has the same error. Rounds are interleaved, ratios are medians of paired rounds. `--json` is written after
every row. Ends with status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from timing import Ratio, Step, _resident, interleaved, synchronize
from torch import Generator, Tensor, nn

import byov
from byov.models import cifar_resnet18, resnet, vit

DRAWS_BAR = 1.15
HEAD_BAR = 1.5
BATCH = 32
BATCHES = (8, 16, 32, 64, 128)
BATCH_DRAWS = 8
LOADERS = ((8, 32), (4, 64))
"""Batches and their size."""
LOADER_DRAWS = 4
PASSES = 8
"""Deterministic passes of a round, at most; more are taken to cost as much each."""
LONG = 32
"""Draws above which a row takes most of a minute: one round is enough then."""
PARTS = ["draws", "batch", "loader", "head", "tolerance"]
STRATEGIES = ("loop", "vmap", "auto")
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": cifar_resnet18,
    "vit_ti4": lambda: vit("ti"),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10)),
}
BARRED = ("resnet18", "vit_ti4")
"""Where the bar holds. A weight's noise costs as much as using the weight about a hundred times, and an MLP uses it
only once per input: at this batch its draws cost more than its passes on any machine."""


def contenders(
    name: str, device: torch.device, batches: int = 1, batch: int = BATCH
) -> dict[str, Callable[[int], Step]]:
    """By name, a function from the number of draws to the work: on one batch, or on a loader of several."""
    torch.manual_seed(0)
    net = NETWORKS[name]().eval().to(device)
    model = byov.bayesianize(net, byov.Gaussian())
    x = torch.randn(batches * batch, 3, 32, 32, generator=Generator().manual_seed(1)).to(device)
    loader = list(x.split(batch))

    def passes(samples: int) -> Step:
        @torch.no_grad()
        def work() -> None:
            for _ in range(min(samples, PASSES)):
                for part in loader:
                    net(part)

        return work

    def predictions(strategy: str) -> Callable[[int], Step]:
        return lambda samples: lambda: byov.predict(model, x if batches == 1 else loader, samples, strategy)

    return {"deterministic": passes, **{strategy: predictions(strategy) for strategy in STRATEGIES}}


def peaks_of(contender: str, name: str, samples: list[int], device: torch.device) -> None:
    """Print after each number of draws what this process, a child of its own, held at its peak beyond its start."""
    before = 0 if device.type == "cuda" else _resident("VmRSS")
    work = contenders(name, device)[contender]
    for count in samples:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        work(count)()
        synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")
        print(peak - before)


def peaks(contender: str, name: str, options: argparse.Namespace) -> dict[int, float]:
    """MiB by the number of draws: the smallest, and the largest that is soon done. It does not grow with them."""
    counts = sorted({min(options.samples), max([s for s in options.samples if s <= PASSES], default=PASSES)})
    command = [sys.executable, "-W", "ignore", __file__, "--peaks-of", contender, name, "--samples"]
    command += [*map(str, counts), "--device", options.device, "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The process that measures the memory of {contender} failed:\n{done.stderr}")
    return dict(zip(counts, (int(line) / 2**20 for line in done.stdout.split()), strict=True))


def timed(steps: dict[str, Step], count: int, rounds: int, device: torch.device) -> Iterator[dict]:
    """The rows of one number of draws. A pass is a pass: of the deterministic ones only the first few are run."""
    seconds = interleaved(steps, rounds, device)
    seconds["deterministic"] = [time * count / min(count, PASSES) for time in seconds["deterministic"]]
    for contender, times in seconds.items():
        ratio = asdict(Ratio.of(times, seconds["deterministic"]))
        yield {"contender": contender, "samples": count, "ms": 1000 * median(times), "ratio": ratio, "rounds": rounds}


def rounds(count: int, options: argparse.Namespace) -> int:
    """How often a row is measured: as many draws for each, but three times at least, and once where it takes long."""
    return 1 if count > LONG else max(options.repetitions // count, 2 if options.quick else 3)


def draws(options: argparse.Namespace) -> Iterator[dict]:
    """One batch, every strategy."""
    device = torch.device(options.device)
    for name in options.networks:
        work = contenders(name, device)
        memory = {} if options.no_memory else {contender: peaks(contender, name, options) for contender in work}
        for step in work.values():
            step(2)()  # warm up
        for count in options.samples:
            steps = {contender: make(count) for contender, make in work.items()}
            for row in timed(steps, count, rounds(count, options), device):
                peak = memory.get(row["contender"], {}).get(count)
                yield {"network": name, "batches": 1, "batch": BATCH, **row, "peak_mib": peak}


def single(options: argparse.Namespace) -> Iterator[dict]:
    """One batch of several sizes: a draw costs the same for each, a pass does not."""
    device = torch.device(options.device)
    for name in (network for network in options.networks if network in BARRED):
        for size in BATCHES:
            work = contenders(name, device, 1, size)
            steps = {contender: work[contender](BATCH_DRAWS) for contender in ("deterministic", "auto")}
            work["auto"](2)()  # warm up
            for row in timed(steps, BATCH_DRAWS, 2 if options.quick else 3, device):
                yield {"network": name, "batches": 1, "batch": size, **row, "peak_mib": None}


def loader(options: argparse.Namespace) -> Iterator[dict]:
    """Several batches, which share each draw. Four draws: what is shared does not depend on how many follow."""
    device = torch.device(options.device)
    for name in options.networks:
        for batches, batch in LOADERS:
            work = contenders(name, device, batches, batch)
            steps = {contender: work[contender](LOADER_DRAWS) for contender in ("deterministic", "auto")}
            work["auto"](1)()  # warm up
            for row in timed(steps, LOADER_DRAWS, max(options.repetitions // LOADER_DRAWS, 3), device):
                yield {"network": name, "batches": batches, "batch": batch, **row, "peak_mib": None}


def shares(options: argparse.Namespace) -> list[dict]:
    """What one draw of every weight is made of, in milliseconds, beside one pass of the network."""
    device, rows = torch.device(options.device), []
    for name in options.networks:
        model = byov.bayesianize(NETWORKS[name](), byov.Gaussian()).to(device).eval()
        x = torch.randn(BATCH, 3, 32, 32, device=device)
        noise = model.noise()
        steps: dict[str, Step] = {
            "noise": torch.no_grad()(model.noise),
            "weights": torch.no_grad()(lambda model=model, noise=noise: model.tensors(noise)),
            "pass": torch.no_grad()(lambda model=model, x=x: model(x)),
        }
        for step in steps.values():
            step()
        seconds = interleaved(steps, max(options.repetitions // 2, 3), device)
        rows.append({"network": name} | {part: 1000 * median(times) for part, times in seconds.items()})
    return rows


def head(options: argparse.Namespace) -> dict:
    device = torch.device(options.device)
    net = resnet(18).eval().to(device)
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()})
    x = torch.randn(BATCH, 3, 224, 224).to(device)
    steps: dict[str, Step] = {
        "one pass": torch.no_grad()(lambda: net(x)),
        "100 draws": lambda: byov.predict(model, x, 100),
    }
    for step in steps.values():
        step()
    seconds = interleaved(steps, max(options.repetitions // 2, 3), device)
    ratio = Ratio.of(seconds["100 draws"], seconds["one pass"])
    return {name: 1000 * median(times) for name, times in seconds.items()} | {"ratio": asdict(ratio)}


def digits_model(family: object, device: torch.device) -> tuple[byov.BayesianModule, Tensor]:
    """A digits classifier trained for a few seconds, and 397 images it has not seen."""
    bunch = load_digits()
    x, y = torch.tensor(bunch.data / 16.0, dtype=torch.float32), torch.tensor(bunch.target)
    torch.manual_seed(0)
    model = byov.bayesianize(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), family).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(600):
        pick = torch.randint(1400, (128,))
        loss = nn.functional.cross_entropy(model(x[pick].to(device)), y[pick].to(device)) + model.kl() / 1400
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, x[1400:].to(device)


def tolerance(options: argparse.Namespace) -> list[dict]:
    """The error, against 20,000 draws, is the root mean square over images and seeds of the largest error of any class.

    The fixed number of draws with the same error is read off the line log error = a + b·log draws. Both take the draws
    of the same seeds, because an error is shared by all images of a draw and would otherwise decide the comparison.
    """
    device, rows = torch.device(options.device), []
    seeds, counts = (3 if options.quick else 10), [8, 16, 32, 64, 128, 256, 512, 1024]
    for family in (byov.Gaussian(-6.0), byov.Dropout(0.1)):
        model, x = digits_model(family, device)
        reference = byov.predict(model, x, 20_000, generator=Generator().manual_seed(1000)).mean

        def error(mean: Tensor, reference: Tensor = reference) -> float:
            return float((mean - reference).abs().amax(1).square().mean())

        fixed = torch.zeros(len(counts), dtype=torch.float64)
        for seed in range(seeds):
            kept = byov.predict(model, x, counts[-1], generator=Generator().manual_seed(seed), keep=True).draws
            fixed += torch.tensor([error(kept[:count].mean(0)) for count in counts], dtype=torch.float64) / seeds
        log_counts = torch.tensor(counts, dtype=torch.float64).log()
        slope, offset = torch.linalg.lstsq(
            torch.stack([log_counts, torch.ones_like(log_counts)], 1), 0.5 * fixed.log()[:, None]
        ).solution[:, 0]
        for limit in (0.02, 0.01, 0.005):
            used, squared = 0.0, 0.0
            for seed in range(seeds):
                found = byov.predict(model, x, 2000, tolerance=limit, generator=Generator().manual_seed(seed))
                used += float(torch.as_tensor(found.samples).double().mean()) / seeds
                squared += error(found.mean) / seeds
            equal = float(((0.5 * torch.tensor(squared).log() - offset) / slope).exp())
            rows.append(
                {
                    "family": type(family).__name__,
                    "tolerance": limit,
                    "draws": used,
                    "error": squared**0.5,
                    "fixed_draws_of_that_error": equal,
                    "saves": equal / used,
                }
            )
    return rows


def inputs_of(row: dict) -> str:
    return f"one batch of {row['batch']}" if row["batches"] == 1 else f"a loader of {row['batches']} × {row['batch']}"


def bars(result: dict, options: argparse.Namespace) -> list[dict]:
    found = []
    if not options.device.startswith("cuda"):
        # The median over the whole sweep: a row is a few rounds, and any single one may be lucky.
        for network in BARRED:
            sweep = [r for r in result.get("draws", []) if r["network"] == network and r["contender"] == "auto"]
            if sweep:
                draws = f"{sweep[0]['samples']} to {sweep[-1]['samples']} draws"
                text = f"{network}, {inputs_of(sweep[0])}: {draws} of every weight ≤ {DRAWS_BAR} × passes"
                ratio = median(row["ratio"]["median"] for row in sweep)
                found.append({"bar": text, "ratio": ratio, "limit": DRAWS_BAR})
        for row in result.get("loader", []):
            if row["contender"] == "auto" and row["network"] in BARRED:
                text = (
                    f"{row['network']}, {inputs_of(row)}: {row['samples']} draws of every weight ≤ {DRAWS_BAR} × passes"
                )
                found.append({"bar": text, "ratio": row["ratio"]["median"], "limit": DRAWS_BAR})
    if "head" in result:
        text = f"ResNet-18 at 224 px: 100 draws of the output layer ≤ {HEAD_BAR} × one pass"
        found.append({"bar": text, "ratio": result["head"]["ratio"]["median"], "limit": HEAD_BAR})
    return [{**bar, "passed": bar["ratio"] <= bar["limit"]} for bar in found]


def save(result: dict, options: argparse.Namespace) -> None:
    """Write what there is so far: an interruption loses one row."""
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        partial = options.json.with_name(f".{options.json.name}.partial")
        partial.write_text(json.dumps(result, indent=2) + "\n")
        partial.replace(options.json)


def show(result: dict) -> None:
    console = Console(width=130, highlight=False)
    settings = result["settings"]
    table = Table(title=f"Gaussian over every weight, {settings['device']}, {settings['threads']} threads")
    for heading in ("network", "inputs", "draws", "strategy", "ms", "× passes", "quartiles", "peak MiB"):
        table.add_column(
            heading, justify="left" if heading in ("network", "inputs", "strategy") else "right", no_wrap=True
        )
    for row in result.get("draws", []) + result.get("batch", []) + result.get("loader", []):
        ratio = row["ratio"]
        peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        quartiles = f"{ratio['low']:.2f} – {ratio['high']:.2f}"
        cells = (row["network"], inputs_of(row), str(row["samples"]), row["contender"])
        table.add_row(
            *cells,
            f"{row['ms']:.1f}",
            f"{ratio['median']:.2f}",
            quartiles,
            peak,
            end_section=row["contender"] == "auto",
        )
    console.print(table)
    for row in result.get("shares", []):
        console.print(
            "{network}: noise {noise:.1f} ms, weights from it {weights:.1f} ms, a pass {pass:.1f} ms".format(**row)
        )
    if "head" in result:
        console.print(
            "ResNet-18, 224 px: one pass {one pass:.0f} ms, 100 draws of the head {100 draws:.0f} ms".format(
                **result["head"]
            )
        )
    for row in result.get("tolerance", []):
        text = "{family}, tolerance {tolerance}: {draws:.0f} draws on average, error {error:.4f}; "
        text += "{fixed_draws_of_that_error:.0f} fixed draws have it: saves {saves:.2f}×"
        console.print(text.format(**row))
    for bar in result["bars"]:
        verdict = "[green]pass[/]" if bar["passed"] else "[red]FAIL[/]"
        console.print(f"{verdict}  {bar['bar']}: {bar['ratio']:.3f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure, all of it by default"
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--samples", nargs="+", type=int, default=[2**i for i in range(8)], help="numbers of draws")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=8,
        help="rounds of one draw; fewer where there are more draws, but three up to 32",
    )
    parser.add_argument("--quick", action="store_true", help="at most 8 draws, fewer rounds")
    parser.add_argument("--no-memory", action="store_true", help="leave the peak memory out")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--force", action="store_true", help="let --json overwrite a file")
    parser.add_argument("--peaks-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.json is not None and options.json.exists() and not options.force:
        parser.error(f"{options.json} exists already: choose another name, or add --force.")
    if min(options.repetitions, options.threads, *options.samples) < 1:
        parser.error("--samples, --repetitions and --threads are at least 1.")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("There is no CUDA device here.")
    if options.quick:
        options.samples, options.repetitions = [s for s in options.samples if s <= 8] or [8], 4
    return options


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.peaks_of is not None:
        contender, name = options.peaks_of
        peaks_of(contender, name, options.samples, torch.device(options.device))
        return 0
    settings = {k: v for k, v in vars(options).items() if k not in ("json", "force", "peaks_of")}
    result: dict = {"settings": settings, "torch": torch.__version__, "python": platform.python_version()}
    for part, rows in (("draws", draws), ("batch", single), ("loader", loader)):
        if part in options.parts:
            result[part] = []
            for row in rows(options):
                result[part].append(row)
                save(result, options)
    if "draws" in options.parts:
        result["shares"] = shares(options)
        save(result, options)
    for part, measure in (("head", head), ("tolerance", tolerance)):
        if part in options.parts:
            result[part] = measure(options)
            save(result, options)
    result["bars"] = bars(result, options)
    save(result, options)
    show(result)
    return 0 if all(bar["passed"] for bar in result["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
