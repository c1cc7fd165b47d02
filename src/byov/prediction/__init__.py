"""Monte-Carlo prediction: the engine, its strategies, what it returns."""

from byov.prediction.engine import predict
from byov.prediction.result import Prediction

__all__ = ["Prediction", "predict"]
