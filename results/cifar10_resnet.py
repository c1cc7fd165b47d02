"""BYOL and BYOV with ResNet-18 on CIFAR-10: 200 epochs, probes, all shifts.

python results/cifar10_resnet.py train --root DIR --minutes 9 [--only byol]     call it again to go on
python results/cifar10_resnet.py read --root DIR       what is finished: kNN first, then linear probes under every shift
python results/cifar10_resnet.py                       scores and prints what was read
python results/cifar10_resnet.py errors                bootstrap errors of it, and of differences to BYOL: ten minutes

`read` leaves out what is there already, and keeps class probabilities (resnet_*.npz, not in the
repository), so that scores, temperatures and errors take no GPU. `byov_wide` is an older reading of BYOV: its posterior
started wider and moved ten times as fast (posterior.log_var=-14, train.log_var_lr=0.05).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from digits import ROOT, byov, summarise
from torch import Generator, Tensor

from byov.data.augmentations import AUGMENTATIONS
from byov.device import choose_device
from byov.evaluation.rows import CLEAN, plan, shifted
from byov.files import write_json
from byov.ssl.classifiers import KNN
from byov.ssl.features import features
from byov.ssl.pretrain import restore
from byov.ssl.probe import Probe, ProbeSettings, Scores
from byov.ssl.temperature import EXAMPLES, tempered
from byov.train import checkpoint

OUT = ROOT / "results" / "cifar10"
DRAWS, SEVERITIES = 10, (1, 3, 5)
NAMES = {"byol": "BYOL", "byov": "BYOV", "byov_wide": "BYOV, wider"}
READINGS = ("at_mean", "under_draws")
RESAMPLES = 60


def train(recipe: str, run: str, settings: list[str]) -> None:
    """Begin a run, or go on with it."""
    file, words = ROOT / run / "checkpoint.safetensors", [word for s in settings for word in ("--set", s)]
    byov("pretrain", f"recipes/cifar10_resnet_{recipe}.toml", "--run", run, *(["--resume"] * file.exists()), *words)


def trained(name: str) -> bool:
    """Whether a run has come to its end."""
    file = ROOT / f"runs/resnet_{name}" / "checkpoint.safetensors"
    state = checkpoint.peek(file) if file.exists() else {"step": 0, "total": 1}
    return state["step"] == state["total"]


# Reading


def read(name: str, root: str) -> None:
    """The probabilities of a finished run's probes on the test images: clean, then shifted; at μ and under draws."""
    device = choose_device("auto")
    module, recipe = restore(ROOT / f"runs/resnet_{name}", device)
    data = replace(recipe.data, root=root)
    train, test = (data.load(split).to(device) for split in ("train", "test"))
    options: dict[str, Any] = {"mean": module.views.mean, "std": module.views.std, "channels_last": True}
    classes = len(train.class_names)
    # In float32 (convolutions in TF32, torch's default), and first: the number that is compared with the public one.
    each = [features(module, part.images, **options) for part in (train, test)]
    near = Scores.of(KNN(each[0], train.labels, classes=classes)(each[1]), test.labels)
    log = (ROOT / f"runs/resnet_{name}/log.jsonl").read_text().splitlines()
    lines = [line for line in log if "alarm" not in json.loads(line)]
    (OUT / f"resnet_{name}.log.jsonl").write_text("".join(f"{line}\n" for line in lines[::5]))
    layers = ROOT / f"runs/resnet_{name}/layers.jsonl"
    if layers.exists():
        write_json(OUT / f"resnet_{name}.layers.json", json.loads(layers.read_text().splitlines()[-1]))
    about = {
        "run": name,
        "k": 200,
        "train": {"name": train.name, "digest": train.digest, "images": len(train)},
        "test": {"name": test.name, "digest": test.digest, "images": len(test)},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
        "recipe": asdict(recipe),
    }
    write_json(OUT / f"resnet_{name}.knn.json", {"scores": {"knn": asdict(near)}, "protocol": about})
    print(f"{name}: kNN {100 * near.top1:.2f} %", flush=True)
    settings = ProbeSettings(draws_read=DRAWS, temper=EXAMPLES)
    half: dict[str, Any] = {**options, "autocast": torch.bfloat16, "batch_size": 2500}
    probe = Probe.fit(module, train.images, train.labels, classes, settings, **half)
    about |= {
        "precision": "bf16-mixed",
        "shift_seed": 0,
        "settings": asdict(settings),
        "temperatures": dict(probe.temperatures),
        "severities": SEVERITIES,
    }
    write_json(OUT / f"resnet_{name}.protocol.json", about)
    probe.temperatures.clear()
    kept: dict[str, dict[str, np.ndarray]] = {"at_mean": {}, "under_draws": {}}
    for shift, severity in plan(AUGMENTATIONS, SEVERITIES):
        images = torch.cat(list(shifted(test.images, AUGMENTATIONS.get(shift), severity, 0, device)))
        for reading, draws in (("at_mean", None), ("under_draws", DRAWS))[: 1 + bool(probe.under_draws)]:
            found = probe.predict(images, draws).mean
            kept[reading][f"{shift}/{severity}"] = found.log().half().cpu().numpy()
        if severity in (0, SEVERITIES[-1]):  # whole files, as often as there is something to lose
            for reading, rows in kept.items():
                if rows:
                    write_arrays(OUT / f"resnet_{name}.{reading}.npz", {**rows, "labels": test.labels.cpu().numpy()})


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    unfinished = path.with_name(f".{path.name}")
    np.savez(unfinished, **arrays)
    unfinished.replace(path)


def score(name: str) -> None:
    """The scores of kept probabilities, as they are and at the temperature that was fitted."""
    about = json.loads((OUT / f"resnet_{name}.protocol.json").read_text())
    for folder, temper in ((OUT, False), (OUT / "tempered", True)):
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for reading in READINGS:
            kept, labels = probabilities(name, reading, temper)
            for (shift, severity), probs in kept.items():
                row = rows.setdefault((shift, severity), {"shift": shift, "severity": severity})
                row[reading] = asdict(Scores.of(probs, labels))
        folder.mkdir(exist_ok=True)
        write_json(folder / f"resnet_{name}.json", {"protocol": about, "tempered": temper, "rows": [*rows.values()]})


def probabilities(name: str, reading: str, temper: bool) -> tuple[dict[tuple[str, int], Tensor], Tensor]:
    """By shift and severity, and the labels; nothing where it was not read."""
    file = OUT / f"resnet_{name}.{reading}.npz"
    if not file.exists():
        return {}, torch.empty(0)
    temperature = json.loads((OUT / f"resnet_{name}.protocol.json").read_text())["temperatures"][reading]
    found: dict[tuple[str, int], Tensor] = {}
    with np.load(file) as arrays:
        for key in (key for key in arrays if key != "labels"):
            shift, severity = key.split("/")
            probs = torch.from_numpy(arrays[key]).double().softmax(1)
            found[shift, int(severity)] = tempered(probs, temperature) if temper else probs
        return found, torch.from_numpy(arrays["labels"])


def errors() -> None:
    """Standard errors over test images, of every reading and of its difference to BYOL's on the same images."""
    missing = [name for name in ("byol", "byov") if not (OUT / f"resnet_{name}.at_mean.npz").exists()]
    if missing:
        sys.exit(f"There are no probabilities of {' and '.join(missing)} here: `read` keeps them.")
    resamples = [torch.randint(10_000, (10_000,), generator=Generator().manual_seed(i)) for i in range(RESAMPLES)]
    keys, out = ("top1", "ece", "nll", "reliability"), {}
    for temper in (False, True):
        plain: dict[str, Tensor] = {}
        for name, reading in product(("byol", "byov"), READINGS):
            kept, labels = probabilities(name, reading, temper)
            found: dict[bool, list[list[list[float]]]] = {True: [], False: []}
            for (shift, _), probs in kept.items():
                scores = [Scores.of(probs[index], labels[index]) for index in resamples]
                found[shift == CLEAN].append([[getattr(score, key) for key in keys] for score in scores])
            for clean, rows in found.items():
                if not rows:
                    continue
                values = torch.tensor(rows).mean(0)  # over shifts, of (rows, resamples, keys)
                label = f"{name} {reading}{' tempered' * temper}{'' if clean else ' shifted'}"
                plain.setdefault(str(clean), values)
                for j, key in enumerate(keys):
                    apart = (values - plain[str(clean)])[:, j]
                    out[f"{label} {key}"] = {"error": values[:, j].std().item()}
                    if name != "byol":
                        out[f"{label} {key}"] |= {"minus_byol": apart.mean().item(), "its_error": apart.std().item()}
                    print(f"{label + ' ' + key:50}", {k: round(v, 4) for k, v in out[f"{label} {key}"].items()})
    write_json(OUT / "resnet_errors.json", {"resamples": RESAMPLES, "errors": out})


def show() -> None:
    """What there is, in per cent."""
    for path in sorted([*OUT.glob("resnet_*.probe.json"), *OUT.glob("resnet_*.knn.json")]):
        scores = json.loads(path.read_text())["scores"]
        flat = {f"{a}/{b}": v for a, part in scores.items() if isinstance(part, dict) for b, v in part.items()}
        flat |= {key: value for key, value in scores.items() if not isinstance(value, dict)}
        keys = [key for key in flat if key.endswith(("top1", "ece"))]
        print(f"{path.name:32}", "  ".join(f"{key} {100 * flat[key]:.2f}" for key in keys))
    for path in [OUT / folder / f"resnet_{name}.json" for folder in (".", "tempered") for name in NAMES]:
        if path.exists():
            print(path.relative_to(OUT))
            for key, value in summarise(json.loads(path.read_text())).items():
                print(f"    {key:34} {value:.4f}")


def draw() -> None:
    """Over the epochs: the loss without the KL of all, and how wide the posteriors are."""
    logs = {label: OUT / f"resnet_{name}.log.jsonl" for name, label in NAMES.items()}
    lines = {
        label: [json.loads(line) for line in path.read_text().splitlines()]
        for label, path in logs.items()
        if path.exists()
    }
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    for label, log in lines.items():
        epochs = [line["epoch"] for line in log]
        axes[0].plot(epochs, [line["ssl"] for line in log], label=label)
        for ax, key in zip(axes[1:], ("snr", "sigma"), strict=True):
            if key in log[0]:
                ax.semilogy(epochs, [line[key] for line in log], label=label, color=axes[0].lines[-1].get_color())
    axes[0].set(ylabel="loss without KL", ylim=(0, 1))
    axes[1].set(ylabel="median |μ|/σ")
    axes[2].set(ylabel="mean σ")
    for ax in axes:
        ax.set(xlabel="epoch")
        ax.grid(alpha=0.3)
        ax.legend()
    figure.savefig(OUT / "resnet_training.png", dpi=150)


def draw_layers() -> None:
    """At the end of training, by layer from input to output: the median |μ|/σ of its weights."""
    record = json.loads((OUT / "resnet_byov.layers.json").read_text())["layers"]
    names = [name for name in record if name.startswith("encoder")]
    norms = {name for name in names if "bn" in name or name.endswith("downsample.1")}
    figure, ax = plt.subplots(figsize=(12, 3.2), layout="constrained")
    for label, chosen in (("BatchNorm", norms), ("convolution", set(names) - norms)):
        places = [i for i, name in enumerate(names) if name in chosen]
        ax.semilogy(places, [record[names[i]][3] for i in places], "o-", label=label)
    ax.set(ylabel="median |μ|/σ", xlabel="layer of the encoder")
    ax.set_xticks(range(len(names)), [name.removeprefix("encoder.") for name in names], rotation=90, fontsize=7)
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(OUT / "resnet_layers.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("train", "read", "errors"))
    parser.add_argument("--root", default="data", help="the folder of cifar10.npz")
    parser.add_argument("--only", default="", help="some of them, by commas")
    parser.add_argument("--minutes", type=float)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="of both recipes, such as train.log_var_lr=0.05",
    )
    words = parser.parse_args()
    if words.what == "errors":
        errors()
        return
    chosen = words.only.split(",") if words.only else [*NAMES]
    limit = [] if words.minutes is None else [f"train.minutes={words.minutes}"]
    jobs = []
    for name in chosen:
        if words.what == "train" and name in ("byol", "byov"):
            settings = [f"data.root={words.root}", *limit, *words.set]
            jobs.append(partial(train, name, f"runs/resnet_{name}", settings))
        elif words.what == "read" and trained(name) and not (OUT / f"resnet_{name}.at_mean.npz").exists():
            jobs.append(partial(read, name, words.root))
        elif words.what is None and (OUT / f"resnet_{name}.at_mean.npz").exists():
            jobs.append(partial(score, name))
    with ThreadPoolExecutor(len(jobs) or 1) as pool:  # a GPU has room for several such runs
        for done in [pool.submit(job) for job in jobs]:
            try:
                done.result()
            except subprocess.CalledProcessError as error:
                print(f"failed: {' '.join(map(str, error.cmd[3:]))}")
    show()
    draw()
    if (OUT / "resnet_byov.layers.json").exists():
        draw_layers()


if __name__ == "__main__":
    main()
