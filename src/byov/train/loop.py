"""The training loop: Lightning Fabric for devices and processes, and runs that stop and resume bit for bit.

No random state is carried from step to step. All randomness of step k is a pure function of (seed, k, rank), and the
order of the data of (seed, epoch): a checkpoint needs the weights, the optimizer and two integers, but no generator
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from lightning.fabric import Fabric
from torch import Generator, Tensor, nn

from byov.data import Batch, Batches
from byov.posterior import BayesianModule, log_var_rate
from byov.posterior.random import stream
from byov.posthoc.swag import SWAG
from byov.train import Diverged, checkpoint
from byov.train.fabric import Signals
from byov.train.journal import Journal
from byov.train.optimizers import build_optimizer
from byov.train.schedules import warmup_cosine
from byov.train.train_config import TrainConfig

CERTAIN = 1e30
"""|μ|/σ of a weight with σ = 0; finite, so that it can be logged."""
LOW_SNR = 0.3
"""Self-supervised training warns below this median |μ|/σ. For a ResNet-18 whose ratio fell to 0.001, and which ended
3 points below BYOL, the loss began to lag at about 1; at 0.3 this was beyond doubt, with half of the run left."""

_ADVICE = (
    "Try a lower train.lr, train.clip=1.0, a longer warm-up, or with a posterior a smaller posterior.beta_end;"
    " the last checkpoint is kept."
)


class Task(Protocol):
    """What the loop trains: a module whose forward returns the loss first, and the inputs for each step."""

    data: Any

    @property
    def module(self) -> nn.Module: ...

    def trainable(self) -> nn.Module:
        """Return the module whose parameters are optimized: a BayesianModule or a plain network."""
        ...

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Any, ...]:
        """Return the arguments of the module's forward for one batch, with random numbers from the step's generator."""
        ...

    def after(self, step: int, total: int) -> None:
        """Do any work after the optimizer's step number `step` (from 1)."""
        ...


class RecipeTask(Task, Protocol):
    """A task made from a recipe, with additional information for checkpoint and user."""

    def about(self) -> dict[str, Any]:
        """Return what the checkpoint records besides the recipe and the data."""
        ...

    def note(self) -> str:
        """Return a text to print before training, or ""."""
        ...


@dataclass(frozen=True)
class Place:
    """The position of a batch: its optimizer step, and its part of the global batch."""

    step: int
    total: int
    rank: int
    world: int
    device: torch.device


class Loop:
    """One run: a task, its configuration, and its folder."""

    def __init__(self, fabric: Fabric, task: Task, config: TrainConfig, run: Path, recipe: dict[str, Any]) -> None:
        config = config.on(fabric.device.type == "cuda")
        self.fabric, self.task, self.config, self.run, self.recipe = fabric, task, config, run, recipe
        share, rest = divmod(config.batch_size, fabric.world_size * config.accumulate)
        if rest:
            parts = f"{fabric.world_size} processes × {config.accumulate} accumulated parts"
            raise ValueError(f"train.batch={config.batch_size} cannot be divided among {parts}.")
        if share * fabric.world_size == 1 and any(isinstance(m, nn.BatchNorm1d) for m in task.module.modules()):
            raise ValueError(f"train.batch={config.batch_size} is one image at a time, and a BatchNorm needs two.")
        self.batches = Batches(
            task.data,
            share,
            seed=config.seed,
            rank=fabric.global_rank,
            world=fabric.world_size,
            workers=config.workers,
            device=fabric.device,
        )
        self.steps_per_epoch = len(self.batches) // config.accumulate
        if self.steps_per_epoch == 0:
            raise ValueError(f"{task.data.name} has too few images for one step of {config.batch_size}.")
        self.total = config.epoch_count * self.steps_per_epoch
        self.step, self.seconds = 0, 0.0
        self.signal = 0
        """The number of the signal that stopped the run, or 0."""
        scale = config.batch_size / config.lr_batch if config.lr_batch else 1.0
        self.base_lr = config.lr * scale
        self.log_var_lr = log_var_rate(self.total) / self.base_lr if config.log_var_lr is None else config.log_var_lr
        """In units of `base_lr`."""
        follows = any(isinstance(module, SWAG) for module in task.module.modules())
        self.lr_end = float(follows) if config.lr_end == "auto" else config.lr_end
        """In units of `base_lr`."""
        self.optimizer = build_optimizer(
            config.optimizer,
            task.trainable(),
            lr=self.base_lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            nesterov=config.nesterov,
            eta=config.eta,
            log_var=config.log_var_optimizer,
            decay=config.decay,
        )
        # CUDA graphs own the memory of the gradients, so gradients cannot be accumulated.
        self.graphs = (
            config.compile is True
            and config.cuda_graphs
            and fabric.device.type == "cuda"
            and fabric.world_size == config.accumulate == 1
        )
        mode = "reduce-overhead" if self.graphs else None
        module = torch.compile(task.module, mode=mode) if config.compile else task.module
        self.module, self.wrapped = fabric.setup(module, self.optimizer)  # type: ignore[arg-type]

    # Saving and resuming

    @property
    def path(self) -> Path:
        return self.run / "checkpoint.safetensors"

    def save(self) -> None:
        """Save the run; raise if weights are not finite, so that no good checkpoint is replaced by a broken one."""
        if not all(bool(p.isfinite().all()) for p in self.task.trainable().parameters()):
            raise Diverged(f"Not all weights are finite after step {self.step}. {_ADVICE}")
        if self.fabric.is_global_zero:
            checkpoint.save(
                self.path,
                {
                    "recipe": self.recipe,
                    "module": self.task.module.state_dict(),
                    # Its moments are most of a checkpoint, and a finished run no longer needs them.
                    "optimizer": self.optimizer.state_dict() if self.step < self.total else {},
                    "step": self.step,
                    "total": self.total,
                    "position": self.batches.state,
                    "seconds": self.seconds,
                    **self._platform(),
                },
            )
        self.fabric.barrier()

    def resume(self) -> str:
        """Resume the run from its checkpoint; return a warning if it will not be reproduced bit for bit, or ""."""
        state = checkpoint.load(self.path)
        if state["total"] != self.total:
            raise ValueError(f"The checkpoint is of a run of {state['total']} steps, this one has {self.total}.")
        if type(state["step"]) is not int or not 0 <= state["step"] <= self.total:
            raise ValueError(f"{self.path} is damaged: it says step {state['step']!r} of {self.total}.")
        if state["recipe"].get("data") != self.recipe.get("data"):
            raise ValueError(f"The run was started on other data than {self.task.data.name} as it is now.")
        before, now = (recipe.get("kl_scale") for recipe in (state["recipe"], self.recipe))
        if before != now and None not in (before, now):  # "auto" may have had another meaning when it was started
            raise ValueError(
                f"The run was started with N = {before:,.0f}, where this byov takes {now:,.0f}:"
                " finish it with the byov that started it."
            )
        checkpoint.fill(self.task.module, state["module"], self.path)
        if state["optimizer"]:
            checkpoint.fill(self.optimizer, state["optimizer"], self.path)
        self.step, self.seconds = state["step"], state["seconds"]
        try:
            self.batches.state = tuple(state["position"])
        except (TypeError, ValueError):
            raise ValueError(f"{self.path} is damaged: {state['position']!r} is not a position in its data.") from None
        now = self._platform()  # older checkpoints have only a part of it
        changed = [f"{name} {state[name]}, not {now[name]}" for name in now if state.get(name, now[name]) != now[name]]
        if not changed or self.step >= self.total:
            return ""
        return f"The run will not be bit-identical to an uninterrupted one: it was saved with {', '.join(changed)}."

    def _platform(self) -> dict[str, Any]:
        """Return what determines the order of sums, and so the last bits."""
        return {
            "torch": str(torch.__version__),
            "device": self.fabric.device.type,
            "threads": torch.get_num_threads(),
            "processes": self.fabric.world_size,
            "precision": self.config.precision,
            "compile": self.config.compile,
        }

    # Training

    def fit(self, signals: Signals | None = None) -> bool:
        """Train until the end, the time limit, or a signal to stop; return True if it reached the end.

        `signals` is given by a caller who installed the signal handlers before.
        """
        self.task.module.train()
        with Signals() if signals is None else nullcontext(signals) as signals:
            where, first = (self.run, self.step, self.total, self.steps_per_epoch), self.fabric.is_global_zero
            with Journal(*where, first, compiled=self.config.compile is True) as journal:
                if self.step == 0:
                    journal.record_layers(0, self.task.trainable())
                self._train(journal, signals)
            self.save()
        return self.step == self.total

    def _train(self, journal: Journal, signals: Signals) -> None:
        config, before, started = self.config, self.seconds, monotonic()
        deadline = started + 60 * config.minutes if config.minutes else float("inf")
        saved = started
        (self.signal,) = self._max_over_ranks(signals.caught)
        if self.signal:
            return
        for parts in self._groups():
            out = self._optimize(parts)
            self.step += 1
            self.task.after(self.step, self.total)
            self.seconds = before + monotonic() - started
            if self.step % config.log_every == 0 or self.step in (1, self.total):
                self._report(journal, out)
            else:
                journal.advance(self.step)
            journal.record_layers(self.step, self.task.trainable())
            now = monotonic()
            flags = signals.caught, now >= deadline, now - saved >= 60 * config.save_minutes
            self.signal, late, due = self._max_over_ranks(*flags)
            if (self.signal or late) and self.step < self.total:
                break
            if due:
                self.save()
                saved = monotonic()

    def _groups(self) -> Iterator[list[Batch]]:
        """Yield the batches of each optimizer step until the end of the run."""
        while self.step < self.total:
            group: list[Batch] = []
            for batch in self.batches:
                group.append(batch)
                if len(group) == self.config.accumulate:
                    yield group
                    group = []
                    if self.step == self.total:
                        return

    def _optimize(self, parts: list[Batch]) -> Any:
        warmup, end = round(self.config.warmup * self.steps_per_epoch), self.lr_end * self.base_lr
        lr = warmup_cosine(self.step, self.total, warmup, self.base_lr, end)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * (self.log_var_lr if group["role"] == "log_var" else 1.0)
        out = None
        for i, batch in enumerate(parts):
            last = i == len(parts) - 1
            with self._seeded(i) as generator, self.fabric.no_backward_sync(self.module, enabled=not last):
                place = Place(
                    self.step, self.total, self.fabric.global_rank, self.fabric.world_size, self.fabric.device
                )
                if self.graphs:
                    torch.compiler.cudagraph_mark_step_begin()
                out = self.module(*self.task.inputs(batch, generator, place))
                self.fabric.backward(out.loss / len(parts))
        if hasattr(self.task, "before"):  # a task may change the gradients, or drop some
            self.task.before(self.step)
        if self.config.clip is not None:
            # Not an error here: a loss scaler skips such a step, and without one the loss will not be finite.
            self.fabric.clip_gradients(self.module, self.wrapped, max_norm=self.config.clip, error_if_nonfinite=False)
        self.wrapped.step()
        self.wrapped.zero_grad(set_to_none=True)
        return out

    @contextmanager
    def _seeded(self, part: int) -> Iterator[Generator]:
        """Seed all randomness of one part of one step: the global generator, and a yielded one shared by all ranks."""
        model, rank = self.task.trainable(), self.fabric.global_rank
        here = stream(self.config.seed, self.step, part)
        torch.manual_seed(stream(here, 1 + rank))
        common = Generator(self.fabric.device).manual_seed(stream(here, 0))
        if not isinstance(model, BayesianModule):
            yield common
            return
        model.calls = self.step * self.config.accumulate + part
        # A shared draw is fixed from outside, so that it is the same for any number of processes, compiled or not.
        noise = Generator(self.fabric.device).manual_seed(stream(here, 0, 1))
        with model.draw(generator=noise) if model.shared_draw else nullcontext():
            yield common

    def _report(self, journal: Journal, out: Any) -> None:
        values = {name: float(value.detach()) for name, value in out._asdict().items()}
        values["lr"] = self.optimizer.param_groups[0]["lr"]
        if self._max_over_ranks(not isfinite(values["loss"]))[0]:  # on any process: all stop, and the first reports it
            journal.write(self.step, self.seconds, values)
            lost = f"{values['loss']}" if not isfinite(values["loss"]) else "not finite on another process"
            raise Diverged(f"The loss is {lost} at step {self.step}. {_ADVICE}")
        if "spread" in values and values["spread"] < 0.1 and self.step > self.steps_per_epoch:
            journal.alarm(
                self.step,
                f"The projections have collapsed (spread {values['spread']:.3f} of 1/√d). Try a lower train.lr, a"
                " higher ssl.tau_base, or a larger batch.",
                about="spread",
            )
        model = self.task.trainable()
        if isinstance(model, BayesianModule):
            values |= posterior_summary(model)
            if "spread" in values and values["snr"] < LOW_SNR:  # with labels a wide posterior may be intended
                journal.alarm(
                    self.step,
                    f"The posterior is wide: the median |μ|/σ is {values['snr']:.2g}, and the student learns through"
                    " that noise. Try a smaller posterior.log_var, posterior.beta_end or train.log_var_lr, or less"
                    " decay.",
                    about="snr",
                )
        journal.write(self.step, self.seconds, values, self.step * self.config.batch_size / max(self.seconds, 1e-9))

    def _max_over_ranks(self, *flags: int) -> list[int]:
        """Return the maximum of each flag over all ranks.

        Clocks differ and a signal may reach only one rank, but all must stop or save at the same step.
        """
        if self.fabric.world_size == 1:
            return list(flags)
        mine = torch.tensor(flags, dtype=torch.int32, device=self.fabric.device)
        return self.fabric.all_reduce(mine, reduce_op="max").tolist()  # type: ignore[union-attr]


@torch.no_grad()
def posterior_summary(model: BayesianModule) -> dict[str, float]:
    """Return the mean σ and the median |μ|/σ over all covered weights."""
    std: Tensor = torch.cat([factor.flat_std() for factor in model.factors])
    mean: Tensor = torch.cat([factor.flat_mean() for factor in model.factors])
    snr = torch.where(std > 0, mean.abs() / std, CERTAIN)  # also 0/0: components that start at 0 are not wide
    snr = snr.clamp_max(CERTAIN)  # a σ close to 0 would make it infinite
    return {"sigma": float(std.mean()), "snr": float(snr.median())}
