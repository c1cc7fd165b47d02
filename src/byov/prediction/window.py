"""How many batches of a loader share a draw, so that each draw is made once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from byov.prediction.inputs import Batch, first_of, ready
from byov.prediction.running import Running

BATCHES = 16
"""Batches in a window, at most: a draw then costs each a sixteenth. Each batch also keeps a record of its calls."""

INPUTS = 1024
"""Inputs in a window, at most: a draw is then about a hundredth of the passes it is used in, and more gain nothing."""

BYTES = 256 << 20
"""What the batches of a window may hold until its last draw: inputs, results so far, and activations before the first
random weight, which can be far larger than the inputs. One batch may hold more; it is then alone in its window."""


def full(window: list[Running]) -> bool:
    """Whether one more batch like the last would be too much.

    A network that has a state or random numbers of its own, or hooks, is to see its passes in the order in which they
    would come batch by batch: every window is one batch then. So it is for a plain network, which needs one pass.
    """
    last = window[-1]
    return (
        not last.repeats
        or len(window) == BATCHES
        or sum(batch.size for batch in window) + last.size > INPUTS
        or sum(batch.held for batch in window) + last.held > BYTES
    )


def own(loader: Iterable[Any], model: nn.Module) -> Iterator[Batch]:
    """The loader's batches, ready for the model, each in memory of its own: a loader may fill the same memory again and
    again, and a window outlives the reading of its next batch."""
    for batch in loader:
        given = first_of(batch)
        x = ready(given, model)
        if isinstance(x, Tensor):
            yield x.clone() if x is given else x
        else:
            yield {name: tensor.clone() if tensor is given[name] else tensor for name, tensor in x.items()}  # type: ignore[index]
