"""byov.predict, the posterior predictive by Monte Carlo; and byov.Serving, the same for many calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Generator, nn

from byov.posterior.module import lock_of
from byov.prediction.head import Head, LayerRecorder, alike, last_layer
from byov.prediction.inputs import (
    Batch,
    InputSpec,
    batches_of,
    device_of,
    inputs_from_batch,
    posterior_of,
    ready,
    size_of,
    unwrap,
    without_labels,
)
from byov.prediction.outputs import Output, OutputSpec, Task
from byov.prediction.resident import Resident, evaluating
from byov.prediction.result import BatchState, Prediction
from byov.prediction.strategies import Loop, Strategy, Vmap, members

FIRST_LOOK = 32  # draws before a tolerance may stop an input; 8 were too few to see rare but large deviations


def predict(
    model: nn.Module,
    x: Any,
    samples: int | Literal["members"] = 100,
    strategy: Strategy = "auto",
    tolerance: float | None = None,
    generator: Generator | None = None,
    *,
    task: Task | None = None,
    output: Output | None = None,
    precision: float | None = None,
    temperature: Callable[[Prediction], Prediction] | None = None,
    keep: bool = False,
    progress: bool | None = None,
) -> Prediction:
    """Predict `x` under draws of the model's weights: the mean, its spread, and the parts of its entropy.

    The model is in eval mode during the prediction; its mode is restored afterwards. Threads that share a model wait
    for each other.

    Args:
        model: a BayesianModule, or a plain network, which counts as a posterior without spread and needs one pass.
        x: one batch (a tensor, an array, a mapping of keyword arguments, a tuple of the inputs that the network needs,
            or a list if its input is one), a loader of batches, or a data set of examples; from an (x, y) batch, x is
            used. All batches of a loader use the same draws, so the result does not depend on the batching; it is in
            the loader's order, on the CPU.
        samples: the maximum number of draws; "members" uses each network of an explicit ensemble once.
        strategy: "loop" runs one draw after the other, "vmap" batches them. "auto" is "loop", but if only the last
            linear layer is random, the network runs once and the layer's draws are one product ("head"). All give
            the same numbers for the same generator, up to rounding.
        tolerance: stop drawing for an input once the Monte-Carlo standard error of its predictive mean is below this.
        generator: for the draws; by default a new one, seeded by torch's global generator.
        task: the meaning of the outputs: logits of a "classification" (N, C), "token" (B, L, C) or "segmentation"
            (N, C, H, W), where a single logit is that of a sigmoid; "probabilities" (N, C); "multilabel" (N, C), a
            logit per label; "regression"; or "gaussian", the mean and log-variance of a regression, as a pair or as
            halves of dimension 1. By default `OutputSpec` decides from the outputs, and `Prediction.task` holds the
            result; ambiguous outputs raise an error.
        output: which of several outputs is predicted: its name, its index in a tuple, or a function from the network's
            return value to one tensor. By default the one named "logits" or "out", or the only one.
        precision: the output precision τ of a regression; its noise 1/τ is part of the predictive spread.
        temperature: the result of `byov.temperature`. It is applied to the mean over the draws, not to each draw.
        keep: also return the prediction of each draw.
        progress: show a progress bar over a loader; by default if there is a terminal.
    """
    options = {"task": task, "output": output, "precision": precision, "temperature": temperature, "keep": keep}
    return Serving(model, samples, strategy, tolerance, **options)(x, generator, progress=progress)  # type: ignore[arg-type]


@dataclass(eq=False)
class Serving:
    """Predict repeatedly: `Serving(model, samples=100)(x)` is `byov.predict(model, x, samples=100)`.

    It keeps the memory for one draw's weights between calls, as needed by a network compiled with CUDA graphs
    (`mode="reduce-overhead"`). The model may be trained, loaded or changed between calls. The arguments are those of
    `byov.predict`; without a task, the first batch decides it for all calls.
    """

    model: nn.Module
    samples: int | Literal["members"] = 100
    strategy: Strategy = "auto"
    tolerance: float | None = None
    _: KW_ONLY
    task: Task | None = None
    output: Output | None = None
    precision: float | None = None
    temperature: Callable[[Prediction], Prediction] | None = None
    keep: bool = False

    def __post_init__(self) -> None:
        if self.samples == "members":
            self._check_members()
        elif not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ValueError(f"predict needs at least one draw, not samples={self.samples!r}.")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"A strategy is 'auto', 'loop' or 'vmap', not {self.strategy!r}.")
        self.model = unwrap(self.model)
        self._posterior = posterior_of(self.model)
        network = self.model if self._posterior is None else self._posterior.net
        self._called = network if self._posterior is self.model else self.model
        self._reading = OutputSpec(self.task, self.output, network)
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"A tolerance is above 0, not {self.tolerance}.")
        if self.precision is not None and not (self.task == "regression" and self.precision > 0):
            raise ValueError("An output precision is above 0 and belongs to a regression.")
        if self.temperature is not None and not callable(self.temperature):
            raise TypeError(
                f"A temperature is what byov.temperature returns, or byov.Temperature(T), not {self.temperature!r}."
            )
        if self.keep and self.tolerance is not None:
            raise ValueError("Draws cannot be kept with a tolerance: inputs use different numbers of them.")
        self._resident = None if self._posterior is None else Resident(self._posterior, self.model)

    @property
    def reading(self) -> OutputSpec:
        """Return how the network's outputs are interpreted; without a task, the first batch decides."""
        return self._reading

    def _check_members(self) -> None:
        if self.strategy == "vmap" or self.tolerance is not None:
            raise ValueError("samples='members' uses each member once, in a loop: set no strategy and no tolerance.")
        members(posterior_of(unwrap(self.model)))

    def __call__(self, x: Any, generator: Generator | None = None, *, progress: bool | None = None) -> Prediction:
        """Predict a batch, or every batch of a loader; `x`, `generator` and `progress` as for `byov.predict`."""
        one, batches = batches_of(x, self._called)
        weights = self.model if self._posterior is None else self._posterior
        if generator is None:
            generator = Generator(device_of(weights)).manual_seed(int(torch.randint(1 << 62, ())))
        with torch.inference_mode(False), torch.no_grad():
            takes = InputSpec.of(self._called)
            if one is not None:
                return self._tempered(self._batch(ready(without_labels(one, takes), weights), generator))
            start, parts = generator.get_state(), []
            for batch in _tracked(batches, progress):
                generator.set_state(start)  # the same draws for every batch
                parts.append(self._batch(ready(inputs_from_batch(batch, takes), weights), generator))
        return self._tempered(Prediction.cat(parts))

    def _tempered(self, prediction: Prediction) -> Prediction:
        return prediction if self.temperature is None else self.temperature(prediction)

    def _batch(self, x: Batch, generator: Generator) -> Prediction:
        """Predict one batch, while no other thread uses the model."""
        running = BatchState(size_of(x), self._reading, self.precision, self.keep)
        if self._resident is None:
            with lock_of(self.model), evaluating(self.model):
                return self._under(Loop(self.model, x, self._reading), running, samples=1)
        given = self._resident.model, x, self._reading, self._resident, generator
        if self.strategy == "vmap":
            assert isinstance(self.samples, int)
            with lock_of(self._resident.model), evaluating(self._resident.net), self._resident.direct():
                return self._under(Vmap(*given), running, self.samples)
        with self._resident.installed():
            draws = Loop(*given)
            if isinstance(self.samples, str):
                for noise in members(self._posterior):
                    running.take(draws.under(noise)[None])
                return running.result(draws.strategy, each=False)
            head = self._head(draws, running) if self.strategy == "auto" and self.samples > 1 else None
            return self._under(head or draws, running, self.samples)

    def _head(self, draws: Loop, running: BatchState) -> Head | None:
        """Return the draws of the last layer if the first passes, which count as draws, show that only it is random."""
        if (found := last_layer(draws.model)) is None:
            return None
        watch, head = LayerRecorder(draws.net, found[1], draws.reading.tensor), None
        for _ in range(1 if draws.known else 2):
            before = draws.state()
            with watch.watching():
                out = draws.under(noise := draws.noise())
            running.take(out[None])
            if (inputs := watch.inputs()) is None or before != draws.state():
                return None
            if head is not None and not (torch.equal(head.inputs, inputs) and alike(head.under([noise])[0], out)):
                return None
            head = head or Head(draws.model, *found, inputs, draws.generator)
        return head

    def _under(self, draws: Loop | Head, running: BatchState, samples: int) -> Prediction:
        """Run the draws, all of them or until every input is below the tolerance."""
        look = samples if self.tolerance is None else min(samples, FIRST_LOOK)
        while True:
            while running.moments.count < look:
                running.take(draws(min(draws.chunk, look - running.moments.count)))
            if self.tolerance is None or look == samples:
                break
            going_on = running.stop(self.tolerance)
            if len(running.open) == 0:
                break
            draws.select(going_on)
            look = min(samples, look + max(FIRST_LOOK, look // 2))  # 32, 64, 96, 144, …
        return running.result(draws.strategy, each=self.tolerance is not None)


def _tracked(batches: Iterable[Any], progress: bool | None) -> Iterable[Any]:
    """Yield the batches, with a progress bar if there is a terminal and rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return batches

    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    return track(batches, "predicting", console=console, transient=True, disable=not shown)
