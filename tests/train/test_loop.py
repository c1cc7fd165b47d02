"""The loop on a task small enough to know every number: what the optimizer sees, when it stops, and how it goes on."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import cos, inf, nan, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from regression_task import CONFIG, STEPS, Regression, images, make
from saved_runs import differences, log, state
from torch import Generator, Tensor, nn

import byov
from byov.data import Batch
from byov.posterior import log_var_rate
from byov.train import Diverged, checkpoint
from byov.train.fabric import make_fabric
from byov.train.loop import CERTAIN, LOW_SNR, Loop, Place, posterior_summary
from byov.train.train_config import TrainConfig


def with_posterior(run: Path, config: TrainConfig, log_var: float = -8.0, **hooks: Any) -> Loop:
    torch.manual_seed(0)
    task = Regression(images(), **hooks)
    task.module.net = byov.bayesianize(task.module.net, byov.Gaussian(log_var))  # type: ignore[assignment]
    return Loop(make_fabric(config), task, config, run, {"config": {}, "data": {"digest": "x"}})


# Stopping and going on


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lars"])
@pytest.mark.parametrize(("batch", "accumulate"), [(8, 1), (8, 2), (20, 2)])
def test_a_run_in_pieces_equals_a_run_in_one(tmp_path: Path, optimizer: Any, batch: int, accumulate: int) -> None:
    config = replace(CONFIG, optimizer=optimizer, batch=batch, accumulate=accumulate, weight_decay=0.01)
    whole = make(tmp_path / "whole", config)
    assert whole.fit()
    run, pieces = tmp_path / "pieces", 0
    chance: list[Any] = []
    while True:
        piece = make(run, replace(config, minutes=1e-9))  # every step is over the limit
        if pieces:
            with torch.no_grad():
                piece.task.module.line.weight.fill_(9.0)  # whatever it starts from, the checkpoint counts
            piece.resume()
        done = piece.fit()
        pieces += 1
        chance += piece.task.chance
        assert piece.step == pieces
        if done:
            break
    assert pieces == whole.total == 3 * (35 // batch)
    assert differences(state(tmp_path / "whole"), state(run)) == []
    assert chance == whole.task.chance
    assert [line["step"] for line in log(run)] == [line["step"] for line in log(tmp_path / "whole")]
    assert [line["loss"] for line in log(run)] == [line["loss"] for line in log(tmp_path / "whole")]


def test_a_process_of_several_draws_anew_at_every_step_and_the_same_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a draw's noise is counted by calls, and a run in pieces has to continue the count."""
    monkeypatch.setattr("byov.posterior.module.several_processes", lambda: True)
    monkeypatch.setattr("byov.posterior.module.dist.get_rank", lambda: 1)
    drawn: list[float] = []
    noise = byov.Gaussian.noise

    def watched(*args: Any) -> dict[str, torch.Tensor]:
        found = noise(*args)
        drawn.append(float(found["eps"][0]))
        return found

    monkeypatch.setattr(byov.Gaussian, "noise", watched)
    config = replace(CONFIG, batch=16, accumulate=2)
    assert with_posterior(tmp_path / "whole", config).fit()
    whole, drawn[:] = [*drawn], []
    piece = with_posterior(tmp_path / "pieces", replace(config, minutes=1e-9))
    while not piece.fit():
        piece = with_posterior(tmp_path / "pieces", replace(config, minutes=1e-9))
        piece.resume()
    assert drawn == whole
    assert len(set(whole)) == len(whole) == 2 * piece.total


def test_a_time_limit_is_none_where_it_comes_after_the_last_step(tmp_path: Path) -> None:
    assert make(tmp_path / "enough", replace(CONFIG, minutes=10.0)).fit() is True
    assert make(tmp_path / "last", replace(CONFIG, epochs=1, batch=35, minutes=1e-9)).fit() is True


def test_saves_go_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(checkpoint, "save", lambda path, tree: saved.append(tree["step"]))
    for minutes in (0.0, 5.0):
        make(tmp_path, replace(CONFIG, save_minutes=minutes)).fit()
    assert saved == [*range(1, 13), 12, 12]


def test_a_run_of_another_length_or_on_other_images_is_refused(tmp_path: Path) -> None:
    make(tmp_path).fit()
    other = make(tmp_path, data=images(seed=1))
    before = {name: value.clone() for name, value in other.task.module.state_dict().items()}
    for loop, sentence in (
        (make(tmp_path, replace(CONFIG, epochs=4)), "checkpoint is of a run of 12 steps, this one has 16"),
        (other, "was started on other data than noise"),
    ):
        with pytest.raises(ValueError, match=sentence):
            loop.resume()
    assert differences(before, dict(other.task.module.state_dict())) == []


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        *(("position", place, "is not a position in its data") for place in ((1,), (0, -1), "ab", None)),
        *(("step", step, f"it says step {step} of 12") for step in (13, -1, 1.5)),
    ],
)
def test_a_place_or_step_that_is_none_is_told_with_the_file(
    tmp_path: Path, key: str, value: Any, sentence: str
) -> None:
    loop = make(tmp_path, replace(CONFIG, minutes=1e-9))
    loop.fit()
    checkpoint.save(loop.path, {**checkpoint.load(loop.path), key: value})
    with pytest.raises(ValueError, match=rf"checkpoint.safetensors is damaged: .*{sentence}"):
        make(tmp_path).resume()


def kill_self(*signals: signal.Signals) -> Any:
    """A factor of the loss that sends the process these signals in its third step."""

    def factor(step: int) -> float:
        for number in signals if step == 2 else ():
            os.kill(os.getpid(), number)
        return 1.0

    return factor


def test_the_first_signal_counts_and_handlers_are_put_back(tmp_path: Path) -> None:
    numbers = [signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM]
    before = [signal.getsignal(number) for number in numbers]
    loop = make(tmp_path / "run", factor=kill_self(*numbers))
    assert loop.fit() is False
    assert (loop.step, loop.signal) == (3, signal.SIGUSR1)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_second_sigint_ends_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, factor=kill_self(signal.SIGINT, signal.SIGINT)).fit()
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_another_thread_trains_without_handlers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make(tmp_path).fit).result()


# Chance and order


def test_all_chance_is_of_seed_and_step(tmp_path: Path) -> None:
    runs = [make(tmp_path / str(i), replace(CONFIG, seed=seed)) for i, seed in enumerate((0, 0, 1))]
    for i, loop in enumerate(runs):
        torch.manual_seed(100 + i)  # the loop seeds for itself
        loop.fit()
    first, again, other = (loop.task for loop in runs)
    assert first.chance == again.chance
    numbers = [number for task in (first, other) for pair in task.chance for number in pair]
    assert len(set(numbers)) == len(numbers) == 2 * 2 * 12
    assert differences(first.seen, other.seen)


def as_rank(rank: int) -> Fabric:
    """Return the fabric of one of two processes, without the other."""
    fabric = make_fabric(CONFIG)
    told = {"global_rank": property(lambda self: rank), "world_size": property(lambda self: 2)}
    fabric.__class__ = type("OneOfTwo", (Fabric,), told)
    return fabric


def test_ranks_share_one_generator_and_differ_in_the_other(tmp_path: Path) -> None:
    """What is drawn for the whole batch is the same on every rank; dropout and the like are each rank's own."""
    tasks = [Regression(images()) for _ in range(2)]
    for rank, task in enumerate(tasks):
        Loop(as_rank(rank), task, CONFIG, tmp_path / str(rank), {}).fit()
    common, own = zip(*(zip(*task.chance, strict=True) for task in tasks), strict=True)
    assert common[0] == common[1]
    assert len({*own[0], *own[1], *common[0]}) == 3 * 12


@pytest.mark.parametrize("shared", [False, True])
def test_a_shared_draw_is_held_over_a_step_and_equal_on_every_rank(tmp_path: Path, shared: bool) -> None:
    class Watched(Regression):
        def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Tensor, ...]:
            drawn.append([self.module.net(torch.ones(1, 16)).detach() for _ in range(2)])
            return super().inputs(batch, generator, place)

    found = []
    for rank in range(2):
        drawn: list[list[Tensor]] = []
        torch.manual_seed(0)
        task = Watched(images())
        line = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        task.module.net = byov.bayesianize(line, byov.Gaussian(-2.0), shared_draw=shared)  # type: ignore[assignment]
        Loop(as_rank(rank), task, replace(CONFIG, lr=1e-9, log_var_lr=1.0), tmp_path / str(rank), {}).fit()
        found.append(drawn)
    for steps in found:
        assert all(torch.equal(*twice) == shared for twice in steps)
        assert not torch.allclose(steps[0][0], steps[1][0], atol=1e-3)
    assert all(torch.allclose(a[0], b[0], atol=1e-5) == shared for a, b in zip(*found, strict=True))


def test_the_task_knows_its_place(tmp_path: Path) -> None:
    loop = make(tmp_path, replace(CONFIG, accumulate=2))
    loop.fit()
    assert [place.step for place in loop.task.places] == [step for step in range(12) for _ in range(2)]
    assert {(p.total, p.rank, p.world, p.device.type) for p in loop.task.places} == {(12, 0, 1, "cpu")}


# What the optimizer sees


def spy(loop: Loop) -> tuple[list[float], list[float]]:
    """The learning rate and the gradient's norm at each step."""
    rates: list[float] = []
    norms: list[float] = []

    def look(optimizer: Any, *_: Any) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        assert all(group["lr"] == rates[-1] for group in optimizer.param_groups)
        norms.append(float(torch.cat([p.grad.flatten() for p in loop.task.trainable().parameters()]).norm()))

    loop.optimizer.register_step_pre_hook(look)
    return rates, norms


@pytest.mark.parametrize(("warmup", "steps"), [(0.0, 0), (0.75, 3)])
@pytest.mark.parametrize("end", [0.0, 0.25, 1.0])
def test_the_rate_warms_up_and_falls_along_a_cosine(warmup: float, steps: int, end: float, tmp_path: Path) -> None:
    loop = make(tmp_path, replace(CONFIG, warmup=warmup, lr_end=end, lr_batch=16))
    rates, _ = spy(loop)
    loop.fit()
    base, left = 0.1 * 8 / 16, 12 - steps
    cosine = [base * (end + (1 - end) * (1 + cos(pi * k / left)) / 2) for k in range(left)]
    assert rates == pytest.approx([*(base * k / 3 for k in range(steps)), *cosine])
    assert [line["lr"] for line in log(tmp_path)] == rates


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lars"])
@pytest.mark.parametrize("given", [None, 3.0])
def test_log_variances_learn_at_a_rate_of_their_own(tmp_path: Path, optimizer: Any, given: float | None) -> None:
    """1/√steps along the schedule, whatever the optimizer and its rate; a given one is in units of the weights'."""
    config = replace(CONFIG, optimizer=optimizer, lr=0.02, log_var_lr=given)
    loop, found = with_posterior(tmp_path, config), []
    loop.optimizer.register_step_pre_hook(lambda o, *_: found.append({g["role"]: g["lr"] for g in o.param_groups}))
    loop.fit()
    assert len(found) == 12
    assert found[0]["weights"] == pytest.approx(0.02)
    for rates in found:
        assert rates["log_var"] == pytest.approx(rates["weights"] * (given or 12**-0.5 / 0.02))


def test_gradients_are_clipped_to_their_norm(tmp_path: Path) -> None:
    free, clipped, wide = (make(tmp_path / str(clip), replace(CONFIG, clip=clip)) for clip in (None, 0.3, 100.0))
    start = free.task.module.line.weight.detach().clone()
    raw, cut = spy(free)[1], spy(clipped)[1]
    for loop in (free, clipped, wide):
        loop.fit()
    assert raw[0] > 0.3  # the first step is the same but for the clipping
    assert cut[0] == pytest.approx(0.3, rel=1e-4)
    assert max(cut) <= 0.3 * (1 + 1e-4)
    first = [loop.task.updates[0][2] - start for loop in (free, clipped)]
    torch.testing.assert_close(first[1], first[0] * 0.3 / raw[0], rtol=1e-3, atol=1e-7)
    assert differences(state(tmp_path / "100.0")["module"], state(tmp_path / "None")["module"]) == []


def test_accumulated_parts_make_one_batch(tmp_path: Path) -> None:
    """Without dropout two halves have the gradient of the whole, and as many optimizer steps."""
    found = []
    for accumulate in (1, 2, 4):
        loop = make(tmp_path / str(accumulate), replace(CONFIG, accumulate=accumulate))
        loop.task.module.drop.p = 0.0
        loop.fit()
        assert (len(loop.task.seen), loop.step) == (12 * accumulate, 12)
        found.append(state(loop.run)["module"])
    torch.testing.assert_close(found[1:], [found[0]] * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_inputs_are_not_rounded_on_their_way(tmp_path: Path, precision: Any) -> None:
    loop = make(tmp_path, replace(CONFIG, precision=precision, epochs=1))
    got: list[Tensor] = []
    loop.task.module.register_forward_pre_hook(lambda module, args: got.append(args[1]))
    loop.fit()
    expected = images().images[loop.task.seen[0]].float()[..., :2].mean((1, 2, 3)) / 255
    assert got[0].dtype == torch.float32
    torch.testing.assert_close(got[0][:, 0], expected, rtol=1e-6, atol=0)


# Going wrong


@pytest.mark.parametrize("wrong", [nan, inf])
def test_a_loss_that_is_no_number_ends_the_run_with_advice(tmp_path: Path, wrong: float) -> None:
    clip = 1.0 if wrong == inf else None  # which leaves an infinite gradient to the loss
    loop = make(tmp_path, replace(CONFIG, save_minutes=0.0, clip=clip), factor=lambda step: wrong if step == 5 else 1.0)
    with pytest.raises(Diverged, match=rf"The loss is {wrong} at step 6. Try a lower train.lr.*checkpoint is kept"):
        loop.fit()
    kept = state(tmp_path)
    assert kept["step"] == 5
    assert all(bool(value.isfinite().all()) for value in kept["module"].values())
    assert log(tmp_path)[-1]["step"] == 6
    again = make(tmp_path)  # with a lower learning rate, say
    again.resume()
    assert again.fit()


@pytest.mark.parametrize("minutes", [None, 1e-9])
def test_a_broken_state_is_not_saved_between_reports(tmp_path: Path, minutes: float | None) -> None:
    """The loss is looked at only now and then: a save, or a stop, in between must not keep what is broken."""
    good = make(tmp_path, replace(CONFIG, minutes=1e-9, log_every=1000))
    good.fit()
    config = replace(CONFIG, save_minutes=0.0 if minutes is None else 5.0, minutes=minutes, log_every=1000)
    loop = make(tmp_path, config, factor=lambda step: nan)
    loop.resume()
    with pytest.raises(Diverged, match=r"Not all weights are finite after step 2\. Try a lower train\.lr"):
        loop.fit()
    assert state(tmp_path)["step"] == 1


def test_a_collapse_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Neither in the first epoch nor for a healthy spread.
    make(tmp_path, spread=lambda step: 0.05 if step >= 5 else 0.01 if step < STEPS else 0.11).fit()
    alarms = [line for line in log(tmp_path) if "alarm" in line]
    assert [line["step"] for line in alarms] == [6]
    assert "collapsed (spread 0.050 of 1/√d). Try a lower train.lr, a higher ssl.tau_base" in alarms[0]["alarm"]
    assert "warning" in capsys.readouterr().err


def test_a_posterior_that_is_wider_than_its_means_is_told_once(tmp_path: Path) -> None:
    def alarms(name: str, log_var: float, spread: float = 1.0) -> list[str]:
        with_posterior(tmp_path / name, replace(CONFIG, lr=1e-5), log_var, spread=lambda step: spread).fit()
        return [line["alarm"] for line in log(tmp_path / name) if "alarm" in line]

    assert alarms("narrow", -10.0) == []
    (wide,) = alarms("wide", 4.0)
    assert "the median |μ|/σ is" in wide
    assert "smaller posterior.log_var, posterior.beta_end or train.log_var_lr" in wide
    assert len(alarms("both", 4.0, spread=0.05)) == 2  # the one does not silence the other


def test_only_some_steps_are_reported(tmp_path: Path) -> None:
    make(tmp_path, replace(CONFIG, log_every=5)).fit()
    assert [line["step"] for line in log(tmp_path)] == [1, 5, 10, 12]
    assert log(tmp_path)[1]["epoch"] == 1.25


# Bad settings


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"log_var_lr": nan}, "train.log_var_lr is a number from 0 to 1,000,000 or none, not nan"),
        ({"epochs": 0}, "train.epochs is a whole number from 1 to 1,000,000,000 or 'auto', not 0"),
        ({"lr": 0.0}, "train.lr is a number above 0 and at most 1,000,000, not 0.0"),
        ({"lr_batch": 0}, "train.lr_batch is a whole number from 1"),
        ({"momentum": 2.0}, "train.momentum is a number from 0 to 1, not 2.0"),
        ({"minutes": nan}, "train.minutes is a number above 0 or none, not nan"),
        ({"save_minutes": nan}, "train.save_minutes is a number of at least 0, not nan"),
        ({"clip": -1.0}, "train.clip is a number above 0 or none, not -1.0"),
        ({"warmup": 3.5}, "do not fit into train.epochs=3: choose fewer, as in --set train.warmup=0.3"),
        ({"decay": "all", "optimizer": "lars"}, "train.decay = 'all' is for sgd, adam and adamw"),
    ],
)
def test_bad_settings_are_told_in_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(CONFIG, **setting)


def test_a_batch_must_be_shared_out_and_a_training_has_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one step, not 0"):
        log_var_rate(0)
    with pytest.raises(ValueError, match=r"train\.batch=8 cannot be divided among 1 processes × 3 accumulated parts"):
        make(tmp_path, replace(CONFIG, accumulate=3))
    for accumulate in (1, 4):
        with pytest.raises(ValueError, match="noise has"):
            make(tmp_path, replace(CONFIG, batch=36, accumulate=accumulate))
    assert not list(tmp_path.iterdir())


def test_a_weight_without_spread_is_certain_and_raises_no_alarm() -> None:
    """Biases that start at 0 have equal components: their 0/0 is no wide posterior."""
    net = torch.nn.BatchNorm1d(4)  # its scales are 1, its biases 0
    summary = posterior_summary(byov.bayesianize(net, byov.EMP(3, spread=0.2)))
    assert summary["snr"] > LOW_SNR
    wide = posterior_summary(byov.bayesianize(net, byov.Gaussian(log_var=4.0)))
    assert wide["snr"] < LOW_SNR
    still = posterior_summary(
        byov.bayesianize(torch.nn.Linear(4, 4), byov.Gaussian(log_var=-200.0))
    )  # σ is not quite 0
    assert still["snr"] == pytest.approx(CERTAIN)  # a log holds no infinity
