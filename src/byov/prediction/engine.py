"""One prediction: windows of batches, and the draws that each of them sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from time import perf_counter

import torch
from torch import Generator, Tensor, nn

from byov.posterior.family import Noise
from byov.prediction.aside import Aside
from byov.prediction.captured import Captured
from byov.prediction.draws import Draws, Weights
from byov.prediction.forward import Forward
from byov.prediction.graphed import ENOUGH, Graphed, Pace
from byov.prediction.inputs import Batch
from byov.prediction.known import Known
from byov.prediction.result import Prediction
from byov.prediction.running import Running
from byov.prediction.settings import Settings, Strategy
from byov.prediction.window import full

CHUNK_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 26}
"""How many elements (32 and 256 MiB in float32) the largest tensor of a chunk of batched draws may have.

On CPU more does not help: it leaves the caches, and every large tensor is new memory that the system has to clear."""

FIRST_LOOK = 32
"""Draws before a tolerance may stop any input. After 8, an input whose rare but large deviations have not come up yet
passes for certain: on digits the error at a tolerance was then twice the one that as many draws for everybody have."""

_NO_BATCHING = (RuntimeError, NotImplementedError)
"""What vmap raises for an operation it has no rule for, or for a draw written into a tensor that all draws share."""


class Call:
    """One window of batches at a time; remembers which strategy won, and tells `known` what it has seen."""

    def __init__(
        self, model: nn.Module, known: Known, settings: Settings, generator: Generator | None, one: bool
    ) -> None:
        self.model, self.known, self.settings, self.tolerance = model, known, settings, settings.tolerance
        self.draws = known.draws(generator, settings.samples)
        self.samples = 1 if self.draws is None else settings.samples
        self.strategy: Strategy = "loop" if settings.strategy == "auto" and self.samples < 4 else settings.strategy
        self.graphs = (
            self.strategy != "vmap"
            and self.tolerance is None
            and self.samples >= ENOUGH
            and Captured.possible(known.device, generator)
            and known.suits_graphs
        )
        self.pace: Pace | None = Pace(model) if self.graphs else None  # until it is known
        graph = known.graph
        self.graph = graph if self.graphs and graph is not None and graph.serves(generator) else None
        self.graph_of: Running | None = None
        # With one pass in all there is none after it that could use what it leaves behind.
        self.watch = not (one and self.samples == 1) and (self.strategy == "vmap" or not self._nothing_to_see())
        shared = self.watch and known.sleep and self.strategy == "auto"  # one pass, and many draws after it
        self._aside = Aside(known.device) if shared and known.device.type == "cuda" else None

    def _nothing_to_see(self) -> bool:
        """Whether watching a pass would cost more than it can give: about the host's time for a pass.

        Where every parameter is random there is next to nothing that passes share. On a GPU that time is better spent
        on a graph of the pass, or, for a few draws, not at all; and a compiled network makes no calls to be seen.
        """
        if self.graphs:  # which are for networks that are wholly random
            return True
        if self.draws is None or self.known.holds_parameters:
            return False
        if self.samples < ENOUGH and self.known.device.type == "cuda":
            return True
        return self.known.compiled

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
        known, settings = self.known, self.settings
        weights: Weights | None = None
        window: list[Running] = []
        for x in batches:
            look = known.look(x)
            modules, known.fresh = known.modules if known.fresh else None, False  # a pass may change them
            forward = Forward(self.model, x, settings.task, self.watch, known.handover, modules, known.sleep, look)
            batch = Running(forward, settings.precision, settings.keep)
            if look.graphs is not None:
                self.graphs, self.pace = self.graphs and look.graphs, None
            if self.graphs and self.graph is not None and self.graph.takes(x):
                values, self.pace, look.graphs = self._replayed(batch, self.graph), None, True
            else:
                if weights is None and self.draws is not None:
                    weights = self.draws.next()
                if self.pace is not None:
                    self.pace.begin()
                values = forward.one(weights)
            batch.take(values)
            known.sleep = forward.sleep
            window.append(batch)
            advance(1 / self.samples)
            if full(window):
                break
        if self.strategy == "auto" and (won := window[0].forward.look.strategy) is not None:
            self.strategy = won
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
        noises = draws.noises(chunk := min(self._chunk(running), most))
        self._batched(running, draws, noises, draws.several(noises), chunk)
        return chunk

    def _graphed(self, batch: Running, draws: Draws) -> Tensor:
        """What the next draw predicts; after two as a graph, if there can be one and the host is what is slow."""
        forward = batch.forward
        if self.pace is not None:
            self.pace.begin()
            values = forward.one(draws.next())
            self.graphs, self.pace = self.pace.host_is_slow(), None  # another call may find it otherwise
            return values
        if self.graph is None or not self.graph.takes(forward.x):
            if self.graph_of is not None:  # it has served a batch of this call: one of another shape is its last
                return forward.one(draws.next())
            self.known.graph = self.graph = None  # its memory goes before more is asked for
            values, self.graph = Graphed.capture(draws, forward)
            self.known.graph, self.graph_of = self.graph, batch
            self.graphs = forward.look.graphs = self.graph is not None
            return values
        return self._replayed(batch, self.graph)

    def _replayed(self, batch: Running, graph: Graphed) -> Tensor:
        if self.graph_of is not batch:
            graph.fill(batch.forward.x)
            self.graph_of = batch
        return graph().clone()  # the next one is written to the same memory

    def _batched(self, waiting: list[Running], draws: Draws, noises: list[Noise], stacked: Weights, count: int) -> None:
        """Take the batches through stacked draws; and where these cannot be batched one by one, unless asked not to."""
        try:
            while waiting:
                waiting[0].take(waiting[0].forward.several(stacked))
                waiting = waiting[1:]
        except _NO_BATCHING as error:
            if self.settings.strategy == "vmap":
                what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise ValueError(f"vmap cannot batch this network's draws, 'loop' and 'auto' can: {what}") from error
            self.strategy = "loop"
            self._one_by_one(waiting, draws, noises, count)

    def _race(self, running: list[Running], draws: Draws, most: int) -> int:
        """Time one draw, then a chunk of batched ones, on the first batch; the others take the faster.

        Nothing is thrown away, since both give the same numbers. Making weights counts by the batch's share of it.
        On a GPU there is no race where next to nothing of a pass is left to do: the host's time for it decides, batched
        draws need it once, and to wait for the device would take as long as all of them.
        """
        first, *others = running
        if self.known.device.type == "cuda" and all(_saves_most(batch) for batch in running):
            return self._unmatched(running, draws, min(self._chunk(running), most))
        weights = draws.next()
        single, values = self._timed(lambda: first.forward.one(weights), weights, len(running))
        first.take(values)
        for batch in others:
            batch.take(batch.forward.one(weights))
        chunk = min(self._chunk(running), most // 2)
        # Batching pays where a pass is too small to fill the machine; a long pass does, and the trial would cost much.
        if chunk < 2 or single > 0.25:
            self.strategy = first.forward.look.strategy = "loop"
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
        first.forward.look.strategy = self.strategy
        return 1 + chunk

    def _unmatched(self, running: list[Running], draws: Draws, chunk: int) -> int:
        """Take a chunk of batched draws without a race, and go on so; one by one where they cannot be batched."""

        noises, first = self._rows(draws, chunk)
        made = [*first]
        # The first time as made beside the pass; anew only where a network has written into them.
        stacked = Weights(lambda: made.pop() if made else draws.several(noises)())
        self.strategy = "vmap"
        self._batched(running, draws, noises, stacked, chunk)
        return chunk

    def _rows(self, draws: Draws, count: int) -> tuple[list[Noise], list[dict[str, Tensor]]]:
        """The noise of so many draws and their weights, if these can be batched; on a GPU made beside the pass.

        From the second call of a serving on as a graph, if it can be one.
        """

        def make() -> tuple[list[Noise], list[dict[str, Tensor]]]:
            noises = draws.noises(count)
            try:
                return noises, [draws.several(noises)()]
            except _NO_BATCHING:  # it will say so again, where that is caught
                return noises, []

        if self._aside is None:
            return make()
        known, rows = self.known, self.known.rows
        if rows.possible and known.again and draws.in_rows and Captured.possible(known.device, draws.generator):
            if rows.captured is None or rows.count != count or rows.captured.generator is not draws.generator:
                rows.captured = None  # its memory goes before more is asked for
                try:
                    rows.count, rows.captured = count, Captured(make, draws.generator, torch.cuda.Stream(known.device))
                except RuntimeError:
                    rows.possible = False
                    return self._aside(make)
            return self._aside(rows.captured)
        return self._aside(make)

    @staticmethod
    def _one_by_one(waiting: list[Running], draws: Draws, noises: list[Noise], count: int) -> None:
        for i in range(count):
            weights = draws.of([{name: tensor[i] for name, tensor in part.items()} for part in noises])
            for batch in waiting:
                batch.take(batch.forward.one(weights))

    def _timed(self, work: Callable[[], Tensor], weights: Weights, sharing: int) -> tuple[float, Tensor]:
        device = self.known.device
        start = _now(device)
        weights()
        made = _now(device)
        values = work()
        return (made - start) / sharing + _now(device) - made, values

    def _chunk(self, running: list[Running]) -> int:
        """How many draws to batch: enough to fill the machine, few enough for memory, whatever `samples` is."""
        weights = sum(factor.layout.numel for factor in self.model.factors)  # type: ignore[union-attr]
        largest = max(weights, 1, *(batch.forward.recording.largest for batch in running if batch.forward.recording))
        return max(1, min(128, CHUNK_ELEMENTS.get(self.known.device.type, 1 << 25) // largest))


def _saves_most(batch: Running) -> bool:
    recording = batch.forward.recording
    return recording is not None and recording.useful and recording.saved > 0.9


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
