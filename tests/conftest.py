"""One thread and one seed for every test: the same numbers everywhere, and workers that do not fight for cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

# Before torch: some virtual machines announce matrix tiles (AMX) that they do not have, and bfloat16 ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `byov WORDS…` in this process; what it returns is its status, stdout and stderr."""
    from byov.cli import main

    monkeypatch.setenv("COLUMNS", "200")

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["byov", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return command
