"""Methods for trained networks: posteriors without training, temperatures, conformal sets."""

from byov.posthoc.checkpoints import from_checkpoints
from byov.posthoc.conformal import Conformal, conformal
from byov.posthoc.evidence import Evidence
from byov.posthoc.laplace import laplace
from byov.posthoc.swag import SWAG
from byov.posthoc.temperature import Temperature, temperature

__all__ = ["SWAG", "Conformal", "Evidence", "Temperature", "conformal", "from_checkpoints", "laplace", "temperature"]
