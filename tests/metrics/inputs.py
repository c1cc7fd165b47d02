"""Random classification problems, among them imbalanced ones and ones full of ties."""

import torch
from hypothesis import strategies as st
from torch import Tensor


def random_problem(
    seed: int, samples: int, classes: int, *, skew: float = 0.0, sharp: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Forecasts in float64 with labels that mostly follow them; `skew` makes the low classes frequent."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    logits -= skew * torch.arange(classes)
    noise = torch.rand(samples, classes, generator=generator, dtype=torch.float64).log().neg().log().neg()
    return logits.softmax(1), (logits + noise).argmax(1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Up to 60 samples and 6 classes; half of them have ties, eighths that sit on the edges of the bins."""
    samples, classes, seed = draw(st.integers(1, 60)), draw(st.integers(1, 6)), draw(st.integers(0, 2**32 - 1))
    probs, labels = random_problem(seed, samples, classes, skew=draw(st.sampled_from([0.0, 2.0])))
    if draw(st.booleans()):
        generator = torch.Generator().manual_seed(seed)
        picks = probs.multinomial(8, replacement=True, generator=generator)
        probs = torch.zeros_like(probs).scatter_add_(1, picks, torch.ones_like(picks, dtype=probs.dtype)) / 8
    return probs, labels
