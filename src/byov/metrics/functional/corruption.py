"""Corruption errors: the errors of a model on corrupted inputs, in per cent of those of a baseline.

Errors are top-1 errors, a mapping from the corruption's name to its errors at severities 1, 2, …, as fractions or per
cent, but the same throughout. The model and its baseline (the vanilla network) need the same corruptions and
severities. E_c is the sum over severities, 100 is the baseline itself, and less is better.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_choice

Errors = Mapping[str, Sequence[float] | Tensor]
Denominator = Literal["baseline", "own"]


def corruption_error(errors: Errors, baseline: Errors) -> dict[str, Tensor]:
    """Return CE_c = 100 · E_c / E_c(baseline) for each corruption c (patching paper, D.4), in the order of `errors`.

    Example:
        >>> ce = corruption_error({"fog": [0.1, 0.2], "snow": [0.3, 0.3]}, {"fog": [0.2, 0.4], "snow": [0.2, 0.2]})
        >>> {name: round(value.item(), 6) for name, value in ce.items()}
        {'fog': 50.0, 'snow': 150.0}
    """
    model, reference = _severities(errors, baseline)
    return {name: _percent(model[name].sum(), reference[name].sum(), name) for name in model}


def mean_corruption_error(errors: Errors, baseline: Errors) -> Tensor:
    """Return mCE, the mean of `corruption_error` over the corruptions.

    Example:
        >>> errors, baseline = {"fog": [0.1, 0.2], "snow": [0.3, 0.3]}, {"fog": [0.2, 0.4], "snow": [0.2, 0.2]}
        >>> round(mean_corruption_error(errors, baseline).item(), 6)
        100.0
    """
    return _mean(corruption_error(errors, baseline))


def relative_corruption_error(
    errors: Errors, clean: float, baseline: Errors, baseline_clean: float, denominator: Denominator = "baseline"
) -> dict[str, Tensor]:
    """Return the increase of the error by each corruption, in per cent of the increase for the baseline.

        rCE_c = 100 · Σ_s (E_{s,c} − E_clean) / Σ_s (E_{s,c}(baseline) − E_clean(baseline))

    as defined by Hendrycks & Dietterich: the clean error is one number and is subtracted once per severity. The
    patching paper (D.4) prints the model's own E_clean in the denominator too: `denominator="own"`. Report which was
    used. If the denominator is not positive (the corruption does not harm the baseline), the ratio is undefined and
    raises an error.

    Example:
        >>> errors, baseline = {"fog": [0.2, 0.3]}, {"fog": [0.4, 0.6]}
        >>> round(relative_corruption_error(errors, 0.1, baseline, 0.2)["fog"].item(), 6)  # 0.3 / 0.6
        50.0
        >>> round(relative_corruption_error(errors, 0.1, baseline, 0.2, "own")["fog"].item(), 6)  # 0.3 / 0.8
        37.5
    """
    check_choice(denominator, "denominator", ("baseline", "own"))
    own = _error_vector([clean], "clean")
    other = own if denominator == "own" else _error_vector([baseline_clean], "baseline_clean")
    model, reference = _severities(errors, baseline)
    return {name: _percent((model[name] - own).sum(), (reference[name] - other).sum(), name) for name in model}


def relative_mean_corruption_error(
    errors: Errors, clean: float, baseline: Errors, baseline_clean: float, denominator: Denominator = "baseline"
) -> Tensor:
    """Return rmCE, the mean of `relative_corruption_error` over the corruptions.

    Example:
        >>> errors, baseline = {"fog": [0.2, 0.3], "snow": [0.5, 0.5]}, {"fog": [0.4, 0.6], "snow": [0.6, 0.6]}
        >>> round(relative_mean_corruption_error(errors, 0.1, baseline, 0.2).item(), 6)  # (0.3/0.6 + 0.8/0.8) / 2
        75.0
    """
    return _mean(relative_corruption_error(errors, clean, baseline, baseline_clean, denominator))


def error_table(errors: Errors, name: str) -> dict[str, Tensor]:
    """Return `errors` as float64 vectors; raise unless each has one or more finite, non-negative errors."""
    if not isinstance(errors, Mapping):
        raise TypeError(f"{name} must be a mapping from corruption to errors, got {type(errors).__name__}.")
    if not errors:
        raise ValueError(f"{name} names no corruption.")
    return {corruption: _error_vector(values, f"{name}[{corruption!r}]") for corruption, values in errors.items()}


def _severities(errors: Errors, baseline: Errors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model, reference = error_table(errors, "errors"), error_table(baseline, "baseline")
    if model.keys() != reference.keys():
        odd = ", ".join(sorted(model.keys() ^ reference.keys()))
        raise ValueError(f"errors and baseline must name the same corruptions, but only one of them has {odd}.")
    for name, values in model.items():
        if len(values) != len(reference[name]):
            counts = f"{len(values)} and {len(reference[name])} for {name!r}"
            raise ValueError(f"errors and baseline must have the same severities, got {counts}.")
    return model, reference


def _error_vector(values: Sequence[float] | Tensor, name: str) -> Tensor:
    vector = torch.as_tensor(values, dtype=torch.float64).cpu()
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(f"{name} must hold one error per severity, got shape {tuple(vector.shape)}.")
    if not bool((vector.isfinite() & (vector >= 0)).all()):
        raise ValueError(f"{name} must hold finite errors that are not negative, got {vector.tolist()}.")
    return vector


def _percent(own: Tensor, baseline: Tensor, name: str) -> Tensor:
    if baseline <= 0:
        raise ValueError(f"{name!r} does not harm the baseline, so a corruption error relative to it is undefined.")
    return 100 * own / baseline


def _mean(values: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(values.values())).mean()
