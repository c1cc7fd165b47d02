"""Monte-Carlo prediction: its time against draws and batch, and the draws that a tolerance saves.

    python benchmarks/predict.py                                # two CPU threads, a quarter of an hour when quiet
    python benchmarks/predict.py --parts tolerance --json FILE
    python benchmarks/predict.py --device cuda

`draws`: 1 to 64 draws of every weight on one batch of 32, one after the other ("loop") and batched ("vmap"), beside as
many passes of the plain network. `batch`: eight draws on one batch of 8 to 128. `tolerance`: the draws used at a
tolerance, and the fixed number of draws that has the same error. There is no bar: those of prediction are in `all.py`,
its memory is in `growth.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from networks import NETWORKS
from sklearn.datasets import load_digits
from step import hardware
from timing import Ratio, Step, interleaved
from torch import Generator, Tensor, nn

import byov

DRAWS, BATCHES = (1, 4, 16, 64), (8, 32, 128)
FIXED = {"draws": 8, "batch": 32}
PASSES = 8
"""Passes of the plain network in a round, at most: more would take as long each."""
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": NETWORKS["resnet18"].build,
    "vit_ti4": NETWORKS["vit_ti4"].build,
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10)),
}


def timed(name: str, draws: int, batch: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of the passes and of both strategies, and the strategies ÷ the passes."""
    torch.manual_seed(0)
    net = MODELS[name]().eval().to(device)
    model = byov.bayesianize(MODELS[name](), byov.Gaussian()).eval().to(device)
    x = torch.randn(batch, 3, 32, 32, generator=Generator().manual_seed(1)).to(device)

    @torch.no_grad()
    def passes() -> None:
        for _ in range(min(draws, PASSES)):
            net(x)

    steps: dict[str, Step] = {"passes": passes}
    passes()  # warm up
    for strategy in ("loop", "vmap"):
        byov.predict(model, x, 1, strategy)
        steps[strategy] = partial(byov.predict, model, x, draws, strategy)
    seconds = interleaved(steps, rounds, device)
    seconds["passes"] = [time * draws / min(draws, PASSES) for time in seconds["passes"]]
    ratios = {way: asdict(Ratio.of(seconds[way], seconds["passes"])) for way in ("loop", "vmap")}
    ms = {way: 1000 * median(times) for way, times in seconds.items()}
    return {"network": name, "draws": draws, "batch": batch, "ms": ms, "ratio": ratios}


def sweep(part: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in MODELS:
        for value in {"draws": DRAWS, "batch": BATCHES}[part]:
            found = timed(name, **FIXED | {part: value}, rounds=options.rounds, device=torch.device(options.device))
            text = ", ".join(
                f"{way} {r['median']:.2f} ({r['low']:.2f} – {r['high']:.2f})" for way, r in found["ratio"].items()
            )
            print("{network}, {draws} draws, batch {batch}, × passes:".format(**found), text, flush=True)
            yield found


def digits_model(family: byov.Family, device: torch.device) -> tuple[byov.BayesianModule, Tensor]:
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


def tolerance(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The error, against 20,000 draws, is the root mean square over images and seeds of the largest error of any class.

    The fixed number of draws with the same error is read off the line log error = a + b·log draws. Both take the draws
    of the same seeds, because an error is shared by all images of a draw and would otherwise decide the comparison.
    """
    device, seeds, counts = torch.device(options.device), options.seeds, [2**i for i in range(3, 11)]
    for family in (byov.Gaussian(-6.0), byov.Dropout(0.1)):
        model, x = digits_model(family, device)
        predict = partial(byov.predict, model, x, strategy="vmap")
        reference = predict(samples=20_000, generator=Generator(device).manual_seed(1000)).mean

        def error(mean: Tensor, reference: Tensor = reference) -> float:
            return float((mean - reference).abs().amax(1).square().mean())

        fixed = torch.zeros(len(counts), dtype=torch.float64)
        for seed in range(seeds):
            kept = predict(samples=counts[-1], generator=Generator(device).manual_seed(seed), keep=True).draws
            fixed += torch.tensor([error(kept[:count].mean(0)) for count in counts], dtype=torch.float64) / seeds
        line = torch.stack([torch.tensor(counts, dtype=torch.float64).log(), torch.ones(len(counts)).double()], 1)
        slope, offset = torch.linalg.lstsq(line, 0.5 * fixed.log()[:, None]).solution[:, 0]
        for limit in (0.02, 0.01, 0.005):
            used, squared = 0.0, 0.0
            for seed in range(seeds):
                found = predict(samples=2000, tolerance=limit, generator=Generator(device).manual_seed(seed))
                used += float(torch.as_tensor(found.samples).double().mean()) / seeds
                squared += error(found.mean) / seeds
            equal = float(((0.5 * torch.tensor(squared).log() - offset) / slope).exp())
            row = {"family": type(family).__name__, "tolerance": limit, "draws": used, "error": squared**0.5}
            row |= {"fixed_draws_of_that_error": equal, "saves": equal / used}
            text = "{family}, tolerance {tolerance}: {draws:.0f} draws on average, error {error:.4f};"
            text += " {fixed_draws_of_that_error:.0f} fixed draws have it: saves {saves:.2f} ×"
            print(text.format(**row), flush=True)
            yield row


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "draws": partial(sweep, "draws"),
    "batch": partial(sweep, "batch"),
    "tolerance": tolerance,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--seeds", type=int, default=10, help="of the draws at a tolerance")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "hardware": hardware(options.device),
        "torch": torch.__version__,
        "threads": options.threads,
    }
    result |= {part: list(PARTS[part](options)) for part in options.parts}
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
