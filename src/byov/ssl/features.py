"""Features of an encoder: at the posterior mean, or under draws of its weights that hold over all images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Generator, Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of
from byov.prediction.resident import Resident, evaluating

Forward = Callable[[Tensor], Tensor]


class Options(TypedDict, total=False):
    """How images are handed to an encoder; `extract` says what each one means."""

    batch_size: int
    device: torch.device | str | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    autocast: torch.dtype | None
    channels_last: bool


@torch.no_grad()
def extract(
    forward: Forward,
    images: Tensor,
    batch_size: int = 512,
    device: torch.device | str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
) -> Tensor:
    """forward(images) batch by batch, as (N, D) in float32 on the device.

    Args:
        forward: from a batch (B, C, H, W) in float32 to features (B, D).
        images: (N, C, H, W), uint8, which become floats in [0, 1], or floats, taken as they are.
        batch_size: a matter of speed and memory, not of the result.
        device: where the batches are taken and the features stay; by default where the images are.
        mean: per channel, subtracted from both kinds of images; nothing by default.
        std: per channel, what they are then divided by.
        autocast: the dtype of mixed precision, say torch.bfloat16.
        channels_last: hand over batches in that memory format, which convolutions on recent GPUs prefer.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"Images are a tensor (N, C, H, W) with N > 0, not {got}.")
    if not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"Images are uint8 or floats, not {images.dtype}.")
    if batch_size < 1:
        raise ValueError(f"A batch has at least one image, not {batch_size}.")
    device = images.device if device is None else torch.device(device)
    shift, scale = (_per_channel(values, images, device) for values in (mean, std))
    precision = nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    parts = []
    with precision:
        for part in images.split(batch_size):
            batch = part.to(device, non_blocking=True)
            batch = batch.float() / 255 if batch.dtype == torch.uint8 else batch.float()
            batch = batch if shift is None else batch - shift
            batch = batch if scale is None else batch / scale
            parts.append(
                _checked(forward(batch.contiguous(memory_format=torch.channels_last) if channels_last else batch))
            )
    return torch.cat(parts)


def features(
    model: nn.Module | Encoder,
    images: Tensor,
    draws: int | None = None,
    generator: Generator | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """The encoder's features in eval mode: (N, D) at the posterior mean μ, or (S, N, D) under `draws=S` draws.

    `model` is what `Encoder.of` takes; the options are those of `extract`, on the encoder's device by default.
    """
    encoder = Encoder.of(model)
    if draws is None:
        return encoder.at_mean(images, **options)
    return torch.stack(list(feature_draws(encoder, images, draws, generator, **options)))


def feature_draws(
    model: nn.Module | Encoder,
    images: Tensor,
    draws: int,
    generator: Generator | None = None,
    **options: Unpack[Options],
) -> Iterator[Tensor]:
    """Features (N, D) under one draw after the other, each held over all images: memory does not grow with them."""
    encoder = Encoder.of(model)
    if encoder.posterior is None:
        raise ValueError("The encoder has no posterior to draw from: leave out `draws`, or bayesianize it first.")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"Features need at least one draw, not draws={draws!r}.")
    return (encoder.at(encoder.posterior.noise(generator), images, **options) for _ in range(draws))


def grouped_draws(
    model: nn.Module | Encoder,
    images: Tensor,
    passes: int,
    groups: int,
    generator: Generator | None = None,
    **options: Unpack[Options],
) -> Tensor:
    """Features (passes, N, D) to fit a head on that is to be read under draws: image i in group i mod `groups`, and in
    each pass every group under a draw of its own.

    A draw moves the features of all images together. A head has to see many such moves to learn which directions not
    to trust, and a group's worth of images shows a move as well as all of them: G times the draws for the same price.
    """
    encoder = Encoder.of(model)
    parts = [images[group::groups] for group in range(groups)]
    found: Tensor | None = None
    for i in range(passes):
        for group, part in enumerate(parts):
            drawn = next(iter(feature_draws(encoder, part, 1, generator, **options)))
            if found is None:
                found = drawn.new_empty(passes, len(images), drawn.shape[1])
            found[i, group::groups] = drawn
    if found is None:
        raise ValueError(f"Features need at least one draw, not {passes}.")
    return found


@dataclass(frozen=True)
class Encoder:
    """What gives features: the encoder of a model, and the posterior over its weights if there is one."""

    module: nn.Module
    """From images to features; of a posterior's network, without the tensors that it covers."""
    posterior: BayesianModule | None = None

    @classmethod
    def of(cls, model: nn.Module | Encoder) -> Encoder:
        """The encoder of a model.

        A model is an encoder itself; or a student, which has a `projector` beside its `encoder`; or something with a
        `student` in it. Either may be a BayesianModule, whose posterior may cover more than the encoder.
        """
        if isinstance(model, Encoder):
            return model
        if not isinstance(model, nn.Module):
            raise TypeError(f"Features come from a torch.nn.Module, not from {type(model).__name__}; see `extract`.")
        if isinstance(model, BayesianModule):
            return cls(_Part(model.net), model)
        student = getattr(model, "student", None)
        return cls.of(student) if isinstance(student, nn.Module) else cls(_Part(model))

    @property
    def device(self) -> torch.device | None:
        """Where the weights are; None for a module without any."""
        whole = self.module if self.posterior is None else self.posterior
        return next((tensor.device for tensor in (*whole.parameters(), *whole.buffers())), None)

    def at_mean(self, images: Tensor, **options: Unpack[Options]) -> Tensor:
        """Features (N, D) at the posterior mean, or of the plain network."""
        return self.at(None, images, **options)

    @torch.no_grad()
    def at(self, noise: list[Noise] | None, images: Tensor, **options: Unpack[Options]) -> Tensor:
        """Features (N, D) under one draw, whose weights are made once for all images."""
        if options.get("device") is None:
            options["device"] = self.device
        if self.posterior is None:
            with lock_of(self.module), evaluating(self.module):
                return extract(self.module, images, **options)
        resident = Resident(self.posterior)
        with resident.installed():
            resident.write(noise)
            return extract(self.module, images, **options)


class _Part(nn.Module):
    """The encoder of a network, or the whole of a network that is one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        # `encoder` alone says nothing: a whole ViT may call its blocks so.
        self.student = all(isinstance(getattr(net, name, None), nn.Module) for name in ("encoder", "projector"))

    def forward(self, images: Tensor) -> Tensor:
        return self.net.encoder(images) if self.student else self.net(images)  # type: ignore[operator]


def _per_channel(values: Sequence[float] | None, images: Tensor, device: torch.device) -> Tensor | None:
    if values is None:
        return None
    if len(values) not in (1, images.shape[1]):
        raise ValueError(f"Images of {images.shape[1]} channels need as many means and deviations, not {len(values)}.")
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)


def _checked(features: Tensor) -> Tensor:
    if not isinstance(features, Tensor) or features.ndim != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"An encoder returns features (N, D), not {got}.")
    return features.float()
