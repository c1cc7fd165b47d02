"""torch.compile, without graph breaks and with eager numbers, for every family on every network."""

from __future__ import annotations

import copy

import pytest
import torch

from .cell import Cell, close, gradients, loss


@pytest.mark.usefixtures("fresh_dynamo")
class TestCompile:
    def test_the_whole_step_is_one_graph_with_eager_numbers(self, cell: Cell) -> None:
        model = cell.spread().without_drop_path().model
        twin = copy.deepcopy(model)
        noise = model.noise()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)  # before any eager call
        with model.draw(noise=noise):
            out = compiled(cell.x)
            loss(out).backward()
        with twin.draw(noise=noise):
            expected = twin(cell.x)
            loss(expected).backward()
        close(out, expected)
        for name, gradient in gradients(twin).items():
            assert (model.get_parameter(name).grad - gradient).norm() < 1e-4 * gradient.norm(), name
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
def test_inductor(cell: Cell) -> None:
    model = cell.spread().without_drop_path().model
    twin = copy.deepcopy(model)
    noise = model.noise()
    compiled = torch.compile(model, backend="inductor", fullgraph=True)
    with model.draw(noise=noise), twin.draw(noise=noise):
        out, expected = compiled(cell.x), twin(cell.x)
        close(out, expected)
        loss(out).backward(), loss(expected).backward()
    for name, gradient in gradients(twin).items():
        assert (model.get_parameter(name).grad - gradient).norm() < 1e-4 * gradient.norm(), name
