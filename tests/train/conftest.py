"""scikit-learn parses its digits at every call, which would be a third of a short run: here once."""

from collections.abc import Iterator
from functools import cache

import pytest
import sklearn.datasets


@pytest.fixture(autouse=True, scope="module")
def read_digits_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", cache(sklearn.datasets.load_digits))
        yield
