"""A posterior that travels: saved to a folder or the Hugging Face Hub, loaded again, exported as one file."""

from byov.sharing.folder import load, save
from byov.sharing.one_file import export

__all__ = ["export", "load", "save"]
