"""For Lightning: a callback that adds β·KL/N to whatever a LightningModule minimises, and anneals β.

    trainer = lightning.Trainer(callbacks=[byov.lightning.KL(n=len(data))])

The module holds a BayesianModule, and its `training_step` returns the average negative log-likelihood of a batch, as it
would without one. For its optimizer: `AdamW(byov.parameter_groups(self, lr, self.trainer.estimated_stepping_batches))`.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from byov.posterior import BayesianModule, beta, elbo
from byov.posterior.objective import Schedule


class KL(Callback):
    """Add the gradient of β·KL/N once to each optimizer step, and log β and the KL.

    The gradient is added once the gradients of a step are complete, before they are clipped. This is correct with
    gradient accumulation, several processes and scaled losses. The logged loss remains the module's own.

    Args:
        n: N, the number of training examples if the loss is a mean over a batch. For a Gaussian with many more weights
            than examples, use `byov.posterior.usual_n` instead.
        beta_end: final β; 1 is Bayes if N is the number of examples.
        beta_start: initial β.
        schedule: "cosine", "linear" or "constant", over all optimizer steps of the training.
    """

    def __init__(self, n: float, beta_end: float = 1.0, beta_start: float = 0.0, schedule: Schedule = "cosine") -> None:
        if not n > 0:
            raise ValueError(f"n is the number of training examples and must be above 0, not {n}.")
        self.n, self.schedule = n, (beta_end, beta_start, schedule)
        beta(0, 1, *self.schedule)  # raises if the schedule is not valid

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not any(isinstance(module, BayesianModule) for module in pl_module.modules()):
            raise TypeError(f"{type(pl_module).__name__} has no posterior: pass its network to byov.bayesianize first.")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Add the gradient by hand: a second backward pass would trigger the hooks that synchronise processes."""
        total = trainer.estimated_stepping_batches
        weight = beta(trainer.global_step, int(total), *self.schedule) if total < float("inf") else self.schedule[0]
        with torch.enable_grad():
            kl = elbo(torch.zeros((), device=pl_module.device), pl_module, n=1.0)
        own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        gradients: tuple[Tensor | None, ...] = torch.autograd.grad(kl, own, allow_unused=True)
        for parameter, gradient in zip(own, gradients, strict=True):
            if gradient is not None:
                gradient = gradient * (weight / self.n)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        pl_module.log_dict({"kl": kl.detach(), "beta": weight})
