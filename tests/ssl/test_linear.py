"""The linear probe: scikit-learn's optimum, a strength chosen where it should be, the average under draws."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Generator, Tensor, nn

from byov.metrics.functional import nll
from byov.ssl.linear import LinearProbe, linear_probe


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)


def objective(probe: LinearProbe, x: Tensor, y: Tensor, l2: float) -> float:
    copy = LinearProbe(**{name: tensor.double() for name, tensor in probe.state_dict().items()})
    return (nn.functional.cross_entropy(copy(x.double()), y) + l2 / 2 * copy.weight.square().sum()).item()


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
def test_is_scikit_learns_optimum(l2: float) -> None:
    """λ = 1/(C·N). scikit-learn's optimum is the same function, and not lower."""
    x, y = digits()
    scaler = StandardScaler().fit(x[:1000].double().numpy())
    reference = LogisticRegression(C=1 / (l2 * 1000), tol=1e-8, max_iter=5000)
    reference.fit(scaler.transform(x[:1000].double().numpy()), y[:1000].numpy())
    probe = linear_probe(x[:1000], y[:1000], l2=l2)
    expected = torch.from_numpy(reference.predict_proba(scaler.transform(x[1000:].double().numpy()))).float()
    torch.testing.assert_close(probe.probabilities(x[1000:]), expected, atol=2e-3, rtol=0)
    weights = torch.from_numpy(reference.coef_).float()
    torch.testing.assert_close(probe.weight, weights, atol=5e-3, rtol=0)
    own = LinearProbe(weights, torch.from_numpy(reference.intercept_).float(), probe.center, probe.scale)
    assert objective(probe, x[:1000], y[:1000], l2) <= objective(own, x[:1000], y[:1000], l2) + 1e-6


def test_float32_is_near() -> None:
    x, y = digits()
    fine, coarse = (linear_probe(x[:500], y[:500], l2=1e-2, dtype=d) for d in (torch.float64, torch.float32))
    assert objective(coarse, x[:500], y[:500], 1e-2) - objective(fine, x[:500], y[:500], 1e-2) < 1e-5
    torch.testing.assert_close(coarse.probabilities(x[500:]), fine.probabilities(x[500:]), atol=5e-3, rtol=0)


def test_chooses_the_strength_that_generalises() -> None:
    """Labels at random in many dimensions: only the strongest is right. Clean digits: a weak one."""
    x, y = digits()
    noise = torch.randn(300, 100, generator=Generator().manual_seed(0))
    assert linear_probe(noise, y[:300]).l2 == 1.0
    probe = linear_probe(x[:800], y[:800])
    assert probe.l2 is not None
    assert 1e-4 <= probe.l2 <= 1e-2
    scores = {l2: nll(linear_probe(x[:800], y[:800], l2=l2).probabilities(x[800:]), y[800:]) for l2 in (1.0, 1e-1)}
    assert nll(probe.probabilities(x[800:]), y[800:]) < min(scores.values())


def test_the_last_fit_is_on_all_examples() -> None:
    x, y = digits()
    chosen = linear_probe(x[:400], y[:400], l2=(1.0, 1e-2))
    again = linear_probe(x[:400], y[:400], l2=chosen.l2 or 0.0)
    torch.testing.assert_close(chosen.probabilities(x[400:]), again.probabilities(x[400:]), atol=1e-3, rtol=0)


def test_under_draws_the_average_is_fitted() -> None:
    """The objective is that of the averaged probability, at a point with no slope; equal draws are one draw."""
    x, y = digits()
    noisy = x[:300] + 8 * torch.randn(3, 300, 64, generator=Generator().manual_seed(0))
    probe = linear_probe(noisy, y[:300], l2=0.01)
    weight, bias = (t.double().requires_grad_() for t in (probe.weight, probe.bias))
    z = (noisy.double() - probe.center) / probe.scale
    average = (z @ weight.T + bias).softmax(-1).mean(0)
    loss = nn.functional.nll_loss(average.log(), y[:300]) + 0.005 * weight.square().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() < 1e-4
    each = linear_probe(noisy.flatten(0, 1), y[:300].repeat(3), l2=0.01)  # what a fit of each draw by itself gives
    theirs = torch.stack([each.probabilities(draw) for draw in noisy]).mean(0)
    assert nll(average.detach().float(), y[:300]) < nll(theirs, y[:300]) - 0.01
    once, thrice = linear_probe(x[:300], y[:300]), linear_probe(x[:300].repeat(3, 1, 1), y[:300])
    assert once.l2 == thrice.l2
    # At a strength where the tolerance determines the fit: it chooses 1e-6, where rounding decides where it ends.
    once, thrice = (linear_probe(draws, y[:300], l2=0.01) for draws in (x[:300], x[:300].repeat(3, 1, 1)))
    torch.testing.assert_close(once.probabilities(x), thrice.probabilities(x), atol=1e-4, rtol=0)


def test_groups_are_held_out_whole() -> None:
    """Labels that only a group's own mark tells: a weak strength is right within groups, a strong one across them."""
    g = Generator().manual_seed(0)
    groups = torch.arange(300) % 30
    y = torch.randint(5, (30,), generator=g)[groups]
    marks = torch.randn(30, 40, generator=g)[groups] + 0.1 * torch.randn(300, 40, generator=g)
    assert linear_probe(marks, y, holdout=0.3).l2 < 1e-3
    assert linear_probe(marks, y, holdout=0.3, groups=groups).l2 > 1e-2


def test_an_example_is_held_out_under_all_draws() -> None:
    """Labels at random, repeated under draws: a split of rows would see every test example in training."""
    y = torch.randint(5, (200,), generator=Generator().manual_seed(1))
    noise = torch.randn(200, 100, generator=Generator().manual_seed(2))
    assert linear_probe(noise.repeat(4, 1, 1), y).l2 == 1.0
    rows = linear_probe(noise.repeat(4, 1), y.repeat(4)).l2
    assert rows is not None
    assert rows < 1e-2  # what the wrong split would choose


def test_constant_features_do_no_harm() -> None:
    """Digits have pixels that are always 0; one that is constant but for rounding must not become a feature."""
    x, y = digits()
    rounding = 1e3 + 1e-5 * torch.randn(len(x), 1, generator=Generator().manual_seed(0), dtype=torch.float64)
    wider = torch.cat([x.double(), rounding], 1)
    assert torch.count_nonzero(x.std(0)) < 64
    plain, wide = linear_probe(x[:500], y[:500], l2=1e-3), linear_probe(wider[:500], y[:500], l2=1e-3)
    assert wide.scale[-1] == 1.0
    torch.testing.assert_close(plain.probabilities(x[500:]), wide.probabilities(wider[500:].float()), atol=1e-3, rtol=0)


def test_is_deterministic_and_plain_tensors(tmp_path: object) -> None:
    x, y = digits()
    probe, again = (linear_probe(x[:300], y[:300], seed=3) for _ in range(2))
    state = probe.state_dict()
    assert set(state) == {"weight", "bias", "center", "scale"}
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in state.items())
    torch.save(state, f"{tmp_path}/probe.pt")
    loaded = LinearProbe(**torch.load(f"{tmp_path}/probe.pt", weights_only=True))
    assert torch.equal(loaded(x), probe(x))
    assert np.allclose(probe.probabilities(x).sum(1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"l2": 0.0}, "above 0"),
        ({"l2": ()}, "above 0"),
        ({"holdout": 0.0}, "leaves nothing"),
        ({"holdout": 1.0}, "leaves nothing"),
        ({"labels": torch.zeros(19, dtype=torch.int64)}, "one for each of 20"),
        ({"train_features": torch.full((20, 3), torch.inf)}, "finite"),
    ],
)
def test_bad_input_gets_a_sentence(change: dict[str, object], sentence: str) -> None:
    given = {"train_features": torch.randn(20, 3), "labels": torch.arange(20) % 4}
    with pytest.raises(ValueError, match=sentence):
        linear_probe(**(given | change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"weight \(C, D\)"):
        LinearProbe(torch.zeros(3, 4), torch.zeros(4), torch.zeros(4), torch.ones(4))
