"""Features of an encoder, at the posterior mean or under draws of its weights, each held fixed over all images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, get_args

import torch
from torch import Generator, Tensor, nn

from byov.data import transforms
from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of
from byov.prediction.resident import Resident, evaluating
from byov.ssl.learner import Learner

Side = Literal["student", "teacher"]


class ImageOptions(TypedDict, total=False):
    """How images are passed to an encoder.

    Attributes:
        batch_size: affects speed and memory, not the result; 512 by default.
        device: where features are computed and kept; the encoder's by default, for `extract` that of the images.
        mean: per channel, subtracted from the images in [0, 1]; nothing by default.
        std: per channel; the images are then divided by it.
        autocast: the dtype for mixed precision, for example torch.bfloat16.
        channels_last: pass batches in that memory format, which is faster for convolutions on recent GPUs.
    """

    batch_size: int
    device: torch.device | str | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    autocast: torch.dtype | None
    channels_last: bool


@torch.no_grad()
def extract(forward: Callable[[Tensor], Tensor], images: Tensor, **options: Unpack[ImageOptions]) -> Tensor:
    """Compute forward(images) batch by batch; return features (N, D) in float32.

    `forward` takes a batch (B, C, H, W) in float32 and returns features (B, D). Images (N, C, H, W) in uint8 are scaled
    to [0, 1]; floats are used unchanged.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        raise ValueError(f"Images are a tensor (N, C, H, W) with N > 0, not {_shape(images)}.")
    if not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise ValueError(f"Images are uint8 or floats, not {images.dtype}.")
    batch_size, mean, std = options.get("batch_size", 512), options.get("mean"), options.get("std")
    device, autocast = torch.device(options.get("device") or images.device), options.get("autocast")
    if batch_size < 1:
        raise ValueError(f"A batch has at least one image, not {batch_size}.")
    channels = images.shape[1]
    for values in (mean, std):
        if values is not None and len(values) not in (1, channels):
            raise ValueError(f"Images of {channels} channels need as many means and stds, not {len(values)}.")
    parts = []
    with nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast):
        for part in images.split(batch_size):
            batch = transforms.normalize(transforms.to_unit(part.to(device, non_blocking=True)), mean, std)
            if options.get("channels_last"):
                batch = batch.contiguous(memory_format=torch.channels_last)
            found = forward(batch)
            if not isinstance(found, Tensor) or found.ndim != 2:
                raise ValueError(f"An encoder returns features (N, D), not {_shape(found)}.")
            parts.append(found.float())
    return torch.cat(parts)


def features(
    model: nn.Module | Encoder,
    images: Tensor,
    draws: int | None = None,
    generator: Generator | None = None,
    network: Side = "student",
    **options: Unpack[ImageOptions],
) -> Tensor:
    """Compute the encoder's features in eval mode: (N, D) at the posterior mean μ, or (S, N, D) under `draws=S` draws.

    `model` and `network` are as for `Encoder.of`; the options are `ImageOptions`.
    """
    encoder = Encoder.of(model, network)
    if draws is None:
        return encoder.features(images, **options)
    return torch.stack(list(feature_draws(encoder, images, draws, generator, **options)))


def feature_draws(
    model: nn.Module | Encoder,
    images: Tensor,
    draws: int,
    generator: Generator | None = None,
    **options: Unpack[ImageOptions],
) -> Iterator[Tensor]:
    """Yield features (N, D) draw by draw, each draw the same for all images; memory does not grow with the draws."""
    encoder = Encoder.of(model)
    if encoder.posterior is None:
        raise ValueError("The encoder has no posterior to draw from: leave out `draws`, or bayesianize it first.")
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"Features need at least one draw, not draws={draws!r}.")
    return (encoder.features(images, encoder.posterior.noise(generator), **options) for _ in range(draws))


def grouped_draws(
    model: nn.Module | Encoder,
    images: Tensor,
    passes: int,
    groups: int,
    generator: Generator | None = None,
    **options: Unpack[ImageOptions],
) -> Tensor:
    """Compute features (passes, N, D) for fitting a head that will predict under draws.

    Image i is in group i mod `groups`, and in each pass every group has a separate draw. A draw shifts the features of
    all images together. A head must see many such shifts to learn which directions not to trust, and one group of
    images shows a shift as well as all images do: this gives G times as many draws for the same cost.
    """
    encoder = Encoder.of(model)
    found: Tensor | None = None
    for i in range(passes):
        for group in range(groups):
            (drawn,) = feature_draws(encoder, images[group::groups], 1, generator, **options)
            if found is None:
                found = drawn.new_empty(passes, len(images), drawn.shape[1])
            found[i, group::groups] = drawn
    if found is None:
        raise ValueError(f"Features need at least one draw, not {passes}.")
    return found


@dataclass(frozen=True)
class Encoder:
    """The encoder of a model, and the posterior over its weights if there is one."""

    module: nn.Module
    """Maps images to features; with a posterior, it lacks the tensors that the posterior covers."""
    posterior: BayesianModule | None = None

    @classmethod
    def of(cls, model: nn.Module | Encoder, network: Side = "student") -> Encoder:
        """Find the encoder of a model.

        A model is an encoder itself, a student (with a `projector` beside its `encoder`), or a module with a `student`.
        Each may be a BayesianModule, whose posterior may cover more than the encoder. The "teacher" of a `Learner`,
        such as `BYOL`, is a plain network: a copy of the teacher at the time of this call.
        """
        if network not in get_args(Side):
            raise ValueError(f"A network is the student or the teacher, not {network!r}.")
        if network == "teacher":
            if not isinstance(model, Learner):
                raise ValueError(f"Only a BYOL or BYOV module has a teacher, unlike this {type(model).__name__}.")
            return cls(_encoder_of(model.teacher_network()))
        if isinstance(model, Encoder):
            return model
        if not isinstance(model, nn.Module):
            raise TypeError(f"Features come from a torch.nn.Module, not from {type(model).__name__}; see `extract`.")
        if isinstance(model, BayesianModule):
            return cls(_encoder_of(model.net), model)
        student = getattr(model, "student", None)
        return cls.of(student) if isinstance(student, nn.Module) else cls(_encoder_of(model))

    @property
    def device(self) -> torch.device | None:
        """Return the device of the weights; None for a module without weights."""
        whole = self.module if self.posterior is None else self.posterior
        return next((tensor.device for tensor in (*whole.parameters(), *whole.buffers())), None)

    @torch.no_grad()
    def features(self, images: Tensor, noise: list[Noise] | None = None, **options: Unpack[ImageOptions]) -> Tensor:
        """Compute features (N, D) under the draw given by `noise`, made once for all images; at μ if it is None."""
        with self.reading(**options) as read:
            return read(noise, images)

    @contextmanager
    def reading(self, **options: Unpack[ImageOptions]) -> Iterator[Callable[[list[Noise] | None, Tensor], Tensor]]:
        """Yield a function of noise and images that works like `features`, but reuses one buffer for all draws."""
        if options.get("device") is None:
            options["device"] = self.device
        if self.posterior is None:
            with lock_of(self.module), evaluating(self.module):
                yield lambda noise, images: extract(self.module, images, **options)
            return
        resident = Resident(self.posterior)

        def read(noise: list[Noise] | None, images: Tensor) -> Tensor:
            resident.write(noise)
            return extract(self.module, images, **options)

        with resident.installed():
            yield read


def _encoder_of(net: nn.Module) -> nn.Module:
    """Return the encoder of a student, or any other network itself."""
    # An `encoder` alone does not make a student: a ViT may use this name for its blocks.
    parts = [getattr(net, name, None) for name in ("encoder", "projector")]
    return parts[0] if all(isinstance(part, nn.Module) for part in parts) else net  # type: ignore[return-value]


def _shape(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
