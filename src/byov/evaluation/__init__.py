"""Numbers about a model: its scores on clean and shifted images, and its posterior. One file per question."""

from byov.evaluation.alignment import Alignment, alignment, predictive_std
from byov.evaluation.convergence import Convergence, convergence
from byov.evaluation.gallery import Gallery, gallery
from byov.evaluation.humans import HumanAgreement, human_agreement, human_entropy
from byov.evaluation.layers import LayerHistory, layer_history
from byov.evaluation.noise import NoiseVariance, noise_variance
from byov.evaluation.representation import Representation, representation_uncertainty
from byov.evaluation.rows import Row, evaluate, summarise
from byov.evaluation.scores import scores
from byov.posterior.layer_statistics import LayerStatistics, layer_statistics
from byov.runs.predictor import Classifier, Predictor, Probed

__all__ = [
    "Alignment",
    "Classifier",
    "Convergence",
    "Gallery",
    "HumanAgreement",
    "LayerHistory",
    "LayerStatistics",
    "NoiseVariance",
    "Predictor",
    "Probed",
    "Representation",
    "Row",
    "alignment",
    "convergence",
    "evaluate",
    "gallery",
    "human_agreement",
    "human_entropy",
    "layer_history",
    "layer_statistics",
    "noise_variance",
    "predictive_std",
    "representation_uncertainty",
    "scores",
    "summarise",
]
