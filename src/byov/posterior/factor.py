"""One factor of q(θ): a family, the parameters it covers, and the flat tensors it learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.posterior.family import Family, Noise
from byov.posterior.layout import Layout
from byov.posterior.materialize import materialize


class Factor(nn.Module):
    """Hold a family's roles as flat parameters, and for an explicit ensemble also K copies of the covered buffers."""

    def __init__(
        self,
        family: Family,
        layout: Layout,
        initial: Tensor,
        fresh: Callable[[], Tensor],
        buffers: dict[str, Tensor],
    ) -> None:
        super().__init__()
        self.family, self.layout = family, layout
        roles = family.roles(initial, fresh)
        if hasattr(family, "layer_roles"):
            roles |= family.layer_roles(layout, initial)
        for role, value in roles.items():
            self.register_parameter(role, nn.Parameter(value.detach().clone()))
        self._roles = tuple(roles)
        self._own_gradients()
        cells = family.cells(layout)
        for name, cell in cells.items():
            self.register_buffer(f"cell_{name}", cell.to(initial.device), persistent=False)
        self._cells = tuple(cells)
        # Buffer names cannot contain dots: these are the network's names with slashes.
        self.buffer_names = tuple(buffers)
        for name, value in buffers.items():
            self.register_buffer(name.replace(".", "/"), torch.stack([value] * getattr(family, "k", 1)))

    def _own_gradients(self) -> None:
        """Keep the gradients of all roles but the first in their own memory, on a GPU.

        Code that trains only the means clears only their gradients. In a step with CUDA graphs the gradient of a
        log-variance would then stay in memory that the next step overwrites, and torch stops with an error.
        """
        for role in self._roles[1:]:
            if (parameter := self.get_parameter(role)).requires_grad:
                parameter.register_hook(lambda gradient: gradient.clone() if gradient.is_cuda else gradient)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._own_gradients()  # copies of a parameter have no hooks

    @property
    def roles(self) -> dict[str, Tensor]:
        return {role: getattr(self, role) for role in self._roles}

    @property
    def cells(self) -> dict[str, Tensor]:
        return {name: getattr(self, f"cell_{name}") for name in self._cells}

    def noise(self, generator: Generator | None) -> Noise:
        return self.family.noise(self.roles, self.layout, generator)

    def draw(self, noise: Noise) -> dict[str, Tensor]:
        """Return one draw by name, with tied weights under each of their names and an ensemble's buffers."""
        flat = materialize(self.flat_draw(noise))
        return {**self.layout.with_ties(self.layout.split(flat)), **self.drawn_buffers(noise)}

    def at_mean(self) -> dict[str, Tensor]:
        """Return the posterior mean by name, in the form of `draw`."""
        return {**self.layout.with_ties(self.layout.split(self.flat_mean())), **self.mean_buffers()}

    def drawn_buffers(self, noise: Noise) -> dict[str, Tensor]:
        """Return the buffers of the component that the noise selects, by name."""
        names = self.buffer_names
        return {n: self._stack(n).index_select(0, self._component(noise)).squeeze(0) for n in names}

    def mean_buffers(self) -> dict[str, Tensor]:
        """Average the components' buffers, by name; integers are rounded."""
        named: dict[str, Tensor] = {}
        for name in self.buffer_names:
            stack, average = self._stack(name), self._average
            floating = stack.is_floating_point()
            named[name] = average(stack) if floating else average(stack.double()).round().to(stack.dtype)
        return named

    @torch.no_grad()
    def keep_buffers(self, noise: Noise, named: dict[str, Tensor]) -> None:
        """Write back the buffers of the drawn component after a forward pass in train mode."""
        for name in self.buffer_names:
            self._stack(name).index_copy_(0, self._component(noise), named[name].unsqueeze(0))

    def flat_draw(self, noise: Noise) -> Tensor:
        return self.family.draw(self.roles, self.cells, noise)

    def drawer(self) -> Callable[[Noise], Tensor]:
        """Return `flat_draw` for many draws, with what they share computed once; valid while q does not change."""
        family: Any = self.family
        cells, roles = self.cells, self.roles
        if hasattr(family, "shared"):
            roles = family.shared(roles, cells)
        return lambda noise: family.draw(roles, cells, noise)

    def flat_mean(self) -> Tensor:
        return self.family.mean(self.roles, self.cells)

    def flat_std(self) -> Tensor:
        return self.family.std(self.roles, self.cells)

    def kl(self, mean: Tensor | float, std: Tensor | float) -> Tensor:
        return self.family.kl(self.roles, self.cells, mean, std)

    def _component(self, noise: Noise) -> Tensor:
        family: Any = self.family
        return family.assignment(self.roles, self.cells, noise)

    @torch.no_grad()  # nothing is learned from statistics
    def _average(self, stack: Tensor) -> Tensor:
        family: Any = self.family
        return family.average(stack, family.mixing_of(self.roles, self.cells))

    def _stack(self, name: str) -> Tensor:
        return self.get_buffer(name.replace(".", "/"))

    def extra_repr(self) -> str:
        return f"{self.family}, {len(self.layout.slots)} tensors, {self.layout.numel:,} weights"
