"""Many networks trained at once are the networks that the rest of the library trains one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import byov
from byov.posterior import Family
from byov.posterior.random import stream
from byov.train.regression import Fitted, Settings, fit
from byov.train.regression import families as of
from byov.train.regression.fitting import _least
from byov.train.regression.group import Data, minibatches

FAMILIES: dict[str, Family] = {
    "EMP": byov.EMP(3),
    "ECMP": byov.ECMP(3),
    "Dropout": byov.Dropout(0.2),
    "Ensemble": byov.Ensemble(3),
}
SHORT = Settings(hidden=7, epochs=6, batch=16, lr=0.01)


def table(rows: int = 70, targets: int = 2) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    X = 3 + 2 * torch.randn(rows, 4, generator=g, dtype=torch.float64)
    y = torch.stack([100 * X[:, 0].sin() + 7, X[:, 1] * X[:, 2] - 50], 1) + torch.randn(rows, 2, generator=g)
    return X, y[:, :targets]


def weights(fitted: Fitted, split: int) -> dict[str, Tensor]:
    state = fitted.module(split).state_dict()
    return {name: value for name, value in state.items() if torch.is_floating_point(value)}


def draws_of(family: Family, noise: Tensor, features: int) -> list[Any]:
    """What `BayesianModule.draw` takes, for one step's noise."""
    if isinstance(family, byov.EMP):
        return [{"z": noise[[0, -1]]}]
    if isinstance(family, byov.ECMP):
        return [{"z": noise}]
    return [{"keep": noise > 0}]


def alone(family: Family, X: Tensor, y: Tensor, settings: Settings, seed: int = 0) -> dict[str, Tensor]:
    """The ordinary way: a bayesianized regression_mlp, autograd, torch.optim.Adam, one step after the other."""
    data = Data.of(X, y, torch.arange(len(X)), stream(seed, 0), torch.device("cpu"))
    features, targets = X.shape[1], y.shape[1]
    first, second, bias = of.initial(family, data.seed, features, settings.hidden, targets, settings.gamma)
    net = of.network(family, features, settings.hidden, targets, settings.gamma)
    linear = [m for m in net if isinstance(m, nn.Linear)]
    with torch.no_grad():
        linear[0].weight.copy_(first[0, :, :-1])
        linear[0].bias.copy_(first[0, :, -1])
        linear[1].weight.copy_(second[0])
        linear[1].bias.copy_(bias[0, :, 0])
    model = of.model(family, net).train()
    if isinstance(family, byov.Ensemble):
        flat = torch.cat([first[..., :-1].flatten(1), first[..., -1], second.flatten(1), bias.flatten(1)], 1)
        model.factors[0].get_parameter("components").data.copy_(flat)
    adam = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    steps, size = settings.cut(len(X))
    xs, ys = minibatches([data], [data.generator(0)], settings.epochs, steps, size)
    generator = data.generator(of.NUMBER[type(family)])
    if isinstance(family, byov.Dropout):
        noise = of.factors(family, len(xs), features, settings.hidden, xs, generator)
    elif not isinstance(family, byov.Ensemble):
        noise = of.assignment(family, len(xs), features, settings.hidden, xs, generator)  # type: ignore[arg-type]
    for t in range(len(xs)):
        x, target = xs[t, 0].t(), ys[t, 0, 0].t()
        adam.zero_grad()
        if isinstance(family, byov.Ensemble):
            for k in range(family.k):
                with model.draw(noise=[{"z": torch.tensor([k])}]):
                    nn.functional.mse_loss(model(x), target).backward()
        else:
            with model.draw(noise=draws_of(family, noise[t], features)):
                nn.functional.mse_loss(model(x), target).backward()
        adam.step()
    return {name: value for name, value in model.state_dict().items() if torch.is_floating_point(value)}


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_written_out_is_autograds(name: str, targets: int) -> None:
    """Thirty steps of the batched networks end at the weights of the library's own module, moments included."""
    X, y = table(targets=targets)
    ours, theirs = weights(fit(X, y, FAMILIES[name], settings=SHORT), 0), alone(FAMILIES[name], X, y, SHORT)
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=2e-4, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}")


def test_a_split_does_not_depend_on_its_company() -> None:
    """Six splits of two sizes and four families at once, against each split and family alone."""
    X, y = table(90)
    g = torch.Generator().manual_seed(0)
    rows = [torch.randperm(90, generator=g)[: 80 + i % 2] for i in range(6)]  # 80 and 81 rows are cut differently
    assert SHORT.cut(80) != SHORT.cut(81)
    together = fit(X, y, FAMILIES, rows, settings=SHORT)
    for name, family in FAMILIES.items():
        for number in (1, 4):
            single = fit(X, y, family, [rows[number]], [number], SHORT)
            a, b = weights(together[name], number), weights(single, 0)
            for key in a:
                torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                together[name].predict(X, number, 20), single.predict(X, 0, 20), rtol=1e-4, atol=1e-2
            )
    different = fit(X, y, FAMILIES["EMP"], [rows[1]], [2], SHORT)
    assert not torch.allclose(together["EMP"].predict(X, 1, 20), different.predict(X, 0, 20), rtol=1e-2)


@pytest.mark.slow
def test_a_split_does_not_depend_on_its_company_after_many_steps() -> None:
    """Rounding grows over thousands of steps; the errors of the same split, alone and in company, still agree."""
    X, y = table(200, targets=1)
    rows = [torch.randperm(200, generator=torch.Generator().manual_seed(i))[:180] for i in range(10)]
    settings = Settings(hidden=20, epochs=500, batch=60)
    together = fit(X, y, byov.ECMP(5), rows, settings=settings)
    single = fit(X, y, byov.ECMP(5), [rows[7]], [7], settings)
    errors = [
        float((m - y).square().mean().sqrt()) for m in (together.predict(X, 7).mean(0), single.predict(X).mean(0))
    ]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


TUNED = Settings(hidden=15, epochs=250, batch=60, lr=0.01, weight_decay=(1.0, 1e-4), held=0.5, trial=1.0)


def test_the_decay_is_chosen_where_it_helps_and_without_the_test_rows() -> None:
    """A sine wants none; noise wants much. What is not among the training rows may be anything."""
    X, y = table(160, targets=1)
    noise = torch.randn(160, generator=torch.Generator().manual_seed(2))
    rows = [torch.arange(0, 120), torch.arange(40, 160)]
    for target, wanted in ((y, 1e-4), (noise, 1.0)):
        fitted = fit(X, target, {"EMP": byov.EMP(3), "Ensemble": byov.Ensemble(2)}, rows, settings=TUNED)
        chosen = [part.weight_decay for f in fitted.values() for part in f.splits]
        assert chosen.count(wanted) >= 3  # sixty rows of noise may favour either by chance
    spoiled, X_spoiled = noise.clone(), X.clone()
    spoiled[120:], X_spoiled[120:] = 1e6, -1e6
    short = replace(TUNED, epochs=20)
    clean = weights(fit(X, noise, byov.EMP(3), rows[:1], settings=short), 0)
    for key, value in weights(fit(X_spoiled, spoiled, byov.EMP(3), rows[:1], settings=short), 0).items():
        torch.testing.assert_close(value, clean[key])


def test_the_strongest_decay_that_is_not_clearly_worse() -> None:
    good = torch.tensor([1.0, 2.0, 3.0, 2.0])
    noisy, clear = good + torch.tensor([0.5, -0.5, 0.6, -0.4]), good + torch.tensor([0.5, 0.4, 0.6, 0.5])
    assert _least({0.1: clear, 0.01: noisy, 0.001: good}) == 0.01
    assert _least({0.1: clear, 0.001: good}) == 0.001
    assert _least({0.1: good, 0.001: good}) == 0.1


def test_a_chosen_split_does_not_depend_on_its_company_either() -> None:
    X, y = table(160, targets=1)
    rows = [torch.arange(0, 120), torch.arange(40, 160)]
    together = fit(X, y, FAMILIES, rows, settings=replace(TUNED, epochs=8))
    single = fit(X, y, byov.ECMP(3), rows[1:], [1], replace(TUNED, epochs=8))
    assert together["ECMP"].splits[1].weight_decay == single.splits[0].weight_decay
    a, b = weights(together["ECMP"], 1), weights(single, 0)
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_are_the_modules(name: str) -> None:
    """`predict` under its noise is the BayesianModule under the same noise, brought back to the target's scale."""
    X, y = table()
    family = FAMILIES[name]
    fitted = fit(X, y, family, settings=SHORT)
    part, model = fitted.splits[0], fitted.module()
    got = fitted.predict(X, samples=12, generator=torch.Generator().manual_seed(5))
    g = torch.Generator().manual_seed(5)
    like = part.first
    noises: list[list[Any]]
    if isinstance(family, byov.Ensemble):
        noises = [[{"z": z.view(1)}] for z in torch.randint(family.k, (12,), generator=g)]
    else:
        make = of.factors if isinstance(family, byov.Dropout) else of.assignment
        noises = [draws_of(family, n, 4) for n in make(family, 12, 4, SHORT.hidden, like, g)]  # type: ignore[operator]
    x = ((X - part.x_mean) / part.x_std).float()
    for draw, noise in zip(got, noises, strict=True):
        with torch.no_grad(), model.draw(noise=noise):
            wanted = model(x) * part.y_std + part.y_mean
        torch.testing.assert_close(draw.double(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_moments_of_the_draws_are_those_of_byov_predict(name: str) -> None:
    """Independent draws of the same posterior: means within five standard errors, deviations within a tenth."""
    X, y = table(targets=1)
    fitted = fit(X, y, FAMILIES[name], settings=SHORT)
    part = fitted.splits[0]
    ours = fitted.predict(X[:10], samples=10_000)[..., 0].double()
    x = ((X[:10] - part.x_mean) / part.x_std).float()
    theirs = byov.predict(
        *(fitted.module(), x), samples=4000, task="regression", generator=torch.Generator().manual_seed(0)
    )
    mean = theirs.mean[:, 0] * part.y_std + part.y_mean
    std = theirs.std[:, 0] * part.y_std
    assert ((ours.mean(0) - mean).abs() <= 5 * std / 4000**0.5 + 1e-4 * mean.abs()).all()
    torch.testing.assert_close(ours.std(0), std, rtol=0.1, atol=1e-3)


def test_predictions_are_at_the_targets_own_scale() -> None:
    X, y = table(targets=1)
    settings = Settings(hidden=20, epochs=150, batch=35, lr=0.01)
    plain = fit(X, y, byov.EMP(3), settings=settings).predict(X, samples=50)
    large = fit(X, 1000 * y + 5e4, byov.EMP(3), settings=settings).predict(X, samples=50)
    torch.testing.assert_close(large, 1000 * plain + 5e4, rtol=0.02, atol=0.02 * float(large.std()))
    assert (plain.mean(0) - y).square().mean() < 0.2 * y.var()  # it learned the sine


def test_constant_columns_are_harmless() -> None:
    X, y = table(targets=1)
    X[:, 2] = 0.7
    assert fit(X, y, byov.ECMP(3), settings=SHORT).predict(X, samples=5).isfinite().all()
    assert fit(X, torch.full((70,), 4.0), byov.EMP(3), settings=SHORT).predict(X, samples=5).isfinite().all()


@given(rows=st.integers(1, 600_000), batch=st.integers(1, 300))
def test_an_epoch_is_cut_into_equal_minibatches(rows: int, batch: int) -> None:
    steps, size = Settings(batch=batch).cut(rows)
    assert 0 < size <= batch
    assert 0 <= rows - steps * size < steps


X0, Y0 = np.arange(120.0).reshape(30, 4), np.arange(30.0)
WORDS = np.array(["high", "low"] * 15)
HOLES = np.where(np.arange(30) % 7 == 3, np.nan, Y0)


@pytest.mark.parametrize(
    ("X", "y", "families", "settings", "sentence"),
    [
        (X0, WORDS, byov.EMP(5), SHORT, "y is to hold numbers, not <U4, such as 'high'"),
        (X0, [*Y0[:-1].tolist(), "n/a"], byov.EMP(5), SHORT, "y is to hold numbers"),
        (X0, np.array([*Y0[:-1], "n/a"], dtype=object), byov.EMP(5), SHORT, "y is to hold numbers, but has 'n/a'"),
        ([[1, 2], [3]], Y0, byov.EMP(5), SHORT, "rows of one length"),
        (X0, HOLES, byov.EMP(5), SHORT, "4 rows have a missing or infinite value, the first is row 3"),
        (X0, Y0[:-1], byov.EMP(5), SHORT, r"X \(N, D\) and y"),
        (X0, Y0, byov.EMP(5), Settings(), "30 training rows are fewer than the batch of 100"),
        (X0, Y0, byov.ECMP(5), Settings(batch=1), "BatchNorm needs at least 2 rows"),
        (X0[:3], Y0[:3], byov.EMP(5), Settings(batch=2), "BatchNorm needs at least 2 rows"),
        (X0, Y0, byov.Gaussian(), SHORT, "takes EMP, ECMP, Dropout or Ensemble, not Gaussian"),
        (X0, Y0, byov.EMP(5, sigma=0.1), SHORT, "σ = 0"),
        (X0, Y0, {}, SHORT, "needs a family"),
    ],
)
def test_bad_input(X: Any, y: Any, families: Any, settings: Settings, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit(X, y, families, settings=settings)


def test_more_bad_input() -> None:
    with pytest.raises(ValueError, match="0 to 29"):
        fit(X0, Y0, byov.EMP(5), [torch.arange(10, 40)], settings=SHORT)
    for wrong in ({"epochs": 0}, {"lr": 0.0}, {"weight_decay": -1.0}, {"lr": float("nan")}, {"held": 1.0}):
        with pytest.raises(ValueError, match=r"at least|shares"):
            Settings(**wrong)  # type: ignore[arg-type]
    fitted = fit(X0, Y0, byov.Dropout(0.1), settings=Settings(hidden=3, epochs=1, batch=1))  # no BatchNorm: any batch
    with pytest.raises(ValueError, match=r"X is \(N, 4\)"):
        fitted.predict(X0[:, :3])
    with pytest.raises(ValueError, match="splits 0 to 0"):
        fitted.predict(X0, 1)
    with pytest.raises(ValueError, match="at least one draw"):
        fitted.predict(X0, samples=0)


def test_threads_are_left_as_they_were() -> None:
    X, y = table()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(X, y, FAMILIES, settings=replace(SHORT, epochs=1))
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
            assert pool.submit(lambda: (torch.tensor(1e-40) * 1.0).item()).result() > 0  # denormals are kept elsewhere
        assert (torch.tensor(1e-40) * 1.0).item() > 0
    finally:
        torch.set_num_threads(before)


def test_divergence_is_said() -> None:
    X, y = table()
    with pytest.raises(byov.train.diverged.Diverged, match="smaller learning rate"):
        fit(X, y, byov.Dropout(0.1), settings=Settings(hidden=5, epochs=40, batch=35, lr=1e38))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_train_as_the_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from byov.train.regression import run

    X, y = table()
    rows = [torch.arange(60), torch.arange(10, 70)]
    graphs = fit(X, y, FAMILIES, rows, settings=SHORT, device="cuda")
    monkeypatch.setattr(run, "_graph", lambda groups, like: lambda chunk: run._loop(groups, chunk))
    loop = fit(X, y, FAMILIES, rows, settings=SHORT, device="cuda")
    for name in FAMILIES:
        for split in (0, 1):
            a, b = weights(graphs[name], split), weights(loop[name], split)
            for key in a:
                torch.testing.assert_close(a[key], b[key], rtol=1e-3, atol=1e-4)
