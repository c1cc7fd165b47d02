"""Six families on five kinds of network, small: what is saved and exported is tried on each of the thirty."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import timm
import torch
from small_networks import NarrowResNet, bert, lora, seeded, shake, vision_transformer
from torch import nn

import byov

FAMILIES = [byov.Gaussian(), byov.Dropout(0.1), byov.DropConnect(0.1), byov.Ensemble(3), byov.EMP(3), byov.ECMP(3)]
TIMM = {"timm": "vit_tiny_patch16_224", "img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
TIMM |= {"num_classes": 3}


def timm_vit() -> nn.Module:
    return timm.create_model(**{("model_name" if key == "timm" else key): value for key, value in TIMM.items()})


@dataclass
class Kind:
    """A kind of network: how one is made, the options that say so when it is saved, and those when it is loaded."""

    make: Any
    saving: dict[str, Any]
    given: bool = False
    rule: str = "*"

    def model(self, family: Any) -> byov.BayesianModule:
        model = byov.bayesianize(self.make(), {self.rule: family})
        shake(model, 0.05)
        return model

    def batch(self, size: int = 4) -> Any:
        if self.make in (bert, lora):
            tokens = torch.randint(20, (size, 6), generator=seeded())
            mask = (torch.arange(6) < 4 + torch.arange(size)[:, None] % 3).long()
            return {"input_ids": tokens, "attention_mask": mask}
        side = 32 if self.make is NarrowResNet else 16
        return torch.randn(size, 3, side, side)

    def loading(self) -> dict[str, Any]:
        return {"net": self.make()} if self.given else {}


KINDS = {
    "torchvision-resnet": Kind(NarrowResNet, {}, given=True),
    "torchvision-vit": Kind(vision_transformer, {}, given=True),
    "timm-vit": Kind(timm_vit, {"recipe": TIMM}),
    "bert": Kind(bert, {}),
    "lora-bert": Kind(lora, {}, rule="*lora_*"),
}
PAIRS = product(KINDS.items(), FAMILIES)
GRID = [pytest.param(kind, family, id=f"{name}-{type(family).__name__}") for (name, kind), family in PAIRS]
