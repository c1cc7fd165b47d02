"""BYOL against a hand-written one: the loss, its gradient, the teacher's weights and its own buffers."""

from __future__ import annotations

import copy
from math import cos, pi

import pytest
import torch
from students import images, student
from torch import Tensor, nn

from byov.ssl.byol import BYOL
from byov.ssl.heads import Student, head
from byov.ssl.objective import spread
from byov.ssl.views import View, Views

PLAIN = View(area=(1.0, 1.0), aspect=(1.0, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)
BETA = torch.tensor(0.0)


def apart(module: BYOL, decay: float = 0.3) -> None:
    """Move the student away from its teacher, and the teacher a part of the way."""
    with torch.no_grad():
        for parameter in module.student.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    module.ema.update(module.student, decay)
    with torch.no_grad():
        for parameter in module.student.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def teacher_copy(module: BYOL) -> Student:
    """A plain network with the teacher's weights and, so far, the teacher's buffers."""
    net = student()
    net.load_state_dict({**module.teacher.state_dict(), **module.ema.tensors(module.student)})
    return net.train()


def distance(p: Tensor, z: Tensor) -> Tensor:
    """‖p/‖p‖ − z/‖z‖‖², summed over dimensions, averaged over the batch: the paper's equation 2, written out."""
    p, z = p / p.pow(2).sum(1, keepdim=True).sqrt(), z / z.pow(2).sum(1, keepdim=True).sqrt()
    return (p - z).pow(2).sum(1).mean()


def by_hand(net: Student, teacher: Student, first: Tensor, second: Tensor) -> Tensor:
    p1, p2 = (net.predictor(net.projector(net.encoder(view))) for view in (first, second))
    with torch.no_grad():
        z1, z2 = (teacher.projector(teacher.encoder(view)) for view in (first, second))
    return distance(p1, z2) + distance(p2, z1)


def test_loss_and_gradient_equal_a_hand_written_byol() -> None:
    module = BYOL(student(), Views(mean=(0.4,), std=(0.3,))).train()
    apart(module)
    batch = images()
    uniforms = module.views.draw(len(batch))
    views = module.views.render(batch, uniforms)
    net = copy.deepcopy(module.student)
    expected = by_hand(net, teacher_copy(module), *views)
    expected.backward()
    step = module(batch, uniforms, BETA)
    step.loss.backward()
    assert not list(module.teacher.parameters())
    assert 0.5 < expected.item() < 7.5
    assert step.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert step.ssl.item() == step.loss.item()
    assert float(step.kl) == 0.0
    projections = teacher_copy(module)(*views, predict=False)[0]
    assert float(step.spread) == pytest.approx(float(spread(projections)), rel=1e-5)
    for ours, theirs in zip(module.student.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("step", "base"), [(0, 0.9), (25, 0.9), (50, 0.996), (100, 0.9)])
def test_teacher_is_the_ema_of_the_weights_with_tau_k(step: int, base: float) -> None:
    module = BYOL(student(), Views(), tau_base=base)
    apart(module)
    old = {k: v.clone() for k, v in module.ema.tensors(module.student).items()}
    decay = 1 - (1 - base) * (cos(pi * step / 100) + 1) / 2
    assert decay == pytest.approx({0: base, 50: (1 + base) / 2, 100: 1.0}.get(step, decay))
    module.update_teacher(step, 100)
    new = module.ema.tensors(module.student)
    assert set(new) == set(dict(module.student.named_parameters()))
    for name, parameter in module.student.named_parameters():
        torch.testing.assert_close(new[name], decay * old[name] + (1 - decay) * parameter.detach())
    if step == 100:
        assert all(torch.equal(new[name], old[name]) for name in new)


def test_student_and_teacher_have_running_statistics_each_of_their_own() -> None:
    module = BYOL(student(), Views()).train()
    apart(module)
    net, teacher = copy.deepcopy(module.student), teacher_copy(module)
    batch, uniforms = images(), module.views.draw(10)
    by_hand(net, teacher, *module.views.render(batch, uniforms))
    module(batch, uniforms, BETA)
    ours, theirs = dict(module.student.named_buffers()), dict(net.named_buffers())
    assert "encoder.1.running_mean" in ours
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name])
    own = dict(module.teacher.named_buffers())
    for name, buffer in teacher.named_buffers():
        if "predictor" not in name:  # the teacher has none to run
            torch.testing.assert_close(own[name], buffer)
    assert not torch.allclose(own["encoder.1.running_mean"], ours["encoder.1.running_mean"])
    assert int(own["predictor.1.num_batches_tracked"]) == 0
    assert int(own["projector.1.num_batches_tracked"]) == 2  # one pass for each view


class Twice(nn.Module):
    """An encoder in which one layer occurs under two names, and a third shares only its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.again = self.first
        self.third = nn.Linear(64, 64)
        self.third.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.again(self.first(x.flatten(1)).relu()).relu())


def test_a_layer_that_occurs_twice_is_not_left_behind_in_the_teacher() -> None:
    module = BYOL(Student(Twice(), 64, 8, 4), Views(PLAIN, PLAIN)).train()
    apart(module)
    keys, batch = set(module.state_dict()), images()
    plain = Student(Twice(), 64, 8, 4)
    plain.load_state_dict({**module.teacher.state_dict(), **module.ema.tensors(module.student)})
    views = module.views.render(batch, module.views.draw(10))
    expected = by_hand(copy.deepcopy(module.student), plain, *views)
    loss = module(batch, module.views.draw(10), BETA).loss
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert set(module.state_dict()) == keys
    assert not list(module.teacher.parameters())


def test_heads_have_the_papers_shape() -> None:
    first, norm, relu, last = head(384)
    assert (type(first), type(norm), type(relu), type(last)) == (nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear)
    assert (first.in_features, first.out_features, last.in_features, last.out_features) == (384, 4096, 4096, 256)
    assert torch.count_nonzero(first.bias) == 0
    assert last.bias is None
    # The code's momentum 0.9 is what is kept of the old statistics; torch names what is taken of the new.
    assert (norm.momentum, norm.eps, norm.affine, norm.track_running_stats) == (0.1, 1e-5, True, True)
    for weight in (first.weight, last.weight):  # a normal with std 0.02 is cut at ±2, a hundred standard deviations
        assert float(weight.std()) == pytest.approx(0.02, rel=0.01)
        assert abs(float(weight.mean())) < 1e-4


def test_the_student_has_a_projector_and_a_predictor() -> None:
    net = Student(nn.Flatten(), 64).eval()
    shapes = [tuple(layer.weight.shape) for part in (net.projector, net.predictor) for layer in (part[0], part[3])]
    assert shapes == [(4096, 64), (256, 4096), (4096, 256), (256, 4096)]
    first, second = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
    projections = net(first, second, predict=False)
    torch.testing.assert_close(projections[1], net.projector(second.flatten(1)))
    torch.testing.assert_close(net(first, second)[0], net.predictor(projections[0]))


def test_spread_is_one_on_a_uniform_sphere_and_zero_on_collapse() -> None:
    sphere = torch.randn(4000, 64)
    assert float(spread(sphere)) == pytest.approx(1.0, abs=0.02)
    assert float(spread(100.0 * sphere)) == pytest.approx(float(spread(sphere)), rel=1e-5)
    point = torch.randn(1, 64)
    assert float(spread(point.expand(100, 64))) < 1e-3
    assert float(spread(point + 1e-3 * torch.randn(100, 64))) < 0.01
    assert float(spread(point * torch.linspace(1, 9, 100)[:, None])) < 1e-3  # one direction, many lengths


@pytest.mark.parametrize("bad", [{"tau_base": -0.1}, {"tau_end": 1.5}, {"tau_end": float("nan")}])
def test_tau_lies_between_0_and_1(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="τ lies between 0 and 1"):
        BYOL(student(), Views(), **bad)


def test_an_encoder_without_batch_statistics_takes_both_views_at_once() -> None:
    calls: list[int] = []

    class Counting(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return super().forward(x)

    net = Student(Counting(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6)), 6, hidden=12, outputs=6).train()
    first, second = torch.randn(2, 10, 1, 8, 8)
    joint = net(first, second)
    assert calls == [20]
    net.encoder_sees_batch = True
    for at_once, apart in zip(joint, net(first, second), strict=True):
        torch.testing.assert_close(at_once, apart)
    assert student().encoder_sees_batch
