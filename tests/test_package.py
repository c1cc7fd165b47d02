"""What is installed: a core that needs four packages, recipes by name, one version, and a wheel with all of it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

import byov
from byov.train.config import located, names

ROOT = Path(__file__).parents[1]
CORE = {"torch", "numpy", "safetensors", "torchmetrics"}
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL", "huggingface_hub": "huggingface_hub"}

CALLS = """
import sys
import torchmetrics  # which looks for what is installed, and imports that
sys.modules.update(dict.fromkeys({others!r}))
import torch, byov
from byov.metrics.functional import calibration_error
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
model = byov.bayesianize(net, {{"0.*": byov.Gaussian(), byov.output_layer: byov.EMP(3)}})
(torch.nn.functional.cross_entropy(model(torch.randn(4, 6)), torch.zeros(4).long()) + model.kl() / 4).backward()
prediction = byov.predict(model, torch.randn(4, 6), 5)
byov.predict(model, torch.utils.data.DataLoader(torch.randn(4, 6), 2), 5)
calibration_error(prediction.mean, torch.zeros(4).long())
byov.metrics.CalibrationError()
byov.prune(model, 0.5)
model.save_pretrained({folder!r})
byov.load({folder!r}, net)
byov.export(model, torch.randn(4, 6), {folder!r} + "/m.pt2", 2)
"""


def dependencies() -> set[str]:
    """The packages that pyproject names, by the names they are imported by."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        *project["dependencies"],
        *(line for key in ("hf", "onnx") for line in project["optional-dependencies"][key]),
    ]
    found = {re.split(r"[>=\[]", line)[0] for line in lines}
    return {IMPORTED_AS.get(name, name) for name in found}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_core_needs_four_packages(tmp_path: Path) -> None:
    """Posteriors, prediction, metrics, pruning, saving and export, where nothing else can be imported."""
    others = sorted(dependencies() - CORE)
    assert {"timm", "lightning", "matplotlib", "typer", "torchvision", "sklearn", "rich"} <= set(others)
    done = python(CALLS.format(others=others, folder=str(tmp_path)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("missing", "words"), [("typer", ["--help"]), ("lightning", ["train", "digits_train"])])
def test_the_command_says_what_is_missing(missing: str, words: list[str]) -> None:
    without = f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['byov', *{words!r}]"
    done = python(f"{without}; from byov.__main__ import main; main()")
    assert done.returncode == 2
    assert re.fullmatch(rf"byov: .*needs {missing}\S*: pip install torch-byov .*\n", done.stderr), done.stderr


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project["dynamic"]
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest is not None
    assert latest[1] == byov.__version__


def test_recipes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {file.stem for file in (ROOT / "recipes").glob("*.toml")} == set(names())
    for name in ("digits_train", "digits_train.toml", "recipes/digits_train.toml"):
        assert located(name).read_text() == (ROOT / "recipes" / "digits_train.toml").read_text()
    (tmp_path / "digits_train.toml").write_text("mine")
    assert located("digits_train.toml").read_text() == "mine"
    for name in ("digits_trian", "recipes/none.toml", "elsewhere/digits_train.toml"):
        with pytest.raises(FileNotFoundError, match="There is no recipe at"):
            located(name)


@pytest.mark.slow
def test_the_wheel_holds_what_it_needs(tmp_path: Path) -> None:
    """It is built as `python -m build` does, from the source distribution; unpacked, it runs in an empty folder."""
    pytest.importorskip("build")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    wheel = next((tmp_path / "dist").glob(f"torch_byov-{byov.__version__}-py3-none-any.whl"))
    with ZipFile(wheel) as file:
        inside = set(file.namelist())
        file.extractall(tmp_path / "site")
    sources = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "byov").rglob("*") if path.is_file()
    }
    assert {name for name in sources if "__pycache__" not in name} <= inside
    assert {f"byov/recipes/{name}.toml" for name in names()} <= inside
    (tmp_path / "empty").mkdir()
    short = ["--set", "train.epochs=1", "--set", "train.warmup=0", "--set", "train.accelerator=cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "byov", "train", "digits_train", *short],
        cwd=tmp_path / "empty",
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "empty" / "runs" / "train" / "checkpoint.safetensors").is_file()
