"""byov.fit: train on the batches of a loader, for people without a loop of their own.

`train.loop` promises what a user's loader cannot keep: an order of the data that is a function of the seed, a folder,
and a run that stops and resumes equal to the bit. So this is another loop, one page long, of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, isfinite
from typing import Any, get_args

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from byov.posterior import parameter_groups
from byov.posterior.objective import gaussian_weights, usual_n
from byov.posthoc.labelled import labelled
from byov.posthoc.swag import SWAG
from byov.prediction.inputs import ROWS, posterior_of, unwrap
from byov.prediction.outputs import Output, Task
from byov.train.fitting import Fitting, Precision
from byov.train.history import History
from byov.train.labelled_loss import Criterion, Loss

EPOCHS, STEPS = 10, 1000
"""How long `fit` trains by default: so many epochs, or more where these have fewer steps. Ten epochs of 1,200 digits
are 190 steps, after which a small network had 86 to 90 % of held-out digits right; after a thousand it had 97 %."""


def fit(
    model: nn.Module,
    loader: Any,
    epochs: int | None = None,
    validation: Any = None,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    beta_end: float = 1.0,
    n: float | None = None,
    task: Task | None = None,
    output: Output | None = None,
    loss: Loss | None = None,
    noise_precision: float = 1.0,
    patience: int | None = 5,
    samples: int = 8,
    precision: Precision = "auto",
    progress: bool | None = None,
) -> History:
    """Train a model in place: loss + β·KL/N by AdamW, with a warm-up and a cosine of the rate, and β from 0 to its end.

    With a validation the model gets the weights of the epoch whose posterior predictive was the likeliest there.

    Args:
        model: a BayesianModule; a plain network, trained without a KL; or a `byov.SWAG`, whose network's rate stays up.
        loader: gives (x, y) or mappings with "labels", again in each epoch; or a data set of such examples.
        epochs: how often it is gone through, at most; by default ten times, or as often as makes a thousand steps.
        validation: the same, of examples that are not trained on.
        lr: of the weights; ρ = log σ² has its own (`byov.parameter_groups`).
        weight_decay: decoupled; of parameters without a posterior's ρ. A Gaussian needs none: it has the KL.
        beta_end: where β ends; 1 is Bayes, if N is the number of examples.
        n: N. By default the number of examples, but for a Gaussian of more than three weights for each, which would
            learn little but the prior: see `byov.posterior.usual_n`.
        task: as for `byov.predict`; by default what outputs and labels leave no doubt about.
        output: as for `byov.predict`.
        loss: a function of outputs and labels in place of the task's; the validation is then of the mean weights.
        noise_precision: τ of a regression, whose noise has the variance 1/τ.
        patience: stop after so many epochs without a better validation; None: never.
        samples: draws of each validation.
        precision: "auto" is bfloat16 where a CUDA GPU computes, by autocast.
        progress: a progress bar; by default where there is a terminal to show it.
    """
    loader, validation = _loader(loader, shuffle=True), _loader(validation, shuffle=False)
    numbers = {"lr": lr, "weight_decay": weight_decay, "noise_precision": noise_precision}
    _check(1 if epochs is None else epochs, samples, precision, **numbers, beta_end=beta_end, n=1.0 if n is None else n)
    swag, model = (model, model.net) if isinstance(model, SWAG) else (None, model)
    inner = unwrap(model)
    posterior = posterior_of(inner)
    wrapped = hasattr(model, "_orig_mod") or hasattr(model, "module")  # compiled, or of several processes
    criterion = Criterion(model if wrapped else inner, inner, posterior, task, output, loss, noise_precision)
    _one_length(validation, criterion)
    number = usual_n(_examples(loader, criterion), gaussian_weights(model)) if n is None else n
    epochs = max(EPOCHS, ceil(STEPS / len(loader))) if epochs is None else epochs
    steps = epochs * len(loader)
    optimizer = _optimizer(model, lr, steps, weight_decay)
    history = History(criterion.name, float(number))
    fitting = Fitting(model, criterion, optimizer, history, steps, beta_end, precision, swag)
    with _bar(steps, progress) as fitting.advance:
        fitting.run(loader, validation, epochs, samples, patience)
    return history


def _optimizer(model: nn.Module, lr: float, steps: int, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW whose groups remember the rate that they begin with."""
    groups = [{**group, "initial": group["lr"]} for group in parameter_groups(model, lr, steps)]
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)


def _loader(given: Any, shuffle: bool) -> Any:
    """Return a loader that can be gone through again: the one given, or one of a data set."""
    if isinstance(given, Dataset) or type(given).__module__.startswith("datasets."):
        if not hasattr(given, "__len__"):
            raise TypeError(f"fit needs a data set with a length, which {type(given).__name__} has not.")
        given = DataLoader(given, ROWS, shuffle=shuffle and not isinstance(given, IterableDataset))
    if given is None or (isinstance(given, tuple) and len(given) == 2):
        return given and [given]  # one batch
    try:
        size = len(given)
    except TypeError:
        raise TypeError(f"fit needs a loader with a length, which {type(given).__name__} has not.") from None
    if isinstance(given, Tensor | dict | str) or size == 0:
        raise ValueError(
            "The loader is empty: there is nothing to fit on." if size == 0 else "fit takes a loader of (x, y)."
        )
    return given


def _examples(loader: Any, criterion: Criterion) -> int:
    """Count the examples that the loader gives: those of its sampler, which may be a part of the data set."""
    size, batches = _size(getattr(loader, "dataset", None)), getattr(loader, "batch_sampler", None)
    if not size or (isinstance(loader, DataLoader) and batches is None):  # its data set may be one of whole batches
        return sum(len(y) for _, y in labelled(loader, criterion.net))
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    # N counts the examples that are learnt from in all epochs. One process of several sees a part in an epoch, a random
    # sampler may draw fewer, or some twice, and drop_last leaves out others each time: all of them count. But an
    # example of weight 0 is never drawn.
    if isinstance(sampler, WeightedRandomSampler):
        return int((sampler.weights > 0).sum())
    if isinstance(sampler, DistributedSampler | RandomSampler):
        return size
    return min(_size(sampler) or size, size)


def _size(of: Any) -> int:
    """Return the length; 0 of what has none."""
    try:
        return len(of)
    except TypeError:
        return 0


def _one_length(validation: Any, criterion: Criterion) -> None:
    """Refuse tokens of several lengths before training: their predictions would not be one tensor."""
    if validation is None or criterion.loss is not None:
        return
    shapes: set[tuple[int, ...]] = set()
    with torch.random.fork_rng(devices=[]):  # training is the same as without this look
        for _, y in labelled(validation, criterion.net):
            if y.ndim < 2 or y.is_floating_point():
                return
            shapes.add(tuple(y.shape[1:]))
    if len(shapes) > 1:
        found = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"The validation's labels differ in shape, {found}: pad all its batches to one.")


def _check(epochs: int, samples: int, precision: str, **numbers: float) -> None:
    if precision not in get_args(Precision):
        raise ValueError(f"A precision is 'auto', '32-true' or 'bf16-mixed', not {precision!r}.")
    for name, count in {"epochs": epochs, "samples": samples}.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"fit's {name} are a whole number above 0, not {count!r}.")
    for name, value in numbers.items():
        if not (isfinite(value) and (value > 0 or (value == 0 and name in ("weight_decay", "beta_end")))):
            raise ValueError(f"fit's {name} is a number above 0, not {value}.")


@contextmanager
def _bar(steps: int, progress: bool | None) -> Iterator[Callable[[str], None]]:
    """Show how far it is, where there is somebody to see it."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    shown = console.is_terminal if progress is None else progress
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        row = bar.add_task("fitting", total=steps)
        yield lambda text: bar.update(row, advance=1, description=text)
