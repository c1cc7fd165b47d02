"""The Protocol of a variational family: what q(θ) is, independent of networks and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from torch import Generator, Tensor

from byov.posterior.layout import Layout

Roles = Mapping[str, Tensor]
"""The learned tensors: flat, by role, e.g. `mean` and `log_var`, each (…, P) for P covered weights."""

Noise = dict[str, Tensor]
"""The random tensors of one draw. A draw is a pure function of roles and noise, so holding the noise holds the draw."""


def precise(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 at least: a sum over millions of weights is meaningless in bfloat16."""
    return tensor if tensor.dtype.itemsize >= 4 else tensor.float()


@runtime_checkable
class Family(Protocol):
    """A family of distributions over the weights that a `Layout` covers.

    A family is a frozen dataclass without state. It defines which flat tensors are learned (`roles`), which fixed index
    tensors it needs (`cells`), what is random (`noise`), and four functions of these. All run under `torch.compile`
    and `torch.vmap`.

    In addition to the seven methods below, a family may have

    - `shared(roles, cells) -> Roles`: the roles plus whatever many draws from the same q have in common, computed
      once; `draw` then receives these instead of the roles. `Gaussian` adds σ; the mixtures do not need it.
    - `layer_roles(layout, initial) -> dict[str, Tensor]`: roles that depend on the layout, in addition to those of
      `roles` or replacing them.
    - `owns_buffers = True`: each of its `k` components has its own copy of the network's buffers. The family then needs
      `assignment`, `mixing_of` and `average`, as in `Ensemble`.
    """

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Initialise the learned tensors so that the mean of q is `initial`; `fresh()` returns newly drawn weights."""
        ...

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        """Return the fixed index tensors that move with the model, if any."""
        ...

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        """Draw everything random, on the generator's device (the roles' device without a generator)."""
        ...

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        """Return one draw θ of the weights (P,), differentiable in the roles."""
        ...

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        """Return E[θ] (P,)."""
        ...

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        """Return the standard deviation of each weight (P,)."""
        ...

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute KL(q ‖ N(mean, std²)) in nats, summed over the weights; mean and std broadcast to (P,)."""
        ...
