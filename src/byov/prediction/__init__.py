"""Monte-Carlo prediction: the engine, its strategies, what it returns; and weights for draws by stacking."""

from byov.prediction.result import Prediction
from byov.prediction.serving import Serving, predict
from byov.prediction.stacking import Stacked, stack, stacking_weights

__all__ = ["Prediction", "Serving", "Stacked", "predict", "stack", "stacking_weights"]
