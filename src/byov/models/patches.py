"""The patch embedding of a ViT as one matrix product."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear


class Patches(nn.Conv2d):
    """A convolution whose stride is its kernel: no pixel is read twice, so it is a linear map of each patch.

    A convolution's gradient by its weights is slow for kernels of 16 × 16: with the reordering around it, it took a
    thirteenth of a ViT-S/16's training step on an H200.
    """

    def __init__(self, channels: int, width: int, patch: int, bias: bool = True) -> None:
        super().__init__(channels, width, patch, stride=patch, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, width, H/p, W/p), as the convolution; what does not fill a patch is left out."""
        p = self.kernel_size[0]
        if min(x.shape[-2:]) < p:
            raise ValueError(f"A patch of {p} pixels does not fit into images of {x.shape[-2]} × {x.shape[-1]}.")
        rows, columns = x.shape[-2] // p, x.shape[-1] // p
        cut = x[..., : rows * p, : columns * p].unflatten(-2, (rows, p)).unflatten(-1, (columns, p))
        pixels = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (N, rows, columns, C·p·p)
        return linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
