"""Every objective through the same contract, and its loss beside lightly's. A new one is one line in LIGHTLY."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightly.loss as lightly
import pytest
import torch
import torch.nn.functional as F
from processes import RANKS, in_two_processes, take_part
from saved_runs import differences, state
from students import images
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from byov.data.datasets import ImageSet
from byov.ssl import OBJECTIVES, Learner, features
from byov.ssl.pretrain import Pretrain, build, restore, start
from byov.ssl.registry import objective
from byov.train.batchnorm import synchronise
from byov.train.config import load_config

N, D = 12, 6
cosine = lightly.NegativeCosineSimilarity()
Outputs = dict[str, Tensor]


def in_keys(queries: Tensor, keys: Tensor) -> Tensor:
    """MoCo's loss by lightly, which has the other keys in a memory bank: row by row."""
    found = []
    for i in range(len(queries)):
        loss = lightly.NTXentLoss(0.2, memory_bank_size=(len(keys) - 1, keys.shape[1]))
        loss.memory_bank.bank = F.normalize(torch.cat([keys[:i], keys[i + 1 :]]), dim=1)
        found.append(loss(queries[i : i + 1], keys[i : i + 1]))
    return 0.4 * torch.stack(found).mean()


LIGHTLY: dict[str, Callable[[Outputs], Tensor]] = {  # of the student's s and its projections z, and the teacher's t
    "byol": lambda o: 4 + 2 * (cosine(o["s1"], o["t2"]) + cosine(o["s2"], o["t1"])),
    "simsiam": lambda o: (cosine(o["s1"], o["z2"].detach()) + cosine(o["s2"], o["z1"].detach())) / 2,
    "simclr": lambda o: lightly.NTXentLoss(0.1)(o["s1"], o["s2"]),
    "moco": lambda o: in_keys(o["s1"], o["t2"]) + in_keys(o["s2"], o["t1"]),
    "barlow": lambda o: lightly.BarlowTwinsLoss(0.0051)(o["s1"], o["s2"]),
    "vicreg": lambda o: lightly.VICRegLoss()(o["s1"], o["s2"]),
    "dino": lambda o: lightly.DINOLoss(D)([o["t1"], o["t2"]], [o["s1"], o["s2"]], teacher_temp=0.04),
}
every = pytest.mark.parametrize("name", LIGHTLY)
TEACHERS = {"byol", "moco", "dino"}


def recipe(name: str, *changes: str) -> Pretrain:
    """A few steps of a small student; DINO's prototypes are its outputs."""
    small = ["model.hidden=16", "model.outputs=8", "train.epochs=1", "train.batch=64", "train.warmup=0"]
    here = ["data.holdout=0.8", "train.accelerator=cpu", "train.devices=1", "train.log_every=1"]
    own = ["model.encoder=python:students:encoder", f"ssl.objective={name}"]
    return load_config(Pretrain, None, [*small, *here, *own, *changes])


def learner(name: str, *changes: str) -> Learner:
    """The same first weights for every posterior."""
    torch.manual_seed(0)
    data = ImageSet("noise", images(N))
    return build(recipe(name, *changes), data, 1, torch.device("cpu")).train()


def batch(module: Learner) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return images(N), module.views.draw(N), torch.tensor(0.1)


def outputs() -> Outputs:
    torch.manual_seed(2)
    return {name: torch.randn(N, D, requires_grad=name[0] != "t") for name in ("s1", "s2", "z1", "z2", "t1", "t2")}


def loss_of(asked: nn.Module, o: Outputs) -> Tensor:
    """The objective's loss of what student and teacher say."""

    def student(first: Tensor, second: Tensor, predict: bool = True, both: bool = False) -> tuple[Tensor, ...]:
        return (o["s1"], o["s2"], o["z1"], o["z2"]) if both else (o["s1"], o["s2"])

    return asked(student, lambda first, second: (o["t1"], o["t2"]), o["s1"], o["s2"])[0]


def means(module: Learner) -> dict[str, Tensor]:
    """The gradients of the student's weights, of a posterior of their means, by the network's own names."""
    if not module.factors:
        return {name: p.grad.clone() for name, p in module.student.named_parameters() if p.grad is not None}
    (factor,) = module.factors  # of components, of which a draw has one for each layer: the sum of theirs
    gradient = factor.mean.grad if "mean" in factor.roles else factor.components.grad.sum(0)
    return factor.layout.split(gradient)


def test_every_objective_has_its_reference() -> None:
    assert set(LIGHTLY) == set(OBJECTIVES)


@every
def test_loss_and_gradient_are_lightlys(name: str) -> None:
    found = []
    for loss in (lambda o: loss_of(OBJECTIVES[name](D), o), LIGHTLY[name]):
        o = outputs()
        value = loss(o)
        value.backward()
        found.append([value.detach(), *(o[key].grad for key in ("s1", "s2"))])
        assert o["z1"].grad is None  # nothing flows into a target
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_dinos_centre_is_lightlys_over_steps_and_parts() -> None:
    ours, theirs, o = OBJECTIVES["dino"](D), lightly.DINOLoss(D), outputs()
    for step in range(3):
        heat = float(ours.sharp)
        half = [{key: value[part] for key, value in o.items()} for part in (slice(N // 2), slice(N // 2, N))]
        loss = sum(loss_of(ours, each) for each in half) / 2
        expected = theirs([o["t1"], o["t2"]], [o["s1"], o["s2"]], teacher_temp=heat)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        ours.after(step + 1, 100)
        torch.testing.assert_close(ours.centre, theirs.center.reshape(-1), rtol=1e-5, atol=1e-6)
        assert float(ours.sharp) == pytest.approx(0.04 + 0.03 * (step + 1) / 10)
    kept = ours.centre.clone()
    ours.after(50, 100)  # of a batch that the teacher has not been asked about
    torch.testing.assert_close(ours.centre, kept)
    assert float(ours.sharp) == pytest.approx(0.07)


@every
def test_parts_of_a_batch_add_up_or_are_refused(name: str) -> None:
    o, kind = outputs(), OBJECTIVES[name]
    whole = loss_of(kind(D), o)
    halves = [
        loss_of(kind(D), {key: value[part] for key, value in o.items()}) for part in (slice(N // 2), slice(N // 2, N))
    ]
    assert torch.allclose(whole, sum(halves) / 2, rtol=1e-5) == kind.additive
    if kind.additive:
        assert recipe(name, "train.accumulate=2").train.accumulate == 2
    else:
        with pytest.raises(
            ValueError, match=rf"{kind.title} compares .* train\.accumulate = 2 is for byol and simsiam"
        ):
            recipe(name, "train.accumulate=2")


@every
def test_a_step_has_a_loss_a_spread_and_a_gradient_for_every_weight(name: str) -> None:
    for family in ("none", "gaussian", "ecmp"):
        module = learner(name, f"posterior.family={family}")
        step = module(*batch(module))
        step.loss.backward()
        assert all(value.shape == () and value.isfinite() and value.dtype == torch.float32 for value in step)
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.student.parameters())
        assert (float(step.kl) > 0) == (family != "none")
        assert float(step.loss) == pytest.approx(float(step.ssl + 0.1 * step.kl), rel=1e-5)
        assert float(step.spread) > 0.1
    assert (module.teacher is not None) == (module.ema is not None) == (name in TEACHERS)
    assert (module.network.predictor is not None) == (name in {"byol", "simsiam", "moco"})


@every
@pytest.mark.parametrize(("family", "steps"), [("gaussian", 3), ("emp", 1)])
def test_without_noise_it_is_the_published_method(name: str, family: str, steps: int) -> None:
    """σ = 0 and β = 0: the losses, gradients and running statistics of none; of components while they are alike."""
    plain = learner(name, "posterior.family=none")
    still = learner(name, f"posterior.family={family}", "posterior.log_var=-100000")
    data = batch(plain)[:2]
    for module in (plain, still):
        module.found = []
        optimizer = torch.optim.SGD(module.student.parameters(), 0.05)
        for step in range(steps):
            out = module(*data, torch.tensor(0.0))
            optimizer.zero_grad()
            out.loss.backward()
            module.found.append((out.ssl, means(module), {n: b.clone() for n, b in module.network.named_buffers()}))
            optimizer.step()
            module.update_teacher(step + 1, steps)
    torch.testing.assert_close(still.found, plain.found, rtol=1e-4, atol=1e-5)


@every
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_loss_compiles_as_one_graph(name: str, backend: str) -> None:
    """Behind the views, which are compiled in test_views.py; the whole step on a GPU is in tests/gpu."""
    module = learner(name)
    views = torch.randn(2, N, 1, 8, 8)
    noise = module.student.noise()

    def loss() -> Tensor:
        return module.objective(module.student, module.teach, *views)[0] + module.kl()

    torch._dynamo.reset()
    found, start = [], {n: b.clone() for n, b in module.objective.named_buffers()}
    for run in (torch.compile(loss, backend=backend, fullgraph=True), loss):
        module.zero_grad()
        with module.student.draw(noise=noise):
            value = run()
        value.backward()
        found.append((value.detach(), means(module), [b.clone() for b in module.objective.buffers()]))
        for name, buffer in module.objective.named_buffers():
            buffer.copy_(start[name])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@every
def test_bfloat16_computes_the_loss_in_float32(name: str) -> None:
    module = learner(name, "posterior.family=none")
    exact = module(*batch(module)).loss
    with torch.autocast("cpu", torch.bfloat16):
        rounded = module(*batch(module)).loss
    assert rounded.dtype == torch.float32
    assert float(rounded) == pytest.approx(float(exact), rel=0.05, abs=0.02)


@every
def test_a_collapse_is_seen(name: str) -> None:
    """Features that are the same for all images: the spread is below the 0.1 at which the loop gives its alarm."""
    module = learner(name)
    for image in (0, 255):
        images = torch.full((N, 1, 8, 8), image, dtype=torch.uint8)
        module(images, *batch(module)[1:])
    assert float(module(torch.zeros_like(images), *batch(module)[1:]).spread) < 0.1


@every
def test_a_run_in_pieces_equals_a_run_in_one_and_is_restored(name: str, tmp_path: Path) -> None:
    settings = recipe(name, "posterior.prior=teacher-mean")
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert start(settings, whole)
    assert not start(recipe(name, "posterior.prior=teacher-mean", "train.minutes=1e-9"), pieces)
    assert start(settings, pieces, resume=True)
    assert differences(state(whole), state(pieces)) == []
    saved = state(whole)["module"]
    assert "ema.mean_0" in saved  # which the prior keeps, with a teacher or without
    assert ("objective.centre" in saved and bool(saved["objective.centre"].any())) == (name == "dino")
    module, found = restore(whole)
    assert found == recipe(name, "posterior.prior=teacher-mean", "train.compile=false", "train.precision=32-true")
    assert not module.training
    assert differences(saved, dict(module.state_dict())) == []
    assert features(module, images(5), draws=2).shape == (2, 5, 12)
    if name in TEACHERS:
        assert features(module, images(5), network="teacher").shape == (5, 12)
    else:
        with pytest.raises(ValueError, match=f"{OBJECTIVES[name].title} has no teacher"):
            features(module, images(5), network="teacher")


@pytest.mark.slow
def test_every_objective_is_probed_pruned_and_reported(tmp_path: Path, call: Any) -> None:
    runs = []
    for name, family in [("vicreg", "none"), ("vicreg", "emp"), *((name, "gaussian") for name in LIGHTLY)]:
        run = tmp_path / f"{name}_{family}"
        assert start(recipe(name, f"posterior.family={family}"), run)
        here = ["--trust", "--device", "cpu"]
        assert call("probe", run, "--samples", 2, "--fit-samples", 1, "--out", run / "probe.json", *here)[0] == 0
        by = ["--by", "magnitude" if family == "none" else "snr"]
        assert call("prune", run, *by, "--out", run / "pruned.safetensors", *here)[0] == 0
        runs.append(run)
    page = tmp_path / "report.html"
    status, _, error = call("report", *runs, "--out", page, "--samples", 2, "--device", "cpu", "--trust")
    assert status == 0, error
    text = page.read_text()
    gaussian = [f"{OBJECTIVES[name].title}, Gaussian" for name in LIGHTLY if name != "byol"]
    assert [label for label in ("BYOV", "VICReg", "VICReg, EMP", *gaussian) if f'"{label}"' not in text] == []


class Own(OBJECTIVES["simsiam"]):  # type: ignore[misc]
    """One's own, named by a recipe as `python:test_objectives:Own`."""

    title = "Own"


def test_an_objective_is_named_by_a_recipe() -> None:
    assert recipe("vicreg").ssl.objective == "vicreg"
    assert learner(f"python:{Path(__file__).stem}:Own").objective.title == "Own"
    own = load_config(Pretrain, None, ["ssl.objective=simclr", "ssl.temperature=0.5"])
    assert (own.model.hidden, own.model.outputs, own.ssl.tau_base) == (2048, 128, 0.99)
    assert learner("simclr", "ssl.temperature=0.5").objective.temperature == 0.5
    assert learner("vicreg", "ssl.weights=[1, 2, 3]").objective.weights == (1.0, 2.0, 3.0)
    for changes, sentence in (
        (["ssl.objective=vicrec"], "no objective called 'vicrec': byol, simsiam"),
        (["ssl.objective=python:students:encoder"], "not a subclass of"),
        (["ssl.objective=vicreg", "ssl.temperature=1"], "VICReg has no temperature"),
        (["ssl.objective=barlow", "ssl.weights=[1, 2]"], "Barlow Twins has 1 weights"),
        (["ssl.weights=[1]"], "BYOL has 0 weights"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load_config(Pretrain, None, changes)


def test_the_command_takes_the_objective(tmp_path: Path, call: Any) -> None:
    status, _, error = call("pretrain", "--objective", "nonsense", "--run", tmp_path / "run")
    assert (status, "no objective called 'nonsense'" in error, (tmp_path / "run").exists()) == (2, True, False)
    assert objective("dino") is OBJECTIVES["dino"]


# Two processes


def split_step(name: str, rank: int, world: int) -> dict[str, Any]:
    """The loss of a part of the batch, and the gradients and the centre that come of all parts."""
    module = learner(name, "posterior.shared_draw=true")
    images, uniforms, beta = batch(module)
    if world > 1:
        module.student.net = synchronise(module.student.net, torch.device("cpu"))
        module.teacher = None if module.teacher is None else synchronise(module.teacher, torch.device("cpu"))
    run = DDP(module, broadcast_buffers=False) if world > 1 else module
    with module.student.draw(generator=torch.Generator().manual_seed(3)):
        step = run(images[rank::world], uniforms[:, rank::world], beta)
    step.loss.backward()
    module.update_teacher(1, 10)
    centre = module.objective.state_dict().get("centre", torch.zeros(()))
    return {"ssl": step.ssl, "centre": centre, "gradients": means(module)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_two_processes(__file__, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@every
def test_two_processes_equal_one(ranks: list[dict[str, Any]], name: str) -> None:
    """Half of the batch each: the mean loss, the gradients and the centre are those of one process with all of it."""
    one, parts = split_step(name, 0, 1), [rank[name] for rank in ranks]
    torch.testing.assert_close(sum(part["ssl"] for part in parts) / RANKS, one["ssl"], rtol=1e-5, atol=1e-5)
    for part in parts:
        torch.testing.assert_close(part["gradients"], one["gradients"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(part["centre"], one["centre"], rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    take_part(lambda rank: {name: split_step(name, rank, RANKS) for name in LIGHTLY})
