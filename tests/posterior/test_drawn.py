"""The draw of a compiled step: its numbers are normal, its gradient is the formula's, and it is used where it should.

Run as a program, with TRITON_INTERPRET=1, this file runs the kernel on a CPU and prints what it found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from torch import Generator, Tensor, nn

import byov
from byov.posterior import drawn, gaussian

needs_triton = pytest.mark.skipif(not drawn.HAS_TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
COUNT = 3 * 4096 + 777  # not a whole number of programs


def eps(count: int, seed: int, device: str = "cpu") -> Tensor:
    zero = torch.zeros(count, device=device)
    return drawn.launch(zero, zero, torch.tensor([seed], device=device))


def looks(numbers: Tensor) -> dict[str, float]:
    """How far from normal, and from independent, in standard errors or as a p-value."""
    x, n = numbers.double().cpu(), numbers.numel()
    neighbours = {f"lag {lag}": float((x[lag:] * x[:-lag]).mean()) * (n - lag) ** 0.5 for lag in (1, 1024, 2048, 4096)}
    return {
        "mean": float(x.mean()) * n**0.5,
        "variance": float(x.square().mean() - 1) * (n / 2) ** 0.5,
        "fourth": float(x.pow(4).mean() - 3) * (n / 96) ** 0.5,
        "p": float(kstest(x.numpy(), "norm").pvalue),
        "different": len(set(x.tolist())) / n,
        **neighbours,
    }


def well(found: dict[str, float]) -> None:
    assert found.pop("p") > 1e-4, found
    assert found.pop("different") > 0.9, found  # float32 has few numbers, but a stream that comes again has half
    assert max(map(abs, found.values())) < 5, found


def measure() -> dict[str, Any]:
    torch.manual_seed(0)
    mean, log_var, seed = torch.randn(COUNT), torch.randn(COUNT), torch.tensor([1 << 61])
    theta, noise = drawn.launch(mean, log_var, seed), eps(COUNT, 1 << 61)
    off = (theta - mean - torch.exp(0.5 * log_var) * noise).abs().max() / theta.abs().max()
    other = eps(COUNT, 5)
    return {
        "looks": looks(noise),
        "off": float(off),
        "again": bool(torch.equal(noise, eps(COUNT, 1 << 61))),
        "other": float((other * noise).mean()) * COUNT**0.5,
        "high bits": float((eps(COUNT, 5 + (1 << 40)) * other).mean()) * COUNT**0.5,
        "sizes": [eps(size, 5).tolist() == other[:size].tolist() for size in (1, 1024, 1025)],
    }


@needs_triton
def test_the_kernel_in_triton_s_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}  # Triton reads it when it is imported
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    well(found["looks"])
    assert found["off"] < 1e-6
    assert found["again"]
    assert max(abs(found["other"]), abs(found["high bits"])) < 5
    assert found["sizes"] == [True, True, True]


@needs_triton
def test_the_kernel_compiles_for_a_gpu_and_reads_16_bytes_at_a_time() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    from byov.posterior.draw_kernel import BLOCK, WARPS, draw_kernel

    types = {"seed": "*i64", "count": "i32", "BLOCK": "constexpr"}
    signature = {name: types.get(name, "*fp32") for name in draw_kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(draw_kernel.arg_names) if name != "BLOCK"}
    source = triton.compiler.ASTSource(draw_kernel, signature, {"BLOCK": BLOCK}, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS}).asm["ptx"]
    each = BLOCK // (32 * WARPS)  # rounds of a thread, four numbers from each
    assert ptx.count("ld.global.v4.b32") == 2 * each
    assert ptx.count("st.global.v4.b32") == each


def by_torch(mean: Tensor, log_var: Tensor, seed: Tensor) -> Tensor:
    """The kernel's twin: the same formula, with another stream."""
    noise = torch.randn(mean.shape, generator=Generator().manual_seed(int(seed)), dtype=mean.dtype)
    return torch.addcmul(mean, torch.exp(0.5 * log_var), noise)


def test_its_gradient_is_the_formula_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "launch", by_torch)
    torch.manual_seed(0)
    mean, log_var, towards = (torch.randn(50, dtype=torch.float64) for _ in range(3))
    mean, log_var, seed = mean.requires_grad_(), log_var.requires_grad_(), torch.tensor([3])
    found = torch.autograd.grad((drawn.drawn(mean, log_var, seed) * towards).sum(), (mean, log_var))
    expected = torch.autograd.grad((by_torch(mean, log_var, seed) * towards).sum(), (mean, log_var))
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda m, r: drawn.drawn(m, r, seed), (mean, log_var))


def test_a_model_learns_the_same_from_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the noise: held, it gives the same weights, and their gradients are those of the plain draw."""
    monkeypatch.setattr(drawn, "launch", by_torch)
    torch.manual_seed(0)
    model, x = byov.bayesianize(nn.Linear(4, 3), byov.Gaussian(-2.0)), torch.randn(6, 4)
    mean = model.factors[0].get_parameter("mean")
    eps = torch.randn(mean.shape, generator=Generator().manual_seed(9))
    found = []
    for noise in ({"seed": torch.tensor([9])}, {"eps": eps}):
        model.zero_grad()
        with model.draw(noise=[noise]):
            out = model(x) + model(x)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found)


def test_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Here(nn.Parameter):
        is_cuda = True

    monkeypatch.setattr(drawn, "HAS_TRITON", True)
    parameter = nn.Parameter(torch.zeros(3))
    monkeypatch.setattr(drawn, "nn", type("nn", (), {"Parameter": Here}))
    here = Here(torch.zeros(3))
    assert not drawn.pays(here, None)  # not compiled
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert drawn.pays(here, None)
    assert not drawn.pays(here, Generator())
    assert not drawn.pays(parameter, None)
    assert not drawn.pays(Here(torch.zeros(3, dtype=torch.float64)), None)
    monkeypatch.setattr(drawn, "HAS_TRITON", False)
    assert not drawn.pays(here, None)
    assert drawn.new_seed(parameter).shape == (1,)
    assert len({int(drawn.new_seed(parameter)) for _ in range(20)}) == 20


def test_nobody_imports_triton_for_it() -> None:
    code = "import sys, byov; assert 'triton' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@needs_gpu
@needs_triton
class TestOnAGPU:
    def test_the_numbers(self) -> None:
        well(looks(eps(4_000_001, 11, "cuda")))

    @pytest.mark.parametrize("mode", [None, "reduce-overhead"])
    def test_a_compiled_step(self, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        used: list[int] = []
        whole = gaussian.drawn
        monkeypatch.setattr(gaussian, "drawn", lambda *args: used.append(1) or whole(*args))
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = byov.bayesianize(nn.Linear(300, 200).cuda(), byov.Gaussian(-2.0))
        factor = model.factors[0]
        towards = torch.randn(200, 300, device="cuda")

        def step() -> tuple[Tensor, Tensor]:
            weight = model.tensors(model.noise())["weight"]
            return (weight * towards).sum(), weight.detach().clone()

        compiled, seen = torch.compile(step, mode=mode, fullgraph=True), []
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            model.zero_grad()
            value, weight = compiled()
            value.backward()
            mean, log_var = (factor.layout.split(factor.get_parameter(role))["weight"] for role in ("mean", "log_var"))
            by_mean, by_log_var = (
                factor.layout.split(factor.get_parameter(role).grad)["weight"] for role in ("mean", "log_var")
            )
            torch.testing.assert_close(by_mean, towards)
            torch.testing.assert_close(by_log_var, 0.5 * towards * (weight - mean), rtol=1e-4, atol=1e-5)
            seen.append(((weight - mean) / torch.exp(0.5 * log_var)).detach().clone())
        assert used
        well(looks(torch.cat([noise.flatten() for noise in seen])))
        torch.manual_seed(0)
        first = compiled()[1].clone()
        torch.manual_seed(0)
        assert torch.equal(first, compiled()[1])


if __name__ == "__main__":
    print(json.dumps(measure()))
