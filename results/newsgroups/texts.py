"""20-Newsgroups as it comes with Orange's text add-on, as a pretrained encoder reads it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

LENGTH = 64
"""Tokens of each text."""


class Sentence(nn.Module):
    """An encoder, the mean of its tokens' states, and a linear head."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(384, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(pooled(self.encoder(input_ids=input_ids, attention_mask=attention_mask), attention_mask))


def pooled(out: object, mask: Tensor) -> Tensor:
    """Average the states of the tokens that are there, as the encoder was trained to be read; root mean square 1."""
    states = (out.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(states) * 384**0.5


def texts(data: Path, part: str) -> tuple[list[str], Tensor]:
    """Read the train or the test part, in an order drawn once."""
    lines = (data / f"20newsgroups-{part}.tab").read_text(encoding="utf-8").splitlines()[3:]
    rows = [row for row in (line.split("\t") for line in lines) if len(row) == 2 and row[1].strip()]
    groups = sorted({group for group, _ in rows})
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    return [rows[i][1] for i in order], torch.tensor([groups.index(rows[i][0]) for i in order])


def tokens(weights: Path, found: list[str]) -> dict[str, Tensor]:
    """Cut the texts into tokens; the first words are enough for so many."""
    tokenizer = AutoTokenizer.from_pretrained(weights)
    batch = tokenizer(
        [text[: 20 * LENGTH] for text in found],
        truncation=True,
        max_length=LENGTH,
        padding="max_length",
        return_tensors="pt",
    )
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@torch.inference_mode()
def embedded(weights: Path, data: Path, part: str, cache: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, 384) of so many texts, and their groups; computed once."""
    file = cache / f"{part}_{count or 'all'}.pt"
    if not file.exists():
        found, labels = (each[:count] for each in texts(data, part))
        batch, encoder = tokens(weights, found), AutoModel.from_pretrained(weights).eval()
        rows = range(0, len(labels), 50)
        parts = [{name: value[i : i + 50] for name, value in batch.items()} for i in rows]
        states = torch.cat([pooled(encoder(**each), each["attention_mask"]) for each in parts])
        cache.mkdir(parents=True, exist_ok=True)
        torch.save((states, labels), file)
    states, labels = torch.load(file)
    return states.clone(), labels
