"""Data sets by name, resumable batches, and tables for regression."""

from byov.data import augmentations, corruptions
from byov.data.batches import Batch, Batches, epoch_order
from byov.data.datasets import FolderSet, ImageSet, holdout
from byov.data.sources import cifar10h, data_root, load
from byov.data.tables import Fold, Table, table, uci
from byov.data.transforms import CropFlip

__all__ = [
    "Batch",
    "Batches",
    "CropFlip",
    "Fold",
    "FolderSet",
    "ImageSet",
    "Table",
    "augmentations",
    "cifar10h",
    "corruptions",
    "data_root",
    "epoch_order",
    "holdout",
    "load",
    "table",
    "uci",
]
