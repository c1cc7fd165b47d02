"""Stacking: the weights are the best there are, and the prediction is the mixture under them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from small_networks import seeded
from torch import Tensor, nn
from torch.func import functional_call

import byov
from byov.prediction import stack, stacking_weights

from .networks import spread


def problem(members: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Predictives of which some are better than others, and labels."""
    generator = seeded(seed)
    labels = torch.randint(4, (n,), generator=generator)
    logits = torch.randn(members, n, 4, generator=generator)
    skill = torch.rand(members, 1, generator=generator) * 2
    logits[:, torch.arange(n), labels] += skill
    return logits.softmax(2), labels


def score(weights: Tensor, probs: Tensor, labels: Tensor) -> float:
    mixture = torch.einsum("s,snc->nc", weights.double(), probs.double())
    return mixture[torch.arange(len(labels)), labels].log().mean().item()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 1000))
def test_no_weights_on_the_simplex_score_higher(members: int, n: int, seed: int) -> None:
    """Against scipy's own optimum, over a softmax, from several starts."""
    probs, labels = problem(members, n, seed)
    weights = stacking_weights(probs, labels)
    assert weights.min() >= 0
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)

    def loss(free: np.ndarray) -> float:
        return -score(torch.softmax(torch.tensor(free), 0), probs, labels)

    starts = [np.zeros(members), *np.random.default_rng(0).normal(size=(2, members)) * 3]
    best = max(-minimize(loss, start, method="Nelder-Mead", options={"maxiter": 400}).fun for start in starts)
    assert score(weights, probs, labels) >= best - 1e-5


def test_labels_that_nobody_can_explain_do_not_spoil_the_rest() -> None:
    probs, labels = problem(2, 40, 2)
    expected = stacking_weights(probs[:, 1:], labels[1:])
    probs[:, 0] = 0.0
    torch.testing.assert_close(stacking_weights(probs, labels), expected)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("probs", [None, (0.998, 0.001, 0.001), (1e-5, 1e-5, 1 - 2e-5), (0.01, 0.98, 0.01)])
def test_every_member_is_stacked_once_however_rare(probs: tuple[float, ...] | None) -> None:
    """Each is the best for a third of the data, so that all have a weight: those of its own network."""
    torch.manual_seed(0)
    model = byov.bayesianize(classifier(), byov.Ensemble(3, probs=probs, start="reset", learn_probs=probs is not None))
    model, x = spread(model, by=1.0).eval(), torch.randn(90, 3)
    if probs is not None:
        model.q[0].logits.data = torch.tensor(probs)[:, None].log()
    factor, members = model.factors[0], []
    for k in range(3):
        tensors = factor.layout.split(factor.get_parameter("components")[k])
        tensors |= {name: factor._stack(name)[k] for name in factor.buffer_names}
        members.append(functional_call(model.net, tensors, (x,)).softmax(1).detach())
    labels = torch.cat([member[30 * k : 30 * (k + 1)].argmax(1) for k, member in enumerate(members)])
    fitted = stack(model.train(), x, labels)
    assert model.training
    model.eval()
    assert len(fitted.noises) == 3
    for member, noise in zip(members, fitted.noises, strict=True):
        with torch.no_grad(), model.draw(noise=noise):
            torch.testing.assert_close(model(x).softmax(1), member)
    mixture = torch.einsum("s,snc->nc", fitted.weights.float(), torch.stack(members))
    torch.testing.assert_close(fitted.predict(x).mean, mixture)


@pytest.mark.parametrize(
    "rules",
    [
        {byov.norm_layers: byov.EMP(3, spread=1.0), byov.output_layer: byov.ECMP(3, spread=1.0)},
        byov.Ensemble(3, sigma=0.3, spread=1.0),  # whose members are not all that can be drawn
    ],
    ids=["patches", "noisy ensemble"],
)
def test_the_prediction_is_the_mixture_of_the_draws(rules: Any) -> None:
    torch.manual_seed(1)
    model = byov.bayesianize(classifier(), rules)
    x, labels = torch.randn(50, 3), torch.randint(4, (50,))
    fitted = stack(model, [(x[:30], labels[:30]), (x[30:], labels[30:])], labels, 8, seeded(3))
    assert 1 <= len(fitted.noises) == len(fitted.weights) <= 8
    values = []
    for noise in fitted.noises:
        with torch.no_grad(), model.eval().draw(noise=noise):
            values.append(model(x).softmax(1))
    draws, w = torch.stack(values), fitted.weights.float()
    prediction = fitted.predict(x)
    mean = torch.einsum("s,snc->nc", w, draws)
    torch.testing.assert_close(prediction.mean, mean)
    variance = torch.einsum("s,snc->nc", w, draws**2) - mean**2
    torch.testing.assert_close(prediction.std, variance.clamp_min(0).sqrt(), rtol=1e-3, atol=1e-4)
    expected = -(torch.einsum("s,snc->n", w, draws * draws.log()))
    torch.testing.assert_close(prediction.expected_entropy, expected)
    torch.testing.assert_close(prediction.entropy - prediction.expected_entropy, prediction.mutual_information)


def test_bad_input() -> None:
    probs, labels = problem(2, 5, 0)
    with pytest.raises(ValueError, match=r"\(S, N, C\)"):
        stacking_weights(probs[0], labels)
    with pytest.raises(ValueError, match="N > 0 labels"):
        stacking_weights(probs, labels[:3])
    with pytest.raises(ValueError, match="finite and at least 0"):
        stacking_weights(-probs, labels)
    for wrong in (labels + probs.shape[2], labels - 9, labels.double()):
        with pytest.raises(ValueError, match=f"labels 0 to {probs.shape[2] - 1}, whole numbers"):
            stacking_weights(probs, wrong)
    with pytest.raises(ValueError, match=r"one label for each of 3 inputs, not \(2,\)"):
        stack(byov.bayesianize(nn.Linear(2, 2), byov.EMP(2)), torch.randn(3, 2), labels[:2])
    with pytest.raises(ValueError, match="nothing to stack"):
        stacking_weights(torch.zeros_like(probs), labels)
    with pytest.raises(TypeError, match="takes a BayesianModule, not Linear"):
        stack(nn.Linear(2, 2), torch.randn(3, 2), labels[:3])
    with pytest.raises(ValueError, match="at least one draw"):
        stack(byov.bayesianize(nn.Linear(2, 2), byov.EMP(2)), torch.randn(3, 2), labels[:3], samples=0)


def test_what_is_stacked_may_be_a_mapping_but_not_nothing() -> None:
    class Named(nn.Linear):
        def forward(self, features: Tensor) -> Tensor:
            return super().forward(features)

    model, x, y = byov.bayesianize(Named(6, 3), byov.EMP(3, spread=1.0)), torch.randn(8, 6), torch.arange(8) % 3
    by_name, plain = (stack(model, given, y, 4, seeded()) for given in ({"features": x}, x))
    assert torch.equal(by_name.weights, plain.weights)
    with pytest.raises(ValueError, match="The loader is empty: there is nothing to stack"):
        stack(model, [], y)
    with pytest.raises(ValueError, match="The loader is empty"):
        stack(model, x, y).predict([])
