"""torch.compile, without graph breaks and with eager numbers, for every family on every network."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

import byov

from .cell import Cell, close, gradients, loss


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_whole_step_is_one_graph_with_eager_numbers(cell: Cell, backend: str) -> None:
    model = cell.spread().without_drop_path().model
    twin = copy.deepcopy(model)
    noise = model.noise()
    compiled = torch.compile(model, backend=backend, fullgraph=True)  # before any eager call
    with model.draw(noise=noise), twin.draw(noise=noise):
        out, expected = compiled(cell.x), twin(cell.x)
        close(out, expected, atol=5e-5 if backend == "inductor" else 1e-5)  # a fused sum has another order
        loss(out).backward(), loss(expected).backward()
    rounding = 1e-7 * max(gradient.norm() for gradient in gradients(twin).values())  # what a tiny gradient is made of
    for name, gradient in gradients(twin).items():
        assert (model.get_parameter(name).grad - gradient).norm() < 1e-4 * gradient.norm() + rounding, name
    for name, value in twin.state_dict().items():  # BatchNorm's statistics
        close(model.state_dict()[name], value)


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompiledModes:
    """On the smallest network: what a compiled model does as a user switches between draws, blocks and modes."""

    @pytest.fixture
    def kind(self) -> str:
        return "mlp-batchnorm"

    def test_fresh_draws_blocks_and_eval(self, cell: Cell) -> None:
        model = cell.spread().model
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        outputs = [compiled(cell.x) for _ in range(6)]
        assert len({tuple(out.flatten().tolist()) for out in outputs}) > 1
        with model.draw():
            assert torch.equal(compiled(cell.x), compiled(cell.x))
            close(compiled(cell.x), model(cell.x))
        model.eval()
        close(compiled(cell.x), model(cell.x))
        with model.draw():
            close(compiled(cell.x), model(cell.x))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize(
    "rules", [byov.Gaussian(), byov.EMP(3), {byov.norm_layers: byov.ECMP(3)}], ids=["Gaussian", "EMP", "ECMP on norms"]
)
def test_kernels_over_activations_read_a_draw_and_do_not_make_it(rules: Any) -> None:
    """Inductor names a kernel after the operations fused into it: a draw is addcmul (Gaussian) or gather (mixtures)."""
    from torch._inductor.utils import run_fw_bw_and_get_code

    model = byov.bayesianize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()), rules)
    step = torch.compile(lambda x: model(x).square().mean())
    _, codes = run_fw_bw_and_get_code(lambda: step(torch.randn(4, 3, 8, 8)))
    kernels = {name for code in codes for name in re.findall(r"(cpp_fused_\w+) = async_compile", code)}
    over_activations = [name for name in kernels if "relu" in name]
    assert over_activations
    assert not [name for name in over_activations if "addcmul" in name or "gather" in name]
    assert [name for name in kernels if "addcmul" in name or "gather" in name]  # it is made somewhere
