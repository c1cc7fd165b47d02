"""What a network knows without labels: closed forms of linear encoders, brute force, and every refusal."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import spearmanr
from small_networks import seeded
from torch import Generator, Tensor, nn

import byov
from byov.evaluation import noise_variance, representation_uncertainty
from byov.evaluation.representation import MEASURES
from byov.posterior.random import stream
from byov.report.figures import noise_figure
from byov.ssl import BYOL, BYOV, Student, View, Views, coverage


class Heads(nn.Module):
    """A student without batch statistics, whose parts are linear."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False))
        self.projector = nn.Linear(5, 3, bias=False)
        self.predictor = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.predictor(self.projector(self.encoder(x)))


def pictures(count: int = 7) -> Tensor:
    return torch.rand(count, 3, 2, 2, generator=Generator().manual_seed(1))


# Over draws


def test_every_number_is_that_of_the_draws_one_by_one() -> None:
    """The draws that the same generator gives by hand, kept all at once; at every batch size, in train mode or not."""
    model, images = byov.bayesianize(Heads(), byov.Gaussian(-2.0)).train(), pictures()
    drawn = byov.features(model, images, draws=9, generator=seeded(3))
    units = drawn / drawn.norm(dim=2, keepdim=True)
    for size in (3, 512):
        found = representation_uncertainty(model, images, 9, seeded(3), batch_size=size)
        torch.testing.assert_close(found.spread["encoder"], 1 - units.mean(0).norm(dim=1))
        torch.testing.assert_close(found.variance["encoder"], drawn.var(0, correction=0).mean(1))
        assert list(found.variance) == ["encoder", "projector", "predictor"]
        assert (found.over, found.draws, len(found.embeddings)) == ("draws", 9, 7)
        torch.testing.assert_close(found.embeddings, images.flatten(1) @ model.mean()["encoder.1.weight"].T)
        torch.testing.assert_close(found.norm, found.embeddings.square().sum(1).sqrt())
        torch.testing.assert_close(found.trace, drawn.var(0, correction=0).sum(1))
    whole = []
    generator = seeded(3)
    for _ in range(9):
        with model.draw(generator=generator):
            whole.append(model(images))
    torch.testing.assert_close(found.variance["predictor"], torch.stack(whole).detach().var(0, correction=0).mean(1))
    assert model.training


def test_a_small_spread_keeps_its_digits() -> None:
    """At σ = e⁻¹⁰ it is of the order 10⁻⁹: 1 − ‖m‖ in float32 would be 0 or 6·10⁻⁸, and rank nothing."""
    torch.manual_seed(5)
    model, images = byov.bayesianize(Heads(), byov.Gaussian(-20.0)), pictures(30)
    found = representation_uncertainty(model, images, 20, seeded(0)).spread["encoder"]
    drawn = byov.features(model, images, draws=20, generator=seeded(0)).double()
    units = drawn / drawn.norm(dim=2, keepdim=True)
    expected = 1 - units.mean(0).norm(dim=1)
    assert 0 < float(expected.max()) < 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.0)


def test_only_what_the_posterior_covers_is_a_measure() -> None:
    model = byov.bayesianize(Heads(), {"projector.*": byov.Gaussian(-4.0)})
    found = representation_uncertainty(model, pictures(), 4, seeded(0))
    assert float(found.spread["encoder"].max()) == 0.0
    names = {"spread_projector", "spread_predictor", "variance_projector", "variance_predictor", "negative_norm"}
    assert set(found.measures) == names
    assert set(found.measures) <= set(MEASURES)
    torch.testing.assert_close(found.measures["negative_norm"], -found.norm)


def test_an_encoder_alone_a_student_and_a_byov_are_all_models() -> None:
    encoder, width = byov.models.encoder("convnet16", channels=1)
    images = torch.randint(256, (6, 1, 8, 8), dtype=torch.uint8)
    module = BYOV(Student(encoder, width, 8, 4), Views(), coverage("all"), byov.Normal(), kl_scale=10)
    found = representation_uncertainty(module, images, 3, seeded(0), mean=[0.5], std=[0.2])
    same = representation_uncertainty(module.student, images, 3, seeded(0), mean=[0.5], std=[0.2])
    assert list(found.spread) == ["encoder", "projector", "predictor"]
    torch.testing.assert_close(found.spread, same.spread, rtol=0, atol=0)
    assert torch.equal(found.embeddings, byov.features(module, images, mean=[0.5], std=[0.2]))
    alone = byov.bayesianize(byov.models.encoder("convnet16", channels=1)[0], byov.Gaussian())
    assert list(representation_uncertainty(alone, images, 3).spread) == ["encoder"]


# Over augmentations


@pytest.mark.parametrize("draws", [4, 5])
def test_the_spread_over_augmentations_is_that_of_the_views_by_hand(draws: int) -> None:
    """Both pipelines in turn, at μ, standardised; at every batch size. A posterior changes nothing."""
    torch.manual_seed(0)
    net, images, views = Heads(), torch.rand(6, 3, 2, 2), Views(mean=(0.4,) * 3, std=(0.3,) * 3)
    generator, parts = seeded(2), []
    for _ in range(0, draws, 2):
        parts += [net.encoder(view).detach() for view in views(images, generator)]
    by_hand = torch.stack(parts[:draws])
    units = by_hand / by_hand.norm(dim=2, keepdim=True)
    options = {"over": "augmentations", "views": Views(), "mean": [0.4] * 3, "std": [0.3] * 3}
    for size in (4, 512):
        found = representation_uncertainty(net, images, draws, seeded(2), **options, batch_size=size)  # type: ignore[arg-type]
        torch.testing.assert_close(found.variance["encoder"], by_hand.var(0, correction=0).mean(1))
        torch.testing.assert_close(found.spread["encoder"], 1 - units.mean(0).norm(dim=1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.embeddings, net.encoder((images - 0.4) / 0.3).detach())
    model = byov.bayesianize(net, byov.Gaussian())
    again = representation_uncertainty(model, images, draws, seeded(2), **options)  # type: ignore[arg-type]
    torch.testing.assert_close(again.spread, found.spread)
    assert set(found.measures) == {f"augmented_spread_{s}" for s in ("encoder", "projector", "predictor")} | {
        "negative_norm"
    }


def test_byol_is_moved_by_its_own_views() -> None:
    """Which here are the image itself, and move nothing."""
    still = View(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)
    student = Student(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), 5, 8, 4)
    found = representation_uncertainty(BYOL(student, Views(still, still)), pictures(), 3, over="augmentations")
    assert float(found.spread["encoder"].max()) < 1e-6
    assert list(found.spread) == ["encoder", "projector", "predictor"]


@pytest.mark.parametrize("posterior", [False, True])
def test_batchnorm_in_the_heads_reads_its_running_statistics_and_keeps_them(posterior: bool) -> None:
    """A student in train mode would use each batch's own and move the running ones."""
    torch.manual_seed(0)
    student: nn.Module = Student(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), 5, 8, 4)
    student = byov.bayesianize(student, byov.Gaussian()) if posterior else student
    before = {name: buffer.clone() for name, buffer in student.named_buffers()}
    assert any("running_mean" in name for name in before)
    one, other = (
        representation_uncertainty(student.train(), pictures(), 4, seeded(0), over="augmentations", batch_size=size)
        for size in (3, 512)
    )
    torch.testing.assert_close(one.variance, other.variance)
    assert all(torch.equal(buffer, before[name]) for name, buffer in student.named_buffers())
    assert all(module.training for module in student.modules())


# Under noise on the images


def test_the_variance_after_a_linear_encoder_is_sigma_squared_times_x_squared() -> None:
    """Var Σ w x = σ² Σ x² for each output, and the noise is the only thing that changes x."""
    model, images = byov.bayesianize(Heads(), byov.Gaussian(-4.0)), pictures()
    found = noise_variance(model, images, noise=(0.0, 0.5), samples=800, seed=1)
    expected = math.exp(-4.0) * images.square().sum((1, 2, 3))
    assert found.variance[0][0] == pytest.approx(expected.tolist(), rel=0.1)  # five outputs, 800 draws: 2.2 % each
    eps = torch.randn(images.shape, generator=seeded(stream(1, 0)))
    noisy = math.exp(-4.0) * (images + 0.5 * eps).clamp(0, 1).square().sum((1, 2, 3))
    assert found.variance[0][1] == pytest.approx(noisy.tolist(), rel=0.1) != pytest.approx(expected.tolist(), rel=0.1)
    assert set(found.correlation) == {"encoder, projector", "encoder, predictor", "projector, predictor"}
    v = torch.tensor(found.variance)
    assert v.shape == (3, 2, 7)
    assert torch.tensor(found.variation) == pytest.approx((v.std(2, correction=0) / v.mean(2)).numpy(), rel=1e-5)
    pooled = spearmanr(v[0].flatten(), v[2].flatten()).statistic
    assert found.correlation["encoder, predictor"] == pytest.approx(pooled)
    plain, scaled = (noise_variance(model, images, (0.0,), 5, mean=[0.0], std=[std]).variance for std in (1.0, 0.5))
    assert scaled[0][0] == pytest.approx([4 * value for value in plain[0][0]], rel=1e-4)


def test_noise_leaves_out_the_parts_that_draws_do_not_change() -> None:
    model = byov.bayesianize(Heads(), {"predictor.*": byov.Gaussian(-4.0)})
    found = noise_variance(model, pictures(), noise=(0.0, 0.5), samples=3)
    assert (found.stages, len(found.variance), found.correlation) == (["predictor"], 1, {})
    noise_figure({"a": found})
    with pytest.raises(ValueError, match="change none of the stages"):
        noise_variance(model, pictures(), samples=3, stages=("encoder", "projector"))


# Refusals


def test_refusals() -> None:
    model, images = byov.bayesianize(Heads(), byov.Gaussian()), pictures()
    cases = {
        "at least two draws, not draws=1": lambda: representation_uncertainty(model, images, 1),
        "at least two draws, not draws=True": lambda: representation_uncertainty(model, images, True),
        "over draws or augmentations, not 'heads'": lambda: representation_uncertainty(model, images, over="heads"),
        "no posterior to draw from; use over='augmentations'": lambda: representation_uncertainty(Heads(), images),
        "Images are a tensor": lambda: representation_uncertainty(model, images[0]),
        "not finite for 7 of 7": lambda: representation_uncertainty(model, images * float("nan"), 2),
        r"Features come from a torch\.nn\.Module": lambda: representation_uncertainty(lambda x: x, images),  # type: ignore[arg-type]
        "no module 'encoder'": lambda: noise_variance(byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()), images),
        "BayesianModule, not Heads": lambda: noise_variance(Heads(), images),  # type: ignore[arg-type]
        "Variance under noise needs at least two draws": lambda: noise_variance(model, images, samples=1),
    }
    for sentence, call in cases.items():
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()
