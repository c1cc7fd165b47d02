"""The priors and the EMA that feeds the teacher's: moments against the direct formula, and saved with the model."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from small_networks import Tied, shake
from torch import Tensor, nn

import byov


def make(prior: Any = None, rules: Any = None) -> byov.BayesianModule:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return byov.bayesianize(net, rules or byov.Gaussian(), prior=prior)


def flat(model: byov.BayesianModule) -> Tensor:
    return model.factors[0].flat_mean().detach().double().clone()


@pytest.mark.parametrize(
    ("decay", "by", "rtol", "atol"),
    [(0.0, 0.1, 1e-4, 1e-9), (0.5, 0.1, 1e-4, 1e-9), (0.99, 0.1, 1e-4, 1e-9), (0.9, 1e-5, 0.1, 1e-12)],
)
def test_ema_equals_the_direct_formula(decay: float, by: float, rtol: float, atol: float) -> None:
    """EMA(μ), EMA(μ²) and EMA(μ²) − EMA(μ)², each by its own recursion in float64.

    Of weights of 1 that move by 1e-5 the difference of the two EMAs is rounding in float32, and often negative.
    """
    model = make()
    if by < 1e-3:
        nn.init.ones_(model.factors[0].mean)
    ema, mean = byov.EMA(model), flat(model)
    square = mean**2
    for _ in range(20):
        shake(model, by)
        ema.update(model, decay)
        mean = decay * mean + (1 - decay) * flat(model)
        square = decay * square + (1 - decay) * flat(model) ** 2
    torch.testing.assert_close(ema.mean(0).double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ema.second_moment(0).double(), square, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ema.variance(0).double(), square - mean**2, rtol=rtol, atol=atol)
    assert (ema.variance(0) >= 0).all()


@pytest.mark.parametrize("rules", [None, byov.Gaussian(), byov.EMP(2), {"mix.*": byov.Gaussian()}], ids=str)
def test_ema_by_name_of_means_points_and_ties_and_of_a_plain_network(rules: Any) -> None:
    """Of the posterior's mean, and never of a draw."""
    net = Tied()
    model = net if rules is None else byov.bayesianize(net, rules)
    shake(model)

    def now() -> dict[str, Tensor]:
        state = model.state_dict() if rules is None else model.point_state_dict()
        return {name: value.clone() for name, value in state.items()}

    ema, before = byov.EMA(model), now()
    shake(model)
    with nullcontext() if rules is None else model.draw():
        ema.update(model, 0.75)
    tensors = ema.tensors(model)
    assert tensors.keys() == before.keys()
    assert tensors["embed.weight"] is tensors["out.weight"]
    for name, value in now().items():
        torch.testing.assert_close(tensors[name], 0.75 * before[name] + 0.25 * value)


def test_ema_without_a_variance_has_none_and_ema_refuses_other_models() -> None:
    with pytest.raises(ValueError, match="keeps no variance"):
        byov.EMA(make(), variance=False).variance(0)
    ema = byov.EMA(make())
    with pytest.raises(ValueError, match="a model with other parameters"):
        ema.update(make(rules={"2.*": byov.Gaussian()}), 0.9)


def test_ema_and_priors_stay_in_float32() -> None:
    model = make(byov.TeacherNormal())
    model.to(torch.bfloat16)
    assert model.prior.ema.mean(0).dtype == torch.float32
    assert make(byov.Normal(0.1, 0.3)).to(torch.bfloat16).prior.get_buffer("std").item() == pytest.approx(0.3)
    model.prior.ema.update(model, 0.9)
    assert torch.isfinite(model.kl())
    assert make(byov.TeacherNormal()).double().prior.ema.mean(0).dtype == torch.float64


def test_the_teachers_variance_has_a_floor() -> None:
    model = make()
    ema = byov.EMA(model)
    for _ in range(5):
        shake(model, 1e-3)
        ema.update(model, 0.9)
    floor = ema.variance(0).median().item()
    _, std = byov.TeacherNormal(ema, floor=floor).moments(0, model.factors[0].layout)
    torch.testing.assert_close(std**2, ema.variance(0).clamp_min(floor))
    assert std.min().item() == pytest.approx(floor**0.5)


def test_a_teacher_prior_makes_its_own_ema_and_lives_with_it() -> None:
    prior = byov.TeacherMean()
    with pytest.raises(ValueError, match="TeacherMean has no teacher yet"):
        make().kl(prior)
    model = make(prior)
    assert all(not name.startswith("prior") for name, _ in model.named_parameters())
    start = model.kl()
    shake(model, 0.3)
    far = model.kl()
    prior.ema.update(model, 0.0)
    assert far > model.kl()  # the prior came after
    assert start.item() == pytest.approx(4.5 * flat(model).numel(), rel=0.01)


def named(value: float) -> byov.Normal:
    values = {name: torch.full_like(m, value) for name, m in make().mean().items()}
    return byov.Normal(values, values)


@pytest.mark.parametrize(
    ("saved", "fresh"),
    [
        (byov.TeacherMean, byov.TeacherMean),
        (byov.TeacherNormal, byov.TeacherNormal),
        (lambda: byov.Normal(0.3, 0.2), byov.Normal),
        (lambda: named(0.4), lambda: named(1.0)),
    ],
    ids=["teacher-mean", "teacher-normal", "numbers", "by name"],
)
def test_a_prior_is_saved_and_restored(saved: Any, fresh: Any) -> None:
    model, other = make(saved()), make(fresh())
    shake(model, 0.1)
    if isinstance(model.prior, byov.TeacherMean | byov.TeacherNormal):
        model.prior.ema.update(model, 0.9)
    assert other.kl() != model.kl()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(other.kl(), model.kl())


@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        *[(lambda s=s: byov.Normal(0.0, s), "deviation above 0") for s in (0.0, -1.0, {"weight": torch.zeros(2)})],
        (lambda: byov.Normal(float("nan"), 1.0), "finite moments"),
        (lambda: byov.Normal("zero", 1.0), "a number or a mapping"),
        (lambda: byov.Normal(torch.zeros(3), 1.0), "a number or a mapping"),
        (lambda: byov.TeacherMean(std=0.0), "a standard deviation above 0, not 0"),
        (lambda: byov.TeacherNormal(floor=0.0), "a variance floor above 0, not 0"),
        (lambda: byov.TeacherMean(nn.Linear(2, 2)), r"takes a byov\.EMA, not Linear"),
        (lambda: "normal", r"A prior is byov\.Normal, .* not 'normal'"),
        (lambda: byov.Normal({"2.weight": torch.zeros(())}, 1.0), r"The prior has no mean for 0\.weight"),
        (
            lambda: byov.Normal({name: torch.zeros(7) for name in make().covered()}, 1.0),
            r"The prior's mean for 0\.weight has shape \(7,\), the parameter \(4, 3\)",
        ),
    ],
)
def test_bad_priors_are_refused_in_a_sentence(prior: Any, sentence: str) -> None:
    for use in (make, make().kl):
        with pytest.raises(ValueError, match=sentence):
            use(prior())


def test_points_need_a_prior_that_knows_them() -> None:
    model = make(rules={"2.*": byov.Gaussian()})
    by_name = byov.Normal({n: torch.zeros(()) for n in model.covered()}, 1.0)
    with pytest.raises(ValueError, match=r"The prior has no mean for 0\.weight\."):
        model.kl(by_name, points=True)
    teacher = byov.TeacherMean(byov.EMA(model), std=0.5)
    assert torch.equal(model.kl(teacher, points=True), model.kl(teacher))  # the teacher is where the points are
    shake(model.net, 0.1)
    moved = sum((p - m).square().sum() for (n, p) in model.points() for m in [teacher.ema.tensors(model)[n]])
    torch.testing.assert_close(
        model.kl(teacher, points=True) - model.kl(teacher), 0.5 * moved / 0.25, rtol=1e-3, atol=1e-4
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", [byov.Gaussian(), byov.EMP(3), byov.ECMP(3)], ids=str)
def test_prior_of_a_network_on_a_gpu_lives_there(family: Any) -> None:
    """Its numbers left on the CPU, a compiled mixture crashed in the backward of its CUDA graph."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).cuda()
    model = byov.bayesianize(
        net, family, prior=byov.Normal(0.0, {n: torch.ones(()) for n, _ in net.named_parameters()})
    )
    assert {buffer.device.type for buffer in model.prior.buffers()} == {"cuda"}
    step = torch.compile(lambda x: model(x).square().mean() + model.kl(), mode="reduce-overhead")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        loss = step(torch.randn(8, 3, device="cuda"))
        loss.backward()
        assert torch.isfinite(loss)
        model.zero_grad()  # a graph owns the gradients' memory


def test_prior_keeps_its_moments_where_the_network_has_no_memory() -> None:
    with torch.device("meta"):
        net = nn.Linear(3, 2)
    model = byov.bayesianize(net, byov.Gaussian(), prior=byov.Normal(0.5, 2.0))
    assert model.prior.get_buffer("mean").item() == 0.5
    assert model.prior.get_buffer("std").item() == 2.0


def test_each_layer_has_a_precision_of_its_own_points_too() -> None:
    """Equation (6) with τ_i and ρ_j by name: Σ τ_i p_ik/2 ‖M_ik‖² over patches, Σ τ_i/2 ‖M_i‖² over what is shared."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = byov.bayesianize(net, {byov.norm_layers: byov.EMP(2, (0.25, 0.75), spread=0.5)})
    shake(model, 0.3)
    tau = {name: 0.5 + i for i, name in enumerate(dict(net.named_parameters()))}
    prior = byov.Normal(0.0, {name: torch.tensor(value**-0.5) for name, value in tau.items()})
    patches = model.factors[0].layout.split(model.factors[0].roles["components"])
    expected = sum(
        tau[name] / 2 * (p * part[k].square().sum())
        for name, part in patches.items()
        for k, p in ((0, 0.25), (1, 0.75))
    )
    expected += sum(tau[name] / 2 * point.square().sum() for name, point in model.points())
    torch.testing.assert_close(model.kl(prior, points=True), expected)
    wrong = byov.Normal(0.0, {name: torch.ones(7) if name == "0.bias" else torch.ones(()) for name in tau})
    with pytest.raises(ValueError, match=r"std for 0\.bias has shape \(7,\), the parameter \(4,\)"):
        model.kl(wrong, points=True)


def test_the_shared_layers_noise_is_equation_3() -> None:
    """W ~ N(M, σ²) beside the patches (3), whose KL is the shared part of (6), as that of points is."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    patch = byov.EMP(2, spread=0.5, sigma=0.2)
    torch.manual_seed(0)
    plain = byov.bayesianize(net, {byov.norm_layers: patch})
    torch.manual_seed(0)
    noisy = byov.bayesianize(net, {byov.norm_layers: patch, "*": byov.Shared(0.2)})
    torch.testing.assert_close(noisy.kl(byov.Normal(0.0, 0.7)), plain.kl(byov.Normal(0.0, 0.7), points=True))
    draws = noisy.sample(4000, torch.Generator().manual_seed(0))
    for name in ("0.weight", "0.bias", "2.weight"):
        mean, std = draws[name].mean(0), draws[name].std(0)
        torch.testing.assert_close(mean, net.get_parameter(name), rtol=0, atol=5 * 0.2 / 4000**0.5)
        torch.testing.assert_close(std, torch.full_like(std, 0.2), rtol=0, atol=5 * 0.2 / 8000**0.5)
    assert torch.equal(noisy.std()["0.weight"], torch.full((4, 3), 0.2))
    for sigma in (-1.0, float("inf"), "x"):
        with pytest.raises(ValueError, match="Shared needs a σ of at least 0"):
            byov.Shared(sigma)
