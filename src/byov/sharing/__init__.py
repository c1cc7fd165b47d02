"""Share a posterior: save it to a folder or the Hugging Face Hub, load it, export it as one file."""

from byov.sharing.folder import load, save
from byov.sharing.one_file import export

__all__ = ["export", "load", "save"]
