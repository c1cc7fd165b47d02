"""Small networks of every kind, for the tests of `posterior`, `prediction` and `pruning`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Generator, Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.resnet import BasicBlock, ResNet


def seeded(seed: int = 7) -> Generator:
    return Generator().manual_seed(seed)


def shake(module: nn.Module, by: float = 0.05) -> None:
    """Move every parameter a little: components that differ, heads that are not zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=by)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class NarrowResNet(ResNet):
    """torchvision's, with one block per stage and an eighth of the channels: the same kinds of layer."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=3)
        self.fc = nn.Linear(64, 3)

    def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def vision_transformer() -> nn.Module:
    """torchvision's, with nn.MultiheadAttention."""
    return VisionTransformer(
        image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=12, mlp_dim=16, num_classes=3
    )


def timm_vit() -> nn.Module:
    """timm's, with drop-path: randomness of the network's own, in train mode."""
    return TimmViT(
        img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=2, num_classes=3, drop_path_rate=0.5, mlp_ratio=2
    )


class Tied(nn.Module):
    """A language model in small: the output layer reads the embedding's weights; logits are (N, words, 1, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 11)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.mix(self.embed(tokens))))).transpose(1, 2)[:, :, None]


class Recurrent(nn.Module):
    """An LSTM reads its weights from a list of its own, which only its setter keeps up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x[:, None].expand(-1, 3, -1))[0][:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp-batchnorm": (mlp, lambda: torch.randn(6, 6)),
    "torchvision-resnet": (NarrowResNet, lambda: torch.randn(4, 3, 32, 32)),
    "torchvision-vit": (vision_transformer, lambda: torch.randn(4, 3, 16, 16)),
    "timm-vit": (timm_vit, lambda: torch.randn(4, 3, 16, 16)),
    "tied": (Tied, lambda: torch.randint(11, (4, 5))),
}


class CausalLM(nn.Module):
    """A language model as Hugging Face's are: labels are the inputs, and each place predicts the next."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(words, 4), nn.Linear(4, words)

    def forward(self, input_ids: Tensor) -> Any:
        return CausalLMOutput(logits=self.out(self.embed(input_ids)))


class CausalLMOutput(dict[str, Tensor]):
    """What such a model returns, by its name."""


def bert() -> Any:
    """A classifier of Transformers without dropout, of three classes and 30 words."""
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=8, num_labels=3, **small, **still)
    return transformers.BertForSequenceClassification(config)


def lora() -> Any:
    """The same with PEFT's adapters on queries and values."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, task_type="SEQ_CLS", target_modules=["query", "value"], lora_dropout=0.0)
    return peft.get_peft_model(bert(), config)
