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


HEAD = byov.Gaussian(relative=0.5)
PRIOR = byov.Normal(0.0, 0.1)
COLD = 0.3
"""β, where N is the number of texts: of 1, 0.3 and 0.1, under this prior and N(0, 1), likeliest on held-out texts."""
DECAY = {"weight_decay": 1e-2}


def measured(name: str, model: nn.Module, data: list[Any], seed: int, draws: int, **how: Any) -> list[dict[str, Any]]:
    """Train it, and score it on the test set: by draws, or at a plain network's weights, there also by temperature."""
    train, held, test = data
    torch.manual_seed(seed)
    started = process_time()
    history = byov.fit(model, DataLoader(train, how.pop("batch"), shuffle=True), progress=False, **how)
    about = {"seed": seed, "seconds": round(process_time() - started, 1), "kl": history["kl"][-1]}
    loader = DataLoader(test, 250)
    prediction = byov.predict(model, loader, draws, generator=torch.Generator().manual_seed(0), progress=False)
    labels = torch.cat([batch["labels"] if isinstance(batch, dict) else batch[1] for batch in loader])
    rows = [{"method": name, **scored(prediction, labels), **about, "draws": prediction.samples}]
    if held is not None and prediction.samples == 1:
        tempered = byov.temperature(model, DataLoader(held, 250))
        rows.append({"method": f"{name}, temperature", **scored(tempered(prediction), labels), **about})
    print(*map(json.dumps, rows), sep="\n", flush=True)
    return rows


def heads(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A linear head on the frozen encoder's embeddings; a fifth of the training texts are held out."""
    (x, y), test = (
        embedded(args.weights, args.data, p, args.cache, c) for p, c in (("train", args.embedded), ("test", None))
    )
    cut = len(y) * 4 // 5
    train, held = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    how: dict[str, Any] = {"epochs": args.epochs, "batch": 128, "lr": 3e-3}
    stopped: dict[str, Any] = {"validation": held, "patience": None}
    cold: dict[str, Any] = {"n": cut, "beta_end": COLD}
    rows = []
    for name, prior, own in (
        ("head, MAP", None, DECAY),
        ("head, MAP, best epoch", None, {**DECAY, **stopped}),
        ("head, Gaussian, too cold", byov.Normal(), {"n": 7700, "beta_end": 0.1}),
        ("head, Gaussian, the ELBO", byov.Normal(), {}),
        ("head, Gaussian", PRIOR, cold),
        ("head, Gaussian, best epoch", PRIOR, {**cold, **stopped}),
    ):
        torch.manual_seed(seed)
        net = nn.Linear(384, 20)
        model = net if prior is None else byov.bayesianize(net, HEAD, prior=prior)
        rows += measured(name, model, [train, held, TensorDataset(*test)], seed, 100, **how, **own)
    return rows


def adapters(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """LoRA in the last two layers and a head, on as many texts as one core can afford."""
    sets: list[Any] = []
    for part, count in (("train", args.texts), ("test", args.texts // 2)):
        found, labels = texts(args.data, part)
        sets.append(Named(tokens(args.weights, found[:count]), labels[:count]))
    config = LoraConfig(r=8, target_modules=["query", "value"], layers_to_transform=[4, 5], modules_to_save=["head"])
    rules = {**byov.hf.lora(), "*head.modules_to_save*": HEAD}
    how: dict[str, Any] = {"epochs": args.lora_epochs, "batch": 32, "lr": 2e-3}
    rows = []
    for name in args.methods.split(","):
        torch.manual_seed(seed)
        net = get_peft_model(Sentence(AutoModel.from_pretrained(args.weights), 20), config)
        model = net if name == "MAP" else byov.bayesianize(net, rules, prior=PRIOR)
        own = DECAY if name == "MAP" else {"n": args.texts, "beta_end": COLD}
        rows += measured(f"LoRA + head, {name}", model, [sets[0], None, sets[1]], seed, 8, **how, **own)
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
    parser.add_argument("--methods", default="MAP,Gaussian", help="of LoRA")
    parser.add_argument("--lora-epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(args.seeds):
        rows = (heads if args.part == "head" else adapters)(args, seed)
        (args.out / f"{args.part}_seed{seed}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
