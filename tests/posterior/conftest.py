"""The grid: every family on every network."""

from collections.abc import Iterator

import pytest
import torch
from small_networks import NETWORKS

import byov
from byov.posterior import Family

from .cell import FAMILIES, Cell, trained


@pytest.fixture(params=list(NETWORKS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=FAMILIES, ids=repr)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def cell(kind: str, family: Family) -> Cell:
    plain, x = trained(kind)
    return Cell(kind, family, plain, byov.bayesianize(plain, family), x)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
