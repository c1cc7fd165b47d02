"""Runs of a plan, side by side on one GPU: trained, then read by the commands named. What is there is not made again.

python results/gpu.py results/plans/settings.toml --root DATA --out OUT --minutes 9     call it again to resume

A plan names recipes, settings and commands:

    [runs.byol]
    recipe = "cifar10_vit_byol"
    set = ["train.epochs=30"]

    [read]
    probe = "probe {run} --split holdout --root {root} --out {out}.json"

A run is of `byov pretrain`, or says `command = "train"`. [tables] are commands about all {runs}, once each is finished.
OUT gets each run's log, its readings and nothing larger; runs lie in runs/PLAN. Training stops in time to read.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from byov.runs import read_header

ROOT = Path(__file__).resolve().parents[1]


def byov(log: Path, *words: str) -> bool:
    """Run a command with its output in a file; return whether it succeeded."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2", "PYTHONPATH": str(ROOT / "src")}
    with log.open("a") as file:
        return (
            subprocess.run([sys.executable, "-m", "byov", *words], cwd=ROOT, stdout=file, stderr=file).returncode == 0
        )


def make(name: str, plan: dict, folder: Path, out: Path, root: str, deadline: float) -> str:
    """Train one run until it is finished or the time is up; read it when it is finished."""
    run, own = folder / name, plan["runs"][name]
    begun = (run / "checkpoint.safetensors").exists()
    if not begun or not read_header(run).finished:
        left = (deadline - monotonic()) / 60 - plan.get("reading_minutes", 1.0)
        if left < 0.2:
            return f"{name}: no time to train"
        settings = [*plan.get("set", []), *own.get("set", []), f"data.root={root}", f"train.minutes={left:.2f}"]
        words = [word for each in settings for word in ("--set", each)]
        recipe = f"recipes/{own['recipe']}.toml"
        if not byov(
            out / f"{name}.txt",
            own.get("command", "pretrain"),
            recipe,
            "--run",
            str(run),
            *["--resume"] * begun,
            *words,
        ):
            return f"{name}: training failed, see {name}.txt"
        shutil.copy(run / "log.jsonl", out / f"{name}.log.jsonl")
    if not read_header(run).finished:
        return f"{name}: to be resumed"
    said = []
    for what, command in plan["read"].items():
        made = out / f"{name}.{what}"
        twin = str(folder / own.get("twin", "")) if "twin" in own else ""
        if any(out.glob(f"{made.name}*")) or ("{twin}" in command and not twin):
            continue
        words = shlex.split(command.format(run=run, out=made, root=root, twin=twin))
        said.append(f"{what} {'read' if byov(out / f'{name}.txt', *words) else 'failed'}")
    return f"{name}: {', '.join(said) or 'finished'}"


def tables(plan: dict, folder: Path, out: Path, root: str) -> list[str]:
    """Make what is about all runs, if all are finished."""
    runs = [folder / name for name in plan["runs"]]
    if not all((run / "checkpoint.safetensors").exists() and read_header(run).finished for run in runs):
        return [f"{name}: some runs are not finished" for name in plan.get("tables", {})]
    said, given = [], " ".join(f"--run {shlex.quote(str(run))}" for run in runs)
    for name, command in plan.get("tables", {}).items():
        words = shlex.split(command.format(runs=given, root=shlex.quote(root), out=shlex.quote(str(out))))
        said.append(f"{name}: {'made' if byov(out / f'{name}.txt', *words) else f'failed, see {name}.txt'}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--root", required=True, help="the folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="the folder of logs and readings")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="for every run, after the plan's"
    )
    parser.add_argument("--runs", type=Path, help="the folder of the runs; without it runs/PLAN")
    words = parser.parse_args()
    plan, deadline = tomllib.loads(words.plan.read_text()), monotonic() + 60 * words.minutes
    for own in plan["runs"].values():
        own["set"] = [*own.get("set", []), *words.set]
    words.out = words.out.resolve()  # the commands run elsewhere
    words.out.mkdir(parents=True, exist_ok=True)
    folder = words.runs.resolve() if words.runs else ROOT / "runs" / words.plan.stem
    with ThreadPoolExecutor(words.jobs) as pool:
        done = [pool.submit(make, name, plan, folder, words.out, words.root, deadline) for name in plan["runs"]]
        for each in done:
            print(f"{monotonic() - deadline + 60 * words.minutes:5.0f} s  {each.result()}", flush=True)
    for line in tables(plan, folder, words.out, words.root):
        print(line, flush=True)


if __name__ == "__main__":
    main()
