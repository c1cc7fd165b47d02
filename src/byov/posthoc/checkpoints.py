"""byov.from_checkpoints: a deep ensemble of already trained networks as a posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.bayesianize import bayesianize
from byov.posterior.mixture import Ensemble
from byov.posterior.module import BayesianModule
from byov.prediction.inputs import unwrap

INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts store a network's state, next to the optimizer's."""
WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that DDP and torch.compile add to every name."""

Checkpoint = nn.Module | Mapping[str, Any] | str | PathLike[str]


def from_checkpoints(checkpoints: Iterable[Checkpoint], net: nn.Module | None = None) -> BayesianModule:
    """Build an explicit ensemble of trained networks: each is a member, with its buffers, and all are equally likely.

    `byov.predict(model, x, samples="members")` averages the predictions of all members, each once. In eval mode the
    model itself uses the mean of their weights, which is not a good network unless they come from the same one.

    Args:
        checkpoints: at least two state dicts, modules, or files (.safetensors, or written by `torch.save` and read with
            `weights_only=True`). The state may be nested under "state_dict" or "model", and its names may have the
            prefix "module.".
        net: a network of the same architecture, which is copied; by default the first checkpoint that is a module.

    Example:
        >>> model = byov.from_checkpoints(["seed0.pt", "seed1.pt", "seed2.pt"], net=resnet18(num_classes=10))
        >>> byov.predict(model, x, samples="members")
    """
    if isinstance(checkpoints, nn.Module | Mapping | str | PathLike):
        raise TypeError("from_checkpoints takes a list of checkpoints, not one.")
    given = list(checkpoints)
    if len(given) < 2:
        raise ValueError(f"An ensemble needs at least 2 checkpoints, not {len(given)}.")
    if net is None:
        net = next((each for each in given if isinstance(each, nn.Module)), None)
    if net is None:
        raise ValueError("The checkpoints do not define their network: pass one as net=.")
    net, states = unwrap(net), []
    for i, each in enumerate(given, start=1):
        name = f"Checkpoint {i}" if not isinstance(each, str | PathLike) else f"Checkpoint {Path(each).name}"
        states.append(_fitting(_state(each, name), net.state_dict(), name))
    model = bayesianize(net, {"*": Ensemble(len(given))})
    _write(model, states)
    return model.eval()


@torch.no_grad()
def _write(model: BayesianModule, states: list[dict[str, Tensor]]) -> None:
    (factor,) = model.factors
    components = factor.get_parameter("components")
    for i, state in enumerate(states):
        components[i] = factor.layout.flatten(state).to(components)
        for name in factor.buffer_names:
            if name in state:  # non-persistent buffers are not saved; they keep the network's values
                factor.get_buffer(name.replace(".", "/"))[i].copy_(state[name])


def _state(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    """Return the state of the network in a checkpoint of any kind."""
    if isinstance(checkpoint, nn.Module):
        return unwrap(checkpoint).state_dict()
    if isinstance(checkpoint, str | PathLike):
        checkpoint = _read(Path(checkpoint), name)
    if not isinstance(checkpoint, Mapping):
        raise TypeError(f"{name} is neither a file, a state dict nor a module, but {type(checkpoint).__name__}.")
    inside = next((checkpoint[key] for key in INSIDE if isinstance(checkpoint.get(key), Mapping)), checkpoint)
    for wrapper in WRAPPERS:
        if inside and all(str(key).startswith(wrapper) for key in inside):
            inside = {key.removeprefix(wrapper): value for key, value in inside.items()}
    return inside


def _read(path: Path, name: str) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # an unpickler may raise anything on an invalid file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise ValueError(f"{name} cannot be read as tensors alone ({reason}).") from error


def _fitting(state: Mapping[str, Any], own: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the state if it has the same architecture as `own`; otherwise raise an error that names the difference."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    other = f"{name} is from a different network than net"
    if missing := [key for key in own if key not in tensors]:
        raise ValueError(f"{other}: it has no {missing[0]!r}{_more(len(missing) - 1)}.")
    if unknown := [key for key in tensors if key not in own]:
        raise ValueError(f"{other}: it has a {unknown[0]!r}{_more(len(unknown) - 1)} that net does not have.")
    for key, value in own.items():
        if tensors[key].shape != value.shape:
            raise ValueError(f"{other}: its {key!r} is {tuple(tensors[key].shape)}, net's {tuple(value.shape)}.")
    return tensors


def _more(count: int) -> str:
    return f" and {count} more" if count else ""
