"""The strategies, each with the same numbers, and a small model in float64, where a sum's order does not show."""

import pytest
from small_networks import mlp

import byov

from .networks import STRATEGIES, spread


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()
