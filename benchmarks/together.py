"""Rows compiled at the same time, each in a process of its own, and measured one after another.

Compiling takes a row a minute or two of the host and hardly anything of the device, measuring it a few seconds. So all
rows compile and warm up together; `timing.turn` makes them wait until the last is ready, and then lets one at a time
run, while the others sleep. They meet in the folder BYOV_TURNS, where there is one, and leave their parts there; a file
`hold` in it keeps them waiting for whoever put it there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows.table import Row


def measure(rows: list[Row], arguments: list[str], known: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The measurements that these rows need and `known` lacks; `arguments` are those of `all.py`, without rows."""
    wanted: dict[str, list[str]] = {}
    for row in rows:
        if row.measurement not in known or "error" in known[row.measurement]:
            wanted.setdefault(row.measurement, []).append(row.name)
    with tempfile.TemporaryDirectory() as folder:
        turns = Path(os.environ.get("BYOV_TURNS", folder))
        turns.mkdir(parents=True, exist_ok=True)
        parts = {name: turns / f"{name.replace(' ', '_')}.json" for name in wanted}
        for old in (turns / "go", *turns.glob("ready_*"), *parts.values()):  # of a call before
            old.unlink(missing_ok=True)
        command = [sys.executable, str(Path(__file__).with_name("all.py")), *arguments]
        processes = {
            name: subprocess.Popen(
                [*command, "--json", str(parts[name]), "--only", *wanted[name]],
                env=os.environ | {"BYOV_TURNS": str(turns)},
                stdout=subprocess.DEVNULL,
            )
            for name in wanted
        }
        try:
            while (turns / "hold").exists() or not all(_ready(process, turns) for process in processes.values()):
                time.sleep(0.2)
            (turns / "go").touch()
            for process in processes.values():
                process.wait()
        finally:
            for process in processes.values():
                process.kill()
        found: dict[str, dict[str, Any]] = {}
        for name, part in parts.items():
            found |= json.loads(part.read_text())["measurements"] if part.exists() else {}
            found.setdefault(name, {"error": f"its process ended with status {processes[name].returncode}"})
    return found


def _ready(process: subprocess.Popen[bytes], turns: Path) -> bool:
    return process.poll() is not None or (turns / f"ready_{process.pid}").exists()
