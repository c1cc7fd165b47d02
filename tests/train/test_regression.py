"""Many networks trained at once are the networks that the rest of the library trains one at a time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from typer.testing import CliRunner

import byov
from byov.cli import app
from byov.models import regression_mlp
from byov.posterior import Family
from byov.posterior.random import stream
from byov.train import regression_networks as networks
from byov.train.regression import Settings, fit, strongest_decay

FAMILIES: dict[str, Family] = {
    "EMP": byov.EMP(3, spread=0.0),
    "ECMP": byov.ECMP(3, spread=0.0),
    "Dropout": byov.Dropout(0.2),
    "Ensemble": byov.Ensemble(3),
}
SHORT = Settings(hidden=7, epochs=6, batch=16, lr=0.01)
TUNED = Settings(hidden=15, epochs=250, batch=60, lr=0.01, weight_decay=(1.0, 1e-4), held=0.5, trial=1.0)
PATCHING = Path(__file__).parents[2] / "docs" / "patching.md"


def table(rows: int = 70, targets: int = 2) -> tuple[Tensor, Tensor]:
    g = Generator().manual_seed(1)
    X = 3 + 2 * torch.randn(rows, 4, generator=g, dtype=torch.float64)
    y = torch.stack([100 * X[:, 0].sin() + 7, X[:, 1] * X[:, 2] - 50], 1) + torch.randn(rows, 2, generator=g)
    return X, y[:, :targets]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if torch.is_floating_point(value)}


def same_weights(ours: nn.Module, theirs: nn.Module, rtol: float, atol: float) -> None:
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=rtol, atol=atol)


def alone(family: Family, X: Tensor, y: Tensor, settings: Settings) -> nn.Module:
    """The ordinary way: a bayesianized regression_mlp, autograd, torch.optim.Adam, one step after the other."""
    seed, number, has_batchnorm = stream(0, 0), networks.NUMBER[type(family)], isinstance(family, byov.EMP | byov.ECMP)
    data = networks.Data.of(X, y, torch.arange(len(X)), seed, torch.device("cpu"))
    each = isinstance(family, byov.Ensemble)
    nets = []
    for member in range(3 if each else 1):
        torch.manual_seed(stream(seed, number, member))
        nets.append(regression_mlp(X.shape[1], settings.hidden, y.shape[1], norm=has_batchnorm, gamma=settings.gamma))
    flat = torch.stack([nn.utils.parameters_to_vector(net.parameters()).detach() for net in nets])
    model = byov.bayesianize(nets[0], {byov.norm_layers if has_batchnorm else nn.Linear: family}).train()
    if each:
        model.factors[0].get_parameter("components").data.copy_(flat)
    adam = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.grid[0])
    xs, ys = data.minibatches(data.generator(0), settings.epochs, *settings.cut(len(X)))
    for x, target, noise in zip(xs, ys, model.noises(len(xs), data.generator(number)), strict=True):
        adam.zero_grad()
        for draw in [[{"z": torch.tensor([k])}] for k in range(3)] if each else [noise]:
            with model.draw(noise=draw):
                nn.functional.mse_loss(model(x.t()), target.t()).backward()
        adam.step()
    return model


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_batched_networks_are_the_librarys_own(name: str, targets: int) -> None:
    """Thirty steps end at the weights of a module trained by itself, moments included."""
    X, y = table(targets=targets)
    fitted = fit(X, y, FAMILIES[name], settings=SHORT)
    same_weights(fitted.module(), alone(FAMILIES[name], X, y, SHORT), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("settings", [SHORT, replace(TUNED, epochs=8)], ids=["given decay", "chosen decay"])
def test_a_split_does_not_depend_on_its_company(settings: Settings) -> None:
    """Six splits of two sizes and four families at once, against each split and family alone."""
    X, y = table(90)
    g = Generator().manual_seed(0)
    rows = [torch.randperm(90, generator=g)[: 80 + i % 2] for i in range(6)]  # 80 and 81 rows are cut differently
    assert SHORT.cut(80) != SHORT.cut(81)
    together = fit(X, y, FAMILIES, rows, settings=settings)
    for name, family in FAMILIES.items():
        for number in (1, 4):
            single = fit(X, y, family, [rows[number]], [number], settings)
            assert together[name].splits[number].weight_decay == single.splits[0].weight_decay
            same_weights(together[name].module(number), single.module(), rtol=1e-3, atol=1e-4)
            ours, theirs = together[name].predict(X, number, 20), single.predict(X, 0, 20)
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-2)
    different = fit(X, y, FAMILIES["EMP"], [rows[1]], [2], settings)
    assert not torch.allclose(together["EMP"].predict(X, 1, 20), different.predict(X, 0, 20), rtol=1e-2)


def test_the_decay_is_chosen_where_it_helps_and_without_the_test_rows() -> None:
    """A sine wants none; noise wants much. What is not among the training rows may be anything."""
    X, y = table(160, targets=1)
    noise = torch.randn(160, generator=Generator().manual_seed(2))
    rows = [torch.arange(0, 120), torch.arange(40, 160)]
    for target, wanted in ((y, 1e-4), (noise, 1.0)):
        fitted = fit(X, target, {"EMP": byov.EMP(3, spread=0.0), "Ensemble": byov.Ensemble(2)}, rows, settings=TUNED)
        chosen = [part.weight_decay for f in fitted.values() for part in f.splits]
        assert chosen.count(wanted) >= 3  # sixty rows of noise may favour either by chance
    spoiled, X_spoiled = noise.clone(), X.clone()
    spoiled[120:], X_spoiled[120:] = 1e6, -1e6
    short = replace(TUNED, epochs=20)
    clean, other = (
        fit(*data, byov.EMP(3), rows[:1], settings=short).module() for data in ((X, noise), (X_spoiled, spoiled))
    )
    torch.testing.assert_close(weights(clean), weights(other))


def test_the_strongest_decay_that_is_not_clearly_worse() -> None:
    good = torch.tensor([1.0, 2.0, 3.0, 2.0])
    noisy, clear = good + torch.tensor([0.5, -0.5, 0.6, -0.4]), good + torch.tensor([0.5, 0.4, 0.6, 0.5])
    assert strongest_decay({0.1: clear, 0.01: noisy, 0.001: good}) == 0.01
    assert strongest_decay({0.1: clear, 0.001: good}) == 0.001
    assert strongest_decay({0.1: good, 0.001: good}) == 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_are_the_modules(name: str) -> None:
    """`predict` under its noise is the BayesianModule under the same noise, brought back to the target's scale."""
    X, y = table()
    family = FAMILIES[name]
    fitted = fit(X, y, family, settings=SHORT)
    part, model = fitted.splits[0], fitted.module()
    got = fitted.predict(X, samples=12, generator=Generator().manual_seed(5))
    noises = model.noises(12, Generator().manual_seed(5))
    x = part.x_scale.standardise(X).float()
    for draw, noise in zip(got, noises, strict=True):
        with torch.no_grad(), model.draw(noise=noise):
            wanted = part.y_scale.restore(model(x).double())
        torch.testing.assert_close(draw.double(), wanted, rtol=1e-4, atol=1e-3)


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
    for target in (y, torch.full((70,), 4.0)):
        assert fit(X, target, byov.EMP(3), settings=SHORT).predict(X, samples=5).isfinite().all()


@given(rows=st.integers(1, 600_000), batch=st.integers(1, 300))
def test_an_epoch_is_cut_into_equal_minibatches(rows: int, batch: int) -> None:
    steps, size = Settings(batch=batch).cut(rows)
    assert 0 < size <= batch
    assert 0 <= rows - steps * size < steps


def test_mixing_probabilities_and_fresh_members_are_taken() -> None:
    """Mixing probabilities change the draws; an ensemble's members start anew, which is what `start="reset"` says."""
    plain, tilted = (
        fit(X0, Y0, byov.EMP(2, probs), settings=SHORT).predict(X0, samples=50) for probs in (None, (0.9, 0.1))
    )
    assert not torch.equal(plain, tilted)
    for family in (byov.Ensemble(3), byov.Ensemble(3, start="reset")):
        members = fit(X0, Y0, family, settings=SHORT).module().factors[0].get_parameter("components")
        assert len({tuple(member.tolist()) for member in members}) == 3


def test_divergence_is_said() -> None:
    X, y = table()
    with pytest.raises(byov.train.Diverged, match=r"Dropout\(.*\) became infinite: try a smaller learning rate"):
        fit(X, y, byov.Dropout(0.1), settings=Settings(hidden=5, epochs=40, batch=35, lr=1e38))


# What is refused, and which rows and devices are taken

X0, Y0 = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30.0)
HOLES = np.where(np.arange(30) % 7 == 3, np.nan, Y0)
INFINITE = np.where(np.arange(120).reshape(30, 4) == 17, np.inf, X0)


@pytest.mark.parametrize(
    ("X", "y", "families", "settings", "sentence"),
    [
        (X0, np.array(["high", "low"] * 15), byov.EMP(5), SHORT, "y must hold numbers, not <U4, such as 'high'"),
        (X0, [*Y0[:-1].tolist(), "n/a"], byov.EMP(5), SHORT, "y must hold numbers"),
        (X0, np.array([*Y0[:-1], "n/a"], dtype=object), byov.EMP(5), SHORT, "y must hold numbers, but has 'n/a'"),
        ([[1, 2], [3]], Y0, byov.EMP(5), SHORT, "rows have the same length"),
        (X0, HOLES, byov.EMP(5), SHORT, "y has missing or infinite values in 4 rows, the first is row 4"),
        (INFINITE, Y0, byov.EMP(5), SHORT, "X has a missing or infinite value in row 5"),
        (X0, Y0[:-1], byov.EMP(5), SHORT, r"X \(N, D\) and y"),
        (X0, Y0, byov.EMP(5), Settings(), "30 training rows are fewer than the batch of 100"),
        (X0, Y0, byov.ECMP(5), Settings(batch=1), "BatchNorm needs at least 2 rows"),
        (X0[:3], Y0[:3], byov.EMP(5), Settings(batch=2), "BatchNorm needs at least 2 rows"),
        (X0, Y0, {}, SHORT, "needs a family"),
    ],
)
def test_bad_tables(X: Any, y: Any, families: Any, settings: Settings, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fit(X, y, families, settings=settings)


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        (byov.Gaussian(), "takes EMP, ECMP, Dropout or Ensemble, not Gaussian"),
        (byov.EMP(5, sigma=0.1), "σ = 0"),
        (byov.EMP(5, learn_probs=True), "probabilities are fixed: EMP takes no learn_probs"),
        (byov.Ensemble(5, learn_probs=True), "probabilities are fixed: Ensemble takes no learn_probs"),
        (byov.EMP(5, spread=0.9), r"start at Settings\.gamma and 0: EMP takes no spread"),
        (byov.Ensemble(5, spread=0.1), "start from separate seeds: Ensemble takes no spread"),
        (byov.ECMP(5, start="reset"), "ECMP takes no start='reset'"),
    ],
)
def test_settings_that_would_change_nothing_are_refused(family: Family, sentence: str) -> None:
    for given_families in (family, {"plain": byov.EMP(5), "other": family}):
        with pytest.raises(ValueError, match=sentence):
            fit(X0, Y0, given_families, settings=SHORT)


def test_bad_settings_rows_and_predictions() -> None:
    for wrong in ({"epochs": 0}, {"lr": 0.0}, {"weight_decay": -1.0}, {"lr": float("nan")}, {"held": 1.0}):
        with pytest.raises(ValueError, match=r"at least|shares"):
            Settings(**wrong)  # type: ignore[arg-type]
    for rows in ([torch.arange(10, 40)], [[]]):
        with pytest.raises(ValueError, match="0 to 29"):
            fit(X0, Y0, byov.EMP(5), rows, settings=SHORT)  # type: ignore[arg-type]
    no_rows = (torch.rand(20), [torch.rand(20)], [torch.ones(30, dtype=torch.bool)], [torch.zeros(2, 10).long()])
    for wrong_rows in no_rows:
        with pytest.raises(ValueError, match="rows are indices, a list or 1-D tensor of whole numbers, not torch"):
            fit(X0, Y0, byov.EMP(2), wrong_rows, settings=SHORT)
    fitted = fit(X0, Y0, byov.Dropout(0.1), settings=Settings(hidden=3, epochs=1, batch=1))  # no BatchNorm: any batch
    for asked, sentence in (
        ((X0[:, :3],), r"X is \(N, 4\)"),
        ((INFINITE,), "X has a missing or infinite value in row 5"),
        ((X0, 1), "splits 0 to 0"),
        ((X0, 0, 0), "at least one draw"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fitted.predict(*asked)


def test_devices() -> None:
    for absent in ("cuda:99", torch.device("cuda", 99), "nowhere"):
        with pytest.raises(ValueError, match=f"There is no device '{absent}' here"):
            fit(X0, Y0, byov.EMP(2), settings=SHORT, device=absent)
    best = "cuda" if torch.cuda.is_available() else "cpu"
    for device, wanted in (("auto", best), (torch.device("cpu"), "cpu")):
        assert fit(X0, Y0, byov.EMP(2), settings=SHORT, device=device).splits[0].x_scale.mean.device.type == wanted


def test_numbers_alone_are_one_split() -> None:
    some = torch.arange(5, 25)
    wanted = fit(X0, Y0, byov.EMP(2), [some], settings=SHORT)
    alone: list[Any] = [some, some.to(torch.uint8), some.numpy(), some.tolist()]
    for rows in alone:
        got = fit(X0, Y0, byov.EMP(2), rows, settings=SHORT)
        assert len(got.splits) == 1
        assert torch.equal(got.predict(X0, samples=4), wanted.predict(X0, samples=4))
    small = replace(SHORT, batch=10)
    assert len(fit(X0, Y0, byov.EMP(2), torch.arange(30).view(2, 15), settings=small).splits) == 2


@pytest.mark.parametrize("name", ["a.csv", "data/A.TSV", "a.txt", "table:a.npz", "table:a.csv"])
def test_a_table_is_no_set_of_images(name: str, tmp_path: Path) -> None:
    sentence = r"byov train takes a table as data\.name = 'table:FILE', Python by byov\.data\.table\."
    with pytest.raises(ValueError, match=sentence):
        byov.data.load(name)
    sentence = (
        "not a file|No such file" if name.startswith("table:") else f"{sentence}|lacks a prefix: a table is table:FILE"
    )
    done = CliRunner().invoke(app, ["train", "--run", str(tmp_path / "run"), "--set", f"data.name={name}"])
    assert isinstance(done.exception, ValueError)  # `byov` prints it as one line
    assert re.search(sentence, str(done.exception))


def test_the_table_of_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It writes a file, so it runs in a folder of its own; and the network learns what the table holds."""
    (section,) = re.findall(r"^## A table of numbers\n(.*?)^## ", PATCHING.read_text(), re.M | re.S)
    (block,) = re.findall(r"^```py\n(.*?)^```", section, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "byov": byov}  # imported by the page's first block
    exec(compile(block, "docs/patching.md", "exec", dont_inherit=True), names)
    scores = re.findall(r"RMSE ([\d.]+), log density (-?[\d.]+)", capsys.readouterr().out)
    assert len(scores) == 5
    assert all(float(error) < 0.5 * float(names["y"].std()) and float(density) > -10 for error, density in scores)
