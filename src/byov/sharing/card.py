"""The model card: what the posterior covers, its measured scores, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from byov.metrics import functional as metrics
from byov.prediction import Prediction

Number = float | int | str
Measured = Mapping[str, Number] | Mapping[str, Mapping[str, Number]] | tuple[Prediction, Tensor]
Rows = dict[str, dict[str, Number]]


def measured_rows(measured: Measured | None) -> Rows:
    """Return the measurements as rows of numbers by name."""
    if measured is None:
        return {}
    if isinstance(measured, tuple):
        prediction, labels = measured
        return {f"{prediction.samples} draws": scores(prediction, labels)}
    if not isinstance(measured, Mapping):
        raise TypeError(f"measured= takes numbers by name, or a prediction and its labels, not {measured!r}.")
    nested = all(isinstance(value, Mapping) for value in measured.values())
    rows: dict[str, Any] = dict(measured) if nested else {"": measured}
    for name, value in (item for row in rows.values() for item in row.items()):
        if not isinstance(value, int | float | str):
            raise TypeError(f"measured= takes numbers by name; {name} is a {type(value).__name__}.")
    return {name: dict(row) for name, row in rows.items()}


def scores(prediction: Prediction, labels: Tensor) -> dict[str, Number]:
    """Score class probabilities (N, C) as fractions and nats, as in `byov.metrics`."""
    if prediction.task not in ("classification", "probabilities"):
        raise ValueError(f"The card's scores are for a classification, not a {prediction.task}: pass numbers by name.")
    probs, labels = prediction.mean.cpu(), labels.cpu()
    return {
        "accuracy": metrics.accuracy(probs, labels).item(),
        "ECE": metrics.calibration_error(probs, labels).item(),
        "NLL": metrics.nll(probs, labels).item(),
        "Brier": metrics.brier_score(probs, labels).item(),
        "examples": len(labels),
    }


def card(about: dict[str, Any], rows: Rows, weights: int) -> str:
    """Return the README.md of a saved posterior; the Hub reads its first lines."""
    network = about["network"]
    recipe = network["recipe"]
    made = "" if recipe else ", net=your_network"
    families = "\n".join(
        f"- `{part['family']}({', '.join(f'{k}={v!r}' for k, v in part['arguments'].items())})` over"
        f" {len(part['covers'])} tensors, `{part['covers'][0]}` to `{part['covers'][-1]}`"
        for part in about["posterior"]
    )
    return f"""---
library_name: byov
tags: [byov, bayesian-deep-learning, uncertainty, calibration]
---

# A posterior over the weights of a {network["class"]}

{weights:,} weights have a distribution, the others are points:

{families}

The prior is `{about["prior"]}`. {_made_by(recipe)}

## Use

```python
import byov

model = byov.load("this folder, or its name on the Hub"{made})
prediction = byov.predict(model, x, samples=20)
prediction.mean, prediction.entropy, prediction.mutual_information
model.point()  # the plain network at the posterior mean
```

## Measured

{_table(rows) if rows else "Nothing was measured when this was saved: check its calibration on your own data."}

Saved by byov {about["byov"]} with torch {about["torch"]}. `model.safetensors` stores the means under the keys of the
plain network, and other learned tensors next to them, as in `fc.weight.log_var`.
"""


def _made_by(recipe: dict[str, Any] | None) -> str:
    if recipe is None:
        return "How to build the network is not recorded: pass the network when loading."
    names = []
    while recipe:
        library = next(iter(recipe))
        names.append(f"{library}'s adapters" if "on" in recipe else f"`{recipe[library]}` of {library}")
        recipe = recipe.get("on")
    return f"The network is {' on '.join(names)}; `byov.json` has its arguments."


def _table(rows: Rows) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(_shown(row.get(key)) for key in names) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def _shown(value: Number | None) -> str:
    return "–" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
