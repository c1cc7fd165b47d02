"""What training leaves: for every split a posterior over the regression network, and predictions from draws of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.data.tables import as_numbers
from byov.posterior import BayesianModule, Ensemble, Family
from byov.posterior.random import stream
from byov.prediction import predict
from byov.train.regression import families


def finite(rows: Tensor) -> None:
    """Refuse a table with holes, and say which row is the first of them."""
    bad = (~rows.isfinite()).any(1).nonzero()[:, 0]
    if len(bad):
        raise ValueError(f"{len(bad)} rows have a missing or infinite value, the first is row {int(bad[0])}.")


@dataclass(frozen=True)
class Split:
    """One split's posterior. Leading dimension of the weights: an explicit ensemble's members, otherwise 1."""

    first: Tensor
    second: Tensor
    bias: Tensor
    patches: Tensor | None
    moments: tuple[Tensor, Tensor, Tensor, Tensor] | None
    """BatchNorm's running means and variances: of the inputs (D,), (D,), of the hidden units (H,), (H,)."""
    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor
    seed: int
    weight_decay: float

    @property
    def device(self) -> torch.device:
        return self.first.device


@dataclass(frozen=True)
class Fitted:
    """A family's posterior on every split, in the order in which `fit` was given them."""

    family: Family
    splits: tuple[Split, ...]

    @torch.no_grad()
    def predict(self, X: Any, split: int = 0, samples: int = 10_000, generator: Generator | None = None) -> Tensor:
        """What `samples` draws of the weights predict for the rows of X, (S, N, T), at the target's own scale.

        Without a generator the draws are the same for the same seed of `fit`.
        """
        part = self._part(split)
        X = as_numbers(X, "X")
        if X.ndim != 2 or X.shape[1] != len(part.x_mean):
            raise ValueError(f"X is (N, {len(part.x_mean)}) as in training, not {tuple(X.shape)}.")
        finite(X)
        if samples < 1:
            raise ValueError(f"A prediction needs at least one draw, not {samples}.")
        if generator is None:
            generator = Generator(part.device).manual_seed(
                stream(part.seed, families.NUMBER[type(self.family)], 1 << 20)
            )
        x = ((X.to(part.x_mean) - part.x_mean) / part.x_std).float()
        found = predict(self.module(split), x, samples, "vmap", generator=generator, task="regression", keep=True)
        assert found.draws is not None
        return found.draws * part.y_std.to(x) + part.y_mean.to(x)

    def module(self, split: int = 0) -> BayesianModule:
        """The same posterior as a BayesianModule in eval mode, for `byov.predict` and the rest of the library.

        It takes and gives standardised numbers: (x − x_mean)/x_std in, (y − y_mean)/y_std out.
        """
        part = self._part(split)
        units, features, targets = part.first.shape[1], part.first.shape[2] - 1, part.second.shape[1]
        net = families.network(self.family, features, units, targets)
        layers = [m for m in net if isinstance(m, nn.Linear)]
        norms = [m for m in net if isinstance(m, nn.BatchNorm1d)]
        for norm, mean, var in zip(norms, (part.moments or ())[::2], (part.moments or ())[1::2], strict=True):
            norm.running_mean, norm.running_var = mean.clone(), var.clone()
        net = net.to(part.device)
        names = [f"{name}.{kind}" for name, m in net.named_children() if m in layers for kind in ("weight", "bias")]
        weights = part.first[..., :-1], part.first[..., -1], part.second, part.bias[..., 0]
        with torch.no_grad():
            for name, weight in zip(names, weights, strict=True):
                net.get_parameter(name).copy_(weight[0])
        model = families.model(self.family, net)
        with torch.no_grad():
            if part.patches is not None:
                model.factors[0].get_parameter("components").copy_(part.patches[0])
            elif isinstance(self.family, Ensemble):
                flat = torch.cat([weight.reshape(len(weight), -1) for weight in weights], 1)
                model.factors[0].get_parameter("components").copy_(flat)
        return model.eval()

    def _part(self, split: int) -> Split:
        if not 0 <= split < len(self.splits):
            raise ValueError(f"There are the splits 0 to {len(self.splits) - 1}, not {split}.")
        return self.splits[split]
