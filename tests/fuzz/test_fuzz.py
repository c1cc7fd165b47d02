"""Bad input ends in one sentence that names it: status 2, no traceback, nothing written, in time.

BYOV_FUZZ is how many cases are tried of each kind, BYOV_FUZZ_SEED where they begin. A case is told by its kind and
number: `pytest tests/fuzz -k option` with BYOV_FUZZ_SEED=17 and BYOV_FUZZ=1 tries option 17 alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from .cases import KINDS
from .check import verdict
from .world import World, build

COUNT = int(os.environ.get("BYOV_FUZZ", "40"))
FIRST = int(os.environ.get("BYOV_FUZZ_SEED", "0"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_refused_in_one_sentence(kind: str, world: World, tmp_path: Path) -> None:
    wrong = []
    for number in range(FIRST, FIRST + COUNT):
        here = tmp_path / str(number)
        here.mkdir()
        case = KINDS[kind](Random(f"{kind} {number}"), here, world)
        if said := verdict(case, here, world.folder):
            wrong.append(f"{kind} {number}: byov {' '.join(map(str, case.words))}\n    {said}")
    assert not wrong, f"{len(wrong)} of {COUNT}:\n" + "\n".join(wrong)
