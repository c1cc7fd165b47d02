"""An exported file predicts what `byov.predict` does under the same draws, for batches of other sizes too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NarrowResNet, Recurrent, mlp, seeded, shake
from torch import Tensor, nn

import byov

from .grid import GRID, KINDS, Kind

pytestmark = pytest.mark.filterwarnings("ignore")


def run(path: Path, x: Any) -> dict[str, Tensor]:
    """The file's own answer, by torch or onnxruntime alone."""
    given = list(x.values()) if isinstance(x, dict) else [x]
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*given)
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert names == (list(x) if isinstance(x, dict) else ["x"])
    out = session.run(None, {name: value.numpy() for name, value in zip(names, given, strict=True)})
    return {each.name: torch.from_numpy(value) for each, value in zip(session.get_outputs(), out, strict=True)}


def agrees(model: byov.BayesianModule, path: Path, x: Any, draws: Any, **options: Any) -> None:
    found, expected = run(path, x), byov.predict(model, x, draws, generator=seeded(3), **options)
    assert {"mean", "std"} <= set(found)
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(expected, name), rtol=1e-5, atol=1e-5)


SOME = [(KINDS["bert"], byov.Gaussian(), "m.pt2"), (KINDS["timm-vit"], byov.EMP(2), "m.onnx")]
EVERY = [
    pytest.param(*pair.values, name, id=f"{pair.id}-{name}", marks=pytest.mark.slow)
    for pair in GRID
    for name in ("m.pt2", "m.onnx")
]


@pytest.mark.parametrize(("kind", "family", "name"), [*SOME, *EVERY])
def test_a_pair_exports(kind: Kind, family: Any, name: str, tmp_path: Path) -> None:
    model, path = kind.model(family).train(), tmp_path / name
    format = "onnx" if path.suffix == ".onnx" else "torch"
    byov.export(model, kind.batch(1), path, 2, format, generator=seeded(3))  # type: ignore[arg-type]
    assert model.training
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert set(run(path, kind.batch(5))) == {"mean", "std", "entropy", "expected_entropy", "mutual_information"}
    agrees(model, path, kind.batch(5), 2)


class Noisy(nn.Module):
    """A regression with a variance of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_var = self.both(x).chunk(2, 1)
        return {"mean": mean, "log_var": log_var, "more": x}


SURE = byov.Gaussian(log_var=-18.0)
"""Draws that hardly differ are no random network: their mutual information is the rounding of two entropies."""


@pytest.mark.parametrize(
    ("make", "family", "options"),
    [
        (mlp, byov.Ensemble(3), {"task": "regression", "precision": 4.0}),  # it has buffers of its own
        (mlp, byov.Ensemble(3), {"task": "regression"}),
        (mlp, byov.Ensemble(3), {"task": "multilabel"}),
        (mlp, byov.Ensemble(3), {"temperature": byov.Temperature(2.0)}),
        (mlp, SURE, {}),
        (Noisy, byov.Gaussian(log_var=-3.0), {"task": "gaussian"}),
        (Noisy, byov.Gaussian(log_var=-3.0), {"task": "regression", "output": "mean"}),
        (Recurrent, byov.Gaussian(log_var=-3.0), {}),
    ],
)
def test_other_tasks_and_outputs(make: Any, family: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = byov.bayesianize(make(), family)
    shake(model)
    draws: Any = "members" if "temperature" in options else 4
    byov.export(model, torch.randn(3, 6), tmp_path / "m.pt2", draws, generator=seeded(3), **options)
    agrees(model, tmp_path / "m.pt2", torch.randn(7, 6), draws, **options)


class Headed(nn.Module):
    """A network that byov does not know, whose last layer has no bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.calls = nn.Linear(6, 8), nn.Linear(8, 3, bias=False), 0

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.head(torch.relu(self.body(x))),)


@pytest.mark.parametrize("make", [mlp, Headed])
def test_a_random_last_layer_takes_one_pass(make: Any, tmp_path: Path) -> None:
    model = byov.bayesianize(make(), {byov.output_layer: byov.FullGaussian(log_var=-2.0)})
    byov.export(model, torch.randn(3, 6), tmp_path / "m.pt2", 20, generator=seeded(3))
    agrees(model, tmp_path / "m.pt2", torch.randn(7, 6), 20, strategy="loop")
    program = torch.export.load(tmp_path / "m.pt2")
    products = [node for node in program.graph.nodes if "linear" in str(node.target)]
    assert len(products) <= 3  # the body's, the layer's own, and all draws of the layer


def test_the_point_network_exports_as_any_network(tmp_path: Path) -> None:
    model = byov.bayesianize(NarrowResNet(), byov.Gaussian()).eval()
    shake(model)
    x = torch.randn(2, 3, 32, 32)
    torch.export.save(torch.export.export(model.point().eval(), (x,)), tmp_path / "point.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "point.pt2").module()(x), model(x))


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + torch.randn(3)


class Deciding(Random):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum().item() > 0 else self.fc(-x)


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    model, x = byov.bayesianize(mlp(), byov.Gaussian()), torch.randn(3, 6)
    (tmp_path / "there.pt2").touch()
    bad: list[tuple[Any, str, dict[str, Any], str]] = [
        (mlp(), "m.pt2", {}, "takes a BayesianModule"),
        (model, "m.pt2", {"format": "tensorrt"}, "A format is"),
        (model, "m.onnx", {}, "ONNX files end in .onnx"),
        (model, "there.pt2", {}, "exists"),
        (model, "m.pt2", {"draws": 0}, "at least one draw"),
        (model, "m.onnx", {"draws": 10**8, "format": "onnx"}, "an ONNX file holds 2"),
        (byov.bayesianize(Random(), byov.Gaussian()), "m.pt2", {}, "the network is random"),
        (byov.bayesianize(Deciding(), byov.Gaussian()), "m.pt2", {}, "torch.export cannot trace this Deciding"),
    ]
    for given, name, options, sentence in bad:
        with pytest.raises((TypeError, ValueError, FileExistsError), match=sentence) as error:
            byov.export(given, x, tmp_path / name, **{"draws": 2, **options})
        assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["there.pt2"]
