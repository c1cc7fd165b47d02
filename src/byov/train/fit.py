"""byov.fit: train on the batches of a loader, for users without a training loop of their own.

`train.loop` guarantees things that are impossible with a user's loader: a data order that is a function of the seed, a
folder, and resuming bit for bit. So this is a separate short loop, built from the same parts.
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
"""Default length of training: this many epochs, or more if they have fewer than this many steps. Ten epochs of 1,200
digits are 190 steps, after which a small network had an accuracy of 86 to 90 % on held-out digits; after a thousand it
had 97 %."""


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
    """Train a model in place: loss + β·KL/N by AdamW, with warm-up and cosine for the learning rate, and β from 0 up.

    With validation data, the model gets the weights of the epoch with the lowest negative log-likelihood there.

    Args:
        model: a BayesianModule; a plain network, trained without KL; or a `byov.SWAG`, for which the rate stays high.
        loader: yields (x, y) or mappings with "labels", again in every epoch; or a data set of such examples.
        epochs: maximum number of epochs; by default ten, or as many as make a thousand steps.
        validation: like `loader`, with examples that are not trained on.
        lr: learning rate of the weights; ρ = log σ² has its own (`byov.parameter_groups`).
        weight_decay: decoupled, for parameters without a posterior's ρ. A Gaussian needs none: it has the KL.
        beta_end: final value of β; 1 is Bayes, if N is the number of examples.
        n: N. By default the number of examples, except for a Gaussian with more than three weights per example, which
            would learn little but the prior: see `byov.posterior.usual_n`.
        task: as for `byov.predict`; by default inferred from outputs and labels, if they are unambiguous.
        output: as for `byov.predict`.
        loss: a function of outputs and labels that replaces the task's loss; validation then uses the mean weights.
        noise_precision: τ of a regression, whose noise has variance 1/τ.
        patience: stop after this many epochs without a better validation; None: never.
        samples: number of draws for each validation.
        precision: "auto" is bfloat16 autocast on a CUDA GPU.
        progress: show a progress bar; by default if there is a terminal.
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
    """Return AdamW whose groups store their initial learning rate."""
    groups = [{**group, "initial": group["lr"]} for group in parameter_groups(model, lr, steps)]
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)


def _loader(given: Any, shuffle: bool) -> Any:
    """Return a loader that can be iterated repeatedly: the given one, or one for a data set."""
    if isinstance(given, Dataset) or type(given).__module__.startswith("datasets."):
        if not hasattr(given, "__len__"):
            raise TypeError(f"fit needs a data set with a length, which {type(given).__name__} lacks.")
        given = DataLoader(given, ROWS, shuffle=shuffle and not isinstance(given, IterableDataset))
    if given is None or (isinstance(given, tuple) and len(given) == 2):
        return given and [given]  # one batch
    try:
        size = len(given)
    except TypeError:
        raise TypeError(f"fit needs a loader with a length, which {type(given).__name__} lacks.") from None
    if isinstance(given, Tensor | dict | str) or size == 0:
        raise ValueError(
            "The loader is empty: there is nothing to fit on." if size == 0 else "fit takes a loader of (x, y)."
        )
    return given


def _examples(loader: Any, criterion: Criterion) -> int:
    """Count the examples that the loader yields: its sampler may cover only a part of the data set."""
    size, batches = _size(getattr(loader, "dataset", None)), getattr(loader, "batch_sampler", None)
    if not size or (isinstance(loader, DataLoader) and batches is None):  # its data set may hold whole batches
        return sum(len(y) for _, y in labelled(loader, criterion.net))
    sampler = getattr(batches, "sampler", getattr(loader, "sampler", None))
    # N counts the examples learnt from over all epochs. In one epoch, each of several processes sees a part, a random
    # sampler may draw fewer examples or some twice, and drop_last leaves out different ones each time: all of them
    # count. But an example of weight 0 is never drawn.
    if isinstance(sampler, WeightedRandomSampler):
        return int((sampler.weights > 0).sum())
    if isinstance(sampler, DistributedSampler | RandomSampler):
        return size
    return min(_size(sampler) or size, size)


def _size(of: Any) -> int:
    """Return the length; 0 if there is none."""
    try:
        return len(of)
    except TypeError:
        return 0


def _one_length(validation: Any, criterion: Criterion) -> None:
    """Raise before training if token sequences differ in length: their predictions would not form one tensor."""
    if validation is None or criterion.loss is not None:
        return
    shapes: set[tuple[int, ...]] = set()
    with torch.random.fork_rng(devices=[]):  # iterating here must not change the training
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
        may_be_zero = name in ("weight_decay", "beta_end")
        if not (isfinite(value) and (value > 0 or (value == 0 and may_be_zero))):
            raise ValueError(f"fit's {name} is a number {'of at least' if may_be_zero else 'above'} 0, not {value}.")


@contextmanager
def _bar(steps: int, progress: bool | None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar if there is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    shown = console.is_terminal if progress is None else progress
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        row = bar.add_task("fitting", total=steps)
        yield lambda text: bar.update(row, advance=1, description=text)
