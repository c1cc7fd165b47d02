"""Monte-Carlo prediction: the engine, its strategies, what it returns; and weights for draws by stacking."""

from byov.prediction.engine import predict
from byov.prediction.result import Prediction
from byov.prediction.stacking import Stacked, stack, stacking_weights

__all__ = ["Prediction", "Stacked", "predict", "stack", "stacking_weights"]
