"""Are networks kept along one training a better default than SWAG? Held-out training rows only, never a test set.

python results/defaults/cycles.py --root DATA --seeds 5      what cycles.json has is not made again

Trainings, sets, shifts and seeds are those of averaged.py, which has the readings of SWAG and of a cosine schedule.
"M cycles": the learning rate falls to 0 along a cosine and restarts, M times, and the network at the end of each cycle
is a member (snapshot ensembles, Huang et al. 2017). "K of the last part": K networks from training at a constant rate,
evenly spaced over its last part (checkpoint ensembles, Chen et al. 2017). The members' probabilities are averaged.
"""

from __future__ import annotations

import copy
import json
import math
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import torch
from averaged import FILE as AVERAGED
from averaged import FIRST_SEED, arguments, numbers

from byov.posterior.objective import log_var_rate
from byov.reproduce.defaults_methods import BATCH, LR, STEPS, Fitted, Read
from byov.reproduce.defaults_sets import Place, Task

FILE = Path(__file__).with_suffix(".json")
CYCLES = (1, 5)
PARTS = {
    "10 of the last three quarters": (0.25, 10),
    "5 of the last half": (0.5, 5),
    "10 of the last half": (0.5, 10),
    "20 of the last half": (0.5, 20),
    "10 of the last quarter": (0.75, 10),
}


def train(task: Task, seed: int, cycles: int, keep: set[int]) -> dict[int, Fitted]:
    """Train with a rate of so many cycles (0: constant); return the networks after the steps given."""
    torch.manual_seed(seed)
    fitted, kept = Fitted(task.network()), {}
    noise = {"params": [fitted.log_precision], "lr": log_var_rate(STEPS)}
    optimizer = torch.optim.Adam([{"params": fitted.net.parameters(), "lr": LR}, noise])
    length = STEPS / max(cycles, 1)

    def rate(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * (step % length) / length)) if cycles else 1.0

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(1, STEPS + 1):
        fitted.train()
        i = torch.randint(len(task.x), (BATCH,))
        loss = fitted.loss(task.x[i], task.y[i], task.regression)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step in keep:
            kept[step] = copy.deepcopy(fitted)
    return kept


def read(task: Task, members: list[Fitted]) -> dict[str, float]:
    return numbers(Read.ensemble([Read.of(member, task) for member in members]), task)


def readings(task: Task, seed: int) -> dict[str, dict[str, float]]:
    found = {}
    for cycles in CYCLES:
        ends = [round(STEPS * (i + 1) / cycles) for i in range(cycles)]
        kept = list(train(task, seed, cycles, set(ends)).values())
        found[f"{cycles} cycles"] = read(task, kept)
        if cycles > 1:
            found[f"{cycles} cycles, without the first"] = read(task, kept[1:])
    steps = {
        name: [round(STEPS * (start + (1 - start) * (i + 1) / count)) for i in range(count)]
        for name, (start, count) in PARTS.items()
    }
    constant = train(task, seed, 0, {step for each in steps.values() for step in each} | {STEPS})
    found["plain"] = read(task, [constant[STEPS]])
    for name, each in steps.items():
        found[name] = read(task, [constant[step] for step in each])
    return found


def main() -> None:
    words = arguments(__doc__)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for seed in range(FIRST_SEED, FIRST_SEED + words.seeds) if not words.show else ():
        for name in words.sets.split(","):
            rows = kept.setdefault(name, {})
            if str(seed) in rows.get("plain", {}):
                continue
            for row, scores in readings(Place(name, seed % 20, words.root).task(), seed).items():
                rows.setdefault(row, {})[str(seed)] = {k: round(v, 5) for k, v in scores.items()}
            FILE.write_text(json.dumps(kept, indent=0))
    print(table(kept, json.loads(AVERAGED.read_text())))


def table(kept: dict, averaged: dict) -> str:
    """Return the page's table: the difference in NLL from the plain network, with the five tables as one set."""
    sets = [["digits"], ["fashion-mnist"], ["newsgroups"], [name for name in kept if name.startswith("uci-")]]
    rows = [("SWAG, constant rate", averaged, "η = 7, s = 2"), ("plain, cosine", averaged, "cosine: plain")]
    rows += [(row, kept, row) for row in kept["digits"] if row not in ("plain", "1 cycles")]
    heads = " | shifted | ".join(("digits: clean", "fashion-mnist: clean", "newsgroups: clean", "tables: clean"))
    lines = [f"| | {heads} | shifted |", "|---|" + "---:|" * 8]
    for label, source, row in rows:
        cells = []
        for group, score in product(sets, ("held_nll", "held_shifted_nll")):
            seeds = kept[group[0]]["plain"]
            each = [mean(source[n][row][s][score] - source[n]["plain"][s][score] for n in group) for s in seeds]
            error = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
            cells.append(f"{mean(each):+.3f} ± {error:.3f}".replace("-", "−"))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
