"""Where real data are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data() -> Path:
    """The folder that BYOV_DATA names, or ../shared/data beside the repository."""
    return Path(os.environ.get("BYOV_DATA") or Path(__file__).parents[3] / "shared" / "data")
