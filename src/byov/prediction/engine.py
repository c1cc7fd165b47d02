"""byov.predict: the posterior predictive by Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from itertools import chain
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule
from byov.prediction.aside import Aside
from byov.prediction.draws import Draws, Weights
from byov.prediction.forward import Forward
from byov.prediction.graphed import ENOUGH, Graphed, Pace
from byov.prediction.handover import Handover
from byov.prediction.inputs import Batch, device_of, ready, unwrap
from byov.prediction.result import Prediction, Task
from byov.prediction.running import Running
from byov.prediction.state import compiled, holds_parameters, modules_of
from byov.prediction.window import full, own

Strategy = Literal["auto", "loop", "vmap"]

CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""How many elements (32 and 256 MiB in float32) the largest tensor of a chunk of batched draws may have.

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
    """The posterior predictive of `x` under draws of the model's weights, one call at a time: draws stand in the
    network itself while it runs, so that several threads want copies of the model.

    Args:
        model: a BayesianModule; a plain network counts as a posterior without spread, and takes one pass.
        x: one batch (a tensor, or a mapping of keyword arguments), or a loader of batches; of a (x, y) batch the first
            is taken. Every batch of a loader sees the same draws, so the result does not depend on the batching; a draw
            is made once for a window of batches (see `byov.prediction.window`), so its cost is shared by them.
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
    one = isinstance(x, Tensor | Mapping)
    if not one and not isinstance(x, Iterable):
        raise TypeError(f"predict takes a tensor, a mapping of tensors or a loader, not {type(x).__name__}.")
    if not one and generator is None:  # the same draws for every window: there has to be a way back to the first
        generator = Generator(device_of(model)).manual_seed(int(torch.randint(1 << 62, ())))
    net = modules_of(model.net if isinstance(model, BayesianModule) else model)
    modules = modules_of(model, net) if isinstance(model, BayesianModule) else net
    with _evaluating(model, modules), torch.inference_mode(False), torch.no_grad():
        call = _Predictor(model, generator, samples, strategy, tolerance, (task, precision, keep), one, net, modules)
        if one:
            ((prediction,),) = call.windows(iter([ready(x, model)]), lambda share: None)  # type: ignore[arg-type]
            return prediction
        with _progress(x, progress) as advance:
            parts = [part for window in call.windows(own(x, model), advance) for part in window]
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
    """One window of batches at a time; remembers which strategy won."""

    def __init__(
        self,
        model: nn.Module,
        generator: Generator | None,
        samples: int,
        strategy: Strategy,
        tolerance: float | None,
        settings: tuple[Task, float | None, bool],
        one: bool,
        net: list[nn.Module],
        modules: list[nn.Module],
    ) -> None:
        self.model, self.tolerance, self.settings = model, tolerance, settings
        self.draws = Draws(model, generator, samples) if isinstance(model, BayesianModule) else None
        self.samples = 1 if self.draws is None else samples
        self.strategy: Strategy = "loop" if strategy == "auto" and self.samples < 4 else strategy
        self.graphs = (
            self.strategy != "vmap"
            and tolerance is None
            and self.samples >= ENOUGH
            and Graphed.suits(model, generator, net)
        )
        self.graph: Graphed | None = None
        self.graph_of: Running | None = None
        self.pace: Pace | None = Pace(model) if self.graphs else None  # until it is known
        # With one pass in all there is none after it that could use what it leaves behind.
        self.watch = not (one and self.samples == 1) and (self.strategy == "vmap" or not self._nothing_to_see(net))
        self._handover = Handover(model.net) if isinstance(model, BayesianModule) else None
        self._modules: list[nn.Module] | None = modules
        self._sleep = holds_parameters(net)  # else the first call is one to be seen
        where = device_of(model)
        shared = self.watch and self._sleep and self.strategy == "auto"  # one pass, and many draws after it
        self._aside = Aside(where) if shared and where.type == "cuda" else None

    def _nothing_to_see(self, net: list[nn.Module]) -> bool:
        """Whether watching a pass would cost more than it can give: about the host's time for a pass.

        Where every parameter is random there is next to nothing that passes share. On a GPU that time is better spent
        on a graph of the pass, or, for a few draws, not at all; and a compiled network makes no calls to be seen.
        """
        if self.graphs:  # which are for networks that are wholly random
            return True
        if self.draws is None or holds_parameters(net):
            return False
        if self.samples < ENOUGH and device_of(self.model).type == "cuda":
            return True
        return compiled(net)

    def windows(self, batches: Iterator[Batch], advance: Callable[[float], None]) -> Iterator[list[Prediction]]:
        """The predictions of the batches, window after window; `advance` hears how many batches' worth is done."""
        for first in batches:
            if self.draws is not None:
                self.draws.restart()
            yield self._window(chain([first], batches), advance)

    def _window(self, batches: Iterator[Batch], advance: Callable[[float], None]) -> list[Prediction]:
        """As many batches as the window takes, every draw made once and seen by all of them."""
        count, look = 1, self._next_look(0)
        window = self._fill(batches, advance)
        running = window
        while True:
            while count < look:
                new = self._step(running, look - count)
                count += new
                advance(new * len(running) / self.samples)
            if self.tolerance is None or count >= self.samples:
                break
            before, running = running, [batch for batch in running if batch.stop(self.tolerance)]
            advance((len(before) - len(running)) * (1 - count / self.samples))
            if not running:
                break
            look = self._next_look(count)
        name = "loop" if self.strategy == "auto" else self.strategy
        return [batch.result(name, each=self.tolerance is not None) for batch in window]

    def _next_look(self, count: int) -> int:
        """At how many draws to see which inputs may stop: 32, 64, 96, 144, …"""
        return self.samples if self.tolerance is None else min(self.samples, count + max(FIRST_LOOK, count // 2))

    def _fill(self, batches: Iterator[Batch], advance: Callable[[float], None]) -> list[Running]:
        """Read the window's batches, and take each through the first draw: what that leaves behind says how many."""
        weights = None if self.draws is None else self.draws.next()
        window: list[Running] = []
        for x in batches:
            task, precision, keep = self.settings
            forward = Forward(self.model, x, task, self.watch, self._handover, self._modules, self._sleep)
            self._modules = None  # a pass may have changed them
            batch = Running(forward, precision, keep)
            if self.pace is not None:
                self.pace.begin()
            batch.take(batch.forward.one(weights))
            self._sleep = forward.sleep
            window.append(batch)
            advance(1 / self.samples)
            if full(window):
                break
        return window

    def _step(self, running: list[Running], most: int) -> int:
        """Take all batches through some more draws; how many."""
        draws: Draws = self.draws  # type: ignore[assignment]
        unrecorded = any(batch.forward.recording is None for batch in running)
        if self.graphs:  # which are for passes that nobody watches: the window is one batch
            (batch,) = running
            batch.take(self._graphed(batch, draws))
            return 1
        if self.strategy == "loop" or unrecorded:
            weights = draws.next()
            for batch in running:
                batch.take(batch.forward.one(weights))
            return 1
        if self.strategy == "auto":
            return self._race(running, draws, most)
        weights = draws.several(draws.noises(chunk := min(self._chunk(running), most)))
        for batch in running:
            batch.take(self._batched(batch, weights))
        return chunk

    def _graphed(self, batch: Running, draws: Draws) -> Tensor:
        """What the next draw predicts; after two as a graph, if there can be one and the host is what is slow."""
        if self.pace is not None:
            self.pace.begin()
            values = batch.forward.one(draws.next())
            self.graphs, self.pace = self.pace.host_is_slow(), None
            return values
        if self.graph is None:
            values, self.graph = Graphed.capture(draws, batch.forward)
            self.graphs, self.graph_of = self.graph is not None, batch
            return values
        if not self.graph.takes(batch.forward.x):
            return batch.forward.one(draws.next())
        if self.graph_of is not batch:
            self.graph.fill(batch.forward.x)
            self.graph_of = batch
        return self.graph().clone()  # the next one is written to the same memory

    @staticmethod
    def _batched(batch: Running, weights: Weights) -> Tensor:
        try:
            return batch.forward.several(weights)
        except _NO_BATCHING as error:
            what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"vmap cannot batch this network's draws, 'loop' and 'auto' can: {what}") from error

    def _race(self, running: list[Running], draws: Draws, most: int) -> int:
        """Time one draw, then a chunk of batched ones, on the first batch; the others take the faster.

        Nothing is thrown away, since both give the same numbers. Making weights counts by the batch's share of it.
        On a GPU there is no race where next to nothing of a pass is left to do: the host's time for it decides, batched
        draws need it once, and to wait for the device would take as long as all of them.
        """
        first, *others = running
        if device_of(self.model).type == "cuda" and all(_saves_most(batch) for batch in running):
            return self._unmatched(running, draws, min(self._chunk(running), most))
        weights = draws.next()
        single, values = self._timed(lambda: first.forward.one(weights), weights, len(running))
        first.take(values)
        for batch in others:
            batch.take(batch.forward.one(weights))
        chunk = min(self._chunk(running), most // 2)
        # Batching pays where a pass is too small to fill the machine; a long pass does, and the trial would cost much.
        if chunk < 2 or single > 0.25:
            self.strategy = "loop"
            return 1
        noises = draws.noises(chunk)
        stacked = draws.several(noises)
        self.strategy, waiting = "loop", running
        try:
            batched, values = self._timed(lambda: first.forward.several(stacked), stacked, len(running))
            first.take(values)
            waiting = others
            if batched / chunk < single:
                self.strategy = "vmap"
                while waiting:
                    waiting[0].take(waiting[0].forward.several(stacked))
                    waiting = waiting[1:]
        except _NO_BATCHING:
            self.strategy = "loop"
        if waiting:
            self._one_by_one(waiting, draws, noises, chunk)
        return 1 + chunk

    def _unmatched(self, running: list[Running], draws: Draws, chunk: int) -> int:
        """Take a chunk of batched draws without a race, and go on so; one by one where they cannot be batched."""

        def make() -> tuple[list[Noise], list[dict[str, Tensor]]]:
            noises = draws.noises(chunk)
            try:
                return noises, [draws.several(noises)()]
            except _NO_BATCHING:  # it will say so again, where that is caught
                return noises, []

        noises, made = make() if self._aside is None else self._aside(make)
        # The first time as made beside the pass; anew only where a network has written into them.
        stacked = Weights(lambda: made.pop() if made else draws.several(noises)())
        self.strategy, waiting = "vmap", running
        try:
            while waiting:
                waiting[0].take(waiting[0].forward.several(stacked))
                waiting = waiting[1:]
        except _NO_BATCHING:
            self.strategy = "loop"
            self._one_by_one(waiting, draws, noises, chunk)
        return chunk

    @staticmethod
    def _one_by_one(waiting: list[Running], draws: Draws, noises: list[Noise], count: int) -> None:
        for i in range(count):
            weights = draws.of([{name: tensor[i] for name, tensor in part.items()} for part in noises])
            for batch in waiting:
                batch.take(batch.forward.one(weights))

    def _timed(self, work: Callable[[], Tensor], weights: Weights, sharing: int) -> tuple[float, Tensor]:
        device = device_of(self.model)
        start = _now(device)
        weights()
        made = _now(device)
        values = work()
        return (made - start) / sharing + _now(device) - made, values

    def _chunk(self, running: list[Running]) -> int:
        """How many draws to batch: enough to fill the machine, few enough for memory, whatever `samples` is."""
        weights = sum(factor.layout.numel for factor in self.model.factors)  # type: ignore[union-attr]
        largest = max(weights, 1, *(batch.forward.recording.largest for batch in running if batch.forward.recording))
        return max(1, min(128, CHUNK_ELEMENTS.get(device_of(self.model).type, 1 << 25) // largest))


def _saves_most(batch: Running) -> bool:
    recording = batch.forward.recording
    return recording is not None and recording.useful and recording.saved > 0.9


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


@contextmanager
def _evaluating(model: nn.Module, modules: list[nn.Module]) -> Iterator[None]:
    """Eval mode inside, every module's own mode again outside."""
    training = [module for module in modules if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _progress(batches: Iterable[Any], progress: bool | None) -> Iterator[Callable[[float], None]]:
    """A progress bar over batches where there is somebody to see it; it is told of every part of a batch's work."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if progress is False or (progress is None and not console.is_terminal):
        yield lambda share: None
        return
    try:
        total = len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a DataLoader of a stream has a `__len__` that says there is none
        total = None
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(show_speed=True))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("predicting", total=total)
        yield lambda share: bar.advance(task, share)
