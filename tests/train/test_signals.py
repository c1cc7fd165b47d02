"""A signal ends a run after the step, with a checkpoint from which it goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from regression_task import make
from saved_runs import differences, log, state


def kill_self(*signals: signal.Signals) -> Any:
    """A factor of the loss that sends the process these signals in its third step."""

    def factor(step: int) -> float:
        for number in signals if step == 2 else ():
            os.kill(os.getpid(), number)
        return 1.0

    return factor


@pytest.mark.parametrize("names", [["SIGTERM"], ["SIGINT"], ["SIGUSR1"], ["SIGUSR1", "SIGTERM", "SIGTERM"]])
def test_a_signal_stops_after_the_step_and_nothing_is_lost(tmp_path: Path, names: list[str]) -> None:
    numbers = [signal.Signals[name] for name in names]
    before = {number: signal.getsignal(number) for number in numbers}
    loop = make(tmp_path / "run", factor=kill_self(*numbers))
    assert loop.fit() is False
    assert (loop.step, loop.signal) == (3, numbers[0])
    assert {number: signal.getsignal(number) for number in numbers} == before
    again = make(tmp_path / "run")
    assert again.resume() == ""
    assert again.fit()
    make(tmp_path / "whole").fit()
    assert differences(state(tmp_path / "whole"), state(tmp_path / "run")) == []
    assert [line["step"] for line in log(tmp_path / "run")] == list(range(1, 13))


def test_a_second_sigint_ends_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, factor=kill_self(signal.SIGINT, signal.SIGINT)).fit()
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_another_thread_trains_without_handlers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make(tmp_path).fit).result()
