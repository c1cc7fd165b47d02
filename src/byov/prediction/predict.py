"""byov.predict, the posterior predictive by Monte Carlo; and byov.Serving, the same for many calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posterior.module import BayesianModule, lock_of
from byov.prediction.head import Head, Watch
from byov.prediction.inputs import Batch, device_of, first_of, ready, size_of, unwrap
from byov.prediction.resident import Resident, evaluating
from byov.prediction.result import Prediction, Running, Task
from byov.prediction.strategies import Loop, Strategy, Vmap

FIRST_LOOK = 32
"""Draws before a tolerance may stop any input. After 8, an input whose rare but large deviations have not come up yet
passes for certain: on digits the error at a tolerance was then twice the one that as many draws for everybody have."""


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
    """Predict `x` under draws of the model's weights: the mean, its spread, and the parts of its entropy.

    The model is in eval mode meanwhile, and afterwards as it was. Threads that share a model wait for each other.

    Args:
        model: a BayesianModule; a plain network counts as a posterior without spread, and takes one pass.
        x: one batch (a tensor, or a mapping of keyword arguments), or a loader of batches; of a (x, y) batch the first
            is taken. Every batch of a loader sees the same draws, so the result does not depend on the batching.
        samples: how many draws, at most.
        strategy: "loop" runs one draw after the other, "vmap" batches them. "auto" is "loop"; but where only the last
            linear layer is random, the network runs once, and the layer's draws are one product ("head"). All give
            the same numbers for the same generator, up to rounding.
        tolerance: stop drawing for an input once the Monte-Carlo standard error of its predictive mean is below this.
        generator: of the draws; without one, a new one is seeded by torch's global generator.
        task: "classification" takes the outputs as logits over dimension 1, "regression" as they are.
        precision: a regression's output precision τ, whose noise 1/τ is part of the predictive spread.
        keep: also return what each draw predicted.
        progress: a progress bar over a loader; by default where there is a terminal to show it.

    Example:
        >>> model = byov.bayesianize(nn.Linear(4, 3), byov.Gaussian())
        >>> byov.predict(model, torch.randn(5, 4), samples=20)
        Prediction(mean (5, 3), draws: 20, strategy: head)
    """
    serving = Serving(model, samples, strategy, tolerance, task=task, precision=precision, keep=keep)
    return serving(x, generator, progress=progress)


class Serving:
    """Predict again and again, to the numbers of `byov.predict`, with the draws' weights always in the same memory.

        serving = byov.Serving(model, samples=100)
        serving(x)  # as byov.predict(model, x, samples=100)

    It holds one draw's weights between calls. A network compiled with CUDA graphs (`mode="reduce-overhead"`) wants
    that: graphs are recorded for an address. The model may be trained, loaded or changed between calls. The arguments
    are those of `byov.predict`.
    """

    def __init__(
        self,
        model: nn.Module,
        samples: int = 100,
        strategy: Strategy = "auto",
        tolerance: float | None = None,
        *,
        task: Task = "classification",
        precision: float | None = None,
        keep: bool = False,
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
        self.model = unwrap(model)
        self._resident = Resident(self.model) if isinstance(self.model, BayesianModule) else None
        self._samples, self._strategy, self._tolerance = samples, strategy, tolerance
        self._task, self._precision, self._keep = task, precision, keep

    def __call__(
        self, x: Batch | Iterable[Any], generator: Generator | None = None, *, progress: bool | None = None
    ) -> Prediction:
        """Predict a batch, or every batch of a loader; `x`, `generator` and `progress` as for `byov.predict`."""
        one = isinstance(x, Tensor | Mapping)
        if not one and not isinstance(x, Iterable):
            raise TypeError(f"predict takes a tensor, a mapping of tensors or a loader, not {type(x).__name__}.")
        if generator is None:
            generator = Generator(device_of(self.model)).manual_seed(int(torch.randint(1 << 62, ())))
        with torch.inference_mode(False), torch.no_grad():
            if one:
                return self._batch(ready(x, self.model), generator)  # type: ignore[arg-type]
            start, parts = generator.get_state(), []
            for batch in _tracked(x, progress):
                generator.set_state(start)  # the same draws for every batch
                parts.append(self._batch(ready(first_of(batch), self.model), generator))
        if not parts:
            raise ValueError("The loader is empty: there is nothing to predict.")
        return Prediction.cat(parts)

    def _batch(self, x: Batch, generator: Generator) -> Prediction:
        """Predict one batch, while no other thread uses the model."""
        running = Running(size_of(x), self._task, self._precision, self._keep)
        if self._resident is None:
            with lock_of(self.model), evaluating(self.model):
                return self._under(Loop(self.model, x, None), running, samples=1)
        with self._resident.installed():
            kind = Vmap if self._strategy == "vmap" else Loop
            draws: Loop | Head = kind(self.model, x, self._resident, generator)
            if self._strategy == "auto" and self._samples > 1:
                watch = Watch(self._resident.model)
                with watch.watching():
                    running.take(draws(1))
                draws = watch.head(generator) or draws
            return self._under(draws, running, self._samples)

    def _under(self, draws: Loop | Head, running: Running, samples: int) -> Prediction:
        """Go through the draws, all of them or until every input is known well enough."""
        look = samples if self._tolerance is None else min(samples, FIRST_LOOK)
        while True:
            while running.moments.count < look:
                running.take(draws(min(draws.chunk, look - running.moments.count)))
            if self._tolerance is None or look == samples:
                break
            going_on = running.stop(self._tolerance)
            if len(running.open) == 0:
                break
            draws.select(going_on)
            look = min(samples, look + max(FIRST_LOOK, look // 2))  # 32, 64, 96, 144, …
        return running.result(draws.strategy, each=self._tolerance is not None)


def _tracked(batches: Iterable[Any], progress: bool | None) -> Iterable[Any]:
    """The batches, with a progress bar where there is somebody to see it."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = progress is False or (progress is None and not console.is_terminal)
    return track(batches, "predicting", console=console, transient=True, disable=hidden)
