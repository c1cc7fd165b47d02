"""What has been seen of batches of one shape, for the passes on others like them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass
class Look:
    """None: nothing yet."""

    given: list[Tensor] | None = None
    """A first pass has been recorded and found sound, and this is what it was given: others need no checking."""
    strategy: Literal["loop", "vmap"] | None = None
    """Which won the race."""
    graphs: bool | None = None
    """Whether a graph of the passes pays, and there can be one."""
