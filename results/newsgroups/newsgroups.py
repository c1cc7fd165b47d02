"""MiniLM on 20-Newsgroups: maximum a posteriori against a posterior, on a head alone and on LoRA with a head."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import process_time
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from texts import Sentence, embedded, texts, tokens
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import AutoModel

import byov
from byov.train.labelled_loss import scored


class Named(Dataset[Any]):
    """Tokens by name, with labels."""

    def __init__(self, batch: dict[str, torch.Tensor], labels: torch.Tensor) -> None:
        self.batch, self.labels = batch, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {**{name: value[i] for name, value in self.batch.items()}, "labels": self.labels[i]}


def measured(name: str, net: nn.Module, rules: Any, train: Any, test: Any, seed: int, **how: Any) -> dict[str, Any]:
    """Train it, without rules as a plain network, and score it on the test set: under draws, or at its weights."""
    torch.manual_seed(seed)
    samples = how.pop("samples")
    model = net if rules is None else byov.bayesianize(net, rules)
    started = process_time()
    history = byov.fit(model, DataLoader(train, how.pop("batch"), shuffle=True), progress=False, **how)
    trained = process_time() - started
    loader = DataLoader(test, 250)
    prediction = byov.predict(model, loader, samples, generator=torch.Generator().manual_seed(0), progress=False)
    labels = torch.cat([batch["labels"] if isinstance(batch, dict) else batch[1] for batch in loader])
    row = {"method": name, "seed": seed, **scored(prediction, labels), "seconds": round(trained, 1)}
    row |= {"draws": prediction.samples, "kl": history["kl"][-1], "loss": history["loss"][-1]}
    print(json.dumps(row), flush=True)
    return row


def heads(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A linear head on the frozen encoder's embeddings."""
    parts = {"train": args.embedded, "test": None}
    train, test = (
        TensorDataset(*embedded(args.weights, args.data, part, args.cache, count)) for part, count in parts.items()
    )
    how: dict[str, Any] = {"epochs": args.epochs, "batch": 128, "lr": 3e-3, "samples": 100}
    return [
        measured("head, MAP", nn.Linear(384, 20), None, train, test, seed, **how, weight_decay=1e-2),
        measured("head, Gaussian", nn.Linear(384, 20), byov.Gaussian(relative=0.05), train, test, seed, **how),
    ]


def adapters(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """LoRA in the last two layers and a head, on as many texts as one core can afford."""
    sets = []
    for part, count in (("train", args.texts), ("test", args.texts // 2)):
        found, labels = texts(args.data, part)
        sets.append(Named(tokens(args.weights, found[:count]), labels[:count]))
    layers = [4, 5]
    config = LoraConfig(r=8, target_modules=["query", "value"], layers_to_transform=layers, modules_to_save=["head"])
    rules = {**byov.hf.lora(), "*head.modules_to_save*": byov.Gaussian(relative=0.05)}
    how: dict[str, Any] = {"epochs": args.lora_epochs, "batch": 32, "lr": 2e-3, "samples": 10}
    rows = []
    for name, own, decay in (("LoRA + head, MAP", None, 1e-2), ("LoRA + head, Gaussian", rules, 0.0)):
        torch.manual_seed(seed)
        net = get_peft_model(Sentence(AutoModel.from_pretrained(args.weights), 20), config)
        rows.append(measured(name, net, own, *sets, seed, **how, weight_decay=decay))
    return rows


def main() -> None:
    """Measure, and write a file for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with 20newsgroups-train.tab and -test.tab")
    parser.add_argument("weights", type=Path, help="folder of MiniLM's weights, configuration and tokenizer")
    parser.add_argument("--part", choices=("head", "lora"), default="head")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--embedded", type=int, help="of the head's training; without it, all")
    parser.add_argument("--texts", type=int, default=2000, help="of LoRA's training; half as many test it")
    parser.add_argument("--lora-epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        rows = (heads if args.part == "head" else adapters)(args, seed)
        (args.out / f"{args.part}_seed{seed}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
