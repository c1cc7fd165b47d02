"""BYOL's linear evaluation (Grill et al. 2020, C.1): a linear layer on a frozen encoder, by SGD on random crops.

A reading evaluates the student at μ, the student under draws (training uses one draw of the weights per step;
prediction averages the probabilities of many; each draw's features keep their mean at μ, as in `byov.ssl.probe`), or
the teacher. As in the paper and its code, training uses random resized crops and flips, SGD with Nesterov momentum, a
cosine schedule without warm-up, no weight decay and learning rates times batch/256. Of five rates, the one with the
best top-1 on held-out images is chosen, and the layer with this rate is trained on all images. The rates of all
readings are trained side by side on the same crops, each both on all images and on those not held out: one pass both
chooses and fits.

The paper's settings are for 1.3 million images and one encoder. Here a batch is at most a fortieth of the images, so
that small sets have enough steps; features are divided by their root mean square, a single number, so that a rate means
the same at any feature scale; and test images are not cropped to 7/8 of their side, as is usual for small images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from byov.data import transforms
from byov.data.batches import epoch_order
from byov.data.datasets import ImageSet
from byov.metrics.functional import accuracy, nll
from byov.posterior.random import stream
from byov.posthoc.temperature import Temperature, fit_temperature
from byov.prediction.result import Prediction
from byov.ssl.classifiers import LinearProbe, held_out
from byov.ssl.features import Encoder, ImageOptions
from byov.ssl.learner import Learner
from byov.ssl.probe import FIT, TEMPER, Labelled, Probe, Scores, labelled_images, shift, some_images
from byov.ssl.views import UNIFORMS, View, crop, parameters
from byov.train.schedules import warmup_cosine

RATES = (0.4, 0.3, 0.2, 0.1, 0.05)
CROPS = View(jitter=0.0, grayscale=0.0, blur=0.0)
LEAST_STEPS = 40
"""Minimum number of steps per epoch, if there are enough images."""
CROPPING, START = 3, 4
"""Random streams, besides those of the probes: for the crops and the initial weights of the layer."""
DRAWN = "student_draws"

Advance = Callable[[str, int, int], Any]


@dataclass(frozen=True)
class LinearSettings:
    """How the linear layer is trained and evaluated.

    Attributes:
        epochs: number of training epochs.
        batch: the batch size, or a fortieth of the images if that is less.
        rates: the learning rates to choose from, for a batch of 256.
        momentum: Nesterov momentum of SGD.
        holdout: fraction of the training images held out for choosing the rate.
        draws_read: number of draws at evaluation; 0 skips the reading under draws.
        bins: of the calibration error.
        seed: for the held-out part, the order, the crops, the initial weights and the draws.
    """

    epochs: int = 80
    batch: int = 1024
    rates: tuple[float, ...] = RATES
    momentum: float = 0.9
    holdout: float = 0.1
    draws_read: int = 30
    bins: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}.")
        if not self.rates or not min(self.rates) > 0:
            raise ValueError(f"Learning rates are above 0, not {self.rates}.")
        if self.draws_read < 0:
            raise ValueError(f"draws_read is at least 0, not {self.draws_read}.")


@dataclass(frozen=True, eq=False)
class LinearReading:
    """The scores of one reading, and how its layer was fitted."""

    scores: Scores
    tempered: Scores
    """The scores at the temperature fitted on the held-out images."""
    prediction: Prediction
    probe: Probe
    rate: float
    temperature: float
    scale: float
    """The number by which features are divided."""
    held_out: dict[float, float]
    """Top-1 on the held-out images, by rate."""

    def protocol(self) -> dict[str, Any]:
        """Return the values chosen for this reading."""
        return {name: getattr(self, name) for name in ("rate", "temperature", "scale", "held_out")}


class Heads:
    """Linear layers on the same features, trained by SGD with a separate learning rate for each."""

    def __init__(self, weight: Tensor, rates: Sequence[float], momentum: float, scale: float = 1.0) -> None:
        self.rates, self.scale = tuple(rates), scale
        self.weights = [weight.detach().clone().requires_grad_() for _ in rates]
        self.biases = [weight.new_zeros(len(weight)).requires_grad_() for _ in rates]
        groups = [{"params": pair} for pair in zip(self.weights, self.biases, strict=True)]
        self.optimizer = torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=momentum > 0)

    @torch.enable_grad()
    def step(self, features: Tensor, labels: Tensor, taken: Tensor, factor: float) -> None:
        """Take one step at `factor` times the rates; head h minimises the mean loss of the examples with `taken[:, h]`.

        The heads share no weights, so the gradient of the summed losses is each head's own gradient.
        """
        count, classes = len(self.rates), len(self.biases[0])
        logits = F.linear(features / self.scale, torch.cat(self.weights), torch.cat(self.biases))
        each = logits.view(-1, count, classes).transpose(1, 2)
        losses = F.cross_entropy(each, labels[:, None].expand(-1, count), reduction="none")
        loss = ((losses * taken).sum(0) / taken.sum(0).clamp_min(1)).sum()
        self.optimizer.zero_grad()
        loss.backward()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()

    def probe(self, index: int) -> LinearProbe:
        weight, bias = self.weights[index], self.biases[index]
        center = weight.new_zeros(weight.shape[1])
        return LinearProbe(weight, bias, center, center + self.scale)


def linear_evaluation(
    model: nn.Module | Encoder,
    train: ImageSet | Labelled,
    test: ImageSet | Labelled,
    settings: LinearSettings | None = None,
    report: Advance | None = None,
    **options: Unpack[ImageOptions],
) -> dict[str, LinearReading]:
    """Train and score a linear layer for each reading the model has: "student", "student_draws" and "teacher".

    A pure function of its arguments, apart from the progress callback `report`. The other arguments are those of
    `evaluate_probe`; it is fastest if the images are on the encoder's device.
    """
    s = settings or LinearSettings()
    (images, labels, classes), (test_images, test_labels) = labelled_images(train, test)
    student = Encoder.of(model)
    encoders = {"student": student}
    if student.posterior is not None and s.draws_read:
        encoders[DRAWN] = student
    if isinstance(model, Learner) and model.teacher is not None:
        encoders["teacher"] = Encoder.of(model, "teacher")
    held = held_out(len(images), s.holdout, s.seed, None)
    trained = _train(encoders, (images, labels, classes), held, s, report or (lambda *_: None), options)
    kept = images[held.to(images.device)], labels[held.to(labels.device)]
    reference = some_images(images, s.seed)
    found = {}
    for name, encoder in encoders.items():
        heads, draws = trained[name], s.draws_read if name == DRAWN else None
        chosen, temperature, top1 = _choose(encoder, heads, kept, draws, s, reference, options)
        head = {"linear": heads.probe(chosen)}
        probe = Probe(encoder, head, head, s.seed, reference=reference, **options)
        prediction = probe.predict(test_images, draws)
        plain, warm = (
            Scores.of(p.mean, test_labels, s.bins) for p in (prediction, Temperature(temperature)(prediction))
        )
        found[name] = LinearReading(plain, warm, prediction, probe, s.rates[chosen], temperature, heads.scale, top1)
    return found


def batch_size(images: int, s: LinearSettings) -> int:
    """Return the batch size for this number of images."""
    return min(s.batch, max(1, images // LEAST_STEPS))


def _train(
    encoders: Mapping[str, Encoder],
    data: tuple[Tensor, Tensor, int],
    held: Tensor,
    s: LinearSettings,
    report: Advance,
    options: ImageOptions,
) -> dict[str, Heads]:
    """Train the heads of each reading: one per rate on all images, then one per rate on those not held out."""
    images, labels, classes = data
    batch, size = batch_size(len(images), s), (images.shape[-2], images.shape[-1])
    rates, steps = [rate * batch / 256 for rate in s.rates], len(images) // batch
    taken = torch.stack([torch.ones_like(held), ~held], 1).repeat_interleave(len(rates), 1)
    chance = Generator().manual_seed(stream(s.seed, CROPPING))
    with ExitStack() as stack:
        reads = _opened(encoders, stack, s.seed, options)
        heads = {name: _heads(name, found, classes, rates, s) for name, found in _read(reads, images).items()}
        place = heads["student"].weights[0].device
        labels, taken = labels.to(place, torch.int64), taken.to(place)
        for epoch in range(s.epochs):
            order = epoch_order(len(images), s.seed, epoch).to(images.device)  # in one copy: each waits for the GPU
            uniforms = torch.rand(steps, batch, UNIFORMS, generator=chance).to(images.device)
            for step, index in enumerate(order.split(batch)[:steps], epoch * steps):
                chosen = parameters(CROPS, uniforms[step % steps], *size)
                crops = crop(transforms.to_unit(images[index]), chosen, size)
                here, factor = index.to(place), warmup_cosine(step, s.epochs * steps)
                for name, features in _read(reads, crops).items():
                    heads[name].step(features, labels[here], taken[here], factor)
                report("linear evaluation", step + 1, s.epochs * steps)
    return heads


def _opened(
    encoders: Mapping[str, Encoder], stack: ExitStack, seed: int, options: ImageOptions
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return a function for each reading that computes features: at μ, or under a new draw at each call."""
    reads = {encoder: stack.enter_context(encoder.reading(**options)) for encoder in dict.fromkeys(encoders.values())}
    found: dict[str, Callable[[Tensor], Tensor]] = {n: partial(reads[e], None) for n, e in encoders.items()}
    if (drawn := encoders.get(DRAWN)) and (posterior := drawn.posterior):
        generator = Generator(drawn.device or "cpu").manual_seed(stream(seed, FIT))
        found[DRAWN] = lambda images: reads[drawn](posterior.noise(generator), images)
    return found


def _read(reads: Mapping[str, Callable[[Tensor], Tensor]], images: Tensor) -> dict[str, Tensor]:
    """Return the features of each reading; those under a draw without their common shift."""
    found = {name: read(images) for name, read in reads.items()}
    if DRAWN in found:
        found[DRAWN] = found[DRAWN] - shift(found[DRAWN], found["student"])
    return found


def _heads(name: str, features: Tensor, classes: int, rates: Sequence[float], s: LinearSettings) -> Heads:
    """Create the heads, initialised as in BYOL's code by a normal distribution truncated at two standard deviations."""
    scale, deviation = features.square().mean().sqrt().item(), features.shape[1] ** -0.5
    if not 0 < scale < float("inf"):
        raise ValueError(f"Features must be finite and not all 0; those of the {name} have a size of {scale}.")
    start = torch.empty(classes, features.shape[1])
    generator = Generator().manual_seed(stream(s.seed, START))
    nn.init.trunc_normal_(start, 0.0, deviation, -2 * deviation, 2 * deviation, generator)
    return Heads(start.to(features.device), [*rates, *rates], s.momentum, scale)


def _choose(
    encoder: Encoder,
    heads: Heads,
    kept: Labelled,
    draws: int | None,
    s: LinearSettings,
    reference: Tensor,
    options: ImageOptions,
) -> tuple[int, float, dict[float, float]]:
    """Return the index of the rate with the best held-out top-1, its temperature there, and the top-1 of each rate.

    The draws differ from those for the test images. Ties in top-1 are broken by the lower negative log-likelihood.
    """
    (images, labels), count = kept, len(s.rates)
    each = {str(i): heads.probe(count + i) for i in range(count)}
    probe = Probe(encoder, each, each, stream(s.seed, TEMPER), reference=reference, **options)
    found = probe.predict_heads(images, draws)
    probs = [found[str(i)].mean for i in range(count)]
    labels = labels.to(probs[0].device)
    top1 = [accuracy(p, labels).item() for p in probs]
    best = max(range(count), key=lambda i: (top1[i], -nll(probs[i], labels).item()))
    return best, fit_temperature(probs[best], labels), dict(zip(s.rates, top1, strict=True))
