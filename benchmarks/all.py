"""Every speed that the project promises, beside its bar.

    python benchmarks/all.py --device cuda --json FILE          # in bfloat16, both sides compiled alike
    python benchmarks/all.py --device cpu                       # two threads, as it comes
    python benchmarks/all.py --device cuda --list
    python benchmarks/all.py --device cuda --only gaussian-vit-s16 epoch --json FILE --minutes 8
    python benchmarks/all.py --device cuda --together           # rows compile at the same time, measured in turn

Contenders run in one process in interleaved rounds; a ratio is the median over rounds of the paired times, with
quartiles. `--json` is written after every row, and a second call with it goes on where the first stopped. Ends with
status 1 where a bar is missed or a row failed, with 3 where only time was missing.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import together
import torch
from rich.console import Console
from rich.table import Table
from rows.setting import Setting
from rows.table import Row, table
from step import hardware

MISSING, FAILED = "not measured yet", "failed"


class Book:
    """The measurements so far, in memory and in a file: an interruption loses only the one under way."""

    def __init__(self, file: Path | None, about: dict[str, Any], force: bool) -> None:
        self.file, self.about = file, about
        self.kept: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists() and not force:
            saved = json.loads(file.read_text())
            if saved["about"] != about:
                raise ValueError(f"{file} was measured with {saved['about']}, not {about}: --force starts over.")
            self.kept = saved["measurements"]

    def save(self, rows: list[Row]) -> None:
        if self.file is not None:
            lines = [outcome(row, self) for row in rows]
            self.file.parent.mkdir(parents=True, exist_ok=True)
            partial = self.file.with_name(f".{self.file.name}.partial")
            text = json.dumps({"about": self.about, "rows": lines, "measurements": self.kept}, indent=2)
            partial.write_text(text + "\n")
            partial.replace(self.file)


def outcome(row: Row, book: Book) -> dict[str, Any]:
    """What a row says by now: its number and whether it passed, or why there is none."""
    found = book.kept.get(row.measurement)
    line: dict[str, Any] = {"row": row.name, "title": row.title, "bar": row.bar}
    if found is None or "error" in found:
        return line | {"status": MISSING if found is None else FAILED, "note": (found or {}).get("error", "")}
    reading = row.read(found)
    if reading is None:
        why = "; ".join(f"{name} {reason}" for name, reason in found.get("absent", {}).items())
        return line | {"status": "no peer", "note": why or "not measured on this device"}
    return line | asdict(reading) | {"status": "pass" if row.passed(reading.value) else "MISSED"}


def measure(rows: list[Row], book: Book, setting: Setting, options: argparse.Namespace) -> None:
    """Every measurement the rows need and the book lacks; none is started after the time is up."""
    everything, measurements = table(options.kind)
    if options.together:
        book.kept |= together.measure(rows, passed_on(options), book.kept)
        book.save(everything)
        return
    minutes: float | None = options.minutes
    start = time.monotonic()
    for name in dict.fromkeys(row.measurement for row in rows):
        if name in book.kept and "error" not in book.kept[name]:
            continue
        if minutes is not None and time.monotonic() - start >= 60 * minutes:
            print(f"{minutes:g} minutes are over; the same command goes on.", file=sys.stderr)
            return
        began = time.monotonic()
        try:
            found = measurements[name](setting)
        except Exception as error:  # one row must not take the others with it
            traceback.print_exc()
            found = {
                "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"
            }
        found["seconds_to_measure"] = round(time.monotonic() - began, 1)
        book.kept[name] = found
        book.save(everything)
        for row in rows:
            if row.measurement == name:
                print(told(outcome(row, book), row), file=sys.stderr, flush=True)
        setting.clear()


def passed_on(options: argparse.Namespace) -> list[str]:
    """The options of this call that hold for each of the processes it starts."""
    words = ["--device", options.device, "--threads", str(options.threads)]
    words += [f"--{name.replace('_', '-')}" for name in ("tiny", "as_cuda") if getattr(options, name)]
    words += [] if options.rounds is None else ["--rounds", str(options.rounds)]
    return words + ([] if options.compile is None else ["--compile" if options.compile else "--no-compile"])


def number(value: float | None, row: Row) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if row.percent else f"{value:.3g}" if row.at_least else f"{value:.3f}"


def told(line: dict[str, Any], row: Row) -> str:
    return f"{row.name}: {line['status']} {number(line.get('value'), row)} {line.get('note', '')}"


def show(rows: list[Row], book: Book) -> list[dict[str, Any]]:
    console = Console(width=170, highlight=False)
    shown = Table(title="{hardware}, torch {torch}".format(**book.about), show_lines=False)
    for heading in ("row", "ours", "quartiles", "bar", "", "beside it"):
        shown.add_column(heading, justify="right" if heading in ("ours", "bar") else "left", overflow="fold")
    lines = [outcome(row, book) for row in rows]
    colours = {"pass": "green", "MISSED": "red", FAILED: "red"}
    for row, line in zip(rows, lines, strict=True):
        quartiles = f"{number(line['low'], row)} – {number(line['high'], row)}" if line.get("low") else ""
        bar = f"{'≥' if row.at_least else '≤'} {number(row.bar, row)}"
        status = f"[{colours.get(line['status'], 'yellow')}]{line['status']}[/]"
        shown.add_row(row.title, number(line.get("value"), row), quartiles, bar, status, line.get("note", ""))
    console.print(shown)
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these rows; --list names them")
    parser.add_argument("--json", type=Path, help="keep the measurements in this file, and go on from it")
    parser.add_argument("--force", action="store_true", help="start over, whatever --json holds")
    parser.add_argument("--minutes", type=float, help="start no new measurement after this long")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (20 on a GPU, 8 on a CPU)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--together", action="store_true", help="compile rows at the same time; measure them in turn")
    parser.add_argument("--list", action="store_true", help="name the rows and their bars")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # sizes that prove only that rows run
    parser.add_argument("--as-cuda", action="store_true", help=argparse.SUPPRESS)  # the GPU's rows on a CPU
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available() and not options.list:
        parser.error("There is no CUDA device here.")
    if options.together and options.minutes is not None:
        parser.error("--minutes is for rows one after another, not for --together.")
    options.kind = "cuda" if options.as_cuda else options.device
    rows, _ = table(options.kind)
    unknown = set(options.only or ()) - {row.name for row in rows}
    if unknown:
        parser.error(f"There is no row {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in rows)}.")
    options.rows = [row for row in rows if not options.only or row.name in options.only]
    return options


def main() -> int:
    options = parse()
    if options.list:
        for row in options.rows:
            print(f"{row.name:18} {'≥' if row.at_least else '≤'} {number(row.bar, row):7} {row.title}")
        return 0
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    if cuda:
        torch.set_float32_matmul_precision("high")
    rounds = options.rounds or (3 if options.tiny else 20 if cuda else 8)
    compile = cuda if options.compile is None else options.compile
    setting = Setting(device, options.tiny, rounds, compile, warmup=2 if not cuda else 4)
    about = setting.about() | {"hardware": hardware(options.device), "torch": torch.__version__}
    try:
        book = Book(options.json, about | {"threads": options.threads}, options.force)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    measure(options.rows, book, setting, options)
    statuses = {line["status"] for line in show(options.rows, book)}
    return 1 if statuses & {"MISSED", FAILED} else 3 if MISSING in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
