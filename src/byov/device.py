"""Select the device named by a command's --device option."""

from __future__ import annotations

import torch


def choose_device(name: str) -> torch.device:
    """Return the device with this name; "auto" selects a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.zeros(1, device=place).item()  # fails on "meta"
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        raise ValueError(f"There is no device {name!r} here.") from error
    return place
