"""Small tensors: one thread is the fastest, and no example has a deadline that a busy machine could miss."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
