"""For Hugging Face: a Trainer that adds β·KL/N to the loss and anneals β, and the rules for PEFT's LoRA.

    model = byov.bayesianize(peft.get_peft_model(net, config), byov.hf.lora())
    byov.hf.Trainer(model=model, args=arguments, train_dataset=data).train()
    model.point().save_pretrained(FOLDER)                             # PEFT's own files, at the mean
    model.merge_and_unload()                                          # the plain network, adapters merged at the mean

The Trainer treats a BayesianModule like the network inside: it sees that network's signature, configuration and loss.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from byov.posterior import BayesianModule, Gaussian, beta, elbo, parameter_groups
from byov.posterior.family import Family
from byov.posterior.objective import gaussian_weights, usual_n


def lora(family: Family | None = None, on: str = "AB") -> dict[Any, Family]:
    """Return the rules for a posterior on the adapters of a PEFT network: on A and B, or with `on="A"` on A alone.

    The default family is Gaussian(-8): σ = 0.018, a little less than the standard deviation of A's weights; B starts at
    zero.
    """
    if on not in ("A", "B", "AB"):
        raise ValueError(f"A LoRA has the matrices 'A' and 'B' ('AB' for both), not {on!r}.")
    family = Gaussian(-8.0) if family is None else family
    return {f"*lora_{'*' if on == 'AB' else f'{on}*'}": family}


class Trainer(transformers.Trainer):
    """transformers.Trainer for a model with a posterior.

    Each training loss is computed under one draw. The KL is added once per optimizer step, also with gradient
    accumulation. The default optimizer is AdamW with `byov.parameter_groups`, where ρ has its own learning rate.
    Evaluations use the posterior mean; for draws use `byov.predict`.

    Args:
        beta_end: final β.
        n: N; both defaults are those of `byov.fit`.
    """

    def __init__(self, *args: Any, beta_end: float = 1.0, n: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model: Any = self.model
        if not any(isinstance(module, BayesianModule) for module in model.modules()):
            raise TypeError(f"{type(model).__name__} has no posterior: pass it to byov.bayesianize first.")
        data: Any = () if self.train_dataset is None else self.train_dataset
        if n is None and not hasattr(data, "__len__"):
            raise ValueError("A streaming data set does not know its number of examples: pass it as n=.")
        self.n = usual_n(len(data), gaussian_weights(model)) if n is None else float(n)
        self.beta_end = beta_end
        beta(0, 1, self.beta_end)  # raises if beta_end is not a valid β

    @property
    def beta(self) -> float:
        """Return β at this step."""
        return beta(self.state.global_step, max(self.state.max_steps, 1), self.beta_end)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            steps = max(self.state.max_steps, self.args.max_steps)
            groups = parameter_groups(self.model, self.args.learning_rate, steps if steps > 0 else 1000)  # type: ignore[arg-type]
            self.optimizer = torch.optim.AdamW(
                groups,
                weight_decay=self.args.weight_decay,
                betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon,
            )
        return self.optimizer

    def compute_loss(  # type: ignore[override]
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **more: Any
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **more)
        if model.training:
            # A loss normalised over all accumulated batches is not divided again; others are divided by their number.
            whole = self.model_accepts_loss_kwargs and more.get("num_items_in_batch") is not None
            if (said := getattr(self, "loss_is_scaled_for_ga", None)) is not None:
                whole = said
            parts = self.current_gradient_accumulation_steps if whole or self.compute_loss_func else 1
            loss = elbo(loss, self.model, self.n, self.beta / parts)  # type: ignore[arg-type]
        return (loss, outputs) if return_outputs else loss
