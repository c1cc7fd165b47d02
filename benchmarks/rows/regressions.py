"""Twenty splits of a regression table trained at once, against one after the other; see `regression.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import regression
import torch
from timing import interleaved

import byov
from rows.setting import Setting, compared


def batched(setting: Setting) -> dict[str, Any]:
    """One thread, as `regression.py` has it by default."""
    rows, splits, epochs = (150, 3, 2) if setting.tiny else (500, 20, 20)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        X, y = regression.table(rows, 13)
        order = [torch.randperm(rows, generator=torch.Generator().manual_seed(i)) for i in range(splits)]
        kept = [index[: round(0.9 * rows)] for index in order]
        ways = (regression.batched, regression.looped)
        steps = {way.__name__: partial(way, X, y, kept, byov.ECMP(5), epochs) for way in ways}
        for step in steps.values():
            step()
        return compared(interleaved(steps, min(setting.rounds, 5), setting.device), "batched")
    finally:
        torch.set_num_threads(threads)
