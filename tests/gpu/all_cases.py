"""Every case: importing a module registers its own."""

from . import following, noise, predictions, pretraining, runs, steps
from .registry import CASES

__all__ = ["CASES", "following", "noise", "predictions", "pretraining", "runs", "steps"]
