"""Class probabilities of images in [0, 1], at μ and under draws, by a classifier or by a probe on an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, Protocol, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction import Prediction, predict
from byov.prediction.inputs import device_of
from byov.prediction.predict import Strategy
from byov.prediction.result import Moments
from byov.ssl.features import features
from byov.ssl.probe import READ, Probe


class Predictor(Protocol):
    """Predicts images (N, C, H, W), floats in [0, 1]; every call uses the same draws, for any images."""

    @property
    def posterior(self) -> bool:
        """Return True if there is a posterior to draw from."""
        ...

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        """Predict under `samples` draws, or at μ if it is None."""
        ...

    def draws(self, images: Tensor, samples: int) -> Tensor:
        """Return the class probabilities (S, N, C) under each of the draws that `__call__` averages, on the CPU."""
        ...

    def read(self, network: nn.Module, images: Tensor) -> Tensor:
        """Return the class probabilities (N, C) of another version of the network, such as a pruned one, at μ."""
        ...


class Classifier:
    """A network that returns logits (N, C): a BayesianModule, or a plain network, which predicts only at μ.

    Args:
        net: the network; it is put in eval mode.
        mean: per channel, subtracted from the images; nothing by default.
        std: per channel; the images are then divided by it.
        strategy: as for `byov.predict`.
        tolerance: as for `byov.predict`.
        seed: for the draws.
        batch_size: affects speed and memory, not the result.
        autocast: the dtype for mixed precision, for example torch.bfloat16.
    """

    def __init__(
        self,
        net: nn.Module,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        strategy: Strategy = "loop",
        seed: int = 0,
        batch_size: int = 512,
        autocast: torch.dtype | None = None,
        tolerance: float | None = None,
    ) -> None:
        if strategy not in get_args(Strategy):
            raise ValueError(f"A strategy is 'auto', 'loop' or 'vmap', not {strategy!r}.")
        if batch_size < 1:
            raise ValueError(f"A batch has at least one image, not {batch_size}.")
        self.net, self.strategy, self.seed, self.batch_size = net.eval(), strategy, seed, batch_size
        self.device, self.autocast, self.tolerance = device_of(net), autocast, tolerance
        self.mean, self.std = (
            None if values is None else torch.tensor(values, device=self.device).view(1, -1, 1, 1)
            for values in (mean, std)
        )

    @property
    def posterior(self) -> bool:
        return isinstance(self.net, BayesianModule)

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        if samples is not None:
            return self._drawn(images, samples, keep=False)
        with self._precision(), torch.no_grad():
            logits = torch.cat([self._logits(batch) for batch in self._batches(images)])
            moments = Moments("classification")
            moments.update(logits.softmax(1)[None])
            return Prediction(**moments.result(None), samples=1, strategy="loop")

    def draws(self, images: Tensor, samples: int) -> Tensor:
        found = self._drawn(images, samples, keep=True).draws
        assert found is not None
        return found.cpu()

    def read(self, network: nn.Module, images: Tensor) -> Tensor:
        other = copy(self)
        other.net, other.device = network.eval(), device_of(network)
        return other(images).mean

    def _drawn(self, images: Tensor, samples: int, keep: bool) -> Prediction:
        generator = Generator(self.device).manual_seed(stream(self.seed, READ))
        strategy, tolerance = ("loop", None) if keep else (self.strategy, self.tolerance)
        with self._precision():
            return predict(
                self.net, self._batches(images), samples, strategy, tolerance, generator, keep=keep, progress=False
            )

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def _logits(self, batch: Tensor) -> Tensor:
        out = self.net(batch)
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(batch) or out.shape[1] < 2:
            got = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"A classifier returns logits (N, C), here ({len(batch)}, C), not {got}.")
        return out if out.dtype.itemsize >= 4 else out.float()

    def _batches(self, images: Tensor) -> Iterator[Tensor]:
        for part in images.split(self.batch_size):
            batch = part.to(self.device, torch.float32)
            batch = batch if self.mean is None else batch - self.mean
            yield batch if self.std is None else batch / self.std


class Probed:
    """A frozen encoder with a probe's linear head."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    @property
    def posterior(self) -> bool:
        return bool(self.probe.under_draws)

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        return self.probe.predict(images, samples, "linear")

    def draws(self, images: Tensor, samples: int) -> Tensor:
        head = self.probe.under_draws["linear"]
        return torch.stack([head.probabilities(found).cpu() for found in self.probe.features(images, samples)])

    def read(self, network: nn.Module, images: Tensor) -> Tensor:
        return self.probe.at_mean["linear"].probabilities(features(network, images, **self.probe.options))
