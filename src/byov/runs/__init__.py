"""Open the run that a command left behind: its model, its data, its predictor and its protocol."""

from byov.runs.header import CHECKPOINT, Header, read_header
from byov.runs.predictor import Classifier, Predictor, Probed
from byov.runs.reading import Reading
from byov.runs.run import Run, open_run

__all__ = [
    "CHECKPOINT",
    "Classifier",
    "Header",
    "Predictor",
    "Probed",
    "Reading",
    "Run",
    "open_run",
    "read_header",
]
