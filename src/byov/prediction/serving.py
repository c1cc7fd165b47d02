"""byov.predict: the posterior predictive by Monte Carlo; and byov.Serving, the same again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.prediction.engine import Call
from byov.prediction.inputs import Batch, ready, unwrap
from byov.prediction.known import Known
from byov.prediction.result import Prediction, Task
from byov.prediction.settings import Settings, Strategy
from byov.prediction.state import evaluating
from byov.prediction.window import own


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
    serving = Serving(model, samples, strategy, tolerance, task=task, precision=precision, keep=keep)
    return serving(x, generator, progress=progress)


class Serving:
    """`byov.predict` for many calls: what one call finds out about the network, the next ones need not look for.

        serving = byov.Serving(model, samples=100)
        for x in requests:
            serving(x)  # as byov.predict(model, x, samples=100), to the same numbers

    A prediction begins with a look at the network: which of its results no draw changes, whether its passes can be
    repeated, which strategy is the faster, and on a GPU whether a pass is worth a CUDA graph, which is then kept with
    its memory. The weights may change between calls, by training or by loading others. Nothing else of the network may:
    not its modules or their hooks, nor its code, nor attributes or global variables that its passes read. After such a
    change make a new one.

    Args:
        model, samples, strategy, tolerance, task, precision, keep: as for `byov.predict`.
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
        self._settings = Settings(samples, strategy, tolerance, task, precision, keep)
        self.model = unwrap(model)
        self._known: Known | None = None
        self._own: Generator | None = None

    def __call__(
        self, x: Batch | Iterable[Any], generator: Generator | None = None, *, progress: bool | None = None
    ) -> Prediction:
        """The posterior predictive of a batch, or of a loader's; `x`, `generator`, `progress` as for `byov.predict`."""
        one = isinstance(x, Tensor | Mapping)
        if not one and not isinstance(x, Iterable):
            raise TypeError(f"predict takes a tensor, a mapping of tensors or a loader, not {type(x).__name__}.")
        known, self._known = self._known, None  # of a call that fails nothing is known
        if known is None or known.moved():
            known = Known(self.model)
        known.begin()
        own_generator, self._own = self._own, None  # a loader may call this serving, too
        if not one and generator is None:  # the same draws for every window: there has to be a way back to the first
            generator = own_generator = _seeded(known.device, own_generator)
        with evaluating(self.model, known.modules), torch.inference_mode(False), torch.no_grad():
            call = Call(self.model, known, self._settings, generator, one)
            if one:
                ((prediction,),) = call.windows(iter([ready(x, self.model)]), lambda share: None)  # type: ignore[arg-type]
            else:
                with _progress(x, progress) as advance:
                    parts = [part for window in call.windows(own(x, self.model), advance) for part in window]
                if not parts:
                    raise ValueError("The loader is empty: there is nothing to predict.")
                prediction = Prediction.cat(parts)
        known.keep()
        self._known, self._own = known, own_generator
        return prediction


def _seeded(device: torch.device, before: Generator | None) -> Generator:
    """A generator by the global one; where there is one before it the same object, because a graph is bound to it."""
    generator = Generator(device) if before is None or before.device != device else before
    return generator.manual_seed(int(torch.randint(1 << 62, ())))


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
