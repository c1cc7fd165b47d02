"""Run the GPU cases in parallel: PYTHONPATH=src python tests/gpu/run.py [--only WORDS] [--json FILE]

Compiling takes most of the time, and one core each: so there are several workers, processes that perform one case after
the other. A worker whose case fails is replaced, because an error on a GPU may outlast the case.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT / "tests")  # not this folder, whose modules are those of the package `gpu`
    sys.path.insert(0, str(ROOT / "src"))
# Some virtual machines announce matrix tiles (AMX) that they do not have, and bfloat16 ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}

import torch  # noqa: E402

from gpu.all_cases import CASES  # noqa: E402
from gpu.registry import Setting, perform  # noqa: E402


def work(pipe: Any, setting: Setting, folder: str) -> None:
    """Perform the cases named through the pipe; what they print goes to a log."""
    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/kernels", "TMPDIR": folder}
    tempfile.tempdir = None  # so that it is looked up again
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    while True:
        try:
            pipe.send({"ok": True, "figure": perform(CASES[pipe.recv()], setting)})
        except EOFError:
            return
        except Exception as error:
            says = (str(error).strip().splitlines() or [""])[0]
            pipe.send({"ok": False, "figure": f"{type(error).__name__}: {says}", "details": traceback.format_exc()})


class Worker:
    """A process, started when there is something to do, with a folder of its own for what it compiles."""

    def __init__(self, setting: Setting, folder: Path, limit: float) -> None:
        self.setting, self.folder, self.limit, self.process = setting, folder, limit, None
        folder.mkdir()

    def perform(self, name: str) -> dict[str, Any]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=work, args=(theirs, self.setting, str(self.folder)))
            self.process.start()
            theirs.close()
        begun = monotonic()
        try:
            self.pipe.send(name)
            late = {"ok": False, "figure": f"not done after {self.limit:.0f} s"}
            answer = self.pipe.recv() if self.pipe.poll(self.limit) else late
        except (EOFError, OSError):
            answer = {"ok": False, "figure": "the process ended", "details": (self.folder / "log").read_text()[-3000:]}
        if not answer["ok"]:
            self.stop()
        return {"name": name, "seconds": round(monotonic() - begun, 1), **answer}

    def stop(self) -> None:
        if self.process is not None:
            self.pipe.close()  # which ends it, if it waits for work
            self.process.join(3)
            self.process.kill()
            self.process.join()
            self.process = None


def drive(names: list[str], setting: Setting, workers: int, limit: float) -> list[dict[str, Any]]:
    waiting, results, printing = deque(sorted(names, key=lambda name: -CASES[name].seconds)), [], Lock()

    def keep_busy(worker: Worker) -> None:
        while True:
            try:
                name = waiting.popleft()
            except IndexError:
                return worker.stop()
            result = worker.perform(name)
            with printing:
                results.append(result)
                says = "ok" if result["ok"] else "FAILED"
                print(f"{name:<56} {result['seconds']:6.1f} s  {says}  {result['figure']}", flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        staff = [Worker(setting, Path(folder, str(i)), limit) for i in range(min(workers, len(names)))]
        threads = [Thread(target=keep_busy, args=(worker,)) for worker in staff]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def commit() -> str:
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, stderr=-3).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the cases themselves on a CPU")
    parser.add_argument("--backend", help="what compiles; inductor, with --tiny aot_eager")
    parser.add_argument("--only", default="", help="cases whose names hold all of these words")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a case may take")
    parser.add_argument("--json", type=Path, help="where to keep the readings")
    parser.add_argument("--commit", help="what the readings are of; else git is asked")
    args = parser.parse_args()
    names = [name for name in CASES if all(word in name for word in args.only.split())]
    if args.list:
        print(*names, sep="\n")
        return 0
    if args.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu --tiny tries the cases themselves.", file=sys.stderr)
        return 2
    backend = args.backend or ("aot_eager" if args.tiny else "inductor")
    begun, setting = monotonic(), Setting(torch.device(args.device), args.tiny, backend)
    results = drive(names, setting, args.workers, args.limit)
    failed, seconds = [result for result in results if not result["ok"]], round(monotonic() - begun)
    for result in failed:
        print(f"\n{result['name']}\n{result.get('details', '')}")
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed in {seconds} s")
    if args.json:
        device = torch.cuda.get_device_name() if args.device == "cuda" else args.device
        about = {"torch": torch.__version__, "device": device, "commit": args.commit or commit(), "tiny": args.tiny}
        readings = {**about, "backend": backend, "seconds": seconds, "cases": results}
        args.json.write_text(json.dumps(readings, indent=1, ensure_ascii=False) + "\n")
    return 0 if len(results) - len(failed) == len(names) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
