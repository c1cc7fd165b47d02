"""Write the README.md of a finished run: what it is, how it was made, and how to use it from Python."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from byov.files import replacing
from byov.train.config import flatten, to_dict

MARK = "<!-- Written by byov when the run ended, and again when it goes on; without this line it is yours. -->"
FILES = {
    "checkpoint.safetensors": "the weights, with the whole recipe",
    "log.jsonl": "loss, KL and similar values during training, one line per report",
    "layers.jsonl": "σ and |μ|/σ of each layer during training",
    "tensorboard": "the same for TensorBoard",
}
MADE = {"pretrain": "pretrain", "train": "train", "table": "train"}
"""The command that makes each kind of run."""

USED = {
    "pretrain": """images = byov.data.load({data}, "test").images
found = byov.features(run.run.encoder, images, **run.run.probe_options)   # (N, D); draws=30 for (30, N, D)""",
    "train": """prediction = run.predict({data})   # a picture, several, a folder, a set's name, or images (N, C, H, W)
prediction.mean, prediction.entropy, prediction.mutual_information""",
    "table": """prediction = run.predict("rows.csv")   # with the columns of the table, or rows (N, D)
prediction.mean, prediction.std""",
}


def write_readme(run: Path, kind: str, recipe: Any, summary: str) -> None:
    """Write RUN/README.md, unless there is one that byov did not write."""
    path = run / "README.md"
    if path.exists() and not (path.is_file() and path.read_bytes().startswith(MARK.encode())):
        return
    text = readme(run, kind, recipe, summary)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        with replacing(path) as fresh:
            fresh.write_text(text, encoding="utf-8", errors="backslashreplace")


def readme(run: Path, kind: str, recipe: Any, summary: str) -> str:
    """Return the text of the README, which is the same for the same run."""
    import byov

    data, family = recipe.data.name, recipe.posterior.family
    what = {"pretrain": "An encoder, learned without labels", "train": "A classifier"}.get(kind, "A regression")
    posterior = "without a posterior" if family == "none" else f"with a posterior over its weights, `{family}`"
    lines = [f"- `{name}`: {words}" for name, words in FILES.items() if (run / name).exists()]
    trusted = ", trust=True" * ("python:" in json.dumps(to_dict(recipe)))
    opened = f"import byov\n\nrun = byov.open({json.dumps(str(run))}{trusted})"
    use = f"{opened}\n{USED[kind].format(data=json.dumps(data))}" if kind in USED else opened
    parts = [
        MARK,
        f"# {run.name}",
        f"{what} of {data}, {posterior}. {summary}, by byov {byov.__version__}.",
        *("\n".join(lines),) * bool(lines),
        "Created by this command; settings that are not listed have their defaults:",
        f"    byov {MADE.get(kind, 'train')} --run {shlex.quote(str(run))}" + "".join(changes(recipe)),
        "From Python:",
        f"```python\n{use}\n```",
        f"Next: `{evaluation(run, kind)}`"
        + ("." if kind == "table" else f", and `byov report {shlex.quote(str(run))}` beside another run."),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def evaluation(run: Path, kind: str) -> str:
    """Return the command that evaluates a run into its own folder, where `byov report` looks for results."""
    shift = "" if kind == "table" else " --shift augmentations"
    return f"byov evaluate {shlex.quote(str(run))}{shift} --out {shlex.quote(str(run / 'results.json'))}"


def changes(recipe: Any) -> list[str]:
    """Return ` --set key=value` for each non-default setting, one per line."""
    usual, own = (flatten(to_dict(each)) for each in (type(recipe)(), recipe))
    found = []
    for key, value in own.items():
        if value is not None and value != usual.get(key):
            written = value if isinstance(value, str) else json.dumps(value)
            found.append(f" \\\n        --set {shlex.quote(f'{key}={written}')}")
    return found
