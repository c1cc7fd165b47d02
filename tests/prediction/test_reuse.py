"""What no draw touches is computed once; and whatever a network does, the numbers are those of a plain loop."""

from __future__ import annotations

import copy
import random
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import byov
from byov.prediction.reuse import Recording, record
from byov.prediction.state import modules_of

from .networks import NarrowResNet18, by_hand, spread, timm_vit, torchvision_vit

SAMPLES = 6
FLOAT = 4
RANDOM = {"random*": byov.Gaussian(-2.0)}


def seed_everything() -> None:
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)  # noqa: NPY002 (the global stream is what the network under test uses)


def recorded(model: byov.BayesianModule, x: Tensor, seed: int = 0) -> tuple[Tensor, Recording]:
    noise = model.eval().noise(Generator().manual_seed(seed))
    with torch.no_grad(), model.draw(noise=noise):
        return record(lambda _: model(x), modules_of(model), [x], [t for part in noise for t in part.values()])


def reused(model: byov.BayesianModule, x: Tensor) -> bool:
    return recorded(model, x)[1].useful


def check(net: nn.Module, rules: Any, x: Tensor, vmap: bool = True) -> byov.BayesianModule:
    """The engine's draws equal the plain loop's to the bit, and those of vmap up to rounding."""
    model = byov.bayesianize(net, rules)
    seed_everything()
    expected = by_hand(copy.deepcopy(model), x.clone(), SAMPLES, seed=7)
    seed_everything()
    found = byov.predict(model, x, SAMPLES, "loop", generator=Generator().manual_seed(7), keep=True)
    assert torch.equal(found.draws, expected)
    if vmap:
        found = byov.predict(model, x, SAMPLES, "vmap", generator=Generator().manual_seed(7), keep=True)
        torch.testing.assert_close(found.draws, expected, rtol=0, atol=1e-5)
    return model


# What it saves


def flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_ten_draws_of_the_head_cost_one_pass_and_ten_heads(strategy: Any) -> None:
    net, x = NarrowResNet18().eval(), torch.randn(2, 3, 32, 32)
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()})
    head = 2 * 2 * 64 * 3
    body = flops(lambda: net(x)) - head
    assert body > 100 * head
    assert flops(lambda: byov.predict(model, x, 10, strategy)) == body + 10 * head


def test_inference_mode_does_not_stop_it() -> None:
    """Tensors of that mode do not say when they were written to, so the engine leaves it."""
    net, x = NarrowResNet18().eval(), torch.randn(2, 3, 32, 32)
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()})
    outside = flops(lambda: byov.predict(model, x, 10, "loop"))
    with torch.inference_mode():
        assert flops(lambda: byov.predict(model, x.clone(), 10, "loop")) == outside


def test_a_branch_beside_the_random_one_costs_one_pass() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.random, self.beside, self.after = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            drawn = self.random(x)
            return self.after(drawn + self.beside(x))

    net, x = Branches(), torch.randn(4, 5)
    model = check(net, RANDOM, x)
    once, again = 2 * 4 * 5 * 5, 2 * 4 * 5 * 5 + 2 * 4 * 5 * 3
    assert flops(lambda: byov.predict(model, x, 10, "loop")) == once + 10 * again


def test_the_standard_deviations_are_computed_once() -> None:
    """σ = exp(½ρ) does not depend on the draw."""

    class Exponentials(torch.overrides.TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.exp
            return func(*args, **(kwargs or {}))

    model = byov.bayesianize(nn.Linear(5, 3), byov.Gaussian())
    with Exponentials() as mode:
        byov.predict(model, torch.randn(4, 5), 10, "loop")
    assert mode.count == 1


def test_only_what_later_passes_read_is_kept() -> None:
    seen: list[weakref.ref[Tensor]] = []

    class Spied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
            self.random = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.body:
                x = layer(x)
                seen.append(weakref.ref(x))
            return self.random(x)

    model, x = byov.bayesianize(Spied(), RANDOM), torch.randn(4, 5)
    out, recording = recorded(model, x)
    assert recording.useful
    assert [ref() is not None for ref in seen] == [False, False, False, True]
    del out, recording
    assert seen[-1]() is None


def test_full_posteriors_record_little_and_still_agree() -> None:
    model = spread(byov.bayesianize(torchvision_vit(), byov.Gaussian()))
    x = torch.randn(2, 3, 16, 16)
    _, recording = recorded(model, x)
    assert recording.sound
    # Patches, class token and position embedding are all drawn: what is kept of the network is one σ for each weight.
    assert recording.kept == FLOAT * sum(p.numel() for p in torchvision_vit().parameters())


# Networks that could trip it


class Net(nn.Module):
    """A fixed layer, a random one, and in a subclass what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.other, self.random = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)


class InPlaceOnShared(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        a = F.relu(h, inplace=True)  # h is a
        return self.random(a) + h


class InPlaceOnView(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        h[:, :2].zero_()
        h[:, 3] = 1.0
        return self.random(h)


class AddedInPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        out = self.fixed(x)
        out += self.random(x)
        return self.other(out)


class AddedInPlaceOnView(Net):
    def forward(self, x: Tensor) -> Tensor:
        out = self.fixed(x)
        out[:, :2] += self.random(x)[:, :2]
        return out


class MutatedLater(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        drawn = self.random(h)
        h.mul_(2.0)
        return drawn + h


class MutatedThroughAnAlias(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        alias = h.expand_as(self.random(x))  # fixed memory under a random name
        alias.mul_(3.0)
        return alias + self.random(h)


class WritesItsInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.random(self.fixed(x.clamp_(-1, 1)))


class CountsInABuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes.view(-1).add_(1.0)
        return self.random(self.fixed(x) * self.passes)


class DrawsNoise(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        return self.random(h + torch.randn_like(h))


class DropsOut(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.random(F.dropout(self.fixed(x), 0.5, training=True))


class DrawsFromItsOwnGenerator(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.own is None:
            self.own = Generator().manual_seed(1)
        return self.random(self.fixed(x) + torch.randn(5, generator=self.own))

    own: Generator | None = None


class DrawsInPython(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.random(self.fixed(x) * random.random())


class DrawsInNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.from_numpy(np.random.rand(5).astype(np.float32))  # noqa: NPY002
        return self.random(self.fixed(x) * scale)


class Branches(Net):
    """Both branches make the same torch calls."""

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.random(x)
        return drawn + (self.fixed(x) if drawn.mean() > 0 else self.other(x))


class ReadsANumber(Net):
    def forward(self, x: Tensor) -> Tensor:
        scale = self.random(x).mean().item()
        return self.fixed(x) * scale


class SlicesByADraw(Net):
    def forward(self, x: Tensor) -> Tensor:
        first = (self.random(x).sum() > 0).long()
        return self.fixed(x)[:, first : first + 3]


class Repeats(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        for _ in range(int(self.random(x)[0, 0] > 0) + 1):
            h = self.other(h)
        return h


class ThroughNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(torch.from_numpy(self.random(x).numpy().copy()))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


class CustomFunction(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(Twice.apply(self.random(Twice.apply(self.other(x)))))


class CalledTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(self.fixed(x))
        return self.fixed(self.random(self.random(h)))


Pair = namedtuple("Pair", "left right")


class Containers(Net):
    def parts(self, x: Tensor) -> dict[str, Any]:
        left, right = self.fixed(x).chunk(2, dim=1)
        return {"pair": Pair(left, right), "best": self.other(x).max(dim=1), "drawn": (self.random(x),)}

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(x)
        (drawn,) = parts["drawn"]
        return (
            drawn + parts["best"].values[:, None] + torch.cat(parts["pair"], 1)[:, :5] + parts["best"].indices[:, None]
        )


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out, (last, _) = self.lstm(x[:, None].expand(-1, 3, -1))
        return self.random(out[:, -1] + last[-1])


class UnusedPosterior(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(x)


REUSED = [InPlaceOnShared, InPlaceOnView, CalledTwice, Containers, Recurrent, UnusedPosterior, SlicesByADraw]
NOT_REUSED = [
    *(AddedInPlace, AddedInPlaceOnView, MutatedLater, MutatedThroughAnAlias, WritesItsInput, CountsInABuffer),
    *(DrawsNoise, DropsOut, DrawsFromItsOwnGenerator, DrawsInPython, DrawsInNumpy),
    *(Branches, ReadsANumber, Repeats, ThroughNumpy),
]


@pytest.mark.parametrize("net", REUSED, ids=lambda n: n.__name__)
def test_networks_it_understands(net: type[Net]) -> None:
    x = torch.randn(4, 5)
    model = check(net(), RANDOM, x, vmap=net is not SlicesByADraw)
    assert reused(model, x)


@pytest.mark.parametrize("net", NOT_REUSED, ids=lambda n: n.__name__)
def test_networks_it_leaves_alone(net: type[Net]) -> None:
    x = torch.randn(4, 5)
    model = check(net(), RANDOM, x, vmap=False)
    assert not reused(model, x)


def test_a_custom_function_before_and_after_the_draw() -> None:
    check(CustomFunction(), RANDOM, torch.randn(4, 5), vmap=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_scripted_module_in_the_middle() -> None:
    """Its calls cannot be seen, so what it makes of a random tensor must not pass for fixed."""

    class Scripted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.script = torch.jit.script(nn.Sequential(nn.Linear(5, 5), nn.Tanh()))

        def forward(self, x: Tensor) -> Tensor:
            return self.fixed(self.script(self.random(x)))

    x = torch.randn(4, 5)
    model = check(Scripted(), RANDOM, x, vmap=False)
    assert not reused(model, x)


@pytest.mark.parametrize("rule", ["cls_token", "pos_embed", "blocks.1.*", "*bias"])
def test_parameters_in_the_middle_and_of_the_root_module(rule: str) -> None:
    check(timm_vit(), {rule: byov.Gaussian(-2.0)}, torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("rule", ["*downsample*", "layer3*", "layer4.1.bn2*", "conv1*"])
def test_residual_networks_that_add_in_place(rule: str) -> None:
    """torchvision's `out += identity`: the shortcut, the branch or both may be random."""
    check(NarrowResNet18(), {rule: byov.Gaussian(-4.0)}, torch.randn(2, 3, 32, 32), vmap=False)


def test_a_class_token_alone_leaves_the_patches_to_two_passes() -> None:
    """The first is watched from the token on, and then meets patches that it has not seen come about."""
    model, x = byov.bayesianize(timm_vit(), {"cls_token": byov.Gaussian(-2.0)}), torch.randn(2, 3, 16, 16)
    patches = 2 * (2 * 4 * 12 * 3 * 8 * 8)
    whole = flops(lambda: timm_vit().eval()(x))
    assert flops(lambda: byov.predict(model, x, 10, "loop")) == 10 * whole - 8 * patches


def test_forward_hooks_see_every_pass() -> None:
    model, x = byov.bayesianize(CalledTwice(), RANDOM), torch.randn(4, 5)
    features: list[Tensor] = []
    model.net.fixed.register_forward_hook(lambda module, args, out: features.append(out))
    byov.predict(model, x, 5, "loop")
    assert len(features) == 15
    assert not any(f.is_meta for f in features)
