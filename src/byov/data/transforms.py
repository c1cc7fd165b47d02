"""Image operations on a batch, each image with a strength of its own.

Images are floats (N, C, H, W) in [0, 1]; strengths are tensors (N,). Nothing here is random and nothing branches on
data, so a chain of these compiles into one graph. An operation that an image is to be spared is one with the neutral
strength (factor 1, shift 0, σ 0): that is exact and needs no masks. Resizing and blurring are linear along each axis,
so they are two batched matrix products with a matrix per image; flips and crops are part of the same matrix.
"""

import torch
from torch import Tensor

GRAY = (0.2989, 0.587, 0.114)  # ITU-R 601-2, as in torchvision


def to_unit(images: Tensor) -> Tensor:
    """uint8 images as floats in [0, 1]; floating-point images are taken as they are."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    return images.float()


def along_axes(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows · image · columnsᵀ for every image and channel: rows is (N, H', H), columns (N, W', W).

    In full float32 even under autocast, whose bfloat16 would round the weights to three digits.
    """
    with torch.autocast(images.device.type, enabled=False):
        return torch.matmul(torch.matmul(rows.unsqueeze(1), images), columns.unsqueeze(1).transpose(-1, -2))


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = −½, the one that PIL, TensorFlow and torchvision's antialiased resize use."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resize_matrix(start: Tensor, length: Tensor, flip: Tensor, inputs: int, outputs: int) -> Tensor:
    """(N, outputs, inputs): antialiased bicubic resampling of pixels [start, start + length) to `outputs` pixels.

    Pixels outside the crop get no weight, as if the crop had been cut out first. `flip` (N, bool) reverses the axis.
    """
    dtype, device = length.dtype, length.device
    scale = (length / outputs).view(-1, 1, 1)
    position = torch.arange(outputs, dtype=dtype, device=device).view(1, -1, 1) + 0.5
    position = torch.where(flip.view(-1, 1, 1), outputs - position, position)
    pixel = torch.arange(inputs, dtype=dtype, device=device).view(1, 1, -1) - start.view(-1, 1, 1)
    inside = (pixel >= 0) & (pixel < length.view(-1, 1, 1))
    weights = _cubic((pixel + 0.5 - position * scale) / scale.clamp(min=1)) * inside
    return weights / weights.sum(-1, keepdim=True)


def blur_matrix(sigma: Tensor, size: int, kernel: int) -> Tensor:
    """(N, size, size): Gaussian blur with an odd `kernel`, borders reflected; the identity where σ is 0."""
    reach = kernel // 2
    if kernel % 2 == 0 or reach >= size:
        raise ValueError(f"A blur's kernel is odd and at most twice the image, not {kernel} for {size} pixels.")
    # a floor, so that σ = 0 gives exp(−huge) = 0 beside a centre of exactly 1
    inverse = (-0.5 / sigma.clamp(min=1e-4) ** 2).view(-1, 1, 1)

    def weight(distance: Tensor) -> Tensor:
        return torch.exp(distance * distance * inverse) * (distance.abs() <= reach)

    i = torch.arange(size, dtype=sigma.dtype, device=sigma.device).view(1, -1, 1)
    j = torch.arange(size, dtype=sigma.dtype, device=sigma.device).view(1, 1, -1)
    # pixel j also stands at −j and at 2(size−1)−j, where the reflected border shows it
    mirrored = weight(-j - i) * (j > 0) + weight(2 * (size - 1) - j - i) * (j < size - 1)
    weights = weight(j - i) + mirrored
    return weights / weights.sum(-1, keepdim=True)


def gray(images: Tensor) -> Tensor:
    """Luminance (N, 1, H, W); a one-channel image is its own."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (GRAY[0] * red + GRAY[1] * green + GRAY[2] * blue).unsqueeze(1)


def adjust_tone(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Blend each image with black (brightness), with its mean luminance (contrast) or with its own gray (saturation).

    All three are αx + βg(x) + γ·mean g(x), clamped. At most one factor of an image may differ from 1; on one channel,
    saturation changes nothing.
    """
    luminance = gray(images)
    if images.shape[1] == 1:
        saturation = torch.ones_like(saturation)
    alpha = brightness * contrast * saturation
    shift = (1 - saturation).view(-1, 1, 1, 1) * luminance
    shift = shift + (1 - contrast).view(-1, 1, 1, 1) * luminance.mean((1, 2, 3), keepdim=True)
    return (alpha.view(-1, 1, 1, 1) * images + shift).clamp(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` of a full circle (in [−½, ½]), value and chroma unchanged; nothing on one channel."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    is_red, is_green = value == red, value == green
    distance = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
    hue = sector + distance / chroma.clamp(min=1e-12) + 6 * shift.view(-1, 1, 1)
    channels = []
    for corner in (5.0, 3.0, 1.0):
        k = hue + corner
        k = k - 6 * torch.floor(k * (1 / 6))  # k mod 6; torch.remainder would take most of the kernel's time
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.where((shift == 0).view(-1, 1, 1, 1), images, torch.stack(channels, 1))


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """x ↦ 1 − x where x ≥ threshold (N,); a threshold above 1 leaves an image alone."""
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 1 - images, images)


def normalize(images: Tensor, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Tensor:
    """(x − mean) / std per channel; None leaves that part out."""
    if mean is not None:
        images = images - torch.tensor(mean, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    if std is not None:
        images = images / torch.tensor(std, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return images
