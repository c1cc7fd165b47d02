"""What has been seen of batches of one shape, for the passes on others like them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from byov.prediction.inputs import Batch, signature
from byov.prediction.state import context


def kind_of(x: Batch) -> tuple[Any, ...]:
    """What batches have in common that a network takes in the same way: their shapes, and the contexts of now."""
    return (*signature(x), context())


@dataclass
class Look:
    """None: nothing yet."""

    given: list[Tensor] | None = None
    """A first pass has been recorded and found sound, and this is what it was given: others need no checking."""
    strategy: Literal["loop", "vmap"] | None = None
    """Which won the race."""
    graphs: bool | None = None
    """Whether a graph of the passes pays, and there can be one."""
