"""What a posterior looks like: by layer, against the number of draws, under noise, beside another model and people.

Every function returns plain numbers; beside each stands the figure that is drawn from them. Nothing here trains.
"""

from byov.exploration.alignment import Alignment, alignment, alignment_figure, predictive_std
from byov.exploration.convergence import Convergence, convergence, convergence_figure
from byov.exploration.gallery import Gallery, gallery, gallery_figure
from byov.exploration.humans import HumanAgreement, human_agreement, human_entropy, humans_figure
from byov.exploration.layers import LayerHistory, layer_history, layers_figure
from byov.exploration.noise import NoiseVariance, noise_figure, noise_variance
from byov.posterior.layer_statistics import LayerStatistics, layer_statistics

__all__ = [
    "Alignment",
    "Convergence",
    "Gallery",
    "HumanAgreement",
    "LayerHistory",
    "LayerStatistics",
    "NoiseVariance",
    "alignment",
    "alignment_figure",
    "convergence",
    "convergence_figure",
    "gallery",
    "gallery_figure",
    "human_agreement",
    "human_entropy",
    "humans_figure",
    "layer_history",
    "layer_statistics",
    "layers_figure",
    "noise_figure",
    "noise_variance",
    "predictive_std",
]
