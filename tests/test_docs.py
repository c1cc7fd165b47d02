"""What the documents show is true: Python runs, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn

import byov
from byov.cli import app
from byov.models.registry import create
from byov.overhead import overhead
from byov.train import config

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md", "docs/*.md")
    for path in ROOT.glob(pattern)
)
VERBS: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(name), re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """The words after `byov` of every command line shown: in a block, indented, or in backquotes."""
    found = re.findall(r"^(?: {4}|\$ )?(byov [a-z-].*)$", document, re.MULTILINE)
    found += re.findall(r"`(byov [a-z-][^`]*)`", document)
    return [shlex.split(line, comments=True)[1:] for line in found]


def complaint(words: list[str]) -> str | None:
    """Why click would refuse these words; files and folders need not exist, but recipes named must."""
    if words in (["…"], ["--help"]) or not words:
        return None
    verb, *rest = words
    if verb not in VERBS:
        return f"there is no byov {verb}"
    command = VERBS[verb]
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help": None, "-h": None}
    arguments = sum(1 for option in command.params if option.param_type_name == "argument")
    given, i = 0, 0
    while i < len(rest):
        name, equals, _ = rest[i].partition("=")
        if name.startswith("-"):
            if name not in known:
                return f"byov {verb} has no {name}"
            takes_value = known[name] is not None and not known[name].is_flag
            if takes_value and not equals:
                i += 1
                if i >= len(rest):
                    return f"byov {verb} {name} needs a value"
        else:
            given += 1
            if name.startswith("recipes/") and not (ROOT / name).is_file():
                return f"there is no {name}"
        i += 1
    return f"byov {verb} takes {arguments} arguments" if given > arguments else None


# Python


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All blocks in order, as a reader would paste them; then what the words beside them promise."""
    monkeypatch.chdir(tmp_path)
    found, names = blocks("README.md", "python"), {}
    assert len(found) >= 2
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    model, prediction = names["model"], names["prediction"]
    assert isinstance(model, byov.BayesianModule)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert prediction.samples == 20
    assert prediction.mean.shape == (8, 10)
    torch.testing.assert_close(prediction.mean.sum(1), torch.ones(8))
    assert prediction.entropy.shape == prediction.mutual_information.shape == (8,)
    assert bool((prediction.mutual_information >= -1e-6).all())
    assert list(tmp_path.iterdir()) == []


def test_every_name_of_the_documents_exists() -> None:
    for document in DOCUMENTS:
        for name in set(re.findall(r"\bbyov((?:\.[a-zA-Z_]\w*)+)", text(document))):
            if name.endswith((".toml", ".md", ".json", ".py")):
                continue
            if (ROOT / "src" / "byov" / name[1:].replace(".", "/")).exists():
                continue
            here: Any = byov
            for part in name[1:].split("."):
                assert hasattr(here, part), f"{document}: byov{name}"
                here = getattr(here, part)


def test_the_methods_named_in_the_readme_exist() -> None:
    model = byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())
    named = set(re.findall(r"`(?:with )?model\.(\w+)\(", text("README.md")))
    assert named >= {"draw", "at_mean", "mean", "std", "snr", "sample", "point_state_dict"}
    assert [name for name in named if not callable(getattr(model, name, None))] == []


def test_the_overheads_of_the_readme_are_those_of_the_command() -> None:
    """Per cent of ResNet-18's parameters, as the table prints them."""
    table = {row.family: row for row in overhead(create("resnet18", 1000), 5, None) if row.on in ("all", "norm+output")}
    shown = dict(re.findall(r"^\| `byov\.(\w+)\([^|]*\|[^|]*\| ([\d.]+)", text("README.md"), re.MULTILINE))
    assert set(shown) == {"Gaussian", "EMP", "ECMP", "Dropout", "DropConnect", "Ensemble"}
    by_name = {family.partition("(")[0].lower(): row for family, row in table.items()}
    for family, per_cent in shown.items():
        digits = len(per_cent.partition(".")[2])
        assert f"{by_name[family.lower()].percent:.{digits}f}" == per_cent, family


# Commands


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_commands_of_a_document_parse(name: str) -> None:
    assert [f"byov {' '.join(words)}: {why}" for words in commands(text(name)) if (why := complaint(words))] == []


def test_the_commands_of_sources_and_recipes_parse() -> None:
    """The examples in each verb's help, and whatever a recipe's comments show."""
    shown = {verb: command.help for verb, command in VERBS.items()}
    examples = {verb: re.findall(r"Example: (byov .*)", help_ or "") for verb, help_ in shown.items()}
    examples |= {path.name: re.findall(r"^# *(byov .*)$", path.read_text(), re.M) for path in ROOT.glob("recipes/*")}
    assert sum(map(len, examples.values())) >= 3
    for where, lines in examples.items():
        for line in lines:
            assert complaint(shlex.split(line)[1:]) is None, where


def test_settings_named_in_the_documents_exist() -> None:
    """--set a.b=c as it stands in the documents and the help, against the recipes' own fields."""
    from byov.ssl.pretrain import Pretrain
    from byov.train.supervised import Supervised

    texts = [text(name) for name in DOCUMENTS] + [command.help or "" for command in VERBS.values()]
    found = {word.rstrip(".`") for each in texts for word in re.findall(r"--set ([a-z_.]+=[^\s`]+)", each)}
    assert "train.minutes=10" in found
    for change in found:
        config.load_config(Supervised if change.startswith("posterior.family") else Pretrain, None, [change])


def test_what_would_not_parse_is_found() -> None:
    """The check above is no rubber stamp."""
    document = (
        "```bash\nbyov probes runs/x\n```\nuse `byov probe runs/x --fast`, or\n\n    byov pretrain recipes/none.toml\n"
    )
    document += "and `byov overhead a b`, `byov probe runs/x --out`, `byov probe runs/x --samples=3 --force  # fine`"
    assert [complaint(words) for words in commands(document)] == [
        "there is no byov probes",
        "there is no recipes/none.toml",
        "byov probe has no --fast",
        "byov overhead takes 1 arguments",
        "byov probe --out needs a value",
        None,
    ]


def test_the_readme_names_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    for name in DOCUMENTS:
        named = set(re.findall(r"(?:^|`)make ([\w-]+)", text(name), re.MULTILINE))
        assert named <= targets, name
    assert {"demo", "test", "check"} <= targets


# Links


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```", "", text(name), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", link)]
    missing = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            missing.append(link)
    assert missing == []


def anchors(document: str) -> set[str]:
    """The names that GitHub gives headings."""
    headings = re.findall(r"^#+ (.+)$", document, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_all_documents_are_looked_at() -> None:
    assert {"README.md", "CONTRIBUTING.md", "benchmarks/README.md", "docs/shifted_data.md"} <= set(DOCUMENTS)


def test_files_named_in_the_contributing_guide_exist() -> None:
    """Those in backquotes with a folder; `yours.py` is the reader's."""
    named = re.findall(r"`((?:src|tests|posterior|byov)/[\w/.]+\.py)`", text("CONTRIBUTING.md"))
    assert len(named) >= 3
    places = (ROOT, ROOT / "src", ROOT / "src" / "byov")
    assert [n for n in named if not n.endswith("yours.py") and not any((place / n).exists() for place in places)] == []
