"""The contenders of a training step: the plain network, byov's families, and other libraries as their manuals use them.

A contender is a function from a `Task` to a step. The other libraries are imported inside theirs, so that any of them
may be missing. Each starts from the same network, batch and optimizer, draws once per step, and adds its KL as its
manual does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import byov

Loss = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[], Tensor]


@dataclass(frozen=True)
class Task:
    """One network, one batch, one optimizer; `dataset` is the N of KL/N."""

    net: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    dataset: int = 50_000
    lr: float = 1e-3
    bf16: bool = False
    compile: bool = False
    graphs: bool = False
    """Compiled into CUDA graphs, as `byov`'s own loop does it on one GPU."""
    fused: bool | None = None
    """torch's fused AdamW for everybody; None leaves the choice to torch."""

    def autocast(self) -> AbstractContextManager:
        return torch.autocast(self.x.device.type, torch.bfloat16, enabled=self.bf16)

    def prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.compile:
            return function
        return torch.compile(function, mode="reduce-overhead" if self.graphs else None)

    def begin(self) -> None:
        """What the last step's graphs gave may be overwritten from here on."""
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def adamw(self, parameters: Iterable[Tensor], loss: Loss) -> Step:
        """The usual step: AdamW as it comes, on `parameters`. Gradients go at its end: a graph owns their memory."""
        optimizer, loss = torch.optim.AdamW(list(parameters), lr=self.lr, fused=self.fused), self.prepared(loss)

        def step() -> Tensor:
            self.begin()
            with self.autocast():
                value = loss(self.x, self.y)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return value.detach().clone()

        return step


def deterministic(task: Task) -> Step:
    net = task.net()
    return task.adamw(net.parameters(), lambda x, y: F.cross_entropy(net(x), y))


def ours(rules: Any) -> Callable[[Task], Step]:
    def build(task: Task) -> Step:
        model = byov.bayesianize(task.net(), rules)
        return task.adamw(model.parameters(), lambda x, y: F.cross_entropy(model(x), y) + model.kl() / task.dataset)

    return build


def bayesian_torch(task: Task) -> Step:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = task.net()
    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": "Reparameterization",
        "moped_enable": False,
        "moped_delta": 0.5,
    }
    dnn_to_bnn(net, settings)
    net.to(task.x.device)
    return task.adamw(net.parameters(), lambda x, y: F.cross_entropy(net(x), y) + get_kl_loss(net) / len(x))


def torchbayesian(task: Task) -> Step:
    from torchbayesian import bnn

    net = bnn.BayesianModule(task.net())
    return task.adamw(net.parameters(), lambda x, y: F.cross_entropy(net(x), y) + net.kl_divergence() / task.dataset)


def zuko(task: Task) -> Step:
    from zuko.bayesian import BayesianModel

    model = BayesianModel(task.net())

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with model.reparameterize() as net:
            return F.cross_entropy(net(x), y) + model.kl_divergence() / task.dataset

    return task.adamw(model.parameters(), loss)


def posteriors(task: Task) -> Step:
    import posteriors as library
    import torchopt

    net = task.net()
    params = dict(net.named_parameters())

    def log_posterior(params: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with task.autocast():
            out = torch.func.functional_call(net, params, batch[0])
            value = -F.cross_entropy(out, batch[1]) + library.diag_normal_log_prob(params) / task.dataset
        return value, out

    transform = library.vi.diag.build(log_posterior, torchopt.adamw(lr=task.lr), temperature=1 / task.dataset)
    state = transform.init(params)
    update = task.prepared(transform.update)

    def step() -> Tensor:
        nonlocal state
        state, _ = update(state, (task.x, task.y))
        return state.nelbo

    return step


def torch_blue(task: Task) -> Step:
    from torch_blue import vi
    from torch_blue.vi.distributions import Categorical

    net = task.net()
    vi.convert_to_vimodule(net)
    negative_elbo = vi.KullbackLeiblerLoss(Categorical(), dataset_size=task.dataset)
    return task.adamw(net.parameters(), lambda x, y: negative_elbo(net(x, samples=1), y))


def ivon(task: Task) -> Step:
    """IVON is an optimizer itself, so it has no AdamW; the KL is in its update."""
    from ivon import IVON

    net = task.net()
    optimizer = IVON(net.parameters(), lr=0.1, ess=task.dataset)
    loss = task.prepared(lambda x, y: F.cross_entropy(net(x), y))

    def step() -> Tensor:
        task.begin()
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            with task.autocast():
                value = loss(task.x, task.y)
            value.backward()
        optimizer.step()
        return value.detach()

    return step


def blitz(task: Task) -> Step:
    """BLiTZ has no converter: its manual writes the network with its layers, which here take the places of torch's."""
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    def layer(old: nn.Module) -> nn.Module | None:
        bias = getattr(old, "bias", None) is not None
        if isinstance(old, nn.Linear):
            return BayesianLinear(old.in_features, old.out_features, bias=bias)
        if isinstance(old, nn.Conv2d):
            shape = {"stride": old.stride, "padding": old.padding, "dilation": old.dilation, "groups": old.groups}
            return BayesianConv2d(old.in_channels, old.out_channels, old.kernel_size, bias=bias, **shape)
        return None

    net = task.net()
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if (new := layer(child)) is not None:
                setattr(parent, name, new)
    net.to(task.x.device)
    return task.adamw(
        net.parameters(), lambda x, y: F.cross_entropy(net(x), y) + kl_divergence_from_nn(net) / task.dataset
    )


def _patched(family: object) -> dict:
    return {byov.norm_layers: family, byov.output_layer: family}


CONTENDERS: dict[str, Callable[[Task], Step]] = {
    "deterministic": deterministic,
    "byov Gaussian": ours(byov.Gaussian()),
    "byov Dropout": ours(byov.Dropout(0.1)),
    "byov DropConnect": ours(byov.DropConnect(0.1)),
    "byov EMP": ours(_patched(byov.EMP(5))),
    "byov ECMP": ours(_patched(byov.ECMP(5))),
    "byov Ensemble": ours(byov.Ensemble(5)),
    "bayesian-torch": bayesian_torch,
    "torchbayesian": torchbayesian,
    "zuko": zuko,
    "posteriors": posteriors,
    "torch_blue": torch_blue,
    "ivon-opt": ivon,
    "blitz-bayesian-pytorch": blitz,
}
"""Packages by the name that installs them; EMP and ECMP are on the norms and the output, all others on everything."""
