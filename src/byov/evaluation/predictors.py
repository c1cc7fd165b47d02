"""What an evaluation asks of a model: class probabilities of images in [0, 1], at μ and under draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Protocol, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction import Prediction, predict
from byov.prediction.inputs import device_of
from byov.prediction.predict import Strategy
from byov.prediction.result import Moments
from byov.ssl.probe import READ, Probe


class Predictor(Protocol):
    """Predicts images (N, C, H, W), floats in [0, 1]; every call uses the same draws, whatever the images."""

    @property
    def posterior(self) -> bool:
        """Whether there is anything to draw from."""
        ...

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        """Under `samples` draws, or at μ where it is None."""
        ...


class Classifier:
    """A network that returns logits (N, C): plain, read at μ only, or a BayesianModule. It is put in eval mode.

    Args:
        net: the network.
        mean: per channel, subtracted from the images; nothing by default.
        std: per channel, what they are then divided by.
        strategy: of `byov.predict`.
        seed: of the draws.
        batch_size: a matter of speed and memory, not of the result.
        autocast: the dtype of mixed precision, say torch.bfloat16.
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
    ) -> None:
        if strategy not in get_args(Strategy):
            raise ValueError(f"A strategy is 'auto', 'loop' or 'vmap', not {strategy!r}.")
        if batch_size < 1:
            raise ValueError(f"A batch has at least one image, not {batch_size}.")
        self.net, self.strategy, self.seed, self.batch_size = net.eval(), strategy, seed, batch_size
        self.device, self.autocast = device_of(net), autocast
        self.mean, self.std = (
            None if values is None else torch.tensor(values, device=self.device).view(1, -1, 1, 1)
            for values in (mean, std)
        )

    @property
    def posterior(self) -> bool:
        return isinstance(self.net, BayesianModule)

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        with nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast):
            return self._predict(images, samples)

    def _predict(self, images: Tensor, samples: int | None) -> Prediction:
        if samples is not None:
            generator = Generator(self.device).manual_seed(stream(self.seed, READ))
            return predict(self.net, self._batches(images), samples, self.strategy, None, generator, progress=False)
        with torch.no_grad():
            logits = torch.cat([self._logits(batch) for batch in self._batches(images)])
        moments = Moments("classification")
        moments.update(logits.softmax(1)[None])
        return Prediction(**moments.result(None), samples=1, strategy="loop")  # type: ignore[arg-type]

    def _logits(self, batch: Tensor) -> Tensor:
        out = self.net(batch)
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(batch):
            got = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"A classifier returns logits (N, C), here ({len(batch)}, C), not {got}.")
        return out if out.dtype.itemsize >= 4 else out.float()

    def _batches(self, images: Tensor) -> Iterator[Tensor]:
        for part in images.split(self.batch_size):
            batch = part.to(self.device, torch.float32)
            batch = batch if self.mean is None else batch - self.mean
            yield batch if self.std is None else batch / self.std


class Probed:
    """A frozen encoder with the linear head of a probe on it."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    @property
    def posterior(self) -> bool:
        return bool(self.probe.under_draws)

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        return self.probe.predict(images, samples, "linear")
