"""Many draws of a last linear layer as one product.

Where the output layer alone is random, all that the draws differ in is x Wₖᵀ + bₖ with the same x. One product of x
with the draws' weights side by side takes the host a few operations, where to batch the recorded pass (`torch.vmap`)
takes it a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from byov.prediction.reuse import Recording
from byov.prediction.tree import At


def readout(recording: Recording | None, weights: Sequence[Tensor]) -> Tensor | None:
    """What the recorded pass returns under stacked weights (K, …), as (N, K, C); None where it is anything else."""
    if recording is None or not recording.useful or len(recording.tape) != 1:
        return None
    (call,) = recording.tape
    if call.function is not linear or call.kwargs or len(call.args) != 3 or recording.out != At(call.first):
        return None
    x, weight, bias = call.args
    if type(x) is At or x.ndim != 2 or not pays(x) or type(weight) is not At or isinstance(bias, Tensor):
        return None
    stacked, biases = weights[weight.number], None if bias is None else weights[bias.number]
    if stacked.ndim != 3 or (biases is not None and biases.shape != stacked.shape[:2]):
        return None  # `linear` takes a vector for its weight too, and any bias that broadcasts
    if torch.is_autocast_enabled(x.device.type) and stacked.dtype is not torch.float64:
        # As `linear` will have it. The draws' weights lie apart and have to be copied: better once, by the cast.
        stacked = stacked.to(torch.get_autocast_dtype(x.device.type))
    out = linear(x, stacked.flatten(0, 1), None if biases is None else biases.flatten())
    return out.unflatten(1, stacked.shape[:2])


def pays(x: Tensor) -> bool:
    """Where the host's time counts. On a CPU one wide product is slower than the draws' own, one after the other."""
    return x.is_cuda
