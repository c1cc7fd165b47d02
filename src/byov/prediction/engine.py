"""byov.predict: the posterior predictive by Monte Carlo."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule
from byov.prediction.inputs import Batch, device_of, first_of, ready, size_of, unwrap
from byov.prediction.recycle import Recycle
from byov.prediction.result import Moments, Prediction, Task
from byov.prediction.reuse import Diverged, Recording, record, replay

Strategy = Literal["auto", "loop", "vmap"]

CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 25}
"""How many elements (32 and 128 MiB in float32) the largest tensor of a chunk of batched draws may have.

On CPU more does not help: it leaves the caches, and every large tensor is new memory that the system has to clear."""

FIRST_LOOK = 32
"""Draws before a tolerance may stop any input. After 8, an input whose rare but large deviations have not come up yet
passes for certain: on digits the error at a tolerance was then twice the one that as many draws for everybody have."""

_NO_BATCHING = (RuntimeError, NotImplementedError)
"""What vmap raises for an operation it has no rule for, or for a draw written into a tensor that all draws share."""


def predict(
    model: nn.Module,
    x: Batch | Iterable[Any],
    samples: int = 100,
    strategy: Strategy = "auto",
    tolerance: float | None = None,
    generator: Generator | None = None,
    *,
    task: Task = "classification",
    precision: float | None = None,
    keep: bool = False,
    progress: bool | None = None,
) -> Prediction:
    """The posterior predictive of `x` under draws of the model's weights.

    Args:
        model: a BayesianModule; a plain network counts as a posterior without spread, and takes one pass.
        x: one batch (a tensor, or a mapping of keyword arguments), or a loader of batches; of a (x, y) batch the first
            is taken. Every batch of a loader sees the same draws, so the result does not depend on the batching.
        samples: how many draws, at most.
        strategy: "loop" runs one draw after the other, "vmap" batches them, "auto" times both on the first draws and
            goes on with the faster. They give the same numbers for the same generator, up to rounding.
        tolerance: stop drawing for an input once the Monte-Carlo standard error of its predictive mean is below this.
        task: "classification" takes the outputs as logits over dimension 1, "regression" as they are.
        precision: a regression's output precision τ, whose noise 1/τ is part of the predictive spread.
        keep: also return what each draw predicted.
        progress: a progress bar over a loader; by default where there is a terminal to show it.
    """
    _check(samples, strategy, tolerance, task, precision, keep)
    model = unwrap(model)
    call = _Predictor(model, samples, strategy, tolerance, task, precision, keep)
    with _evaluating(model), torch.inference_mode(False), torch.no_grad():
        if isinstance(x, Tensor | Mapping):
            return call(x, generator)
        if not isinstance(x, Iterable):
            raise TypeError(f"predict takes a tensor, a mapping of tensors or a loader, not {type(x).__name__}.")
        # The same draws for every batch: its generator starts from the same state.
        if generator is None:
            generator = Generator(device_of(model)).manual_seed(int(torch.randint(1 << 62, ())))
        start = generator.get_state()
        parts = []
        for batch in _track(x, progress):
            generator.set_state(start)
            parts.append(call(first_of(batch), generator))
        if not parts:
            raise ValueError("The loader is empty: there is nothing to predict.")
        return Prediction.cat(parts)


def _check(
    samples: int, strategy: str, tolerance: float | None, task: str, precision: float | None, keep: bool
) -> None:
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise ValueError(f"predict needs at least one draw, not samples={samples!r}.")
    if strategy not in get_args(Strategy):
        raise ValueError(f"A strategy is 'auto', 'loop' or 'vmap', not {strategy!r}.")
    if task not in get_args(Task):
        raise ValueError(f"A task is 'classification' or 'regression', not {task!r}.")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"A tolerance is above 0, not {tolerance}.")
    if precision is not None and not (task == "regression" and precision > 0):
        raise ValueError("An output precision is above 0 and belongs to a regression.")
    if keep and tolerance is not None:
        raise ValueError("Draws cannot be kept with a tolerance: inputs take different numbers of them.")


class _Predictor:
    """One batch at a time; remembers which strategy won."""

    def __init__(
        self,
        model: nn.Module,
        samples: int,
        strategy: Strategy,
        tolerance: float | None,
        task: Task,
        precision: float | None,
        keep: bool,
    ) -> None:
        self.model, self.tolerance, self.task, self.precision, self.keep = model, tolerance, task, precision, keep
        self.samples = samples if isinstance(model, BayesianModule) else 1
        self.strategy: Strategy = "loop" if strategy == "auto" and self.samples < 4 else strategy

    def __call__(self, x: Batch, generator: Generator | None) -> Prediction:
        x = ready(x, self.model)
        size = size_of(x)
        kept: list[Tensor] = []
        moments, active = Moments(self.task), torch.arange(size)
        done: list[tuple[Tensor, dict[str, Tensor | None], int]] = []
        run = _Runner(self.model, x, self.task)
        while moments.count < self.samples:
            ahead = self.samples - moments.count
            if self.tolerance is not None:
                ahead = min(ahead, max(FIRST_LOOK, moments.count // 2))  # look again at 32, 64, 96, 144, … draws
            self._advance(run, moments, ahead, generator, kept)
            if self.tolerance is None or moments.count >= self.samples:
                continue
            open_ = moments.standard_error() >= self.tolerance
            if bool(open_.all()):
                continue
            closed = Moments(self.task)
            closed.__dict__.update(moments.__dict__)
            closed.take(~open_)
            done.append((active[~open_.cpu()], closed.result(self.precision), closed.count))
            active = active[open_.cpu()]
            if len(active) == 0:
                break
            moments.take(open_)
            x = x[open_] if isinstance(x, Tensor) else {k: v[open_] for k, v in x.items()}
            run = _Runner(self.model, x, self.task)
        if len(active):
            done.append((active, moments.result(self.precision), moments.count))
        return self._assemble(done, kept)

    def _advance(
        self, run: _Runner, moments: Moments, draws: int, generator: Generator | None, kept: list[Tensor]
    ) -> None:
        """Take in `draws` more draws."""
        while draws > 0:
            if self.strategy == "auto" and run.recording is not None:
                chunk = min(run.chunk(), max(draws // 2, 1))
                values, self.strategy = self._race(run, generator, chunk)
            elif self.strategy == "vmap" and run.recording is not None:
                values = self._batched(run, [self._noise(generator) for _ in range(min(run.chunk(), draws))])
            else:
                with run.noises:
                    noise = self._noise(generator)
                values = run.single(noise).unsqueeze(0)
            moments.update(values)
            if self.keep:
                kept.append(values if self.task == "classification" else values.clone())
            draws -= len(values)

    @staticmethod
    def _batched(run: _Runner, noises: list[list[Noise]]) -> Tensor:
        try:
            return run.batched(noises)
        except _NO_BATCHING as error:
            what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"vmap cannot batch this network's draws, 'loop' and 'auto' can: {what}") from error

    def _race(self, run: _Runner, generator: Generator | None, chunk: int) -> tuple[Tensor, Strategy]:
        """Time one draw, then a chunk of batched ones; nothing is thrown away, since both give the same numbers."""
        start = _now(run.device)
        values = [run.single(self._noise(generator)).unsqueeze(0)]
        single = _now(run.device) - start
        # Batching pays where a pass is too small to fill the machine; a long pass does, and the trial would cost much.
        if chunk < 2 or single > 0.25:
            return values[0], "loop"
        noises = [self._noise(generator) for _ in range(chunk)]
        start = _now(run.device)
        try:
            values.append(run.batched(noises))
        except _NO_BATCHING:
            values += [run.single(noise).unsqueeze(0) for noise in noises]
            return torch.cat(values), "loop"
        return torch.cat(values), "vmap" if (_now(run.device) - start) / chunk < single else "loop"

    def _noise(self, generator: Generator | None) -> list[Noise]:
        return self.model.noise(generator) if isinstance(self.model, BayesianModule) else []

    def _assemble(self, done: list[tuple[Tensor, dict[str, Tensor | None], int]], kept: list[Tensor]) -> Prediction:
        order = torch.cat([index for index, _, _ in done]).argsort()
        fields: dict[str, Tensor | None] = {}
        for name in done[0][1]:
            parts = [result[name] for _, result, _ in done]
            fields[name] = None if parts[0] is None else torch.cat(parts)[order.to(parts[0].device)]  # type: ignore[arg-type]
        mean = fields["mean"]
        if not torch.isfinite(mean).all():  # type: ignore[arg-type]
            bad = int((~torch.isfinite(mean)).reshape(len(order), -1).any(1).sum())  # type: ignore[arg-type]
            raise ValueError(f"The network's outputs are not finite for {bad} of {len(order)} inputs.")
        used: int | Tensor = done[0][2]
        if self.tolerance is not None:
            used = torch.cat([torch.full((len(index),), count) for index, _, count in done])[order]
        name = "loop" if self.strategy == "auto" else self.strategy
        return Prediction(**fields, samples=used, strategy=name, draws=torch.cat(kept) if kept else None)  # type: ignore[arg-type]


class _Runner:
    """Draws on one fixed batch; the first is recorded, so that the others need not repeat what they share with it."""

    def __init__(self, model: nn.Module, x: Batch, task: Task) -> None:
        self.model, self.x, self.task = model, x, task
        self.recording: Recording | None = None
        self.device = device_of(model)
        self.noises, self.weights = Recycle(), Recycle()

    def single(self, noise: list[Noise]) -> Tensor:
        """One draw's predicted values (N, …)."""
        if not isinstance(self.model, BayesianModule):
            return self._values(self._call(self.model))
        if self.recording is None:
            inputs = [self.x] if isinstance(self.x, Tensor) else self.x.values()
            random = [tensor for part in noise for tensor in part.values()]
            out, self.recording = record(lambda: self._draw(noise), self.model, inputs, random)
            return self._values(out)
        return self._values(self._again(lambda: self._draw(noise), recycle=True))

    def batched(self, noises: list[list[Noise]]) -> Tensor:
        """The predicted values of several draws at once (K, N, …)."""
        stacked = [{k: torch.stack([n[i][k] for n in noises]) for k in noises[0][i]} for i in range(len(noises[0]))]

        def one(noise: list[Noise]) -> Tensor:
            return self._values(self._again(lambda: self._draw(noise)))

        with warnings.catch_warnings():
            # An operation without a batching rule runs draw by draw: right, and not the user's to repair.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return torch.vmap(one)(stacked)

    def chunk(self) -> int:
        """How many draws to batch: enough to fill the machine, few enough for memory, whatever `samples` is."""
        weights = sum(factor.layout.numel for factor in self.model.factors)  # type: ignore[union-attr]
        largest = max(weights, self.recording.largest if self.recording is not None else 0, 1)
        return max(1, min(128, CHUNK_ELEMENTS.get(self.device.type, 1 << 25) // largest))

    def _again(self, forward: Callable[[], Any], recycle: bool = False) -> Any:
        if self.recording is not None and self.recording.useful:
            try:
                with self.weights if recycle else nullcontext():
                    return replay(forward, self.recording)
            except Diverged:
                self.recording.sound = False
        return forward()

    def _draw(self, noise: list[Noise]) -> Any:
        tensors = self.model.tensors(noise)  # type: ignore[operator]
        net: nn.Module = self.model.net  # type: ignore[assignment]
        # `tensors` has every tied weight under each of its names; looking for ties again takes a millisecond a draw.
        return self._call(lambda *args, **kwargs: functional_call(net, tensors, args, kwargs, tie_weights=False))

    def _call(self, network: Callable[..., Any]) -> Any:
        return network(self.x) if isinstance(self.x, Tensor) else network(**self.x)

    def _values(self, out: Any) -> Tensor:
        if not isinstance(out, Tensor):
            raise TypeError(f"predict needs a network that returns one tensor, not {type(out).__name__}.")
        out = out if out.dtype.itemsize >= 4 else out.float()
        if self.task == "classification" and out.ndim < 2:
            raise ValueError(f"A classifier returns logits (N, C), not a tensor of shape {tuple(out.shape)}.")
        if out.shape[:1] != (size_of(self.x),):
            raise ValueError(f"The network returns a tensor of shape {tuple(out.shape)} for {size_of(self.x)} inputs.")
        # A copy: the next draw may take the memory of this one.
        return out.softmax(1) if self.task == "classification" else out.clone()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode again outside."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _track(batches: Iterable[Any], progress: bool | None) -> Iterable[Any]:
    """The batches, with a progress bar where there is somebody to see it."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if progress is False or (progress is None and not console.is_terminal):
        return batches
    total = len(batches) if isinstance(batches, Sized) else None
    return track(batches, description="predicting", total=total, console=console, transient=True)
