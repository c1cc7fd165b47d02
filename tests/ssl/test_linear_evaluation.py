"""BYOL's linear evaluation: rates trained side by side are torch's SGD one by one, and readings are what they say."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi
from typing import Any

import pytest
import students
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import byov
from byov.data import ImageSet
from byov.data.batches import epoch_order
from byov.metrics.functional import accuracy
from byov.posterior.random import stream
from byov.posthoc.temperature import Temperature, fit_temperature
from byov.ssl.byol import BYOL
from byov.ssl.byov import BYOV
from byov.ssl.classifiers import held_out
from byov.ssl.features import Encoder, features
from byov.ssl.heads import Student
from byov.ssl.linear_evaluation import CROPS, Heads, LinearSettings, batch_size, linear_evaluation
from byov.ssl.probe import FIT, READ, Scores
from byov.ssl.views import UNIFORMS, Views, crop, parameters

Labelled = tuple[Tensor, Tensor]
NORMALISE: dict[str, Any] = {"mean": (0.3,), "std": (0.37,)}
SETTINGS = LinearSettings(epochs=2, batch=16, rates=(0.3, 0.05), draws_read=3, seed=5)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    net = students.encoder()
    net(torch.randn(64, 1, 8, 8) * 2 + 1)
    return net


def module(log_var: float | None = -6.0) -> BYOL:
    """A BYOV module, or with None a BYOL one, whose teacher has moved away from its student."""
    student = Student(encoder(), 12, hidden=16, outputs=8)
    made = BYOL(student, Views()) if log_var is None else posterior(student, log_var)
    with torch.no_grad():
        for parameter in made.student.parameters():
            if parameter.ndim:
                parameter.add_(0.05 * torch.randn(parameter.shape))
    made.train()
    for _ in range(3):  # the teacher's BatchNorm sees images of its own
        made(torch.rand(32, 1, 8, 8), made.views.draw(32), torch.tensor(0.0))
    return made.eval()


def posterior(student: Student, log_var: float) -> BYOV:
    return BYOV(student, Views(), byov.Gaussian(log_var=log_var), byov.Normal(), kl_scale=100.0)


@pytest.fixture
def train(digits: Labelled) -> Labelled:
    return digits[0][:130], digits[1][:130]


@pytest.fixture
def test(digits: Labelled) -> Labelled:
    return digits[0][1000:1100], digits[1][1000:1100]


# Heads


def test_a_batch_without_an_example_of_a_head_leaves_it_where_it_is() -> None:
    heads = Heads(torch.ones(2, 3), (0.1, 0.1), 0.9)
    heads.step(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64), torch.tensor([[True, False]]).expand(4, 2), 1.0)
    assert torch.equal(heads.weights[1], torch.ones(2, 3))
    assert not torch.equal(heads.weights[0], torch.ones(2, 3))


def test_the_batch_fits_the_set() -> None:
    assert [batch_size(n, LinearSettings()) for n in (1_300_000, 50_000, 9_469, 39, 1)] == [1024, 1024, 236, 1, 1]


# The whole protocol


def by_hand(model: BYOL, name: str, data: Labelled, rate: float, kept: Tensor) -> nn.Linear:
    """The protocol written down once more, for one reading and one rate: returns the layer on scaled features."""
    s, (images, labels) = SETTINGS, data
    batch = min(16, len(images) // 40)
    steps = len(images) // batch
    found = Encoder.of(model, "teacher" if name == "teacher" else "student")
    noise = Generator().manual_seed(stream(s.seed, FIT))

    def read(x: Tensor) -> Tensor:
        at_mean = found.features(x, **NORMALISE)
        if name != "student_draws" or found.posterior is None:
            return at_mean
        drawn = found.features(x, found.posterior.noise(noise), **NORMALISE)
        return drawn - drawn.mean(0) + at_mean.mean(0)

    scale = read(images).square().mean().sqrt()
    layer = nn.Linear(12, 10)
    with torch.no_grad():
        generator, bound = Generator().manual_seed(stream(s.seed, 4)), 2 * 12**-0.5
        nn.init.trunc_normal_(layer.weight, 0, bound / 2, -bound, bound, generator)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9, nesterov=True)
    chance = Generator().manual_seed(stream(s.seed, 3))
    for epoch in range(s.epochs):
        order = epoch_order(len(images), s.seed, epoch)[: steps * batch].view(steps, batch)
        for step, index in enumerate(order, epoch * steps):
            uniforms = torch.rand(batch, UNIFORMS, generator=chance)
            crops = crop(images[index].float() / 255, parameters(CROPS, uniforms, 8, 8), (8, 8))
            x, mine = read(crops) / scale, kept[index]
            optimizer.param_groups[0]["lr"] = rate * batch / 256 * (1 + cos(pi * step / (s.epochs * steps))) / 2
            optimizer.zero_grad()
            F.cross_entropy(layer(x[mine]), labels[index][mine]).backward()
            optimizer.step()
    with torch.no_grad():
        layer.weight /= scale
    return layer


@pytest.mark.parametrize("name", ["student", "student_draws", "teacher"])
def test_a_reading_is_the_protocol_written_down_once_more(name: str, train: Labelled, test: Labelled) -> None:
    model = module()
    found = linear_evaluation(model, train, test, SETTINGS, **NORMALISE)[name]
    held = held_out(130, 0.1, SETTINGS.seed, None)
    everything = torch.ones(130, dtype=torch.bool)
    assert int(held.sum()) == 13
    assert set(found.held_out) == {0.3, 0.05}
    assert found.held_out[found.rate] == max(found.held_out.values())
    layer = by_hand(model, name, train, found.rate, everything)
    side: Any = "teacher" if name == "teacher" else "student"
    if name == "student_draws":
        both = torch.cat([train[0], test[0]])
        drawn = features(model, both, 3, Generator().manual_seed(stream(SETTINGS.seed, READ)), **NORMALISE)
        mean = features(model, train[0], **NORMALISE).mean(0)
        probs = torch.stack([layer(x[130:] - x[:130].mean(0) + mean).softmax(1) for x in drawn]).mean(0)
    else:
        probs = layer(features(model, test[0], network=side, **NORMALISE)).softmax(1)
    torch.testing.assert_close(found.prediction.mean, probs.detach(), atol=1e-5, rtol=0)
    assert found.scores == Scores.of(found.prediction.mean, test[1])
    assert found.tempered == Scores.of(Temperature(found.temperature).probabilities(found.prediction.mean), test[1])
    if name != "student_draws":  # the held-out images, by the layer that has not seen them
        other = by_hand(model, name, train, found.rate, ~held)
        unseen = other(features(model, train[0][held], network=side, **NORMALISE)).softmax(1).detach()
        assert found.held_out[found.rate] == accuracy(unseen, train[1][held]).item()
        assert found.temperature == pytest.approx(fit_temperature(unseen, train[1][held]), rel=1e-3)


def test_readings_are_those_that_the_model_has(train: Labelled, test: Labelled) -> None:
    settings = replace(SETTINGS, epochs=1)
    told: list[tuple[str, int, int]] = []
    found = linear_evaluation(module(), train, test, settings, lambda *at: told.append(at), **NORMALISE)
    assert list(found) == ["student", "student_draws", "teacher"]
    steps = 130 // 3
    assert told == [("linear evaluation", i + 1, steps) for i in range(steps)]
    assert list(linear_evaluation(module(), train, test, replace(settings, draws_read=0), **NORMALISE)) == [
        "student",
        "teacher",
    ]
    assert list(linear_evaluation(module(None), train, test, settings, **NORMALISE)) == ["student", "teacher"]
    assert list(linear_evaluation(encoder(), train, test, settings, **NORMALISE)) == ["student"]
    drawn = found["student_draws"].prediction
    assert drawn.mutual_information is not None
    assert drawn.samples == 3
    assert drawn.mutual_information.mean() > 1e-4


def test_it_is_a_function_of_the_seed_and_leaves_the_model_as_it_was(train: Labelled, test: Labelled) -> None:
    model, settings = module(), replace(SETTINGS, epochs=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = linear_evaluation(model, train, test, settings, **NORMALISE)
    torch.manual_seed(99)
    sets = [ImageSet("digits", *part, tuple("0123456789")) for part in (train, test)]
    again = linear_evaluation(model, sets[0], sets[1], settings, batch_size=7, **NORMALISE)
    other = linear_evaluation(model, train, test, replace(settings, seed=6), **NORMALISE)
    for name, reading in first.items():
        torch.testing.assert_close(reading.prediction.mean, again[name].prediction.mean, atol=1e-5, rtol=0)
        assert not torch.allclose(reading.prediction.mean, other[name].prediction.mean, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_it_learns(digits: Labelled) -> None:
    """Whole digits in small crops: far above chance, which is 10 %."""
    train, test = ((digits[0][at], digits[1][at]) for at in (slice(0, 1000), slice(1000, 1400)))
    found = linear_evaluation(nn.Flatten(), train, test, replace(SETTINGS, epochs=10, rates=(0.4, 0.1)), **NORMALISE)
    assert found["student"].scores.top1 > 0.7
    assert found["student"].tempered.nll < found["student"].scores.nll  # crops are harder than whole images


def test_bad_input_gets_a_sentence(train: Labelled, test: Labelled) -> None:
    for change, says in (
        ({"epochs": 0}, "epochs is at least 1, not 0"),
        ({"batch": 0}, "batch is at least 1"),
        ({"rates": ()}, "above 0"),
        ({"rates": (0.1, -1.0)}, "above 0"),
        ({"draws_read": -1}, "draws_read is at least 0"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(SETTINGS, **change)  # type: ignore[arg-type]
    mute = encoder()
    for parameter in mute[4].parameters():  # type: ignore[index]
        nn.init.zeros_(parameter)
    with pytest.raises(ValueError, match="not all 0"):
        linear_evaluation(mute, train, test, SETTINGS, **NORMALISE)
    few = train[1] < 3
    with pytest.raises(ValueError, match="reach 9, but the training set has 3"):
        linear_evaluation(encoder(), (train[0][few], train[1][few]), test, SETTINGS, **NORMALISE)


def test_a_shift_of_all_images_changes_neither_the_rate_nor_the_scores(train: Labelled, test: Labelled) -> None:
    """With a posterior over the last bias alone, draws move all features together: under draws is at μ."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(16))
            self.register_buffer("mix", torch.randn(64, 16, generator=Generator().manual_seed(0)) / 8)

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.mix + self.shift

    model = byov.bayesianize(Shifted(), byov.Gaussian(log_var=4.0))  # wider than the features
    found = linear_evaluation(model, train, test, SETTINGS, **NORMALISE)
    at_mean, drawn = found["student"], found["student_draws"]
    assert drawn.held_out == pytest.approx(at_mean.held_out)
    assert drawn.temperature == pytest.approx(at_mean.temperature, rel=0.01)
    torch.testing.assert_close(drawn.prediction.mean, at_mean.prediction.mean, atol=1e-3, rtol=0)
