"""One thread and one seed for every test: the same numbers everywhere, and workers that do not fight for cores."""

from __future__ import annotations

import os

# Before torch: some virtual machines announce matrix tiles (AMX) that they do not have, and bfloat16 ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
