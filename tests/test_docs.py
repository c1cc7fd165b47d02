"""What the documents show is true: Python and console blocks run, commands parse, names and links lead somewhere.

Blocks of a page run in order, in one namespace and one empty folder beside the recipes, as a reader would paste them:
`docs/execute.py` says how, and the site shows what comes out; `bash` is given only to the command's own parser, for
what takes long. `toml` that begins with `# name.toml` is a recipe that loads.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import typer
from torch import nn
from torch.distributed.run import get_args_parser

import byov
from byov.cli import VERBS as NAMES
from byov.cli import app
from byov.models.registry import create
from byov.overhead import overhead
from byov.ssl.pretrain import Pretrain
from byov.train import config
from byov.train.config import located
from byov.train.supervised import Supervised
from byov.train.tabular import PREFIXES, Tabular

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
execute = import_module("execute")
PATTERNS = ("*.md", "benchmarks/README.md", "results/README.md", "docs/**/*.md")
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern))
VERBS: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(name), re.MULTILINE | re.DOTALL)


def lines(document: str) -> list[str]:
    """What follows `byov` on lines of their own, also behind srun and torchrun; without the shell's $variables."""
    document = re.sub(r" \$\w+", "", document.replace("\\\n", " "))
    return re.findall(r"^(?: {4}|\$ )?(?:srun |torchrun .*-m -- )?byov ([a-z-].*)$", document, re.MULTILINE)


def quoted(document: str) -> list[str]:
    """What follows `byov` in backquotes, where some of it may be left out."""
    return re.findall(r"`(?:torchrun [^`]*-m -- )?byov ([a-z-][^`]*)`", document)


def complaint(line: str, whole: bool) -> str | None:
    """What the command's own parser says against a command, which is not run; a part of one may lack arguments."""
    words = shlex.split(line, comments=True)
    if "…" in words or words == ["--help"]:
        return None
    verb, *rest = words
    if verb not in VERBS:
        return f"there is no byov {verb}"
    if missing := [word for word in rest if word.startswith("recipes/") and not (ROOT / word).is_file()]:
        return f"there is no {missing[0]}"
    command, left = VERBS[verb], []
    try:
        if whole:
            command.make_context(verb, rest)
        else:
            _, left, _ = command.make_parser(command.context_class(command)).parse_args(rest)
    except Exception as error:  # click's, or typer's own copy of it
        return getattr(error, "message", None) or str(error)
    return f"byov {verb} does not take {left[0]}" if left else None


# Python


SLOW = ("timm_model", "folder", "patch", "prune")
"""Tutorials of more than a few seconds; all of them take about a minute of one core."""
APART = ("README.md", "docs/patching.md")
"""Pages with a test of their own: the second beside those of its training."""
PAGES = [
    pytest.param(name, marks=[pytest.mark.slow] * (Path(name).stem in SLOW))
    for name in DOCUMENTS
    if re.search(r"^```(python|console)", text(name), re.MULTILINE) and name not in APART
]


def run_page(name: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page in an empty folder, and give the names that its Python has defined."""
    names: dict[str, Any] = {}
    execute.run(text(name), folder, names)
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    run_page(name, tmp_path)
    shown = [line for block in blocks(name, "console") for line in lines(block)]
    for file in re.findall(r"--(?:out|run) (\S+)", "\n".join(shown)):
        assert (tmp_path / file).exists(), f"{name}: {file}"


@pytest.mark.parametrize("block", ["```python\nassert 1 == 2\n```\n", "```console\n$ byov evaluate runs/none\n```\n"])
def test_a_block_that_fails_is_found(block: str, tmp_path: Path) -> None:
    """The runner is no rubber stamp: neither for Python nor for a command that parses and then fails."""
    with pytest.raises(AssertionError):
        execute.run(block, tmp_path, {})


def test_a_block_shows_what_it_printed_and_drew(tmp_path: Path) -> None:
    page = "```python\nimport matplotlib.pyplot as plt\n\nprint(6 * 7)\nplt.plot([1, 2])\n```\n"
    first, second = execute.run(f"{page}\n```console\n$ byov --version\n```\n", tmp_path)
    assert first.text == "42\n"
    [(kind, content)] = first.figures
    assert (kind, content[:4]) == ("png", b"\x89PNG")
    assert second.text.startswith("byov ")
    assert not second.figures


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """And gives what the words beside it promise."""
    names = run_page("README.md", tmp_path)
    model, prediction, unseen = names["model"], names["prediction"], names["unseen"]
    assert isinstance(model, byov.BayesianModule)
    assert prediction.samples == 30
    assert prediction.mean.shape == (450, 10)
    torch.testing.assert_close(prediction.mean.sum(1), torch.ones(450))
    assert bool((prediction.mutual_information >= -1e-6).all())
    assert float((prediction.mean.argmax(1) == unseen.labels).float().mean()) > 0.9
    assert names["patched"].covered() == ["1.weight", "1.bias", "5.weight", "5.bias"]
    assert [path.name for path in tmp_path.iterdir()] == ["recipes"]


def test_the_recipes_of_the_pages_load(tmp_path: Path) -> None:
    found = [block for name in DOCUMENTS for block in blocks(name, "toml")]
    assert len(found) >= 2
    for block in found:
        (tmp_path / "recipe.toml").write_text(block)
        config.load_config(Pretrain, tmp_path / "recipe.toml")


def test_parts_and_names_are_found_without_an_import_of_their_own() -> None:
    for name in byov._PARTS:
        assert byov.__getattr__(name) is import_module(f"byov.{name}")
    assert all(hasattr(byov, name) for name in byov.__all__)
    assert {"Gaussian", "predict", "posterior", "evaluation"} <= set(dir(byov))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        byov.__getattr__("nothing")


def test_every_name_of_the_documents_exists() -> None:
    for document in DOCUMENTS:
        for name in set(re.findall(r"\bbyov((?:\.[a-zA-Z_]\w*)+)", text(document))):
            if name.endswith((".toml", ".md", ".json", ".py")):
                continue
            if (ROOT / "src" / "byov" / name[1:].replace(".", "/")).exists():
                continue
            try:
                resolve_name(f"byov{name}")
            except (AttributeError, ImportError):
                pytest.fail(f"{document}: byov{name}")


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
def test_the_commands_of_a_document_parse(name: str, tmp_path: Path) -> None:
    """Those on lines of their own are whole: types, choices, what is required, and the settings of a recipe, too."""
    whole = lines(text(name))
    shown = [(line, True) for line in whole] + [(line, False) for line in quoted(text(name))]
    assert [f"byov {line}: {why}" for line, all_of_it in shown if (why := complaint(line, all_of_it))] == []
    for block in blocks(name, "toml"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    for verb, *words in (shlex.split(line, comments=True) for line in whole):
        if verb in ("pretrain", "train"):
            given = VERBS[verb].make_context(verb, words).params
            asked, changes = given["recipe"], given["set_"] or []
            own = tmp_path / (asked or "")  # else one of byov's, by its name
            recipe = asked and (own if own.is_file() else located(asked))
            table = str(config.value_of(recipe, changes, "data.name")).startswith(PREFIXES)
            kind = Pretrain if verb == "pretrain" else Tabular if table else Supervised
            config.load_config(kind, recipe, changes)


def test_what_would_not_parse_is_found() -> None:
    """The check above is no rubber stamp."""
    document = "byov probes runs/x\n    byov pretrain recipes/none.toml\nbyov prune runs/x\n"
    document += "byov probe runs/x --samples many\nbyov probe runs/x --samples=3 --force  # fine\n"
    said = [complaint(line, whole=True) for line in lines(document)]
    assert said[:2] == ["there is no byov probes", "there is no recipes/none.toml"]
    assert [why is None for why in said[2:]] == [False, False, True]  # --out is required; many is no number
    document = "`byov probe runs/x --fast`, `byov overhead a b`, `byov probe runs/x --out`, `byov prune runs/x`"
    said = [complaint(line, whole=False) for line in quoted(document)]
    assert said[:2] == ["No such option: --fast", "byov overhead does not take b"]
    assert said[2:] == ["Option '--out' requires an argument.", None]
    assert lines("    torchrun --nnodes 2 \\\n  -m -- byov train --run x\n") == ["train --run x"]


def test_torchrun_hands_over_every_word() -> None:
    """Its parser takes `--run` for an abbreviation of its own options, unless two dashes stand before byov."""
    shown = []
    for name in DOCUMENTS:
        document = text(name).replace("\\\n", " ").replace("$", "")
        shown += re.findall(r"(?:^|`)torchrun ([^`\n]*byov [^`\n]*)", document, re.MULTILINE)
    assert len(shown) >= 3
    for line in shown:
        given = get_args_parser().parse_args(shlex.split(line))
        assert (given.module, given.training_script) == (True, "byov")
        assert given.training_script_args == shlex.split(line.partition("byov ")[2])


def test_the_readme_has_every_command_with_an_example() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| `byov ((\w+)[^`]*)` \|$", text("README.md"), re.MULTILINE)
    assert [verb for verb, _, _ in rows] == [example for _, _, example in rows] == NAMES
    assert [why for _, line, _ in rows if (why := complaint(line, whole=True))] == []


def test_the_commands_of_sources_and_recipes_parse() -> None:
    """The examples in each verb's help, and whatever a recipe's comments show."""
    examples = [line for command in VERBS.values() for line in re.findall(r"Example: byov (.*)", command.help or "")]
    for path in ROOT.glob("recipes/*"):
        examples += re.findall(r"^# *byov (.*)$", path.read_text(), re.MULTILINE)
    assert len(examples) >= 3
    assert [f"byov {line}: {why}" for line in examples if (why := complaint(line, whole=False))] == []


def test_settings_named_in_the_documents_exist() -> None:
    """--set a.b=c as it stands in the documents and the help, against the recipes' own fields."""
    texts = [text(name) for name in DOCUMENTS] + [command.help or "" for command in VERBS.values()]
    found = {word.rstrip(".`") for each in texts for word in re.findall(r"--set ([a-z_.]+=[^\s`]+)", each)}
    assert "train.minutes=10" in found
    for change in found:
        tries = [
            (cls, [change, *more])
            for cls in (Supervised, Pretrain, Tabular)
            for more in ([], ["train.warmup=0"], ["posterior.family=emp"])
        ]
        assert any(_loads(cls, changes) for cls, changes in tries), change


def _loads(cls: type, changes: list[str]) -> bool:
    try:
        config.load_config(cls, None, changes)
    except ValueError:
        return False
    return True


def test_the_documents_name_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    for name in DOCUMENTS:
        assert set(re.findall(r"(?:^|`)make ([\w-]+)", text(name), re.MULTILINE)) <= targets, name


def test_the_readme_fits_a_screen_and_shows_the_report() -> None:
    """No line of code over 88 characters; the two commands first; a picture small enough to be loaded anywhere."""
    readme = text("README.md")
    code = "".join(re.findall(r"^```\w+\n(.*?)^```", readme, re.MULTILINE | re.DOTALL))
    indented = re.findall(r"^ {4}.*$", readme, re.MULTILINE)
    assert [line for line in [*code.splitlines(), *indented] if len(line) > 88] == []
    assert [line.split("#")[0].strip() for line in code.splitlines()[:2]] == ["make demo", "make test"]
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000


# Links


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    prose = re.sub(r"^```.*?^```", "", text(name), flags=re.MULTILINE | re.DOTALL)
    missing = []
    for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose):
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
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "docs/index.md"} <= set(DOCUMENTS)
    nav = set(re.findall(r": ([\w/]+\.md)$", text("mkdocs.yml"), re.MULTILINE))
    assert nav == {name.removeprefix("docs/") for name in DOCUMENTS if name != "README.md"}


def test_files_named_in_the_contributing_guide_exist() -> None:
    """Those in backquotes with a folder; `yours.py` is the reader's."""
    named = re.findall(r"`((?:src/|byov/)?\w+/[\w/.]+\.py)`", text("CONTRIBUTING.md"))
    assert len(named) >= 10
    places = (ROOT, ROOT / "src", ROOT / "src" / "byov")
    assert [n for n in named if not n.endswith("yours.py") and not any((place / n).exists() for place in places)] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """As `make docs` builds it. Equations become MathML, and no page loads anything from elsewhere."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("latex2mathml")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    plain = {**os.environ, "BYOV_DOCS": "plain"}  # the blocks have tests of their own
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, env=plain)
    assert done.returncode == 0, done.stderr
    for name in ("byov", "patching", "add_a_family"):
        page, source = (tmp_path / f"{name}.html").read_text(), re.sub(r"`[^`]*`", "", text(f"docs/{name}.md"))
        assert page.count('display="block"') == len(re.findall(r"^\$\$ .+ \$\$$", source, re.MULTILINE)) > 0
        assert "arithmatex" not in page
    for path in tmp_path.rglob("*.html"):
        page = path.read_text()
        assert not re.search(r'<(?:(?:script|img|iframe)[^>]+src|link[^>]+href)="(?:https?:)?//', page), path
        assert 'class="gp"' not in page, path  # a prompt would be copied with its line
    reference = "".join(path.read_text() for path in (tmp_path / "api").glob("*.html"))
    parts = {"byov": byov, "byov.metrics.functional": byov.metrics.functional, "byov.ssl": byov.ssl}
    named = {f"{part}.{name}" for part, module in parts.items() for name in module.__all__}
    named -= {"byov.bayesianize", "byov.check", "byov.features", "byov.ssl.features"}  # modules have these names, too:
    named |= {"byov.posterior.bayesianize.bayesianize", "byov.evaluation.check.check", "byov.ssl.features.features"}
    later = "representation_uncertainty"  # it is imported when it is asked for, which the documentation does not see
    named = (named - {f"byov.{later}"}) | {f"byov.evaluation.representation.{later}"}
    assert [name for name in sorted(named) if f'id="{name}"' not in reference] == []
    assert (tmp_path / "results" / "index.html").exists()
