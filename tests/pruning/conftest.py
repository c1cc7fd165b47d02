"""The kinds of network that the tests of pruning run over."""

from __future__ import annotations

import pytest

from .networks import NETWORKS


@pytest.fixture(params=NETWORKS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
