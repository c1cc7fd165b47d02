"""A posterior that travels: saved to a folder or the Hugging Face Hub, loaded again, exported as one file."""

from byov.sharing.export import export
from byov.sharing.folder import load, save

__all__ = ["export", "load", "save"]
