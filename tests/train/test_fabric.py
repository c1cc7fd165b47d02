"""Devices and processes are counted as they were asked for, or refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from regression_task import CONFIG

from byov.train.fabric import make_fabric


def test_one_process_unless_told_otherwise() -> None:
    fabric = make_fabric(replace(CONFIG, devices="auto"))
    assert (fabric.world_size, fabric.device.type, fabric.is_global_zero) == (1, "cpu", True)


@pytest.mark.parametrize(("nodes", "each"), [(1, 2), (1, 4), (2, 2), (3, 1)])
def test_torchruns_processes_are_counted_once(monkeypatch: pytest.MonkeyPatch, nodes: int, each: int) -> None:
    """Fabric itself compares devices × nodes with the number of processes that were started."""
    started = {"WORLD_SIZE": nodes * each, "LOCAL_WORLD_SIZE": each, "RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0}
    for name, value in {**started, "TORCHELASTIC_RUN_ID": "test"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("lightning.fabric.Fabric.launch", lambda self: None)  # nobody else is there to meet
    fabric = make_fabric(replace(CONFIG, devices="auto", nodes=nodes))
    assert fabric.world_size == nodes * each


@pytest.mark.parametrize(("key", "most"), [("devices", "for this CPU: at most"), ("nodes", "torchrun or srun")])
def test_processes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, key: str, most: str) -> None:
    monkeypatch.setattr("lightning.fabric.Fabric.launch", lambda self: None)  # lest they be started after all
    with pytest.raises(ValueError, match=f"train.{key}=99999 .*{most}"):
        make_fabric(replace(CONFIG, **{key: 99_999}))


@pytest.mark.parametrize(
    ("accelerator", "sentence"),
    [
        ("cuda", "train.accelerator=cuda, but torch sees no GPU here"),
        ("tpu", "train.accelerator=tpu with train.devices=1 cannot be used here: "),
        ("quantum", "train.accelerator=quantum with train.devices=1 cannot be used here: "),
    ],
)
def test_an_accelerator_that_is_not_here_is_named(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, sentence: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=sentence):
        make_fabric(replace(CONFIG, accelerator=accelerator))
