"""What a window holds has a bound, whatever the loader's length and the number of draws."""

from __future__ import annotations

import os
import subprocess
import sys
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.prediction import window
from byov.prediction.draws import Draws
from byov.prediction.forward import Forward

from .test_strategies import seeded
from .test_window import made  # noqa: F401 (a fixture)

FLOAT = 4


class Wide(nn.Module):
    """2 numbers, then 500 before the first random weight, then 3."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.random = nn.Linear(2, 500), nn.Linear(500, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.random(self.fixed(x).relu())


def wide() -> byov.BayesianModule:
    return byov.bayesianize(Wide(), {"random*": byov.Gaussian(-3.0)})


def recorded(net: nn.Module, x: Tensor) -> int:
    model = byov.bayesianize(net, {"random*": byov.Gaussian(-3.0)}).eval()
    forward = Forward(model, x, "classification")
    with torch.no_grad():
        forward.one(Draws(model, seeded(), 2).next())
    assert forward.recording is not None
    assert forward.recording.sound
    return forward.recording.kept


def test_a_recording_says_how_much_it_keeps() -> None:
    class FirstToken(Wide):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fixed(x.unsqueeze(1).expand(-1, 7, -1))
            return self.random(h[:, 0])  # a view: all seven stay

    class Inputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.random = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.random(x.view(-1, 2))  # the input's own memory

    x = torch.randn(8, 2)
    assert recorded(Wide(), x) == 8 * 500 * FLOAT
    assert recorded(FirstToken(), x) == 8 * 7 * 500 * FLOAT
    assert recorded(Inputs(), x) == 0


@pytest.mark.parametrize("fit", [0.5, 1, 3, 4.5])
def test_a_window_ends_where_its_batches_hold_too_much(
    fit: float,
    made: dict[str, int],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of 10: 500 activations, 2 inputs, 3 means and 3 sums of squares each."""
    monkeypatch.setattr(window, "BYTES", int(fit * 10 * (500 + 2 + 3 + 3) * FLOAT))
    x = torch.randn(110, 2)
    found = byov.predict(model := wide(), x.split(10), 6, "loop", generator=seeded())
    assert made["noise"] == 6 * ceil(11 / max(int(fit), 1))
    torch.testing.assert_close(found.mean, byov.predict(model, x, 6, "loop", generator=seeded()).mean)


MEMORY = """
import sys
from pathlib import Path
import torch
import byov
from byov.prediction import engine, window
torch.set_num_threads(1)

def peak():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

def loader(batches):
    return (torch.randn(64, 1) for _ in range(batches))

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed, self.random = torch.nn.Linear(1, 4096), torch.nn.Linear(4096, 2)
    def forward(self, x):
        return self.random(self.fixed(x))

strategy = sys.argv[1]
engine.CHUNK_ELEMENTS["cpu"] = 8 * 8194  # chunks of 8 draws at any number of draws
window.BYTES, window.BATCHES, window.INPUTS = 8 << 20, 1 << 30, 1 << 30  # a batch keeps 1 MiB of activations
model = byov.bayesianize(Wide(), {"random*": byov.Gaussian(-3.0)})
byov.predict(model, loader(16), 10, strategy)
start = peak()
byov.predict(model, loader(16), 200, strategy)
draws = peak()
byov.predict(model, loader(160), 10, strategy)
length = peak()
window.BYTES = 1 << 40
byov.predict(model, loader(160), 10, strategy)
print(draws - start, length - draws, peak() - length)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_memory_grows_neither_with_the_draws_nor_with_the_loader(strategy: Any) -> None:
    """Without its bound the window would hold 160 MiB, as the last figure shows; an allocator may waste 8 MiB."""
    # Large blocks go back to the system at once: what the heap's holes add differs by 7 MiB from run to run.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    done = subprocess.run([sys.executable, "-c", MEMORY, strategy], capture_output=True, text=True, check=True, env=env)
    draws, length, unbounded = (float(figure) for figure in done.stdout.split())
    assert draws < 8
    assert length < 8
    assert unbounded > 100
