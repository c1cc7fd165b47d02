"""Every case: importing a module registers its own."""

from . import noise, predictions, pretraining, runs, steps
from .registry import CASES

__all__ = ["CASES", "noise", "predictions", "pretraining", "runs", "steps"]
