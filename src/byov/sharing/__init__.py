"""Share a posterior: save it to a folder or the Hugging Face Hub, load it, export it as one file."""

from byov.sharing.exporting import export
from byov.sharing.folder import load, save

__all__ = ["export", "load", "save"]
