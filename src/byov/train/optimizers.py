"""Optimizers for networks and posteriors alike: a flat tensor is treated as the layers' tensors that it holds.

BYOL and its kin exclude biases and norms from weight decay, and from LARS's adaptation; plain SGD's recipes decay them
with the rest (`decay="all"`). On a `BayesianModule` one flat
tensor holds weights, biases and norms of many layers, so every parameter comes with the *segments* it is made of, and
which of them are *regular*, that is, not excluded. A log-variance is never decayed nor adapted: its zero means σ = 1,
and nothing pulls it there but the KL. Its gradient is about σ times that of a weight, and differs as much between
layers: under SGD and LARS, whose steps are in proportion to it, it would stay where it started. So there it may be
moved by Adam (`log_var="adam"`), in units of the same learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import unwrap
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adam import adam as adam_step

from byov.posterior.factor import Factor
from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.posterior.select import norm_layers

Name = Literal["adamw", "adam", "sgd", "lars"]
LogVar = Literal["same", "adam"]
Decay = Literal["weights", "all"]
Group = dict[str, Any]


def parameter_groups(model: nn.Module, weight_decay: float = 0.0, decay: Decay = "weights") -> list[Group]:
    """The trainable parameters in up to three groups: `weights`, `excluded` (biases and norms) and `log_var`.

    With `decay="all"` biases and norms are among the `weights`.

    A flat tensor is among the `weights`, with its segments: `sizes` has for each parameter the lengths of its
    segments along the last dimension, or None for a parameter that is one whole; `regular` says of each segment
    whether it is decayed and adapted. Both are plain lists, so that they travel with the optimizer's state.
    """
    if decay not in get_args(Decay):
        raise ValueError(f"An optimizer's decay is of 'weights' or 'all', not {decay!r}.")
    nets = {factor: m.net for m in model.modules() if isinstance(m, BayesianModule) for factor in m.q}
    groups: dict[str, Group] = {
        "weights": {"params": [], "sizes": [], "regular": [], "decay": weight_decay},
        "excluded": {"params": [], "adapt": False, "decay": 0.0},
        "log_var": {"params": [], "adapt": False, "decay": 0.0},
    }
    for parameter, [(name, module), *_] in occurrences(model):
        if not parameter.requires_grad:
            continue
        role = "weights"
        if isinstance(module, Factor) and name.endswith("logits"):  # mixing probabilities, as many as there are layers
            role = "excluded"
        elif isinstance(module, Factor):
            if name.endswith("log_var"):
                role = "log_var"
            sizes: list[int] | None = list(module.layout.sizes)
            slots = module.layout.slots
            regular = [_regular(slot.name, nets[module].get_submodule(slot.layer), slot.shape) for slot in slots]
        else:
            sizes, regular = None, [_regular(name, module, tuple(parameter.shape))]
            role = "weights" if regular[0] or decay == "all" else "excluded"
        if decay == "all":
            sizes, regular = None, [True]
        groups[role]["params"].append(parameter)
        if role == "weights":
            groups[role]["sizes"].append(sizes)
            groups[role]["regular"].append(regular)
    if not any(group["params"] for group in groups.values()):
        raise ValueError(f"{type(model).__name__} has no trainable parameters.")
    return [{"role": role, **group} for role, group in groups.items() if group["params"]]


def _regular(name: str, module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is decayed and adapted: not a bias, a norm's, or another vector (a layer scale)."""
    return len(shape) > 1 and "bias" not in name.rpartition(".")[2] and not norm_layers(name, module, torch.empty(0))


def _segments(tensor: Tensor, sizes: list[int] | None) -> list[Tensor]:
    """Views of the segments; those of K components are K·S, for each component is a network of its own."""
    if sizes is None:
        return [tensor]
    rows = tensor.unbind() if tensor.dim() > 1 else (tensor,)
    return [piece for row in rows for piece in torch.split(row, sizes)]


def _regular_segments(group: Group, tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """The regular segments of one tensor per parameter of the group; None, a parameter without gradient, has none."""
    found: list[Tensor] = []
    if "regular" not in group:
        return [t for t in tensors if t is not None] if group.get("adapt", True) else found
    for tensor, sizes, regular in zip(tensors, group["sizes"], group["regular"], strict=True):
        if tensor is not None and all(regular) and sizes is None:
            found.append(tensor)
        elif tensor is not None:
            pieces = _segments(tensor, sizes)
            found += [p for p, keep in zip(pieces, regular * (len(pieces) // len(regular)), strict=True) if keep]
    return found


def _with_gradient(group: Group) -> list[Tensor | None]:
    return [p if p.grad is not None else None for p in group["params"]]


def _decayed_gradients(group: Group) -> list[Tensor | None]:
    """g + λw in new tensors, None where there is no gradient; only regular segments are decayed."""
    gradients = [p.grad.clone() if p.grad is not None else None for p in group["params"]]
    weights = _regular_segments(group, _with_gradient(group)) if group["decay"] else []
    if weights:
        torch._foreach_add_(_regular_segments(group, gradients), weights, alpha=group["decay"])
    return gradients


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017), as in BYOL's code:

        u = g + λw        u ← η‖w‖/‖u‖ · u  (1 where either norm is 0)        m ← μm + u        w ← w − lr·m

    Decay and adaptation are per regular segment. A group may give `sizes` and `regular` as `parameter_groups` does;
    without them each tensor is one segment, regular unless the group says `adapt=False`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        eta: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        _check(lr=lr, momentum=momentum, eta=eta, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "momentum": momentum, "eta": eta, "decay": weight_decay, "adapt": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _evaluate(closure)
        for group in self.param_groups:
            if group.get("by_adam"):
                _move_by_adam(self, group)
                continue
            updates = [p.grad for p in group["params"]]
            if group["decay"] or group["adapt"]:
                updates = _decayed_gradients(group)
            if group["adapt"]:
                _adapt(group, updates)
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                momenta = [self._momentum(p) for p in params]
                torch._foreach_mul_(momenta, group["momentum"])
                torch._foreach_add_(momenta, [u for u in updates if u is not None])
                torch._foreach_add_(params, momenta, alpha=-group["lr"])
        return loss

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def _adapt(group: Group, updates: list[Tensor | None]) -> None:
    weights, pieces = _regular_segments(group, _with_gradient(group)), _regular_segments(group, updates)
    if weights:
        of_w, of_u = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(pieces))
        trust = torch.where((of_w > 0) & (of_u > 0), group["eta"] * of_w / of_u, 1.0)
        torch._foreach_mul_(pieces, trust.unbind())


class _AdamW(torch.optim.AdamW):
    """AdamW that decays regular segments only: w ← (1 − lr·λ)w, then Adam's step."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **options)
        self._step_supports_amp_scaling = False  # else a step that the scaler skips would decay all the same

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _evaluate(closure)
        for group in self.param_groups:
            weights = _regular_segments(group, _with_gradient(group)) if group["decay"] else []
            if weights:
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["decay"])
        # Unwrapped: torch runs the step's hooks around this method already.
        unwrap(torch.optim.AdamW.step)(self)
        return loss


class _Adam(torch.optim.Adam):
    """Adam whose L2 penalty, g + λw, is on regular segments only."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **options)
        self._step_supports_amp_scaling = False  # else the penalty would be added to a scaled gradient

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return _coupled_step(self, unwrap(torch.optim.Adam.step), closure)


class _SGD(torch.optim.SGD):
    """SGD whose L2 penalty, g + λw, is on regular segments only, and which leaves groups marked `by_adam` to Adam."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **options)
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return _coupled_step(self, _sgd_step, closure)


def _sgd_step(optimizer: Optimizer) -> None:
    groups = optimizer.param_groups
    try:
        optimizer.param_groups = [group for group in groups if not group.get("by_adam")]
        unwrap(torch.optim.SGD.step)(optimizer)
    finally:
        optimizer.param_groups = groups
    for group in groups:
        if group.get("by_adam"):
            _move_by_adam(optimizer, group)


def _move_by_adam(optimizer: Optimizer, group: Group) -> None:
    """Adam's step at its defaults on one group of another optimizer, whose state it shares."""
    params = [p for p in group["params"] if p.grad is not None]
    for parameter in params:
        if not optimizer.state[parameter]:
            optimizer.state[parameter] |= {
                "step": torch.zeros((), device=parameter.device, dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    states = [optimizer.state[p] for p in params]
    for parameter, state in zip(params, states, strict=True):
        # A loaded state has it where the file was read: torch moves it only for optimizers that it knows to be fused.
        state["step"] = state["step"].to(parameter.device)
    fused = all(p.device.type in ("cuda", "cpu") for p in params)
    adam_step(
        params,
        [p.grad for p in params],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        foreach=False,
        fused=fused,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        lr=group["lr"],
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )


def _coupled_step(optimizer: Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None) -> Any:
    """One step on g + λw; the gradients themselves are left as they were."""
    loss = _evaluate(closure)
    decayed = [group for group in optimizer.param_groups if group["decay"]]
    kept = [(p, p.grad) for group in decayed for p in group["params"]]
    try:
        for group in decayed:
            for parameter, gradient in zip(group["params"], _decayed_gradients(group), strict=True):
                parameter.grad = gradient
        step(optimizer)
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient
    return loss


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def adamw(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    fused: bool | None = None,
    decay: Decay = "weights",
) -> torch.optim.AdamW:
    """AdamW with decoupled decay of weights, or of biases and norms too; never of log-variances."""
    _check(lr=lr, weight_decay=weight_decay)
    kind = _AdamW if weight_decay else torch.optim.AdamW
    groups = parameter_groups(model, weight_decay, decay)
    return kind(groups, lr=lr, betas=betas, weight_decay=0.0, fused=_fused(model, fused))


def adam(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    fused: bool | None = None,
    decay: Decay = "weights",
) -> torch.optim.Adam:
    """Adam with an L2 penalty on weights, or on biases and norms too; never on log-variances."""
    _check(lr=lr, weight_decay=weight_decay)
    kind = _Adam if weight_decay else torch.optim.Adam
    groups = parameter_groups(model, weight_decay, decay)
    return kind(groups, lr=lr, betas=betas, weight_decay=0.0, fused=_fused(model, fused))


def sgd(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    nesterov: bool = False,
    fused: bool | None = None,
    log_var: LogVar = "same",
    decay: Decay = "weights",
) -> torch.optim.SGD:
    """SGD with momentum and an L2 penalty on weights, or on biases and norms too; never on log-variances."""
    _check(lr=lr, weight_decay=weight_decay, momentum=momentum)
    if nesterov and momentum == 0:
        raise ValueError("An optimizer with Nesterov's momentum needs a momentum above 0.")
    groups = _marked(parameter_groups(model, weight_decay, decay), log_var)
    kind = _SGD if weight_decay or log_var == "adam" else torch.optim.SGD
    return kind(groups, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=0.0, fused=_fused(model, fused))


def lars(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    eta: float = 1e-3,
    log_var: LogVar = "same",
) -> LARS:
    """LARS over the layers' tensors, also where a posterior holds many of them in one."""
    _check(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta)
    return LARS(_marked(parameter_groups(model, weight_decay), log_var), lr, momentum, eta)


def _marked(groups: list[Group], log_var: LogVar) -> list[Group]:
    if log_var not in get_args(LogVar):
        raise ValueError(f"An optimizer's log_var is 'same' or 'adam', not {log_var!r}.")
    return [group | {"by_adam": log_var == "adam" and group["role"] == "log_var"} for group in groups]


def build_optimizer(
    name: Name,
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    eta: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    log_var: LogVar = "same",
    decay: Decay = "weights",
) -> Optimizer:
    """An optimizer by name.

    `adamw` and `adam` take `betas`, `sgd` and `lars` `momentum` and `log_var`, `sgd` `nesterov` and `lars` `eta`; all
    but `lars`, which decays what it adapts, take `decay`.
    """
    if name == "adamw":
        return adamw(model, lr, weight_decay, betas, decay=decay)
    if name == "adam":
        return adam(model, lr, weight_decay, betas, decay=decay)
    if name == "sgd":
        return sgd(model, lr, weight_decay, momentum, nesterov, log_var=log_var, decay=decay)
    if name == "lars":
        if decay != "weights":
            raise ValueError("An optimizer that decays 'all' is not LARS: it decays what it adapts, which is weights.")
        return lars(model, lr, weight_decay, momentum, eta, log_var)
    raise ValueError(f"An optimizer is 'adamw', 'adam', 'sgd' or 'lars', not {name!r}.")


def _fused(model: nn.Module, fused: bool | None) -> bool | None:
    """One pass over each flat tensor where torch has a kernel for it: ten times as fast on a CPU as its default."""
    if fused is not None:
        return fused
    trained = [p for p in model.parameters() if p.requires_grad]
    return True if all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in trained) else None


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"An optimizer's {name} is a number of at least 0, not {value}.")
