"""An encoder of the user's own by `python:module:function`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from byov.models import entry

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.body[2].eval()
    def forward(self, x):
        return self.body(x)

class Inner:
    colour = staticmethod(lambda: Net(3))

def maps():
    return nn.Conv2d(1, 3, 3)

def several():
    class Two(nn.Module):
        def forward(self, x):
            return x.flatten(1), x
    return Two()

def nothing():
    return None

number = 3
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, under a name of its own for each test."""
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_a_function_beside_the_working_directory(beside: str) -> None:
    net, width = entry.encoder(f"python:{beside}:Net", 1, 8)
    assert width == 3
    assert net(torch.rand(4, 1, 8, 8)).shape == (4, 3)


def test_an_attribute_of_an_attribute(beside: str) -> None:
    net, width = entry.encoder(f"python:{beside}:Inner.colour", 3, 8)
    assert (width, next(net.parameters()).shape[1]) == (3, 3)


def test_asking_for_the_width_changes_nothing(beside: str) -> None:
    torch.manual_seed(5)
    net, _ = entry.encoder(f"python:{beside}:Net", 1, 8)
    after = torch.rand(3)
    assert [module.training for module in net.body] == [True, True, False, True, True]
    norm = net.body[1]
    assert int(norm.num_batches_tracked) == 0
    assert torch.count_nonzero(norm.running_mean) == 0
    torch.manual_seed(5)
    entry.resolve(f"{beside}:Net")()
    assert torch.equal(torch.rand(3), after)


def test_a_name_is_looked_up_among_the_models() -> None:
    net, width = entry.encoder("vit-nano/4", 1, 8)
    assert width == 64
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 64)
    with pytest.raises(ValueError, match="no network called 'vit-nano/3'"):
        entry.encoder("vit-nano/3", 1, 8)


def test_a_function_of_an_installed_module() -> None:
    assert entry.resolve("torch.nn:functional.relu") is nn.functional.relu


@pytest.mark.parametrize("name", ["", "module", "module:", ":function", ":"])
def test_an_entry_point_has_a_module_and_an_attribute(name: str) -> None:
    with pytest.raises(ValueError, match="reads 'module:attribute', not"):
        entry.resolve(name)


def test_bad_entry_points_are_told_in_a_sentence(beside: str) -> None:
    cases = {
        "no_such_module_here:net": "module 'no_such_module_here' of the entry point cannot be imported",
        f"{beside}:missing": "has no 'missing'",
        f"{beside}:Inner.missing": r"has no 'Inner\.missing'",
        f"{beside}:number": "is not a function that returns an encoder, but of type int",
        f"{beside}:nothing": r"gives NoneType, not a torch\.nn\.Module",
        f"{beside}:maps": r"gives features \(N, width\)",
        f"{beside}:several": r"gives features \(N, width\)",
        f"{beside}:Inner.colour": "does not take images of 1×8×8: .*channels",
    }
    for name, sentence in cases.items():
        with pytest.raises(ValueError, match=sentence):
            entry.encoder(f"python:{name}", 1, 8)


def test_an_error_of_the_users_own_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_broken.py").write_text("def net():\n    raise ZeroDivisionError('mine')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(ZeroDivisionError, match="mine"):
        entry.encoder("python:own_broken:net", 1, 8)


class Lost(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("first line\nsecond line")


def test_only_the_first_line_of_torchs_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn, "lost", Lost, raising=False)
    with pytest.raises(ValueError, match=r"does not take images of 3×5×5: first line\.$"):
        entry.encoder("python:torch.nn:lost", 3, 5)
