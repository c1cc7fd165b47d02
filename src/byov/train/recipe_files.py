"""Where recipes are: files of one's own, and byov's, which are found by name wherever byov is installed."""

from __future__ import annotations

from difflib import get_close_matches
from os import PathLike
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes")
"""In the package, where it was installed from a wheel; or in the repository."""


def located(path: str | PathLike[str]) -> Path:
    """Return the file at this path, or else byov's own recipe of this name: digits_train, or recipes/digits_train.toml.

    A file that is there comes first.
    """
    path = Path(path)
    if path.is_file():
        return path
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".toml"):
        for folder in FOLDERS:
            if (found := folder / f"{path.stem if path.suffix else path.name}.toml").is_file():
                return found
    near = get_close_matches(path.stem, names(), n=1)
    hint = f" The nearest of byov's own is {near[0]}." if near else ""
    raise FileNotFoundError(f"There is no recipe at {path}.{hint}")


def names() -> list[str]:
    """Return the names of byov's own recipes."""
    return sorted({file.stem for folder in FOLDERS for file in folder.glob("*.toml")})
