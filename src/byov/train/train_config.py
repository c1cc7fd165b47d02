"""How to train: a recipe's [train]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from byov.train.config import Count, Fraction, Multiple, NonNegative, Positive, Range, Rate, check

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "64-true"]
Auto = Literal["auto"]
ON_GPU: tuple[bool, Precision] = (True, "bf16-mixed")
ON_CPU: tuple[bool, Precision] = (False, "32-true")
"""What `compile` and `precision` are, if they are left to the machine."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train; a recipe's [train]. What is "auto" is fitted to the machine and the data: see `train.adapt`."""

    usual_epochs: ClassVar[int] = 100
    usual_batch: ClassVar[int] = 256

    epochs: Count | Auto = "auto"
    """ "auto": 100, or as many more as 1,000 steps take."""
    batch: Count | Auto = "auto"
    """Images per optimizer step, over all processes and accumulated parts. "auto": 256, or of fewer than 512 images the
    largest power of two that fits into them twice."""
    optimizer: Literal["adamw", "adam", "sgd", "lars"] = "adamw"
    lr: Rate = 1e-3
    lr_batch: Count | None = None
    """The batch that `lr` is meant for; it is scaled linearly to `batch`. None: taken as it is."""
    log_var_lr: Multiple | None = None
    """The learning rate of a Gaussian's ρ = log σ², in units of `lr`. None: `byov.posterior.log_var_rate` of the run's
    steps, along the same schedule, whatever `lr` and `optimizer` are."""
    log_var_optimizer: Literal["same", "adam"] = "adam"
    """What moves ρ: Adam also beside `sgd` and `lars`, whose steps are too short for it; or the `optimizer` itself."""
    weight_decay: Multiple = 0.0
    decay: Literal["weights", "all"] = "weights"
    """What is decayed: weights, or biases and norms too, as by plain SGD; never ρ. `lars` decays weights only."""
    momentum: Fraction = 0.9
    nesterov: bool = False
    """Of `sgd`."""
    eta: Multiple = 1e-3
    warmup: NonNegative = 10.0
    """Epochs of linear warm-up before the cosine."""
    lr_end: Multiple = 0.0
    """Where the cosine ends, in units of `lr`; 1 keeps the rate constant after the warm-up."""
    clip: Positive | None = None
    accumulate: Count = 1
    precision: Precision | Auto = "auto"
    """ "auto": bf16-mixed on a CUDA GPU, else 32-true."""
    compile: bool | Auto = "auto"
    """ "auto": on a CUDA GPU."""
    cuda_graphs: bool = True
    """With `compile` on one GPU: launch each pass as one CUDA graph, where small networks are bound by the host."""
    seed: int = 0
    workers: Annotated[int, Range(0, 1024)] | None = None
    devices: Count | Literal["auto"] = "auto"
    accelerator: str = "auto"
    nodes: Count = 1
    log_every: Count = 20
    save_minutes: NonNegative = 5.0
    minutes: Positive | None = None
    """Stop cleanly after this long; the same command with --resume continues."""

    def __post_init__(self) -> None:
        check(self, "train")
        if self.decay == "all" and self.optimizer == "lars":
            raise ValueError("train.decay = 'all' is for sgd, adam and adamw: lars decays what it adapts.")
        if self.epochs != "auto" and self.warmup > self.epochs:
            raise ValueError(
                f"train.warmup={self.warmup:g} epochs do not fit into train.epochs={self.epochs}: say how many, as in"
                f" --set train.warmup={self.epochs / 10:g}."
            )

    @property
    def batch_size(self) -> int:
        """Return `batch`, or where it is still "auto" its usual size."""
        return self.usual_batch if self.batch == "auto" else self.batch

    @property
    def epoch_count(self) -> int:
        """Return `epochs`, or where they are still "auto" the usual number."""
        return self.usual_epochs if self.epochs == "auto" else self.epochs

    def on(self, gpu: bool) -> Self:
        """Return the configuration with what `compile` and `precision` are there.

        Compiled bf16 is a GPU's: a CPU takes minutes to compile it, and is slower with it. So there both are "auto".
        """
        own = self.compile, self.precision
        if own == ON_GPU and not gpu:
            own = ON_CPU
        compiled, precision = (
            usual if it == "auto" else it for it, usual in zip(own, ON_GPU if gpu else ON_CPU, strict=True)
        )
        return replace(self, compile=compiled, precision=precision)  # type: ignore[arg-type]
