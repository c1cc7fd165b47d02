"""How good a classifier is and how well it knows: on clean images and under shift, at μ and under draws."""

from byov.evaluation.predictors import Classifier, Predictor, Probed
from byov.evaluation.rows import Row, evaluate
from byov.evaluation.scores import scores
from byov.evaluation.summary import summarise

__all__ = ["Classifier", "Predictor", "Probed", "Row", "evaluate", "scores", "summarise"]
