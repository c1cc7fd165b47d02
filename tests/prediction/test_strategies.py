"""Every way to run the draws gives the numbers of a loop written by hand; nothing about the model is left changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import byov
from byov.posterior import Family
from byov.prediction import engine

from .networks import FAMILIES, NETWORKS, by_hand, mlp, spread

STRATEGIES = ("loop", "vmap", "auto")
FIELDS = ("mean", "std", "entropy", "expected_entropy", "mutual_information")
COVERS: dict[str, Any] = {"all": None, "output": byov.output_layer, "norms": byov.norm_layers}


def seeded(seed: int = 7) -> Generator:
    return Generator().manual_seed(seed)


def same(a: byov.Prediction, b: byov.Prediction, atol: float = 1e-12) -> None:
    for name in FIELDS:
        assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=atol)
    assert torch.equal(torch.as_tensor(a.samples), torch.as_tensor(b.samples))


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_every_family_on_every_network(family: Family, kind: str, cover: str) -> None:
    make, batch = NETWORKS[kind]
    model, x = byov.bayesianize(make(), family if cover == "all" else {COVERS[cover]: family}), batch()
    model = spread(model).double()  # a sum's order does not show in float64
    x = x.double() if x.is_floating_point() else x
    draws = by_hand(model, x, 6, seed=7)
    assert float(draws.std(0).max()) > 1e-6
    for strategy in STRATEGIES:
        found = byov.predict(model, x, 6, strategy=strategy, generator=seeded(), keep=True)
        assert_close(found.draws, draws, rtol=0, atol=1e-12)
        assert_close(found.mean, draws.mean(0), rtol=0, atol=1e-12)
        assert_close(found.std, draws.std(0, correction=0), rtol=0, atol=1e-9)
        assert found.samples == 6
        assert found.strategy in ("loop", "vmap")
        assert strategy == "auto" or found.strategy == strategy


def test_families_mix() -> None:
    rules = {"0.*": byov.Gaussian(-4.0), byov.norm_layers: byov.EMP(3), byov.output_layer: byov.Dropout(0.3)}
    model, x = spread(byov.bayesianize(mlp(), rules)).double(), torch.randn(5, 6).double()
    for strategy in STRATEGIES:
        found = byov.predict(model, x, 9, strategy=strategy, generator=seeded(), keep=True)
        assert_close(found.draws, by_hand(model, x, 9, seed=7), rtol=0, atol=1e-12)


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loader_is_one_batch_whatever_its_batch_size(model: byov.BayesianModule, strategy: Any) -> None:
    x, y = torch.randn(11, 6).double(), torch.arange(11)
    whole = byov.predict(model, x, 20, strategy, generator=seeded(), keep=True)
    for size in (1, 4, 11):
        loader = DataLoader(TensorDataset(x, y), batch_size=size)
        found = byov.predict(model, loader, 20, strategy, generator=seeded(), keep=True)
        same(found, whole)
        assert_close(found.draws, whole.draws, rtol=0, atol=1e-12)
    same(byov.predict(model, ({"input": part} for part in x.split(3)), 20, strategy, generator=seeded()), whole)
    same(byov.predict(model, {"input": x}, 20, strategy, generator=seeded()), whole)


def test_the_global_stream_decides_without_a_generator(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double()
    for data in (x, [x[:2], x[2:]]):
        found = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found.append(byov.predict(model, data, 12))
        same(found[0], found[1])
        assert float((found[0].mean - found[2].mean).abs().max()) > 1e-6
    torch.manual_seed(5)
    found = byov.predict(model, x, 12, strategy="loop")
    torch.manual_seed(5)
    by_loop = []
    for _ in range(12):
        with torch.no_grad(), model.draw():
            by_loop.append(model.eval()(x).softmax(1))
    assert_close(found.mean, torch.stack(by_loop).mean(0))


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_the_size_of_a_chunk_does_not_show(
    model: byov.BayesianModule, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, 6).double()
    whole = byov.predict(model, x, 13, "vmap", generator=seeded())
    weights = sum(p.numel() for p in mlp().parameters())
    monkeypatch.setitem(engine.CHUNK_ELEMENTS, "cpu", chunk * weights)
    for strategy in ("vmap", "auto"):
        same(byov.predict(model, x, 13, strategy, generator=seeded()), whole)


class Stubborn(nn.Module):
    """vmap has no rule for a draw that is written into a tensor which all draws share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.a(x)
        out += self.b(x)
        return out


def test_auto_loops_where_vmap_cannot() -> None:
    model, x = byov.bayesianize(Stubborn(), {"b.*": byov.Gaussian(-2.0)}), torch.randn(4, 6)
    expected = by_hand(model, x, 10, seed=7)
    for strategy in ("auto", "loop"):
        found = byov.predict(model, x, 10, strategy, generator=seeded(), keep=True)
        assert found.strategy == "loop"
        assert_close(found.draws, expected)
    with pytest.raises(ValueError, match="vmap cannot batch this network's draws, 'loop' and 'auto' can"):
        byov.predict(model, x, 10, "vmap")


def test_a_plain_network_takes_one_pass() -> None:
    class Counted(nn.Linear):
        passes = 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return super().forward(x)

    net, x = Counted(6, 3), torch.randn(4, 6)
    found = byov.predict(net, x, 50, keep=True)
    assert net.passes == 1
    assert found.samples == 1
    assert_close(found.mean, net(x).softmax(1))
    assert float(found.std.max()) == 0.0
    assert float(found.mutual_information.max()) == 0.0
    assert found.draws.shape == (1, 4, 3)
    assert net.training


@pytest.mark.parametrize("fails", [False, True])
def test_every_modules_mode_comes_back(fails: bool) -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert not self.training
            if fails:
                raise KeyError("from the network")
            return super().forward(x)

    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.5), Failing(4, 3)))
    model = byov.bayesianize(net, byov.Gaussian())
    model.net[1].eval()  # frozen statistics in a model that trains
    model.net[2][0].eval()
    before = [module.training for module in model.modules()]
    statistics = model.net[1].running_mean.clone()
    if fails:
        with pytest.raises(KeyError, match="from the network"):
            byov.predict(model, torch.randn(4, 6))
    else:
        byov.predict(model, torch.randn(4, 6))
    assert [module.training for module in model.modules()] == before
    assert True in before
    assert False in before
    assert torch.equal(model.net[1].running_mean, statistics)


def test_nothing_is_differentiated_and_gradients_stay(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double().requires_grad_()
    found = byov.predict(model, x, 8)
    assert not found.mean.requires_grad
    assert x.grad is None
    assert torch.is_grad_enabled()
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_inference_mode_gives_the_same(strategy: Any) -> None:
    model, x = byov.bayesianize(mlp(), {byov.output_layer: byov.Gaussian(-2.0)}), torch.randn(5, 6)
    outside = byov.predict(model, x, 10, strategy, generator=seeded())
    with torch.inference_mode():
        same(byov.predict(model, x.clone(), 10, strategy, generator=seeded()), outside, 1e-6)


def test_a_compiled_or_parallel_model_is_the_model(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double()
    expected = byov.predict(model, x, 10, generator=seeded())
    assert float(expected.std.max()) > 0
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        model.cpu()  # where there are GPUs, DataParallel moves it to the first
        same(byov.predict(wrapped, x, 10, generator=seeded()), expected)
    with pytest.raises(ValueError, match="bayesianize the whole of it"):
        byov.predict(nn.Sequential(model, nn.ReLU()), x)


def test_bfloat16_outputs_are_averaged_in_float32() -> None:
    model = byov.bayesianize(nn.Linear(6, 3), byov.Gaussian(-3.0)).bfloat16()
    found = byov.predict(model, torch.randn(5, 6).bfloat16(), 10)
    assert found.mean.dtype == torch.float32
    assert_close(found.mean.sum(1), torch.ones(5))


class Loader:
    """Batches without a length, as a stream has none."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __iter__(self) -> Iterator[Tensor]:
        yield from self.x.split(2)


def test_a_stream_with_a_progress_bar(model: byov.BayesianModule, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(5, 6).double()
    whole = byov.predict(model, x, 8, generator=seeded())
    same(byov.predict(model, Loader(x), 8, generator=seeded(), progress=True), whole)
    same(byov.predict(model, Loader(x), 8, generator=seeded()), whole)
    assert capsys.readouterr().out == ""


MEMORY = """
import sys
from pathlib import Path
import torch
import byov
from byov.prediction import engine
torch.set_num_threads(1)

def peak():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

engine.CHUNK_ELEMENTS["cpu"] = 8 * 64 * 256  # chunks of 8 draws at any number of draws
net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.ReLU(), torch.nn.Linear(4, 256))
model, x = byov.bayesianize(net, byov.Gaussian(-3.0)), torch.randn(64, 1)  # a draw predicts 64 KiB
for strategy in ("loop", "vmap"):
    byov.predict(model, x, 10, strategy)
    few = peak()
    byov.predict(model, x, 1000, strategy)
    print(peak() - few)
kept = peak()
byov.predict(model, x, 1000, "loop", keep=True)
print(peak() - kept)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_draws() -> None:
    """1000 draws hold 62 MiB when they are kept, which the last figure shows; 8 MiB is what an allocator may waste."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    loop, vmap, kept = (float(line) for line in done.stdout.split())
    assert loop < 8
    assert vmap < 8
    assert kept > 50
