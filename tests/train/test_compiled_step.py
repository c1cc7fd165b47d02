"""A compiled step has the gradients of the plain one, and σ → 0 is the deterministic network, compiled or not.

Inductor's CPU code, through the tasks of `byov pretrain` and `byov train`; `tests/gpu` has the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from byov.data import ImageSet
from byov.data.batches import Batch
from byov.posterior import BayesianModule
from byov.ssl.pretrain import Pretrain, PretrainTask
from byov.train.config import load_config
from byov.train.loop import Place
from byov.train.supervised import Supervised, SupervisedTask

CPU = torch.device("cpu")
SSL = ["model.encoder=vit-nano/4", "model.hidden=32", "model.outputs=16"]
LABELS = ["model.name=vit-nano/4", "posterior.beta_end=1.0", "posterior.beta_schedule=constant"]


def digits(count: int = 48) -> ImageSet:
    generator = Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 16, 16), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return ImageSet("noise", images, labels, tuple("abcd"))


def task_of(kind: type, settings: list[str]) -> Any:
    torch.manual_seed(0)
    recipe = load_config(kind, None, settings)
    make = PretrainTask if kind is Pretrain else SupervisedTask
    task = make(recipe, digits(), 1, CPU)
    task.module.train()
    return task


def steps(task: Any, runs: dict[str, Callable[..., Any]], count: int, lr: float = 1e-3) -> Iterator[dict[str, Any]]:
    """Train by AdamW; of each step every run's loss and gradients, at the same weights and under the same draw."""
    optimizer = torch.optim.AdamW(task.trainable().parameters(), lr, weight_decay=0.0)
    for k in range(count):
        generator = Generator().manual_seed(100 + k)
        chosen = torch.randperm(48, generator=generator)[:24]
        batch = Batch(task.data.images[chosen], task.data.labels[chosen], chosen)
        inputs = task.inputs(batch, generator, Place(k, count, 0, 1, CPU))
        found = {}
        for name, run in runs.items():
            optimizer.zero_grad(set_to_none=True)
            torch.manual_seed(k)  # of the draw
            out = run(*inputs)
            out.loss.backward()
            found[name] = float(out.loss.detach()), named_gradients(task.trainable())
        yield found
        optimizer.step()
        task.after(k + 1, count)


def named_gradients(net: nn.Module) -> dict[str, Tensor]:
    """By parameter of the network, so that a small norm's gradient is not lost beside a large layer's."""
    if not isinstance(net, BayesianModule):
        return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    found = {name: p.grad.clone() for name, p in net.net.named_parameters() if p.grad is not None}
    for factor in net.factors:
        for role, parameter in factor.named_parameters():
            assert parameter.grad is not None
            found |= {f"{role} of {n}": g.clone() for n, g in factor.layout.split(parameter.grad).items()}
    return found


STEPS = {
    "BYOL": (Pretrain, [*SSL, "posterior.family=none"]),
    "BYOV": (Pretrain, [*SSL, "posterior.log_var=-6", "posterior.beta_end=1.0", "posterior.beta_schedule=constant"]),
    "BYOV, teacher prior": (Pretrain, [*SSL, "posterior.log_var=-6", "posterior.prior=teacher-normal"]),
    "train, Gaussian": (Supervised, [*LABELS, "posterior.family=gaussian", "posterior.log_var=-6"]),
    "train, EMP": (Supervised, [*LABELS, "posterior.family=emp", "posterior.spread=0.3"]),
    "train, ECMP": (Supervised, [*LABELS, "posterior.family=ecmp", "posterior.spread=0.3"]),
}


SLOW = ("BYOL", "BYOV, teacher prior", "train, Gaussian", "train, ECMP")  # a compilation takes ten seconds


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in STEPS])
def test_a_compiled_step_has_the_gradients_of_the_plain_one(name: str) -> None:
    """Over four steps with the optimizer between them; the compiler draws torch's own random numbers here."""
    torch._dynamo.reset()
    task = task_of(*STEPS[name])
    runs = {"plain": task.module, "compiled": torch.compile(task.module, fullgraph=True)}
    with torch._inductor.config.patch(fallback_random=True):
        for k, found in enumerate(steps(task, runs, 4)):
            (loss, expected), (same, ours) = found["plain"], found["compiled"]
            assert same == pytest.approx(loss, rel=1e-4)
            assert ours.keys() == expected.keys()
            largest = max(float(g.norm()) for g in expected.values())
            for slot, gradient in expected.items():
                if gradient.norm() > 1e-4 * largest:
                    error = float((ours[slot] - gradient).norm() / gradient.norm())
                    assert error < 5e-3, f"step {k}, {slot}: {error:.2g}"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", [Pretrain, Supervised])
def test_without_noise_training_is_that_of_the_deterministic_network(kind: type, compiled: bool) -> None:
    """σ = 2e-9 and no KL: the losses of 30 steps agree, up to how rounding grows on the way."""
    torch._dynamo.reset()
    common = SSL if kind is Pretrain else LABELS[:1]
    sure = task_of(kind, [*common, "posterior.family=gaussian", "posterior.log_var=-40", "posterior.beta_end=0.0"])
    point = task_of(kind, [*common, "posterior.family=none"])
    run = torch.compile(sure.module) if compiled else sure.module
    found = [step["run"][0] for step in steps(sure, {"run": run}, 30, lr=3e-4)]
    expected = [step["run"][0] for step in steps(point, {"run": point.module}, 30, lr=3e-4)]
    assert expected[-1] < 0.9 * expected[0]  # it learns
    assert found == pytest.approx(expected, rel=2e-3)
