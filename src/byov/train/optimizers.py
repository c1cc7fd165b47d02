"""Optimizers for networks and posteriors: a flat tensor is treated as the layers' tensors that it contains.

BYOL and similar methods exclude biases and norms from weight decay and from LARS's adaptation; plain SGD recipes decay
them too (`decay="all"`). In a `BayesianModule`, one flat tensor holds weights, biases and norms of many layers, so each
parameter comes with its *segments*, and a record of which of them are *regular*, that is, not excluded. A log-variance
is never decayed or adapted: its zero means σ = 1, and only the KL should pull it there. Its gradient is about σ times
that of a weight, and varies as much between layers: under SGD and LARS, whose steps are proportional to it, it would
hardly move. So there it can be updated by Adam (`log_var="adam"`), in units of the same learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import unwrap
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from byov.posterior.factor import Factor
from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.posterior.objective import LOG_VAR_EPS
from byov.posterior.select import norm_layers

Name = Literal["adamw", "adam", "sgd", "lars"]
LogVar = Literal["same", "adam"]
Decay = Literal["weights", "all"]
Group = dict[str, Any]


def parameter_groups(model: nn.Module, weight_decay: float = 0.0, decay: Decay = "weights") -> list[Group]:
    """Sort the trainable parameters into up to three groups: `weights`, `excluded` (biases and norms) and `log_var`.

    With `decay="all"`, biases and norms belong to the `weights`.

    A flat tensor belongs to the `weights`, with its segments: `sizes` has for each parameter the lengths of its
    segments along the last dimension, or None if it is not split; `regular` has for each segment whether it is decayed
    and adapted. Both are plain lists, so that they are saved with the optimizer's state.
    """
    if decay not in get_args(Decay):
        raise ValueError(f"An optimizer's decay is 'weights' or 'all', not {decay!r}.")
    nets = {factor: m.net for m in model.modules() if isinstance(m, BayesianModule) for factor in m.q}
    groups: dict[str, Group] = {
        "weights": {"params": [], "sizes": [], "regular": [], "decay": weight_decay},
        "excluded": {"params": [], "adapt": False, "decay": 0.0},
        "log_var": {"params": [], "adapt": False, "decay": 0.0, "eps": LOG_VAR_EPS},
    }
    for parameter, [(name, module), *_] in occurrences(model):
        if not parameter.requires_grad:
            continue
        role = "weights"
        if isinstance(module, Factor) and name.endswith("logits"):  # mixing probabilities, per layer
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
    """Check whether a parameter is decayed and adapted: not a bias, a norm's, or another vector (a layer scale)."""
    return len(shape) > 1 and "bias" not in name.rpartition(".")[2] and not norm_layers(name, module, torch.empty(0))


def _segments(tensor: Tensor, sizes: list[int] | None) -> list[Tensor]:
    """Return views of the segments; K components have K·S of them, since each is a separate network."""
    if sizes is None:
        return [tensor]
    rows = tensor.unbind() if tensor.dim() > 1 else (tensor,)
    return [piece for row in rows for piece in torch.split(row, sizes)]


def _regular_segments(group: Group, tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Return the regular segments of tensors, one per parameter of the group; None (no gradient) has none."""
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
    """Compute g + λw in new tensors (None without a gradient); only regular segments are decayed."""
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


class _SegmentDecay(Optimizer):
    """One of torch's optimizers that decays only regular segments, and leaves groups marked `by_adam` to Adam.

    Decay is coupled, an L2 penalty whose gradient λw is added to g, or `decoupled`: w ← (1 − lr·λ)w before the step.
    The gradients themselves are not modified.
    """

    decoupled = False

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, **options)
        self._step_supports_amp_scaling = False  # else skipped steps decay, and g is scaled when λw is added

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _evaluate(closure)
        groups = self.param_groups
        decayed = [group for group in groups if group["decay"]]
        gradients = [(p, p.grad) for group in decayed for p in group["params"]]
        try:
            for group in decayed:
                self._decay(group)
            self.param_groups = [group for group in groups if not group.get("by_adam")]
            unwrap(super().step)(self)  # unwrapped: torch already runs the step hooks around this method
        finally:
            self.param_groups = groups
            for parameter, gradient in gradients:
                parameter.grad = gradient
        for group in groups:
            if group.get("by_adam"):
                _move_by_adam(self, group)
        return loss

    def _decay(self, group: Group) -> None:
        if not self.decoupled:
            for parameter, gradient in zip(group["params"], _decayed_gradients(group), strict=True):
                parameter.grad = gradient
        elif weights := _regular_segments(group, _with_gradient(group)):
            torch._foreach_mul_(weights, 1.0 - group["lr"] * group["decay"])


class _AdamW(_SegmentDecay, torch.optim.AdamW):
    decoupled = True


class _Adam(_SegmentDecay, torch.optim.Adam): ...


class _SGD(_SegmentDecay, torch.optim.SGD): ...


def _move_by_adam(optimizer: Optimizer, group: Group) -> None:
    """Take an Adam step on one group of another optimizer, sharing its state."""
    eps = group.get("eps", 1e-8)  # older states have no eps for ρ
    adam = torch.optim.Adam(group["params"], lr=group["lr"], eps=eps, fused=_fused(group["params"]))
    adam.state = optimizer.state
    for parameter in group["params"]:
        # In a loaded state it is still on the CPU: torch moves it only for optimizers that it knows to be fused.
        if "step" in (state := optimizer.state.get(parameter, {})):
            state["step"] = state["step"].to(parameter.device)
    adam.step()


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


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
    """Build an optimizer by name; torch's own if nothing is decayed and no group is left to Adam.

    `adamw` and `adam` use `betas`; `sgd` and `lars` use `momentum` and `log_var`; `sgd` also `nesterov`, and `lars`
    `eta`. The weight decay of `adamw` is decoupled, that of the others is an L2 penalty. All but `lars`, which decays
    what it adapts, accept `decay`: weights only, or biases and norms too; log-variances are never decayed.
    """
    if name not in get_args(Name):
        raise ValueError(f"An optimizer is 'adamw', 'adam', 'sgd' or 'lars', not {name!r}.")
    _check(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta)
    if log_var not in get_args(LogVar):
        raise ValueError(f"An optimizer's log_var is 'same' or 'adam', not {log_var!r}.")
    groups = parameter_groups(model, weight_decay, decay)
    if name in ("adamw", "adam"):
        options: Group = {"lr": lr, "betas": betas, "weight_decay": 0.0, "fused": _fused(model.parameters())}
        if name == "adamw":
            return (_AdamW if weight_decay else torch.optim.AdamW)(groups, **options)
        return (_Adam if weight_decay else torch.optim.Adam)(groups, **options)
    for group in groups:
        group["by_adam"] = log_var == "adam" and group["role"] == "log_var"
    if name == "lars":
        if decay != "weights":
            raise ValueError("An optimizer that decays 'all' is not LARS: it decays what it adapts, which is weights.")
        return LARS(groups, lr, momentum, eta)
    if nesterov and momentum == 0:
        raise ValueError("An optimizer with Nesterov's momentum needs a momentum above 0.")
    options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.0}
    kind = _SGD if weight_decay or log_var == "adam" else torch.optim.SGD
    return kind(groups, **options, fused=_fused(model.parameters()))


def _fused(parameters: Iterable[Tensor]) -> bool | None:
    """Return True if torch has a fused kernel, one pass over each flat tensor: ten times as fast on a CPU."""
    trained = [p for p in parameters if p.requires_grad]
    return True if all(p.device.type in ("cuda", "cpu") and p.is_floating_point() for p in trained) else None


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"An optimizer's {name} is a number of at least 0, not {value}.")
