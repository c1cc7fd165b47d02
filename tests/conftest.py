"""One thread and one seed for every test: the same numbers everywhere, and workers that do not fight for cores."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
