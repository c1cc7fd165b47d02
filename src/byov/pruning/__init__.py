"""Pruning: single weights or whole heads and units, by |μ|/σ or |μ|; at once, or gradually with fine-tuning."""

from byov.pruning.blocks import Block, find_blocks
from byov.pruning.masks import Layer, layers
from byov.pruning.sparse_file import load_sparse, save_sparse
from byov.pruning.structured import group_scores, mask_groups, prune_groups, shrink
from byov.pruning.unstructured import By, Ranking, Scope, cubic, prune, prune_gradually, sweep, weights

__all__ = [
    "Block",
    "By",
    "Layer",
    "Ranking",
    "Scope",
    "cubic",
    "find_blocks",
    "group_scores",
    "layers",
    "load_sparse",
    "mask_groups",
    "prune",
    "prune_gradually",
    "prune_groups",
    "save_sparse",
    "shrink",
    "sweep",
    "weights",
]
