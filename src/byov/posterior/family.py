"""The Protocol every variational family obeys: what q(θ) is, and nothing about networks or training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from torch import Generator, Tensor

from byov.posterior.layout import Layout

Roles = Mapping[str, Tensor]
"""What is learned: flat tensors by role, e.g. `mean` and `log_var`, each (…, P) for P covered weights."""

Noise = dict[str, Tensor]
"""What is random in one draw. A draw is a pure function of roles and noise, so holding the noise holds the draw."""


def precise(tensor: Tensor) -> Tensor:
    """In float32 at least: a sum over millions of weights means nothing in bfloat16."""
    return tensor if tensor.dtype.itemsize >= 4 else tensor.float()


@runtime_checkable
class Family(Protocol):
    """A family of distributions over the weights that a `Layout` covers.

    A family is a frozen dataclass without state. It says which flat tensors are learned (`roles`), which fixed index
    tensors it needs (`cells`), what is random (`noise`), and four functions of those. All run under `torch.compile`
    and `torch.vmap`.
    """

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        """The tensors to learn, such that the mean of q is `initial`; `fresh()` gives newly initialised weights."""
        ...

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        """Fixed index tensors that move with the model, if any."""
        ...

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        """What is random in one draw, on the generator's device (or the roles', where there is none)."""
        ...

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        """θ (P,): one draw of the weights, differentiable in the roles."""
        ...

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        """E[θ] (P,)."""
        ...

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        """The standard deviation of each weight (P,)."""
        ...

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """KL(q ‖ N(mean, std²)) in nats, summed over the weights; mean and std broadcast to (P,)."""
        ...
