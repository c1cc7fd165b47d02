"""The contract, for every family on every kind of network."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_networks import seeded, shake
from torch import Tensor, nn
from torch.func import functional_call

import byov
from byov.posterior import Family

from .cell import Cell, assert_same, call, close, loss, snapshot, trained

MODES = [True, False]


class TestNetwork:
    """What the network was before, it is afterwards."""

    def test_the_original_is_untouched_and_still_works(self, cell: Cell) -> None:
        before, parameters = snapshot(cell.plain), list(cell.plain.parameters())
        model = byov.bayesianize(cell.plain, cell.family)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        (loss(model(cell.x)) + model.kl()).backward()
        optimizer.step()
        assert_same(snapshot(cell.plain), before)
        assert all(p is q and p.grad is None for p, q in zip(cell.plain.parameters(), parameters, strict=True))
        loss(cell.plain(cell.x)).backward()
        assert all(p.grad is not None for p in parameters)
        assert not {p.data_ptr() for p in parameters} & {p.data_ptr() for p in model.parameters()}

    def test_eval_is_the_plain_network_and_then_the_mean_wherever_the_posterior_is(self, cell: Cell) -> None:
        model = cell.model.eval()
        close(model(cell.x), cell.plain.eval()(cell.x), rtol=1e-5, atol=1e-6)
        cell.spread()
        close(model(cell.x), cell.at(model.point_state_dict())(cell.x), rtol=1e-5, atol=1e-6)


class TestDraws:
    def test_a_call_uses_the_noise_that_model_noise_gives(self, cell: Cell) -> None:
        model = cell.spread().model
        torch.manual_seed(5)
        out = model(cell.x)
        torch.manual_seed(5)
        with model.draw(noise=model.noise()):
            assert torch.equal(model(cell.x), out)

    @pytest.mark.parametrize("training", MODES)
    def test_a_held_draw_is_one_draw(self, cell: Cell, training: bool) -> None:
        model = cell.spread().model.train(training)
        with model.draw(generator=seeded(1)) as held:
            assert held is model
            first, second = call(model, cell.x), call(model, cell.x)
        assert torch.equal(first, second)
        with model.draw(generator=seeded(1)):
            assert torch.equal(call(model, cell.x), first)
        with torch.no_grad():
            others = []
            for seed in range(2, 8):
                with model.draw(generator=seeded(seed)):
                    others.append(call(model, cell.x))
        assert any(not torch.equal(other, first) for other in others)

    @pytest.mark.parametrize("training", MODES)
    def test_blocks_nest_and_restore(self, cell: Cell, training: bool) -> None:
        """In train mode neither a held draw nor the mean is what a model falls back to by itself."""
        model = cell.spread().model.train(training)
        noise, net, before = model.noise(seeded(1)), cell.at(model.point_state_dict()), snapshot(model)
        with model.at_mean() as held:
            assert held is model
            mean = call(model, cell.x)
            close(mean, call(net, cell.x))
            with model.draw(noise=noise):
                outer = call(model, cell.x)
                with model.at_mean():
                    assert torch.equal(call(model, cell.x), mean)
                assert torch.equal(call(model, cell.x), outer)
            assert torch.equal(call(model, cell.x), mean)
        if not training:
            assert torch.equal(call(model, cell.x), mean)
            assert_same(snapshot(model), before)

    def test_an_exception_restores_everything(self, cell: Cell) -> None:
        model = cell.spread().model.eval()
        before, mean = snapshot(model), model(cell.x)

        def fail(*_: Any) -> None:
            raise RuntimeError("inside the network")

        last = list(model.net.modules())[-1]
        for block in (model.draw, model.at_mean):
            with pytest.raises(ZeroDivisionError), block():
                raise ZeroDivisionError
            handle = last.register_forward_hook(fail)
            with pytest.raises(RuntimeError, match="inside the network"), block():
                model(cell.x)
            handle.remove()
            assert torch.equal(model(cell.x), mean)
        assert_same(snapshot(model), before)
        assert list(model.net.parameters()) == []

    def test_vmap_gives_the_numbers_of_a_loop(self, cell: Cell) -> None:
        model = cell.spread().double().model.eval()
        noises = [model.noise(seeded(seed)) for seed in range(3)]
        stacked = [{key: torch.stack([n[i][key] for n in noises]) for key in noises[0][i]} for i in range(len(model.q))]
        with torch.no_grad():
            together = torch.vmap(lambda noise: functional_call(model.net, model.tensors(noise), cell.x))(stacked)
            for noise, out in zip(noises, together, strict=True):
                with model.draw(noise=noise):
                    close(out, model(cell.x))


class TestGradients:
    @pytest.mark.parametrize("training", MODES)
    def test_a_draw_is_the_plain_network_with_other_weights(self, cell: Cell, training: bool) -> None:
        """In its outputs, in its buffers, and by the chain rule in the gradient of every role."""
        model = cell.spread().double().model.train(training)
        noise = model.noise()
        drawn = model.tensors(noise)
        net = cell.at(drawn)
        expected = call(net, cell.x)
        loss(expected).backward()
        roles = dict(model.named_parameters())
        names = [name for name, _ in net.named_parameters()]
        gradients = torch.autograd.grad(
            [drawn[name] for name in names], list(roles.values()), [net.get_parameter(name).grad for name in names]
        )
        with model.draw(noise=noise):
            out = call(model, cell.x)
            loss(out).backward()
        close(out, expected)
        now = {**dict(model.net.named_buffers()), **model.tensors(noise)}
        for name, buffer in net.named_buffers():
            close(now[name], buffer)
        for (name, role), gradient in zip(roles.items(), gradients, strict=True):
            assert role.grad is not None, name
            # BatchNorm may cancel the gradient of one parameter's rows or columns.
            own = name.rpartition(".")[2].startswith(("rows", "columns"))
            assert role.grad.abs().max() > 1e-6 or own, name
            close(role.grad, gradient, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("kind", ["mlp-batchnorm"])
    def test_a_draw_s_gradient_is_its_derivative_so_that_it_is_unbiased(self, cell: Cell) -> None:
        """Theorem 2 (B.4 of the patching paper): over all draws it is, then, the gradient of the expected loss."""
        factor = cell.spread().double().model.factors[0]
        roles, noise = factor.roles, factor.noise(seeded())
        learned = [role for role in roles if role != "logits"]  # which have an estimator of their own

        def draw(*values: Tensor) -> Tensor:
            return factor.family.draw({**roles, **dict(zip(learned, values, strict=True))}, factor.cells, noise)

        assert torch.autograd.gradcheck(draw, [roles[role] for role in learned], check_undefined_grad=False)

    def test_several_passes_and_a_step_may_happen_inside_a_draw(self, cell: Cell) -> None:
        model = cell.spread().double().model.eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with model.draw(generator=seeded(1)):
            before = loss(model(cell.x))
            before.backward()
            optimizer.step()
            after = loss(model(cell.x))
            after.backward()
        with model.draw(generator=seeded(1)):
            close(loss(model(cell.x)), after)
        assert after != before


class TestAskingQ:
    def test_kl_is_one_number_that_no_batch_changes(self, cell: Cell) -> None:
        model = cell.spread().model
        kl = model.kl()
        assert kl.shape == ()
        assert torch.isfinite(kl)
        assert kl > 0
        model.train()(cell.x)
        model(cell.x[:2])
        with model.draw():
            model(cell.x)
            assert torch.equal(model.kl(), kl)
        assert torch.equal(model.kl(), kl)
        assert torch.equal(model.kl(byov.Normal(0.0, 1.0)), kl)
        kl.backward()
        assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in model.parameters())

    def test_sample_has_names_shapes_and_a_seed(self, cell: Cell) -> None:
        model = cell.spread().model
        draws = model.sample(4, generator=seeded(1))
        shapes = {name: (4, *p.shape) for name, p in cell.plain.named_parameters()}
        assert {name: tuple(d.shape) for name, d in draws.items()} == shapes
        assert_same(model.sample(4, generator=seeded(1)), draws)
        other = model.sample(4, generator=seeded(2))
        assert any(not torch.equal(other[name], draws[name]) for name in draws)
        assert any(not torch.equal(d[0], d[i]) for d in draws.values() for i in (1, 2, 3))
        held = model.tensors(model.noise(seeded(1)))
        assert all(torch.equal(draw[0], held[name]) for name, draw in draws.items())

    def test_mean_std_and_snr_by_the_network_s_names(self, cell: Cell) -> None:
        for name, mean in cell.model.mean().items():
            close(mean, cell.plain.get_parameter(name))  # pretrained weights are the means
        model = cell.spread().model
        mean, std, snr = model.mean(), model.std(), model.snr()
        assert mean.keys() == std.keys() == snr.keys() == dict(cell.plain.named_parameters()).keys()
        for name, parameter in cell.plain.named_parameters():
            assert mean[name].shape == std[name].shape == snr[name].shape == parameter.shape
            assert (std[name] >= 0).all()
            positive = std[name] > 0
            close(snr[name][positive] * std[name][positive], mean[name][positive].abs())
            assert (snr[name][~positive & (mean[name] != 0)] == torch.inf).all()
        assert max(float(s.detach().max()) for s in std.values()) > 0


class TestSaving:
    def other(self, cell: Cell) -> byov.BayesianModule:
        plain, _ = trained(cell.kind)
        shake(plain)
        return byov.bayesianize(plain, cell.family)

    @pytest.mark.parametrize("file", ["state.pt", "state.safetensors"])
    def test_the_state_round_trips_exactly(self, cell: Cell, tmp_path: Path, file: str) -> None:
        model, other, path = cell.spread().model, self.other(cell), tmp_path / file
        model(cell.x)
        state = model.state_dict()
        if file.endswith(".pt"):
            torch.save(state, path)
            loaded = torch.load(path, weights_only=True)
        else:
            save_file(state, path)
            loaded = load_file(path)
        assert_same(loaded, dict(state))
        assert not torch.equal(other.eval()(cell.x), model.eval()(cell.x))
        result = other.load_state_dict(loaded)
        assert not result.missing_keys
        assert not result.unexpected_keys
        assert_same(snapshot(other), snapshot(model))
        assert torch.equal(other(cell.x), model(cell.x))
        assert torch.equal(other.kl(), model.kl())
        for name, draw in model.sample(1, seeded(1)).items():
            assert torch.equal(other.sample(1, seeded(1))[name], draw)

    def test_point_state_dict_is_the_plain_network_s(self, cell: Cell) -> None:
        model = cell.spread().model
        model(cell.x)
        points = model.point_state_dict()
        assert list(points) == list(cell.plain.state_dict())
        assert all(not p.requires_grad for p in points.values())
        cell.plain.load_state_dict(points, strict=True)
        close(cell.plain.eval()(cell.x), model.eval()(cell.x))
        net = model.point()
        assert type(net) is type(cell.plain)
        assert_same(dict(net.state_dict()), points)
        assert [name for name, _ in net.named_parameters()] == [name for name, _ in cell.plain.named_parameters()]
        assert all(p.requires_grad for p in net.parameters())
        kept = copy.deepcopy(points)
        shake(model)
        assert_same(points, kept)  # copies, not views
        assert_same(dict(net.state_dict()), kept)

    def test_a_deepcopy_is_equal_and_independent(self, cell: Cell) -> None:
        model = cell.spread().model
        with model.draw():
            twin = copy.deepcopy(model)
        assert_same(snapshot(twin), snapshot(model))
        twin.eval(), model.eval()
        mean = model(cell.x)
        assert torch.equal(twin(cell.x), mean)  # and it does not stay in the block it was copied in
        for name, draw in model.sample(1, seeded(1)).items():
            assert torch.equal(twin.sample(1, seeded(1))[name], draw)
        shake(twin)
        assert torch.equal(model(cell.x), mean)
        assert not torch.equal(twin(cell.x), mean)


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_dtypes(self, cell: Cell, dtype: torch.dtype) -> None:
        model = cell.spread().model.eval()
        single, kl = model(cell.x), model.kl()
        model.to(dtype)
        x = cell.x.to(dtype) if cell.x.is_floating_point() else cell.x
        assert model(x).dtype == dtype
        exact = dtype == torch.float64
        assert (model(x).float() - single).norm() < (1e-5 if exact else 0.05) * single.norm()  # 8 bits: 0.4 % each
        assert model.kl().dtype == (dtype if exact else torch.float32)  # a sum over weights means nothing in bfloat16
        torch.testing.assert_close(model.kl().double(), kl.double(), rtol=1e-5 if exact else 0.01, atol=0)
        for asked in (model.mean(), model.std(), model.snr(), model.sample(2)):
            assert all(value.dtype == dtype for value in asked.values())
        (loss(model.train()(x)).float() + model.kl()).backward()
        assert all(p.grad.dtype == dtype and torch.isfinite(p.grad).all() for p in model.parameters())

    def test_autocast(self, cell: Cell) -> None:
        model = cell.spread().model
        kl, mean, std = model.kl(), model.mean(), model.std()
        state = model.point_state_dict()
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model.kl(), kl)
            assert_same(model.mean(), mean)
            assert_same(model.std(), std)
            assert_same(model.point_state_dict(), state)
            total = loss(model(cell.x)).float() + model.kl()
        total.backward()
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        model.eval()
        single = model(cell.x)
        with torch.autocast("cpu", torch.bfloat16):
            assert (model(cell.x).float() - single).norm() < 0.05 * single.norm()


@pytest.mark.parametrize("kind", ["tied"])
def test_a_tied_weight_is_one_tensor_with_one_posterior(cell: Cell) -> None:
    for noise in (None, cell.model.noise()):
        tensors = cell.model.tensors(noise)
        assert tensors["embed.weight"] is tensors["out.weight"]
    assert "out.weight" not in cell.model.covered()
    roles = {name.rpartition(".")[2]: role for name, role in cell.model.named_parameters()}
    once = sum(p.numel() for p in cell.plain.parameters())
    flat = [roles[name] for name in ("mean", "log_var", "components") if name in roles]
    assert flat
    assert all(role.shape[-1] == once for role in flat)
    net = cell.spread().model.point()
    assert net.out.weight is net.embed.weight


class SharedModule(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.relu(self.first(x)))


def test_a_module_that_occurs_twice(family: Family) -> None:
    """`functional_call` restores such a module wrongly if it is handed its tensors under both names."""
    plain, x = SharedModule(), torch.randn(6, 5)
    model = byov.bayesianize(plain, family)
    keys = set(model.state_dict())
    model(x)
    assert set(model.state_dict()) == keys
    assert list(model.net.parameters()) == []
    points = model.point_state_dict()
    assert list(points) == list(plain.state_dict())
    plain.load_state_dict(points, strict=True)
    close(plain.eval()(x), model.eval()(x))
