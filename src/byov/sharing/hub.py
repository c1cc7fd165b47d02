"""Upload to and download from the Hugging Face Hub, by huggingface_hub; it needs the extra `torch-byov[hf]`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byov.sharing.origin import first_line

NEEDS = "The Hugging Face Hub needs huggingface_hub: pip install 'torch-byov[hf]'."


def push(write: Callable[[Path], None], repo_id: str, **options: Any) -> str:
    """Upload the folder that `write` fills, as one commit; return the commit's address."""
    try:
        from huggingface_hub import ModelHubMixin
    except ImportError as error:
        raise ImportError(NEEDS) from error

    with TemporaryDirectory() as ready:
        write(Path(ready, "saved"))  # before the repository is created: bad input leaves nothing behind

        class Saved(ModelHubMixin):
            def _save_pretrained(self, save_directory: Path) -> None:
                shutil.copytree(Path(ready, "saved"), save_directory, dirs_exist_ok=True)

        return Saved().push_to_hub(repo_id, **{"commit_message": "Share a posterior", **options})


def find_or_download(name: str, files: tuple[str, ...], options: Mapping[str, Any]) -> Path:
    """Return the folder of this name, or else a copy of the Hub repository of this name."""
    folder = Path(name).expanduser()
    if folder.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        if options:
            raise TypeError(f"{', '.join(options)} is for a repository on the Hub, but {name} is a folder.")
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no folder {name} with a saved posterior.")
        return folder
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise FileNotFoundError(f"There is no folder {name} with a saved posterior. {NEEDS}") from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(files), **options))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"There is no folder {name}, and it cannot be downloaded from the Hub: {first_line(error)}."
        ) from error
