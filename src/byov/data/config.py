"""The data section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from byov.data.datasets import FolderSet, ImageSet, holdout
from byov.data.sources import check_shape, load


@dataclass(frozen=True)
class DataConfig:
    """A data set and the part of it that is held out: a recipe's [data]."""

    name: str = "digits"
    root: str | None = None
    image_size: int | None = None
    channels: int | None = None
    holdout: float = 0.0
    """Fraction of the training set to hold out, for choosing settings."""
    holdout_seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        check_shape(self.image_size, self.channels, "data.")
        if not 0 <= self.holdout < 1:
            raise ValueError(f"data.holdout is a share from 0 to below 1, not {self.holdout}.")
        if not 0 <= self.holdout_seed < 2**63:
            raise ValueError(f"data.holdout_seed is a whole number from 0 to below 2^63, not {self.holdout_seed}.")

    def load(self, split: str = "train") -> ImageSet | FolderSet:
        """Load the images of a split: "train" is without the held-out part, "holdout" is that part."""
        source = "train" if split == "holdout" else split
        data = load(
            self.name, source, self.root, image_size=self.image_size, channels=self.channels, download=self.download
        )
        if source != "train" or not self.holdout:
            if split == "holdout":
                raise ValueError("Nothing is held out: set data.holdout.")
            return data
        kept, held = holdout(data, self.holdout, self.holdout_seed)
        return held if split == "holdout" else kept


@dataclass(frozen=True)
class DataSpec:
    """The properties of a data set that a network needs, without the data itself."""

    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int
    digest: str = ""
    columns: tuple[str, ...] = ()
    """For a table: the names of the features, if its file has any."""
    target: str | None = None
    """For a table: the name of the target."""

    def __len__(self) -> int:
        return self.images
