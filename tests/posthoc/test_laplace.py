"""byov.laplace against closed forms, and against the package laplace-torch."""

from __future__ import annotations

import copy
from math import log10
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import byov
from byov.posthoc.evidence import RANGE, hill_climb


def network(outputs: int = 3, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, outputs, bias=bias)).double()


def data(outputs: int = 3, n: int = 50) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4).double()
    return x, (x @ torch.randn(4, outputs).double() + torch.randn(n, outputs)).argmax(1)


def loader_of(x: Tensor, y: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), batch_size=16)


def covariance(model: byov.BayesianModule) -> Tensor:
    """The covariance of the flat weights, by what each unit of noise draws."""
    factor = model.factors[0]
    units = torch.eye(factor.layout.numel).double()
    spread = torch.stack([factor.flat_draw({"eps": unit}) - factor.flat_mean() for unit in units], 1).detach()
    return spread @ spread.mT


def close(a: Tensor, b: Tensor, relative: float = 1e-4) -> None:
    assert (a - b).norm() <= relative * b.norm()


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize(("task", "bias"), [("classification", True), ("classification", False), ("regression", True)])
def test_it_is_what_laplace_torch_gives(structure: str, task: str, bias: bool) -> None:
    """The covariance and the marginal likelihood, which is nowhere near higher than at our precision and noise."""
    package = pytest.importorskip("laplace")
    net, (x, y) = network(bias=bias), data()
    y = y if task == "classification" else torch.randn(len(x), 3).double()
    model = byov.laplace(net, loader_of(x, y), structure, task=task)
    found = model.evidence
    other = package.Laplace(net.eval(), task, subset_of_weights="last_layer", hessian_structure=structure)
    other.fit(loader_of(x, y))

    def theirs(precision: float, noise: float = 1.0) -> float:
        """Their marginal likelihood at so many times our precision and noise."""
        other.sigma_noise = noise * (found.noise or 1.0)
        other.prior_precision = precision * found.prior_precision
        return float(other.log_marginal_likelihood())

    assert theirs(1.0) == pytest.approx(found.log_marginal_likelihood, rel=1e-4)
    precision = other.posterior_precision
    precision = precision.to_matrix() if structure == "kron" else precision
    close(covariance(model), torch.linalg.inv(precision.diag() if precision.ndim == 1 else precision))
    for away in ((1.1, 1.0), (0.9, 1.0), *([(1.0, 1.02), (1.0, 0.98)] if found.noise else [])):
        assert theirs(*away) < found.log_marginal_likelihood


def test_it_is_exact_for_a_linear_regression() -> None:
    """At the ridge regression's solution: the posterior, and the evidence N(y; 0, σ² + X Xᵀ/δ)."""
    x, noise, delta = torch.randn(30, 4).double(), 0.3, 2.0
    y = x @ torch.randn(4, 1).double() + noise * torch.randn(30, 1)
    precision = x.mT @ x / noise**2 + delta * torch.eye(4)
    net = nn.Linear(4, 1, bias=False).double()
    net.weight.data = torch.linalg.solve(precision, x.mT @ y / noise**2).mT
    model = byov.laplace(
        net, [(x[:20], y[:20]), (x[20:], y[20:])], task="regression", noise=noise, prior_precision=delta
    )
    close(covariance(model), torch.linalg.inv(precision), 1e-6)
    evidence = MultivariateNormal(torch.zeros(30).double(), noise**2 * torch.eye(30) + x @ x.mT / delta)
    assert model.evidence.log_marginal_likelihood == pytest.approx(float(evidence.log_prob(y[:, 0])), rel=1e-6)
    predicted = byov.predict(model, x, 20_000, task="regression", precision=model.evidence.precision)
    exact = ((x @ torch.linalg.inv(precision)) * x).sum(1) + noise**2
    close(predicted.std[:, 0], exact.sqrt(), 0.02)  # its standard error is 0.5 %


def test_it_answers_like_any_other_posterior() -> None:
    net, (x, y) = network().train(), data()
    before = copy.deepcopy(net.state_dict())
    model = byov.laplace(net, loader_of(x, y))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert model.covered() == ["3.weight", "3.bias"]
    assert torch.equal(model.mean()["3.weight"], net[3].weight)
    assert (model.snr()["3.weight"] > 0).all()
    prior = byov.Normal(0.0, model.evidence.prior_precision**-0.5)
    assert torch.equal(model.kl(), model.kl(prior))
    generator = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    prediction = byov.predict(model, x, 50, generator=generator())
    assert prediction.strategy == "head"
    assert (prediction.mutual_information > 0).all()
    assert (byov.prune(model, 0.5)[3].weight == 0).sum() == 8
    other = byov.bayesianize(net, {byov.output_layer: byov.FullGaussian()}).double()
    other.load_state_dict(model.state_dict())
    assert torch.equal(byov.predict(other, x, 50, generator=generator()).mean, prediction.mean)


def test_a_sigmoid_is_a_softmax_of_two() -> None:
    """A logit z counts as (0, z): with the weights of two classes tied so, both have one curvature in z."""
    x, y = torch.randn(40, 4).double(), torch.randint(2, (40,))
    one = nn.Linear(4, 1).double()
    model = byov.laplace(one, (x, y), task="classification", prior_precision=1.0)
    features = torch.cat([x, torch.ones(40, 1)], 1)
    p = one(x).sigmoid()
    close(torch.linalg.inv(covariance(model)), features.mT @ (p * (1 - p) * features) + torch.eye(5), 1e-6)
    loss = cross_entropy(torch.cat([torch.zeros(40, 1), one(x)], 1), y, reduction="sum")
    assert model.evidence.log_likelihood == pytest.approx(-loss.item())


def test_the_labels_of_a_single_output_say_what_it_is() -> None:
    x, net = torch.randn(40, 4).double(), nn.Linear(4, 1).double()
    for task, y in (("classification", torch.randint(2, (40,))), ("regression", torch.randn(40))):
        found, given = byov.laplace(net, (x, y)).evidence, byov.laplace(net, (x, y), task=task).evidence
        assert found == given
    with pytest.raises(ValueError, match="integers other than 0 and 1: add task='regression'"):
        byov.laplace(net, (x, torch.arange(40) % 4))


def test_rows_without_a_label_and_mappings() -> None:
    """Tokens (B, L, C) count one by one, those labelled −100 not at all."""
    x, y = torch.randn(6, 7, 4).double(), torch.randint(3, (6, 7))
    y[:, 5:] = -100
    net = network()
    tokens = byov.laplace(net, [{"input": x, "labels": y}], task="token")
    rows = byov.laplace(net, (x[:, :5].flatten(0, 1), y[:, :5].flatten()))
    assert tokens.evidence.examples == 30
    close(covariance(tokens), covariance(rows), 1e-8)


def test_many_weights_get_kronecker_factors_and_weights_of_zero_a_narrow_prior() -> None:
    net, x = nn.Linear(50, 50), torch.randn(10, 50)
    assert byov.laplace(net, (x, torch.arange(10))).evidence.structure == "kron"
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    assert byov.laplace(net, (x, torch.arange(10))).evidence.prior_precision == pytest.approx(RANGE[1], rel=1e-3)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_part_of_the_data_counts_for_the_whole(task: Any, structure: Any) -> None:
    net, (x, y) = network(), data()
    y = y if task == "classification" else torch.randn(50, 3).double()
    part = byov.laplace(net, (x, y), structure, task=task, examples=150)
    whole = byov.laplace(net, [(x, y)] * 3, structure, task=task)
    close(covariance(part), covariance(whole), 1e-8)
    assert vars(part.evidence) == pytest.approx(vars(whole.evidence))


def overfitted(task: str) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A network that was trained without a weight decay until it knew its few examples, and held-out ones."""
    x = torch.randn(240, 4).double()
    clean = x @ torch.randn(4, 3).double() + 0.3 * torch.randn(240, 3)
    y = {"classification": clean.argmax(1), "multilabel": (clean > 0).long(), "regression": clean}[task]
    net = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 3)).double()
    loss = {"classification": cross_entropy, "multilabel": _binary, "regression": nn.functional.mse_loss}[task]
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss(net(x[:40]), y[:40]).backward()
        optimizer.step()
    return net, (x[:40], y[:40]), (x[40:], y[40:])


def _binary(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels.double())


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_held_out_data_choose_a_prior_under_which_they_are_likelier(task: str, structure: str) -> None:
    net, data, held = overfitted(task)
    models = [byov.laplace(net, data, structure, task=task, validation=v) for v in (None, [held])]  # type: ignore[arg-type]
    losses = []
    for model in models:
        options = {"task": task, "precision": model.evidence.precision}
        found = byov.predict(model, held[0], 2000, generator=torch.Generator().manual_seed(5), **options)  # type: ignore[arg-type]
        if task == "classification":
            losses.append(-found.mean.gather(1, held[1][:, None]).log().mean())
        elif task == "multilabel":
            losses.append(nn.functional.binary_cross_entropy(found.mean, held[1].double()))
        else:
            losses.append(-torch.distributions.Normal(found.mean, found.std).log_prob(held[1]).mean())
    assert losses[1] <= losses[0] + 0.005  # it was chosen by 128 draws, these are 2000
    assert models[1].evidence.log_marginal_likelihood <= models[0].evidence.log_marginal_likelihood
    if task == "classification":  # of labels that the network has all right, the surest posterior is the best
        sure = byov.laplace(net, data, structure, validation=(held[0], net(held[0]).argmax(1)))  # type: ignore[arg-type]
        assert sure.evidence.prior_precision > 100 * models[0].evidence.prior_precision


def test_the_precision_is_found_in_half_decades_either_way() -> None:
    for best, start in ((3e3, 1.0), (0.02, 7.0), (5.0, 4.0)):
        assert abs(log10(hill_climb(lambda delta, best=best: abs(log10(delta / best)), start) / best)) <= 0.25  # type: ignore[misc]
