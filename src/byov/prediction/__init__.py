"""Monte-Carlo prediction from draws of the weights; and stacking, which weights the draws."""

from byov.prediction.predict import Serving, predict
from byov.prediction.result import Prediction
from byov.prediction.stacking import Stacked, stack, stacking_weights

__all__ = ["Prediction", "Serving", "Stacked", "predict", "stack", "stacking_weights"]
