"""How a network's outputs are interpreted: which tensor is predicted, and the task that defines its meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

Task = Literal["classification", "probabilities", "regression", "gaussian", "multilabel", "token", "segmentation"]
Output = str | int | Callable[[Any], Any]

CLASSES = ("classification", "probabilities", "token", "segmentation")
"""Tasks that predict the probabilities of mutually exclusive classes."""
LOGITS = ("logits", "out")
"""Name of the tensor in the outputs of Hugging Face, and of torchvision's segmentation networks."""
LOG_VARIANCES = ("log_var", "logvar", "log_variance")
PROBLEMS: dict[str, Task] = {"regression": "regression", "multi_label_classification": "multilabel"}
"""Tasks named in the configuration of a Hugging Face network; its third problem type is a classification."""


class OutputSpec:
    """The interpretation of a network's outputs: the user's task and output, or what the returned value suggests.

    Without a task, the shape in the first pass decides: (N, C) is a classification, (N, C, H, W) a segmentation. A
    Hugging Face network gives further hints: `config.problem_type`, and names such as TokenClassifierOutput or
    CausalLMOutput. Ambiguous outputs raise an error.
    """

    def __init__(self, task: Task | None, output: Output | None, net: nn.Module) -> None:
        if task is not None and task not in get_args(Task):
            *others, last = map(repr, get_args(Task))
            raise ValueError(f"A task is {', '.join(others)} or {last}, not {task!r}.")
        if output is not None and (isinstance(output, bool) or not (isinstance(output, str | int) or callable(output))):
            raise TypeError(f"An output is a name, an index in a tuple or a function, not {output!r}.")
        self.task, self.output, self.net = task, output, net
        self.undecided = task is None
        self._returned = ""

    @property
    def causal(self) -> bool:
        """Return whether the last output was a causal language model's: each token predicts the next one."""
        return "CausalLM" in self._returned

    @property
    def configured(self) -> Task | None:
        """Return the task named in a Hugging Face network's configuration, if any."""
        problem = getattr(getattr(self.net, "config", None), "problem_type", None)
        return PROBLEMS.get(problem) if self._returned and isinstance(problem, str) else None

    def tensor(self, returned: Any) -> Tensor:
        """Return the tensor to predict from the value that the network returns."""
        self._returned = type(returned).__name__ if self.output in (None, "logits") else ""
        if isinstance(self.output, str | int):
            returned = _named(returned, self.output)
        elif self.output is not None:
            returned = self.output(returned)
        found = _pair(returned) if self.task == "gaussian" else returned
        found = _logits(found) if self.output is None else found
        if not isinstance(found, Tensor):
            what = "The output" if self.output is not None else "What the network returns"
            raise TypeError(
                f"{what} must be one tensor, not {type(found).__name__}: add output=, a name or a function."
            )
        return found

    def shaped(self, outputs: Tensor) -> Tensor:
        """Decide the task if it is open, and bring outputs (K, N, …) to its shape; a single logit z becomes (0, z)."""
        shape = tuple(outputs.shape[1:])
        if not outputs.is_floating_point():
            raise TypeError(
                f"predict averages floating-point outputs, not {outputs.dtype}: add output= to choose others."
            )
        self.task = task = self.task or self._decide(shape)
        if task in SHAPES and not SHAPES[task][0](shape):
            raise ValueError(f"{SHAPES[task][1]}, not a tensor of shape {shape}.")
        if task not in CLASSES:
            return outputs
        outputs = outputs[..., None] if len(shape) == 1 else outputs
        dim = class_dim(task, outputs)
        if outputs.shape[dim] > 1:
            return outputs
        return torch.cat([1 - outputs if task == "probabilities" else torch.zeros_like(outputs), outputs], dim)

    def values(self, outputs: Tensor) -> Tensor:
        """Return each draw's prediction (K, N, …) from `shaped` outputs: in float32 at least, in its own memory."""
        dtype = outputs.dtype if outputs.dtype.itemsize >= 4 else torch.float32
        if self.task == "multilabel":
            return outputs.to(dtype).sigmoid()
        if self.task in CLASSES and self.task != "probabilities":
            return outputs.softmax(class_dim(self.task, outputs), dtype=dtype)
        return outputs.to(dtype, copy=True)

    def are_probabilities(self, outputs: Tensor) -> Tensor | None:
        """Return whether the rows sum to one, as a tensor (no synchronisation); None if it does not matter."""
        if self.task != "probabilities" and not (self.undecided and self.task in CLASSES):
            return None
        whole = outputs.dtype.itemsize >= 4
        close = (1e-5 if whole else 1e-2) if self.undecided else (1e-3 if whole else 2e-2)
        sums = outputs.sum(class_dim(self.task, outputs), dtype=torch.promote_types(outputs.dtype, torch.float32))
        return ((sums - 1).abs() <= close).all() & (outputs >= 0).all()

    def confirm_task(self, are_probabilities: bool | None) -> None:
        """Raise if the first batch shows that the task is wrong; otherwise the task is final."""
        if self.task == "probabilities" and are_probabilities is False:
            raise ValueError(
                "task='probabilities' needs rows that are at least 0 and sum to one over dimension 1, unlike these"
                " outputs: use task='classification' for logits, 'multilabel' for one logit per label."
            )
        if self.undecided and are_probabilities:
            self.task = None
            raise ValueError(
                "The network's outputs sum to one, as probabilities do: add task='probabilities', or"
                " task='classification' ('token', 'segmentation') if they are logits after all."
            )
        self.undecided = False

    def _decide(self, shape: tuple[int, ...]) -> Task:
        """Return the task given by the shape (N, …) and the network's own hints; raise if it is ambiguous."""
        if len(shape) == 2 and (configured := self.configured) is not None:
            return configured
        tokens = len(shape) == 3 and ("Token" in self._returned or "LM" in self._returned)
        if len(shape) == 3 and not tokens:
            raise ValueError(
                f"Outputs {shape} may have classes in either dimension: add task='token' for (B, L, C), 'segmentation'"
                " for (N, C, L), or 'regression'."
            )
        if len(shape) < 2 or shape[-1 if tokens else 1] == 1:
            raise ValueError(
                f"The network returns one number per position, {shape}: add task='classification' ('token',"
                " 'segmentation') if it is a logit, 'probabilities' if it is a probability, or 'regression'."
            )
        return "token" if tokens else "classification" if len(shape) == 2 else "segmentation"


SHAPES: dict[str, tuple[Callable[[tuple[int, ...]], bool], str]] = {
    "classification": (lambda s: len(s) in (1, 2) or len(s) > 3, "A classifier returns logits (N, C)"),
    "probabilities": (lambda s: len(s) > 0, "Probabilities are (N, C)"),
    "gaussian": (lambda s: len(s) > 1 and s[1] % 2 == 0, "Means and log-variances are halves of dimension 1, (N, 2 T)"),
    "multilabel": (lambda s: len(s) == 2, "Several labels' logits are (N, C)"),
    "token": (lambda s: len(s) == 3, "Tokens' logits are (B, L, C)"),
    "segmentation": (lambda s: len(s) > 2, "A segmentation's logits are (N, C, H, W)"),
}
"""The shapes (N, …) that a task accepts, and the error for others. A regression accepts all."""


def class_dim(task: str | None, of: Tensor, draws: int = 1) -> int:
    """Return the dimension of the classes after `draws` leading dimensions: 1, or the last one for tokens."""
    return of.ndim - 1 if task == "token" else 1 + draws


def _named(returned: Any, output: str | int) -> Any:
    """Return the output with this name, or at this index of a tuple."""
    names = _names(returned)
    if isinstance(output, int):
        places = list(names.values()) if names else returned
        if isinstance(places, tuple | list) and -len(places) <= output < len(places):
            return places[output]
    elif output in names:
        return names[output]
    other = "one tensor" if isinstance(returned, Tensor) else f"a {type(returned).__name__}"
    have = ", ".join(map(repr, names)) or other
    near = get_close_matches(str(output), map(str, names), 1)
    raise ValueError(f"The network returns {have}, without an output {output!r}{f': {near[0]!r}?' if near else '.'}")


def _names(returned: Any) -> dict[str, Any]:
    """Return the outputs by name if they are a mapping, a named tuple or a dataclass; else an empty dictionary."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if is_dataclass(returned):
        return {field.name: getattr(returned, field.name) for field in fields(returned)}
    return returned._asdict() if isinstance(returned, tuple) and hasattr(returned, "_asdict") else {}


def _logits(returned: Any) -> Any:
    """Return the tensor named in `LOGITS`, or the only one; raise if the user has to choose."""
    if isinstance(returned, Tensor):
        return returned
    names = _names(returned)
    if found := [names[name] for name in LOGITS if isinstance(names.get(name), Tensor)]:
        return found[0]
    inside = list(names.values()) if names else returned if isinstance(returned, tuple | list) else []
    if any(isinstance(boxes, Mapping) for part in inside for boxes in (part if isinstance(part, list) else [part])):
        raise TypeError(
            "A detector's boxes differ in number and order between draws, so they have no mean: add output=, a"
            " function that returns one tensor (N, …)."
        )
    if len(inside) == 1:
        return inside[0]
    if names:
        raise TypeError(f"The network returns {', '.join(map(repr, names))}: add output= and the name of one.")
    if inside:
        raise TypeError(
            f"The network returns a {type(returned).__name__} of {len(inside)}: add output=0, or another place."
        )
    return returned


def _pair(returned: Any) -> Any:
    """Join a mean and a log-variance, returned as a pair or under these names, into one tensor."""
    names = _names(returned)
    if "mean" in names and (found := [names[name] for name in LOG_VARIANCES if name in names]):
        returned = names["mean"], found[0]
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not all(isinstance(p, Tensor) for p in returned):
        return returned
    mean, log_var = returned
    if mean.shape != log_var.shape or mean.ndim == 0:
        raise ValueError(
            f"A mean and its log-variance have the same shape, not {tuple(mean.shape)} and {tuple(log_var.shape)}."
        )
    return torch.stack([mean, log_var], 1) if mean.ndim == 1 else torch.cat([mean, log_var], 1)
