"""The bias and GELU in one, against float64; the MLP that uses it, against timm's; the ViT's residual stream.

Run as a program, with TRITON_INTERPRET=1, this file measures the kernels on a CPU and prints what it found.
"""

import copy
import importlib.util
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import Mlp
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import byov
from byov.models import gelu, vit
from byov.models.gelu import MLP, Tile, bias_gelu, launch_backward, launch_forward, pays

needs_triton = pytest.mark.skipif(not gelu.HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

OFF = 1e-6
"""What GELU and its derivative may be off by, and what float32 rounds to, with room for the sum of h and bias."""
ROUNDING = {torch.float32: OFF, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
CUT = {**ROUNDING, torch.bfloat16: 2.0**-7}
"""Triton's interpreter cuts a bfloat16 off, where a GPU rounds."""
SMALL = Tile(rows=4, columns=16, warps=1, programs=6)


def reference(h: Tensor, bias: Tensor, towards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x·Φ(x), and its two gradients, in float64."""
    h, bias = h.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    out = (h + bias) * 0.5 * torch.special.erfc(-(h + bias) / math.sqrt(2.0))
    return out.detach(), *torch.autograd.grad(out, (h, bias), towards.double())


def off(
    ours: tuple[Tensor, Tensor, Tensor],
    h: Tensor,
    bias: Tensor,
    towards: Tensor,
    rounding: dict[torch.dtype, float] = CUT,
) -> list[float]:
    """The largest error of the output and of both gradients ÷ what is allowed: at most 1 is well."""
    weight = towards.double().abs()
    counts = 1.0, weight, weight.flatten(0, -2).sum(0)  # how often an error in GELU, or in its derivative, counts
    errors = []
    for got, exact, times in zip(ours, reference(h, bias, towards), counts, strict=True):
        allowed = OFF * times + rounding[got.dtype] * exact.abs()
        errors.append(((got.double() - exact).abs() / allowed).max().item())
    return errors


def inputs(*shape: int, dtype: torch.dtype, bias: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    h, towards = (torch.randn(2, *shape, generator=generator, device=device) * 3.0).to(dtype)
    return h, torch.randn(shape[-1], generator=generator, device=device).to(bias), towards


CASES: dict[str, tuple[tuple[int, ...], torch.dtype, torch.dtype]] = {
    "one row": ((1, 37), torch.float32, torch.float32),
    "one number": ((1, 1), torch.bfloat16, torch.float32),
    "whole blocks": ((32, 64), torch.float32, torch.float32),
    "a rest of rows and of columns": ((3, 23, 41), torch.float32, torch.float32),
    "wider than a block": ((5, 300), torch.float32, torch.float32),
    "bfloat16": ((2, 17, 40), torch.bfloat16, torch.float32),
    "bfloat16 throughout": ((19, 24), torch.bfloat16, torch.bfloat16),
    "float16": ((2, 9, 33), torch.float16, torch.float32),
}


def by_function(h: Tensor, bias: Tensor, towards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h, bias = h.requires_grad_(), bias.requires_grad_()
    out = gelu._BiasGELU.apply(h, bias)
    return out.detach(), *torch.autograd.grad(out, (h, bias), towards)


def by_launch(h: Tensor, bias: Tensor, towards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return launch_forward(h, bias, SMALL), *launch_backward(towards, h, bias, SMALL)


def strided(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


def measure() -> dict[str, list[float]]:
    """What the kernels are off by, case by case."""
    found = {}
    for name, (shape, dtype, bias) in CASES.items():
        case = inputs(*shape, dtype=dtype, bias=bias)
        found[name] = off(by_function(*case), *case)
        found[f"{name}, in small tiles"] = off(by_launch(*case), *case)
    h, bias_, towards = inputs(6, 7, 20, dtype=torch.float32, bias=torch.float32)
    h, towards = strided(h), strided(towards)
    found["not contiguous"] = off(by_launch(h, bias_, towards), h, bias_, towards)

    line, zero = torch.linspace(-12.0, 12.0, 2**15).view(-1, 256), torch.zeros(256)
    out, slope, _ = by_function(line, zero, torch.ones_like(line))
    exact, its, _ = reference(line, zero, torch.ones_like(line))
    found["on a line"] = [(out - exact).abs().max().item() / OFF, (slope - its).abs().max().item() / OFF]
    nan = by_launch(torch.full((1, 1), math.nan), torch.zeros(1), torch.ones(1, 1))
    found["nan"] = [float(not part.isnan().all()) for part in nan]
    empty = by_launch(torch.zeros(0, 5), torch.zeros(5), torch.zeros(0, 5))
    found["no rows"] = [float(empty[0].shape != (0, 5)), empty[2].abs().sum().item()]
    return found


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[float]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # Triton reads it when it is imported
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_triton
class TestKernels:
    def test_every_shape_and_type_against_float64(self, interpreted: dict[str, list[float]]) -> None:
        assert len(interpreted) == 2 * len(CASES) + 4
        for name, errors in interpreted.items():
            assert max(errors) <= 1.0, (name, errors)

    @pytest.mark.parametrize("name", ["forward_kernel", "backward_kernel"])
    def test_compiled_for_a_gpu_they_read_16_bytes_at_a_time_and_do_not_divide(self, name: str) -> None:
        """Compiling needs no GPU, and tells what the interpreter does not: whether Triton's compiler takes them."""
        import triton
        from triton.backends.compiler import GPUTarget

        kernel, types = getattr(gelu, name), {"bias": "*fp32", "sums": "*fp32", "rows": "i32", "width": "i32"}
        tile = {"ROWS": 16, "COLUMNS": 256}
        signature = {arg: "constexpr" if arg in tile else types.get(arg, "*bf16") for arg in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, arg in enumerate(kernel.arg_names) if arg not in tile}
        source = triton.compiler.ASTSource(kernel, signature, tile, aligned)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
        wide = len(re.findall(r"ld\.global[.\w]*\.v4\.b32", ptx))
        assert wide == (2 if name == "forward_kernel" else 4)  # two rows to a thread, of each tensor
        assert not re.search(r"\bdiv\.|\bcall", ptx)
        assert len(re.findall(r"ex2\.approx\.ftz", ptx)) == len(re.findall(r"rsqrt\.approx\.ftz", ptx)) == 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_cpu_it_is_torchs_gelu_of_the_sum(dtype: torch.dtype) -> None:
    h, bias, towards = inputs(3, 5, 7, dtype=dtype, bias=torch.float32)
    h, bias = h.requires_grad_(), bias.requires_grad_()
    out = bias_gelu(h, bias)
    gradients = torch.autograd.grad(out, (h, bias), towards)
    assert [t.dtype for t in (out, *gradients)] == [dtype, dtype, torch.float32]
    assert max(off((out, *gradients), h, bias, towards, ROUNDING)) <= 1.0


def test_gradients_by_finite_differences() -> None:
    h, bias, _ = inputs(3, 4, dtype=torch.float64, bias=torch.float64)
    assert torch.autograd.gradcheck(bias_gelu, (h.requires_grad_(), bias.requires_grad_()))


def test_without_triton_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    module = runpy.run_path(gelu.__file__)
    assert not module["HAS_TRITON"]
    assert "forward_kernel" not in module
    h, bias, _ = inputs(3, 4, dtype=torch.bfloat16, bias=torch.float32)
    assert torch.equal(module["bias_gelu"](h, bias), bias_gelu(h, bias))


class TestWhereItPays:
    """In a compiled training step on a GPU; each condition in turn is what makes the answer no."""

    @pytest.fixture(autouse=True)
    def compiling(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)

    @pytest.fixture
    def x(self) -> Tensor:
        with FakeTensorMode():  # knows its device without one
            return torch.empty(2, 8, device="cuda")

    def mlp(self, **options: Any) -> MLP:
        return MLP(8, 16, **options).bfloat16()

    def test_it_does(self, x: Tensor) -> None:
        assert pays(self.mlp(), x)
        assert pays(self.mlp().half(), x)

    def test_in_32_bits_it_does_not_but_under_autocast(self, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        mlp = self.mlp().float()
        assert not pays(mlp, x)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
        assert pays(mlp, x)

    def test_only_compiled_with_gradients_and_on_a_gpu(self, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        mlp = self.mlp()
        assert not pays(mlp, torch.empty(2, 8))
        with torch.no_grad():
            assert not pays(mlp, x)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
        assert not pays(mlp, x)

    @pytest.mark.parametrize(
        "options",
        [{"bias": False}, {"act_layer": nn.ReLU}, {"act_layer": lambda: nn.GELU("tanh")}, {"use_conv": True}],
        ids=["no bias", "ReLU", "tanh", "convolution"],
    )
    def test_not_for_another_mlp(self, x: Tensor, options: dict[str, Any]) -> None:
        assert not pays(self.mlp(**options), x)

    def test_not_where_someone_listens_or_stepped_in(self, x: Tensor) -> None:
        for layer in ("fc1", "act"):
            for register in ("register_forward_hook", "register_forward_pre_hook"):
                mlp = self.mlp()
                handle = getattr(mlp.get_submodule(layer), register)(lambda *seen: None)
                assert not pays(mlp, x), (layer, register)
                handle.remove()
                assert pays(mlp, x)
        mlp = self.mlp()
        nn.utils.parametrize.register_parametrization(mlp.fc1, "weight", nn.Identity())
        assert not pays(mlp, x)


class TestMLP:
    @pytest.fixture
    def fused(self, monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
        """As if it paid here: the types of what `bias_gelu` was given, call by call."""
        seen: list[torch.dtype] = []

        def watched(h: Tensor, bias: Tensor) -> Tensor:
            seen.append(h.dtype)
            return bias_gelu(h, bias)

        monkeypatch.setattr(gelu, "pays", lambda mlp, x: True)
        monkeypatch.setattr(gelu, "bias_gelu", watched)
        return seen

    def pair(self, **options: Any) -> tuple[MLP, Mlp]:
        """Ours and timm's, each made from the same seed."""
        made = []
        for kind in (MLP, Mlp):
            torch.manual_seed(0)
            made.append(kind(8, 24, **options))
        return made[0], made[1]

    def close(self, one: Callable[..., Tensor], two: Callable[..., Tensor], nets: tuple[nn.Module, nn.Module]) -> None:
        x = torch.randn(3, 5, 8)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        ours, its = one(a), two(b)
        torch.testing.assert_close(ours, its)
        towards = torch.randn_like(its)
        ours.backward(towards), its.backward(towards)
        torch.testing.assert_close(a.grad, b.grad)
        theirs = dict(nets[1].named_parameters())
        assert theirs.keys() == dict(nets[0].named_parameters()).keys()
        for name, p in nets[0].named_parameters():
            torch.testing.assert_close(p.grad, theirs[name].grad, msg=name)

    def test_it_is_timms_with_the_same_weights(self) -> None:
        ours, timms = self.pair()
        assert list(ours.state_dict()) == list(timms.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), timms.parameters(), strict=True))
        x = torch.randn(3, 5, 8)
        assert torch.equal(ours(x), timms(x))

    @pytest.mark.parametrize("options", [{}, {"norm_layer": nn.LayerNorm}], ids=["plain", "norm"])
    def test_with_the_bias_in_the_gelu_it_is_timms(self, fused: list[torch.dtype], options: dict[str, Any]) -> None:
        ours, timms = self.pair(**options)
        self.close(ours, timms, (ours, timms))
        assert fused == [torch.float32]

    def test_dropout_stays_where_it_was(self, fused: list[torch.dtype]) -> None:
        ours, timms = self.pair(drop=0.5)
        x = torch.randn(3, 5, 8)
        outputs = []
        for mlp in (ours, timms):
            torch.manual_seed(1)
            outputs.append(mlp(x))
        torch.testing.assert_close(*outputs)

    def test_with_a_posterior(self, fused: list[torch.dtype]) -> None:
        ours, timms = (byov.bayesianize(mlp, byov.Gaussian()) for mlp in self.pair())
        noise = ours.noise()
        with ours.draw(noise=noise), timms.draw(noise=copy.deepcopy(noise)):
            self.close(ours, timms, (ours, timms))
        assert fused == [torch.float32]

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_it_compiles_as_one_graph(self, fused: list[torch.dtype], backend: str) -> None:
        torch._dynamo.reset()
        ours, timms = self.pair()
        self.close(torch.compile(ours, fullgraph=True, backend=backend), timms, (ours, timms))
        assert fused == [torch.float32]

    def test_compiled_on_a_cpu_it_is_timms(self) -> None:
        """The question whether it pays is itself traced."""
        torch._dynamo.reset()
        ours, timms = self.pair()
        self.close(torch.compile(ours, fullgraph=True, backend="aot_eager"), timms, (ours, timms))

    def test_a_vits_weights_are_what_they_were(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours = vit("nano")
        assert all(type(block.mlp) is MLP for block in ours.blocks)
        monkeypatch.setattr(sys.modules["byov.models.vit"], "MLP", Mlp)
        torch.manual_seed(0)
        timms = vit("nano")
        assert type(timms.blocks[0].mlp) is Mlp
        assert list(ours.state_dict()) == list(timms.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), timms.parameters(), strict=True))


class TestStream:
    @pytest.fixture
    def nets(self) -> tuple[nn.Module, nn.Module]:
        made = []
        for stream in ("float32", "autocast"):
            torch.manual_seed(0)
            made.append(vit("nano", stream=stream))  # type: ignore[arg-type]
        return made[0], made[1]

    def kinds(self, net: nn.Module) -> list[torch.dtype]:
        """The types of what each block is given, filled as the network runs."""
        seen: list[torch.dtype] = []
        for block in net.blocks:
            block.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
        return seen

    def test_outside_autocast_it_changes_nothing(self, nets: tuple[nn.Module, nn.Module]) -> None:
        plain, stream = nets
        assert list(plain.state_dict()) == list(stream.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), stream.parameters(), strict=True))
        seen, x = self.kinds(stream), torch.randn(4, 3, 32, 32)
        assert torch.equal(plain(x), stream(x))
        assert seen == [torch.float32] * 4

    def test_inside_autocast_the_stream_has_its_type(self, nets: tuple[nn.Module, nn.Module]) -> None:
        plain, stream = nets
        seen = self.kinds(plain), self.kinds(stream)
        x = torch.randn(4, 3, 32, 32)
        exact = plain(x)
        with torch.autocast("cpu", torch.bfloat16):
            default, ours = plain(x).float(), stream(x).float()
        assert seen == ([torch.float32] * 8, [torch.bfloat16] * 4)
        assert not torch.equal(default, ours)
        # Eight sums rounded to 8 bits, each to 2⁻⁹ at most, beside the products that both round.
        assert (ours - exact).norm() < 0.03 * exact.norm()
        assert (ours - default).norm() < 0.03 * default.norm()

    def test_gradients_come_through_and_it_compiles(self, nets: tuple[nn.Module, nn.Module]) -> None:
        torch._dynamo.reset()
        _, stream = nets
        x = torch.randn(2, 3, 32, 32)
        compiled = torch.compile(stream, fullgraph=True, backend="aot_eager")
        with torch.autocast("cpu", torch.bfloat16):
            out, eager = compiled(x), stream(x)
        assert (out.float() - eager.float()).norm() < 0.03 * eager.float().norm()
        out.float().square().sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in stream.parameters())

    def test_without_autocast_on_a_device_that_has_none(self) -> None:
        with torch.device("meta"):
            assert vit("nano", stream="autocast")(torch.empty(2, 3, 32, 32)).shape == (2, 10)

    def test_a_wrong_name(self) -> None:
        with pytest.raises(ValueError, match="'float32' or 'autocast', not 'bfloat16'"):
            vit("nano", stream="bfloat16")  # type: ignore[arg-type]


@needs_gpu
@needs_triton
class TestOnAGPU:
    def test_the_compiled_mlp_is_the_eager_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[torch.dtype] = []

        def watched(h: Tensor, bias: Tensor) -> Tensor:
            seen.append(h.dtype)
            return bias_gelu(h, bias)

        monkeypatch.setattr(gelu, "bias_gelu", watched)
        torch._dynamo.reset()
        eager = MLP(64, 256).cuda()
        nn.init.normal_(eager.fc1.bias)
        compiled = copy.deepcopy(eager)
        x = torch.randn(8, 17, 64, device="cuda")
        towards = torch.randn(8, 17, 64, device="cuda", dtype=torch.bfloat16)
        results = []
        for net, call in ((eager, eager), (compiled, torch.compile(compiled, fullgraph=True))):
            images = x.clone().requires_grad_()
            with torch.autocast("cuda", torch.bfloat16):
                out = call(images)
            out.backward(towards)
            results.append([out, images.grad, *(p.grad for p in net.parameters())])
        assert seen == [torch.bfloat16]  # the compiled one alone
        for number, (exact, ours) in enumerate(zip(*results, strict=True)):
            assert ours.dtype == exact.dtype, number
            assert (ours.double() - exact.double()).norm() < 2e-2 * exact.double().norm(), number

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_the_kernels_against_float64(self, dtype: torch.dtype) -> None:
        case = inputs(50432 // 8, 1536, dtype=dtype, bias=torch.float32, device="cuda")
        first, again = (by_function(*case) for _ in range(2))
        assert max(off(first, *case, ROUNDING)) <= 1.0
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


if __name__ == "__main__":
    print(json.dumps(measure()))
