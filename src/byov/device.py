"""The device that a command's --device names."""

from __future__ import annotations

import torch


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.zeros(1, device=place).item()  # which "meta" has none of
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        raise ValueError(f"There is no device {name!r} here.") from error
    return place
