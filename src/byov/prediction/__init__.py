"""Monte-Carlo prediction: what is drawn, how often, what comes back; and weights for draws by stacking."""

from byov.prediction.predict import Serving, predict
from byov.prediction.result import Prediction
from byov.prediction.stacking import Stacked, stack, stacking_weights

__all__ = ["Prediction", "Serving", "Stacked", "predict", "stack", "stacking_weights"]
