"""BYOL's linear evaluation (Grill et al. 2020, C.1): a linear layer on a frozen encoder, by SGD on random crops.

A reading is of the student at μ, of the student under draws (one draw of the weights per step; the probabilities of
many are averaged when it is read), or of the teacher. As in the paper and its code: random resized crops and flips to
train on, SGD with Nesterov's momentum, a cosine without warm-up, no decay, rates times batch/256, and of five rates the
one of best top-1 on images held out, with which the layer is trained on all. All rates of all readings are trained side
by side on the same crops, each on all images and on those not held out: one pass both chooses and fits.

The paper's numbers are for 1.3 million images and one encoder. Here a batch is at most a fortieth of the images, so
that small sets have steps enough; features are divided by their root mean square, one number, so that a rate means the
same for features of any size; and images are read whole, as sets of small images are, not cut to 7/8 of their side.
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
from byov.ssl.probe import FIT, TEMPER, Labelled, Probe, Scores, labelled_images
from byov.ssl.views import UNIFORMS, View, crop, parameters
from byov.train.schedules import warmup_cosine

RATES = (0.4, 0.3, 0.2, 0.1, 0.05)
CROPS = View(jitter=0.0, grayscale=0.0, blur=0.0)
LEAST_STEPS = 40
"""The least number of steps in an epoch, where there are as many images."""
CROPPING, START = 3, 4
"""Streams of random numbers, beside the probes': crops, and the layer's first weights."""
DRAWN = "student_draws"

Advance = Callable[[str, int, int], Any]


@dataclass(frozen=True)
class LinearSettings:
    """How the linear layer is trained and read.

    Attributes:
        epochs: of training.
        batch: its size, or a fortieth of the images where that is less.
        rates: the learning rates to choose from, for a batch of 256.
        momentum: of SGD, in Nesterov's form.
        holdout: the share of the training images that the rate is chosen on.
        draws_read: how many draws it is read under; 0 leaves draws out.
        bins: of the calibration error.
        seed: of the held-out part, the order, the crops, the first weights and the draws.
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
            raise ValueError(f"A layer is read under no draws or more, not {self.draws_read}.")


@dataclass(frozen=True, eq=False)
class LinearReading:
    """The scores of one reading, and how it was fitted."""

    scores: Scores
    tempered: Scores
    """At the temperature that was fitted on the held-out images."""
    prediction: Prediction
    probe: Probe
    rate: float
    temperature: float
    scale: float
    """What features are divided by."""
    held_out: dict[float, float]
    """The top-1 on those images, by rate."""

    def protocol(self) -> dict[str, Any]:
        """Return what was chosen for it."""
        return {name: getattr(self, name) for name in ("rate", "temperature", "scale", "held_out")}


class Heads:
    """Linear layers on the same features, each with a learning rate of its own, in steps of SGD."""

    def __init__(self, weight: Tensor, rates: Sequence[float], momentum: float, scale: float = 1.0) -> None:
        self.rates, self.scale = tuple(rates), scale
        self.weights = [weight.detach().clone().requires_grad_() for _ in rates]
        self.biases = [weight.new_zeros(len(weight)).requires_grad_() for _ in rates]
        groups = [{"params": pair} for pair in zip(self.weights, self.biases, strict=True)]
        self.optimizer = torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=momentum > 0)

    @torch.enable_grad()
    def step(self, features: Tensor, labels: Tensor, taken: Tensor, factor: float) -> None:
        """Take one step at `factor` of the rates; head h learns from the examples with `taken[:, h]`, their mean loss.

        No head reads another's weights, so the gradient of the sum of their losses is that of each.
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
    """Train and score a linear layer for each reading: "student", "student_draws" and "teacher", as the model has them.

    A pure function of its arguments but `report`, which is told how far it is. The arguments are those of
    `evaluate_probe`; images are best where the encoder is.
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
    found = {}
    for name, encoder in encoders.items():
        heads, draws = trained[name], s.draws_read if name == DRAWN else None
        chosen, temperature, top1 = _choose(encoder, heads, kept, draws, s, options)
        head = {"linear": heads.probe(chosen)}
        probe = Probe(encoder, head, head, s.seed, **options)
        prediction = probe.predict(test_images, draws)
        plain, warm = (
            Scores.of(p.mean, test_labels, s.bins) for p in (prediction, Temperature(temperature)(prediction))
        )
        found[name] = LinearReading(plain, warm, prediction, probe, s.rates[chosen], temperature, heads.scale, top1)
    return found


def batch_size(images: int, s: LinearSettings) -> int:
    """Return the size of a batch of so many images."""
    return min(s.batch, max(1, images // LEAST_STEPS))


def _train(
    encoders: Mapping[str, Encoder],
    data: tuple[Tensor, Tensor, int],
    held: Tensor,
    s: LinearSettings,
    report: Advance,
    options: ImageOptions,
) -> dict[str, Heads]:
    """Train the heads of each reading: one of each rate on all images, then one of each on those not held out."""
    images, labels, classes = data
    batch, size = batch_size(len(images), s), (images.shape[-2], images.shape[-1])
    rates, steps = [rate * batch / 256 for rate in s.rates], len(images) // batch
    taken = torch.stack([torch.ones_like(held), ~held], 1).repeat_interleave(len(rates), 1)
    chance = Generator().manual_seed(stream(s.seed, CROPPING))
    with ExitStack() as stack:
        reads = _opened(encoders, stack, s.seed, options)
        heads = {name: _heads(name, read(images), classes, rates, s) for name, read in reads.items()}
        place = heads["student"].weights[0].device
        labels, taken = labels.to(place, torch.int64), taken.to(place)
        for epoch in range(s.epochs):
            order = epoch_order(len(images), s.seed, epoch).to(images.device)  # at once: each copy waits for a GPU
            uniforms = torch.rand(steps, batch, UNIFORMS, generator=chance).to(images.device)
            for step, index in enumerate(order.split(batch)[:steps], epoch * steps):
                chosen = parameters(CROPS, uniforms[step % steps], *size)
                crops = crop(transforms.to_unit(images[index]), chosen, size)
                here, factor = index.to(place), warmup_cosine(step, s.epochs * steps)
                for name, read in reads.items():
                    heads[name].step(read(crops), labels[here], taken[here], factor)
                report("linear evaluation", step + 1, s.epochs * steps)
    return heads


def _opened(
    encoders: Mapping[str, Encoder], stack: ExitStack, seed: int, options: ImageOptions
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return what computes the features of each reading: at μ, or each time under another draw."""
    reads = {encoder: stack.enter_context(encoder.reading(**options)) for encoder in dict.fromkeys(encoders.values())}
    found: dict[str, Callable[[Tensor], Tensor]] = {n: partial(reads[e], None) for n, e in encoders.items()}
    if (drawn := encoders.get(DRAWN)) and (posterior := drawn.posterior):
        generator = Generator(drawn.device or "cpu").manual_seed(stream(seed, FIT))
        found[DRAWN] = lambda images: reads[drawn](posterior.noise(generator), images)
    return found


def _heads(name: str, features: Tensor, classes: int, rates: Sequence[float], s: LinearSettings) -> Heads:
    """Make the heads for features like these, with the first weights of BYOL's code: normal, cut at two deviations."""
    scale, deviation = features.square().mean().sqrt().item(), features.shape[1] ** -0.5
    if not 0 < scale < float("inf"):
        raise ValueError(f"Features must be finite and not all 0; those of the {name} have a size of {scale}.")
    start = torch.empty(classes, features.shape[1])
    generator = Generator().manual_seed(stream(s.seed, START))
    nn.init.trunc_normal_(start, 0.0, deviation, -2 * deviation, 2 * deviation, generator)
    return Heads(start.to(features.device), [*rates, *rates], s.momentum, scale)


def _choose(
    encoder: Encoder, heads: Heads, kept: Labelled, draws: int | None, s: LinearSettings, options: ImageOptions
) -> tuple[int, float, dict[float, float]]:
    """Return the rate that is best on the held-out images (its place), its temperature there, and each one's top-1.

    The draws are others than the test images are read under. Of equal top-1 the most likely labels decide.
    """
    (images, labels), count = kept, len(s.rates)
    each = {str(i): heads.probe(count + i) for i in range(count)}
    found = Probe(encoder, each, each, stream(s.seed, TEMPER), **options).predict_heads(images, draws)
    probs = [found[str(i)].mean for i in range(count)]
    labels = labels.to(probs[0].device)
    top1 = [accuracy(p, labels).item() for p in probs]
    best = max(range(count), key=lambda i: (top1[i], -nll(probs[i], labels).item()))
    return best, fit_temperature(probs[best], labels), dict(zip(s.rates, top1, strict=True))
