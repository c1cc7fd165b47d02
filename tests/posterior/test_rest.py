"""Torch's threads may be sent away at any time: they come back, with the same results."""

import os
import sys
from time import monotonic, sleep

import pytest
import torch
from torch import nn

from byov.posterior.rest import _pause, rest


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux" or _pause() is None, reason="counts the threads of Linux's OpenMP")
def test_the_threads_of_an_operation_are_gone_and_come_back():
    a = torch.randn(1 << 20)
    for _ in range(3):
        torch.mul(a, a)
        before = threads()
        rest()
        limit = monotonic() + 10
        while threads() != before - 1 and monotonic() < limit:  # the list may be a moment late
            sleep(0.01)
        assert threads() == before - 1
        assert torch.get_num_threads() == 2


def test_a_pass_and_its_gradient_do_not_notice():
    net, x = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3)), torch.randn(16, 3, 32, 32)
    found = []
    for rests in (False, True):
        net.zero_grad()
        out = net(x)
        if rests:
            rest()
        out.square().mean().backward()
        found.append([out.detach(), *(parameter.grad.clone() for parameter in net.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
