"""Regression from a table of numbers: `fit` a posterior on every split at once, `predict` from draws of it."""

from byov.train.regression.fitted import Fitted, Split
from byov.train.regression.fitting import Settings, fit

__all__ = ["Fitted", "Settings", "Split", "fit"]
