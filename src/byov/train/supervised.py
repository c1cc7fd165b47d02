"""Supervised training from a recipe: any network with any family, negative ELBO with one draw per batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from byov.data import Batch, Batches, CropFlip, FolderSet, ImageSet
from byov.data.config import DataConfig, DataSpec
from byov.data.transforms import ResizedCrop
from byov.models import create
from byov.models.registry import call_entry, try_image
from byov.posterior import BayesianModule, Ensemble, Normal, bayesianize, hold_apart, output_layer
from byov.posterior.factor import Factor
from byov.posthoc.swag import SWAG
from byov.train import checkpoint
from byov.train.batchnorm import add_gates, synchronise
from byov.train.config import Rate, from_dict
from byov.train.loop import Place
from byov.train.posterior_config import FamilyConfig, is_shared
from byov.train.run import execute, reopen
from byov.train.train_config import TrainConfig

Augmentation = CropFlip | ResizedCrop


@dataclass(frozen=True)
class NetworkConfig:
    """The network: a recipe's [model]."""

    name: str = "convnet32"
    """A name of `byov.models` (ours, timm's or torchvision's), or `python:module:function`, which takes the classes."""
    pretrained: bool = False


@dataclass(frozen=True)
class CropConfig:
    """Random resized crops: a recipe's [crop]."""

    size: int | None = None
    """Side of the network's input in pixels; None: `data.image_size`, the size from which crops are cut."""
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        ResizedCrop(**asdict(self))  # raises on invalid settings


@dataclass(frozen=True)
class Supervised:
    """A complete recipe for supervised training."""

    data: DataConfig = field(default_factory=DataConfig)
    model: NetworkConfig = field(default_factory=NetworkConfig)
    posterior: FamilyConfig = field(default_factory=FamilyConfig)
    augment: Literal["crop-flip", "resized-crop", "none"] = "none"
    """"crop-flip" is CIFAR's, with four pixels of padding; "resized-crop" is ImageNet's, configured by [crop]."""
    crop: CropConfig = field(default_factory=CropConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        if self.crop != CropConfig() and self.augment != "resized-crop":
            raise ValueError(f"[crop] is for augment = 'resized-crop', not for {self.augment!r}.")

    def augmentation(self, mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> Augmentation:
        """Return the augmentation of training images, with normalisation by these moments."""
        if self.augment == "resized-crop":
            return ResizedCrop(**asdict(self.crop), mean=mean, std=std)
        still = self.augment == "none"
        return CropFlip(0 if still else 4, 0.0 if still else 0.5, mean, std)


class Step(NamedTuple):
    """The result of one step: the loss to minimise, and quantities to monitor; `kl` is the penalty of either kind."""

    loss: Tensor
    cross_entropy: Tensor
    kl: Tensor
    accuracy: Tensor


class Penalised(nn.Module):
    """A network with a penalty on its weights: β·KL/N, or instead the L2 penalty of appendix C.1."""

    def __init__(self, net: nn.Module, number: float, posterior: FamilyConfig, batch: int) -> None:
        super().__init__()
        self.net, self.kl_scale = net, number
        self.posterior, self.batch = posterior, batch

    def settled(self) -> Self:
        """Replace a SWAG, which follows a training, with its posterior; return the module itself."""
        self.net = self.net.posterior() if isinstance(self.net, SWAG) else self.net
        return self

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the weights and so of the network's inputs."""
        return next(self.net.parameters()).dtype

    def penalty(self, like: Tensor) -> Tensor:
        """Return the term added to the cross-entropy or another loss, before β."""
        if self.posterior.penalty == "l2":
            return self.posterior.l2.penalty(self.net) / self.batch
        if isinstance(self.net, BayesianModule):
            return self.net.kl(points=self.posterior.points) / self.kl_scale
        if not self.posterior.points:
            return torch.zeros_like(like)
        squares = torch.stack([p.square().sum() for p in self.net.parameters() if p.requires_grad]).sum()
        return 0.5 * squares / self.posterior.prior_std**2 / self.kl_scale


class Classifier(Penalised):
    """Cross-entropy + β·KL/N of one batch under one draw; or with the L2 penalty of appendix C.1 instead of the KL."""

    def __init__(
        self, net: nn.Module, augment: Augmentation, number: float, posterior: FamilyConfig, batch: int
    ) -> None:
        super().__init__(net, number, posterior, batch)
        self.augment = augment

    def forward(self, images: Tensor, labels: Tensor, uniforms: Tensor, weight: Tensor) -> Step:
        logits = self.net(self.augment.render(images, uniforms).to(self.dtype))
        cross_entropy = F.cross_entropy(logits.float(), labels)
        penalty = self.penalty(cross_entropy)
        correct = (logits.argmax(1) == labels).float().mean()
        return Step(cross_entropy + weight * penalty, cross_entropy.detach(), penalty.detach(), correct)


class PenalisedTask:
    """The base of supervised tasks: the penalty's weight, the patches' gradient factors, and coordinate descent."""

    module: Penalised

    def __init__(self, module: Penalised, name: str, posterior: FamilyConfig, train: TrainConfig, world: int) -> None:
        net, share = module.net, train.batch_size // (world * train.accumulate)
        if share == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules()):
            raise ValueError(f"{name} has BatchNorm, which needs batches of at least 2 images, not of 1.")
        self.module, self.posterior = module, posterior
        factors = net.factors if isinstance(net, BayesianModule) else []
        self.patched = [p for factor in factors if not is_shared(factor) for p in factor.parameters()]
        self.shared = list(net.net.parameters()) if isinstance(net, BayesianModule) else []
        self.shared += [p for factor in factors if is_shared(factor) for p in factor.parameters()]
        if posterior.alternate and not self.shared:
            raise ValueError(
                "posterior.alternate has nothing to alternate with: the posterior covers the whole network."
            )

    def weight(self, place: Place) -> Tensor:
        """Return the factor of the penalty at a step: β for the KL, 1 for the L2 penalty."""
        return self.posterior.beta(place) if self.posterior.penalty == "kl" else torch.ones((), device=place.device)

    def before(self, step: int) -> None:
        """Scale the patches' gradients by `gain` and `apart`; in coordinate descent, drop the other half's gradients.

        Without a gradient, a parameter and its optimizer state do not change.
        """
        posterior = self.posterior
        if posterior.alternate:
            for parameter in (self.patched, self.shared)[step // posterior.alternate % 2]:
                parameter.grad = None
        gradients = [p.grad for p in self.patched if p.grad is not None]
        if gradients and posterior.gain != 1:
            torch._foreach_mul_(gradients, posterior.gain)
        if posterior.apart is not None and posterior.components:
            hold_apart(self.module.net, posterior.apart / posterior.gain)  # type: ignore[arg-type]

    def after(self, step: int, total: int) -> None:
        """Let SWAG see the new weights."""
        if isinstance(self.module.net, SWAG):
            self.module.net.update()

    def note(self) -> str:
        return self.posterior.note()


class SupervisedTask(PenalisedTask):
    """A classifier on a labelled image set, with the interface of the training loop."""

    module: Classifier

    def __init__(self, recipe: Supervised, data: ImageSet | FolderSet, world: int, device: torch.device) -> None:
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels: pretrain on it instead, with byov pretrain.")
        module = build(recipe, data, len(data.class_names), world, device)
        super().__init__(module, recipe.model.name, recipe.posterior, recipe.train, world)
        self.data = data.to(device) if isinstance(data, ImageSet) else data
        self.shape = [data.channels, recipe.crop.size or data.image_size]

    def trainable(self) -> nn.Module:
        return self.module.net

    def about(self) -> dict[str, Any]:
        return {"kl_scale": self.module.kl_scale, "class_names": list(self.data.class_names), "shape": self.shape}

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Any, ...]:
        drawn = self.module.augment.draw(len(batch.images) * place.world, generator, place.device)
        return batch.images, batch.labels, drawn[place.rank :: place.world], self.weight(place)


def build(
    recipe: Supervised,
    data: ImageSet | FolderSet | DataSpec,
    classes: int,
    world: int,
    device: torch.device,
    fetch: bool = True,
) -> Classifier:
    """Build the module of a recipe for images like `data`; `fetch=False` skips downloading pretrained weights."""
    name, posterior = recipe.model.name, recipe.posterior
    if name.startswith("python:"):
        net = call_entry(name, classes)
    else:
        size = recipe.crop.size or data.image_size
        net = create(name, classes, data.channels, size, recipe.model.pretrained and fetch)
        try_image(net, name, data.channels, size)
    if world > 1:
        net = synchronise(net, device)
    net, number = with_posterior(net, posterior, recipe.model.pretrained, len(data))
    return Classifier(net, recipe.augmentation(data.mean, data.std), number, posterior, recipe.train.batch_size)


def with_posterior(net: nn.Module, posterior: FamilyConfig, pretrained: bool, examples: int) -> tuple[nn.Module, float]:
    """Return the network with its posterior, followed by SWAG, or unchanged; and N for this number of examples."""
    rules = posterior.rules(pretrained)
    if rules is None:
        return SWAG(net) if posterior.family == "swag" else net, posterior.number(examples, 1)
    if posterior.on == "before-norm":
        net = add_gates(net)
    prior = Normal(0.0, posterior.prior_std)
    model = bayesianize(net, rules, prior=prior, shared_draw=posterior.shared_draw)
    for factor in model.factors:
        if any(slot.name.endswith("gate") for slot in factor.layout.slots):
            factor.requires_grad_(False)
        if pretrained and isinstance(factor.family, Ensemble) and posterior.start == "auto":
            _new_heads(net, factor)
    return model, posterior.number(examples, sum(factor.layout.numel for factor in model.factors))


@torch.no_grad()
def _new_heads(net: nn.Module, factor: Factor) -> None:
    """Give each member of a pretrained ensemble except the first a new output layer, so that no two are the same."""
    fresh = Ensemble(factor.family.k, start="reset")  # type: ignore[attr-defined]
    heads = bayesianize(net, {output_layer: fresh}).factors[0]
    new, old = (f.layout.split(f.get_parameter("components")) for f in (heads, factor))
    for name in new.keys() & old.keys():
        old[name].copy_(new[name])


def start(recipe: Supervised, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder until its end or its time limit; return True if it reached the end."""
    return execute("train", recipe, run, resume, SupervisedTask)


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[Classifier, Supervised]:
    """Load the module and the recipe of a run from its checkpoint."""
    state, like = reopen(run, "train")
    recipe = from_dict(Supervised, state["recipe"]["config"])
    classes = len(state["recipe"]["class_names"])
    module = build(recipe, like, classes, 1, torch.device(device), fetch=False)  # the weights are in the checkpoint
    checkpoint.fill(module, state["module"], run)
    return module.to(device).settled().eval(), recipe


class FineTune:
    """Fine-tune a network between two rounds of pruning, for `prune_gradually`: `fine_tune(net)`.

    It minimises the cross-entropy with Adam, using the recipe's batches and augmentation.

    One optimizer and one order of batches are used for all rounds. There is no KL: the plain network is fine-tuned.

    Args:
        recipe: the recipe by which the network was trained.
        train: its training images.
        mean: per channel, subtracted from the images.
        std: per channel; the images are then divided by it.
        epochs: number of epochs per round.
        lr: the constant learning rate.
        seed: for batches and augmentation.
        device: the device of the augmentation's generator.
    """

    def __init__(
        self,
        recipe: Supervised,
        train: ImageSet,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        epochs: int = 1,
        lr: float = 1e-3,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if epochs < 1 or lr not in get_args(Rate)[1]:
            raise ValueError(
                f"Fine-tuning takes at least one epoch and a learning rate {get_args(Rate)[1]}, not {epochs} and {lr}."
            )
        self.augment = recipe.augmentation(mean, std)
        self.batches = Batches(train, min(recipe.train.batch_size, len(train)), seed=seed)
        self.generator = Generator(device).manual_seed(seed)
        self.epochs, self.lr = epochs, lr
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self, net: nn.Module) -> None:
        self.optimizer = self.optimizer or torch.optim.Adam(net.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in self.batches:
                assert batch.labels is not None
                self.optimizer.zero_grad()
                logits = net(self.augment(batch.images, self.generator))
                F.cross_entropy(logits, batch.labels).backward()
                self.optimizer.step()
        if not all(bool(p.isfinite().all()) for p in net.parameters()):
            raise ValueError(f"Fine-tuning diverged with a learning rate of {self.lr}: choose a lower one.")
