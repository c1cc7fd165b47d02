"""The Protocol every variational family obeys: what q(θ) is, and nothing about networks or training."""

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
    """Return it in float32 at least: a sum over millions of weights means nothing in bfloat16."""
    return tensor if tensor.dtype.itemsize >= 4 else tensor.float()


@runtime_checkable
class Family(Protocol):
    """A family of distributions over the weights that a `Layout` covers.

    A family is a frozen dataclass without state. It says which flat tensors are learned (`roles`), which fixed index
    tensors it needs (`cells`), what is random (`noise`), and four functions of those. All run under `torch.compile`
    and `torch.vmap`.

    Beyond the seven methods below, a family may have

    - `shared(roles, cells) -> Roles`: the roles together with what many draws from the same q have in common, computed
      once; `draw` is then given these in place of the roles. `Gaussian` adds σ, the mixtures need nothing.
    - `layer_roles(layout, initial) -> dict[str, Tensor]`: roles that depend on the layout, beside those of `roles` or
      in their place.
    - `owns_buffers = True`: each of its `k` components has the network's buffers to itself. It then needs
      `assignment`, `mixing_of` and `average`, as `Ensemble` has them.
    """

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Initialise what is learned, so that the mean of q is `initial`; `fresh()` gives newly initialised weights."""
        ...

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        """Return the fixed index tensors that move with the model, if any."""
        ...

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        """Draw all that is random, on the generator's device (or the roles', where there is none)."""
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
