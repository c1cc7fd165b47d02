"""Features: the plain network's at μ, one draw held over all batches, and nothing left behind in the model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor, nn
from torchvision.models import VisionTransformer

import byov
from byov.ssl.byol import BYOL
from byov.ssl.byov import BYOV
from byov.ssl.features import extract, feature_draws, features, grouped_draws
from byov.ssl.heads import Student
from byov.ssl.views import Views

MEAN, STD = (0.3,), (0.37,)


def images(count: int = 50) -> Tensor:
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=seeded(5))


def network() -> nn.Sequential:
    """A small convolutional encoder with BatchNorm statistics that are not the initial ones."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 12)
    )
    net(torch.randn(64, 1, 8, 8) * 2 + 1)
    return net


def normalised(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - MEAN[0]) / STD[0]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_at_the_mean_they_are_the_plain_networks() -> None:
    net, x = network(), images()
    model = byov.bayesianize(net, byov.Gaussian(log_var=-2.0))
    expected = net.eval()(normalised(x)).detach()
    for encoder in (net, model):
        found = features(encoder, x, batch_size=16, mean=MEAN, std=STD)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert not found.requires_grad


def test_a_draw_is_held_over_all_images() -> None:
    """Draw s is the network with the s-th set of sampled weights, whatever the batches are."""
    net, x = network(), images()
    model = byov.bayesianize(net, byov.Gaussian(log_var=-4.0))
    found = features(model, x, draws=3, generator=seeded(), batch_size=7, mean=MEAN, std=STD)
    weights = model.sample(3, seeded())
    net.eval()
    for s in range(3):
        net.load_state_dict({name: tensor[s] for name, tensor in weights.items()}, strict=False)
        torch.testing.assert_close(found[s], net(normalised(x)).detach(), atol=1e-5, rtol=1e-5)
    assert (found[0] - found[1]).abs().mean() > 0.01
    one_by_one = list(feature_draws(model, x, 3, seeded(), batch_size=7, mean=MEAN, std=STD))
    assert torch.equal(torch.stack(one_by_one), found)


def test_groups_have_draws_of_their_own() -> None:
    """Image i of pass p is under draw p·G + i mod G."""
    model, x = byov.bayesianize(network(), byov.Gaussian(log_var=-4.0)), images(11)
    found = grouped_draws(model, x, 2, 3, seeded(), mean=MEAN, std=STD)
    each = features(model, x, draws=6, generator=seeded(), mean=MEAN, std=STD)
    assert found.shape == (2, 11, 12)
    for p in range(2):
        for i in range(11):
            torch.testing.assert_close(found[p, i], each[3 * p + i % 3, i], atol=1e-5, rtol=1e-5)


def test_of_a_student_they_are_the_encoders() -> None:
    """BYOL and BYOV keep encoder, projector and predictor in one student, and one posterior covers them all."""
    net, x = network(), images()
    student = Student(net, 12, hidden=16, outputs=8)
    views = Views()
    plain = features(net, x, mean=MEAN, std=STD)
    bayesian = BYOV(student, views, byov.Gaussian(log_var=-6.0), byov.Normal(), kl_scale=100.0)
    for model in (student, BYOL(student, views), bayesian, bayesian.student):
        torch.testing.assert_close(features(model, x, mean=MEAN, std=STD), plain, atol=1e-5, rtol=1e-5)
    drawn = features(bayesian, x, draws=1, generator=seeded(), mean=MEAN, std=STD)[0]
    weights = bayesian.student.sample(1, seeded())  # type: ignore[operator]
    own = {name.removeprefix("encoder."): t[0] for name, t in weights.items() if name.startswith("encoder.")}
    net.load_state_dict(own, strict=False)
    torch.testing.assert_close(drawn, features(net, x, mean=MEAN, std=STD), atol=1e-5, rtol=1e-5)
    assert (drawn - plain).abs().mean() > 0.01


@pytest.mark.parametrize("bayesian", [False, True])
def test_of_a_teacher_they_are_those_of_its_moving_average_in_its_own_structure(bayesian: bool) -> None:
    student, views = Student(network(), 12, hidden=16, outputs=8), Views()
    rules = {nn.Linear: byov.Gaussian(log_var=-6.0)}  # the convolution stays a point
    model = BYOV(student, views, rules, byov.Normal(), 100.0) if bayesian else BYOL(student, views)
    with torch.no_grad():
        for parameter in model.student.parameters():
            parameter.add_(0.1)
    model.update_teacher(0, 10)
    model.train()
    model(torch.rand(32, 1, 8, 8), views.draw(32), torch.tensor(0.0))
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = {n.removeprefix("encoder."): t for n, t in model.ema.tensors(model.student).items() if "encoder." in n}
    buffers = dict(model.teacher.encoder.named_buffers())
    x = normalised(images())
    expected = torch.func.functional_call(network().eval(), {**weights, **buffers}, (x,))
    found = features(model, images(), network="teacher", mean=MEAN, std=STD)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - features(model, images(), mean=MEAN, std=STD)).abs().mean() > 1e-3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.teacher.encoder[0]._parameters["weight"]  # the copy got the weights, not the teacher
    with pytest.raises(ValueError, match="no posterior"):
        features(model, images(), draws=2, network="teacher")


def test_only_byol_has_a_teacher() -> None:
    for model in (network(), Student(network(), 12, hidden=16, outputs=8)):
        with pytest.raises(ValueError, match="Only a BYOL or BYOV module has a teacher"):
            features(model, images(), network="teacher")
    with pytest.raises(ValueError, match="student or the teacher, not 'pupil'"):
        features(network(), images(), network="pupil")  # type: ignore[arg-type]


def test_an_attribute_called_encoder_does_not_make_a_student() -> None:
    vit = VisionTransformer(image_size=8, patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16)
    x = torch.rand(3, 3, 8, 8)
    assert torch.equal(features(vit, x), vit.eval()(x).detach())


def test_the_model_is_left_as_it_was() -> None:
    net = network().train()
    net[1].eval()
    model = byov.bayesianize(net, byov.Gaussian())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    rng = torch.get_rng_state()
    features(model, images())
    features(model, images(), draws=2, generator=seeded())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 23), st.integers(1, 40), st.booleans(), st.integers(1, 3))
def test_extract_normalises_and_joins(count: int, batch: int, floats: bool, channels: int) -> None:
    pixels = torch.randint(256, (count, channels, 2, 3), dtype=torch.uint8, generator=seeded(count))
    mean, std = [0.1, 0.2, 0.3][:channels], [0.5, 0.25, 2.0][:channels]
    unit = pixels.double() / 255
    found = extract(lambda x: x.flatten(1), unit if floats else pixels, batch_size=batch, mean=mean, std=std)
    expected = (unit - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(found, expected.flatten(1).float())


def test_formats_of_batches() -> None:
    """channels_last reaches the encoder, mixed precision runs in bfloat16 and comes back as float32."""
    seen = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x.is_contiguous(memory_format=torch.channels_last))
        return torch.nn.functional.linear(x.flatten(1), torch.eye(48) / 3)

    x = torch.rand(4, 3, 4, 4)
    exact = extract(forward, x)
    rounded = extract(forward, x, autocast=torch.bfloat16, channels_last=True)
    assert seen == [False, True]
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 2e-3


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: features(lambda x: x, images()), r"torch\.nn\.Module"),  # type: ignore[arg-type]
        (lambda: features(network(), images(), draws=2), "no posterior"),
        (lambda: features(byov.bayesianize(network(), byov.Gaussian()), images(), draws=0), "at least one draw"),
        (lambda: features(network(), images(0)), "N > 0"),
        (lambda: features(network(), images()[:, 0]), r"\(N, C, H, W\)"),
        (lambda: features(network(), images().long()), "uint8 or floats"),
        (lambda: features(network(), images(), batch_size=0), "at least one image"),
        (lambda: features(network(), images(), mean=(0.1, 0.2)), "1 channels"),
        (lambda: features(network()[:3], images()), r"features \(N, D\)"),
    ],
)
def test_bad_input_gets_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()  # type: ignore[operator]
