"""Export to one file that predicts the mean and the uncertainty without byov: a torch.export program, or ONNX."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.nn.functional import linear

from byov.files import check_out, replacing
from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, lock_of
from byov.prediction.head import alike, last_layer
from byov.prediction.inputs import Batch, call, device_of, ready, tensors_of
from byov.prediction.outputs import Output, OutputSpec, Task
from byov.prediction.predict import predict
from byov.prediction.resident import evaluating
from byov.prediction.result import Moments, Prediction
from byov.prediction.strategies import members
from byov.sharing.origin import first_line

Format = Literal["torch", "onnx"]
ONNX_LIMIT = 2_000_000_000
"""The most bytes that an ONNX file can hold; larger models need additional files."""


class Fixed(nn.Module):
    """The posterior predictive under fixed draws, as one network that returns the tensors of `Prediction` by name.

    Drawn weights are stored once per draw, points once. If only the last layer is random, the network runs once and the
    layer's draws are one product, as in `predict`.
    """

    def __init__(
        self, model: BayesianModule, noises: list[list[Noise]], names: list[str] | None, once: bool, **reading: Any
    ) -> None:
        super().__init__()
        self.net, self.names = model.net, names
        self.temperature, self.precision = reading.pop("temperature"), reading.pop("precision")
        self.reading = OutputSpec(**reading, net=model.net)
        self.draws: list[dict[str, str]] = []
        """For each draw, the buffer name of each tensor, by its name in the network; tied tensors share a buffer."""
        for k, noise in enumerate(noises[:1] if once else noises):
            held: dict[int, str] = {}
            self.draws.append({})
            for name, tensor in model.tensors(noise).items():
                kept = held.setdefault(id(tensor), f"draw{k}_{len(held)}")
                if kept not in self._buffers:
                    self.register_buffer(kept, tensor.detach().clone())
                self.draws[k][name] = kept
        self.last = last_layer(model) if once else None
        if self.last is not None:
            self._stack(*self.last, [model.tensors(noise) for noise in noises])

    def _stack(self, name: str, layer: nn.Linear, draws: list[dict[str, Tensor]]) -> None:
        """Store the last layer's weights and biases under all draws, concatenated."""
        for leaf in ("weight", "bias"):
            own, key = layer._parameters[leaf], f"{name}.{leaf}" if name else leaf
            parts = [draw.get(key, own) for draw in draws]
            self.register_buffer(f"last_{leaf}", None if parts[0] is None else torch.cat(parts).detach())  # type: ignore[arg-type]
        self.count = len(draws)

    def forward(self, *x: Tensor) -> dict[str, Tensor]:
        given: Any = x if self.names is None else dict(zip(self.names, x, strict=True))
        outputs = self._loop(given) if self.last is None else self._once(given, self.last[1])
        moments = Moments(self.reading.task or "classification")
        moments.update(self.reading.values(self.reading.shaped(outputs)))
        found: Any = Prediction(**moments.result(self.precision), samples=moments.count, strategy="loop")
        found = found if self.temperature is None else self.temperature(found)
        return {name: value for name, value in vars(found).items() if isinstance(value, Tensor)}

    def _loop(self, given: Batch) -> Tensor:
        return torch.stack([call(self._under(names), given, self.reading.tensor) for names in self.draws])

    def _once(self, given: Batch, layer: nn.Linear) -> Tensor:
        inputs: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        try:
            call(self._under(self.draws[0]), given, self.reading.tensor)
        finally:
            hook.remove()
        out = linear(inputs[0], self.last_weight, self.last_bias)  # type: ignore[arg-type]
        return out.unflatten(-1, (self.count, -1)).movedim(-2, 0)

    def _under(self, names: Mapping[str, str]) -> Any:
        drawn = {name: self.get_buffer(kept) for name, kept in names.items()}
        return lambda *args, **kwargs: functional_call(self.net, drawn, args, kwargs, tie_weights=False)


@torch.no_grad()
def export(
    model: BayesianModule,
    example: Any,
    path: str | os.PathLike[str],
    draws: int | Literal["members"] = 20,
    format: Format = "torch",
    *,
    generator: Generator | None = None,
    task: Task | None = None,
    output: Output | None = None,
    precision: float | None = None,
    temperature: Callable[[Prediction], Prediction] | None = None,
    force: bool = False,
) -> None:
    """Write one file that predicts like `byov.predict` under the draws of this generator, without needing byov.

    It returns a dictionary (in ONNX, named outputs) of the tensors of `Prediction`: mean, std, and for class
    probabilities the entropies and the mutual information. The file contains the draws: its size is the number of draws
    times the weights with a posterior. Batches may have any size if the network allows it.

    Args:
        model: a BayesianModule.
        example: one batch in the form that the file will accept: a tensor, a mapping of keyword arguments, or a tuple.
        path: the path of the file.
        draws: the number of draws; "members" uses each network of an explicit ensemble once.
        format: "torch" for `torch.export.load(path).module()(x)`, which takes the tensors of a mapping in order; or
            "onnx", which keeps their names.
        generator: for the draws; by default a new one, seeded by torch's global generator.
        task: as for `byov.predict`.
        output: as for `byov.predict`.
        precision: as for `byov.predict`.
        temperature: as for `byov.predict`.
        force: replace an existing file.
    """
    path = Path(path)
    _check(model, path, draws, format, force)
    if generator is None:
        generator = Generator(device_of(model)).manual_seed(int(torch.randint(1 << 62, ())))
    start, options = generator.get_state(), {"output": output, "precision": precision, "temperature": temperature}
    first = predict(model, example, draws, generator=generator, task=task, **options)  # type: ignore[arg-type]
    generator.set_state(start)
    x = ready(example, model)
    if isinstance(x, list):
        raise TypeError("An exported file takes tensors, not a list of them.")
    names = list(x) if isinstance(x, Mapping) else None
    noises = members(model) if isinstance(draws, str) else model.noises(draws, generator)
    with lock_of(model), evaluating(model.net):
        fixed = Fixed(model, noises, names, first.strategy == "head", task=first.task, **options)
        program = _program(fixed.eval(), x)
    _check_same(program, x, first)
    with replacing(path) as fresh:
        if format == "torch":
            torch.export.save(program, fresh)
        else:
            _write_onnx(program, fresh, names, x)


def _check(model: BayesianModule, path: Path, draws: int | str, format: Format, force: bool) -> None:
    """Raise if the arguments do not allow an export, before any other work."""
    if not isinstance(model, BayesianModule):
        raise TypeError(
            f"export takes a BayesianModule, not {type(model).__name__}: export a plain network with torch itself."
        )
    if format not in get_args(Format):
        raise ValueError(f"A format is 'torch' or 'onnx', not {format!r}.")
    if (path.suffix == ".onnx") != (format == "onnx"):
        raise ValueError(f"{path.name} is not the name of a file for format={format!r}: ONNX files end in .onnx.")
    check_out(path, force, "path")
    if format == "onnx":
        _check_onnx(model, draws)


def _program(fixed: Fixed, x: Batch) -> ExportedProgram:
    """Trace the network for any batch size (and any length, for integers (B, L) such as tokens); else for x's shape."""
    given = tuple(tensors_of(x))
    # torch.export would treat a batch of one as a fixed size.
    several = tuple(torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for tensor in given)
    free = tuple(dict.fromkeys(range(2 if _tokens(tensor) else 1), Dim.AUTO) for tensor in several)
    try:
        return torch.export.export(fixed, several, dynamic_shapes=(free,))
    except Exception:  # tracing may fail in any way
        pass
    try:
        return torch.export.export(fixed, given)
    except Exception as error:
        raise ValueError(
            f"torch.export cannot trace this {type(fixed.net).__name__}: {first_line(error)[:200]}."
        ) from error


def _tokens(tensor: Tensor) -> bool:
    return tensor.ndim == 2 and not tensor.is_floating_point()


def _check_same(program: ExportedProgram, x: Batch, first: Prediction) -> None:
    """Raise if a program predicts differently from `predict`: the network is random, or has Python control flow."""
    found = program.module()(*tensors_of(x))
    expected = {name: getattr(first, name).to(value) for name, value in found.items()}
    scale = 1 + first.mean.abs().max()  # small values, such as mutual information, differ by the rounding of the mean
    if not all(alike(value + scale, expected[name] + scale) for name, value in found.items()):
        raise ValueError("The exported program predicts differently from byov.predict: the network is random.")


def _check_onnx(model: BayesianModule, draws: int | str) -> None:
    """Raise if no ONNX file can be written, before any other work."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("An ONNX file needs onnx and onnxscript: pip install 'torch-byov[onnx]'.") from error
    drawn = sum(factor.layout.numel * next(iter(factor.roles.values())).itemsize for factor in model.factors)
    count = len(members(model)) if isinstance(draws, str) else draws
    size = count * drawn + sum(point.nbytes for _, point in model.points())
    if size > ONNX_LIMIT:
        raise ValueError(
            f"{count} draws of this posterior are {size / 1e9:.1f} GB, but an ONNX file holds {ONNX_LIMIT / 1e9:g}:"
            " export fewer draws, a posterior over fewer layers, or format='torch'."
        )


def _write_onnx(program: ExportedProgram, path: Path, names: list[str] | None, x: Batch) -> None:
    """Write the program as ONNX; inputs have the network's names, or x, or x0, x1 …; outputs keep their names."""
    given = tuple(tensors_of(x))
    inputs = names or (["x"] if len(given) == 1 else [f"x{i}" for i in range(len(given))])
    outputs = list(program.module()(*given))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = torch.onnx.export(program, given, dynamo=True, verbose=False)
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ValueError(f"torch.onnx cannot write this network: {first_line(cause)[:200]}.") from error
    # By hand, because an inner value may have the name of an output: pooling layers are called `mean`.
    graph = found.model.graph
    for value in (value for node in graph for value in node.outputs):
        value.name = f"inner_{value.name}" if value.name in (*inputs, *outputs) else value.name
    for value, name in zip([*graph.inputs, *graph.outputs], [*inputs, *outputs], strict=True):
        value.name = name
    found.save(path, external_data=False)
