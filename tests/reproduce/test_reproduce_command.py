"""`byov reproduce`: what it lists, runs, keeps, shows again and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from byov.evaluation.results import plain_json
from byov.reproduce import experiment as registry
from byov.reproduce.experiment import Comparison, Context, Outcome, discover, experiment
from byov.reproduce.papers import CAPTIONS, REASONS
from byov.train import checkpoint

Call = Callable[..., tuple[int, str, str]]
DONE = "reproduced/own/figure1/result.json"


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two experiments of our own beside the papers'; what they did is in the list."""
    discover()
    monkeypatch.setattr(registry, "EXPERIMENTS", dict(registry.EXPERIMENTS))
    done: list[str] = []

    @experiment("own/figure1", "Draws of a normal")
    def figure(context: Context) -> Outcome:
        def draw() -> dict[str, object]:
            done.append("draws")
            generator = torch.Generator().manual_seed(context.seed)
            return {"x": torch.randn(5, generator=generator), "bare": torch.rand(()), "none": float("nan")}

        part = context.kept("draws", {"n": 5}, draw)
        done.append("figure")
        picture = Figure(figsize=(3, 2))
        picture.subplots().plot(part["x"])
        return Outcome(
            {**part, "scale": context.scale, "runs": [path.name for path in context.runs]},
            [Comparison("mean", sum(part["x"]) / 5, 0.25, 0.125, "within two errors"), Comparison("n", 5000)],
            picture,
            "A note.",
        )

    @experiment("own/table1", "Fails at first")
    def table(context: Context) -> Outcome:
        part = context.kept("first", {}, lambda: done.append("first") or {"value": 1})
        if "broken" in done:
            raise ValueError("The second part has no data.")
        return Outcome(part)

    return done


def test_every_caption_of_both_papers_is_listed_with_what_becomes_of_it(call: Call) -> None:
    """In the papers' own order and numbers; what is beyond the papers comes last."""
    captions = [f"byov/{name}" for name in ("figure1a", "figure1b", *(f"figure{i}" for i in range(2, 8)), "table1")]
    captions += [f"patching/{kind}{i}" for kind, last in (("figure", 7), ("table", 13)) for i in range(1, last + 1)]
    assert list(CAPTIONS) == captions
    known, (status, out, _) = discover(), call("reproduce", "--list")
    text = " ".join(out.split())
    assert status == 0
    listed = re.findall(r"^\s*((?:byov|patching)/\w+|defaults)\s+\S", out, re.M)
    assert listed == [*captions, *(name for name in known if name not in CAPTIONS)]
    assert set(captions) == (set(captions) & set(known)) | set(REASONS)
    for name, reason in REASONS.items():
        assert (f"{CAPTIONS[name]} – not reproduced: {reason}" in text) == (name not in known)
    assert all(name == entry.name and entry.title for name, entry in known.items())
    listed = re.findall(r"(?:byov|patching)/\w+", call("reproduce", "--list", "byov/figure1?")[1])
    assert listed == ["byov/figure1a", "byov/figure1b"]


def test_it_writes_data_protocol_comparisons_and_figures(call: Call, calls: list[str], tmp_path: Path) -> None:
    status, out, _ = call("reproduce", "own/figure1", "--seed", 3, "--device", "cpu")
    assert status == 0
    content = json.loads((tmp_path / DONE).read_text())
    assert content["kind"] == "byov reproduce"
    assert (content["name"], content["title"]) == ("own/figure1", "Draws of a normal")
    assert content["protocol"]["scale"] == content["data"]["scale"] == "quick"  # there is no GPU to be full on
    assert content["protocol"]["seed"] == 3
    assert content["data"]["x"] == torch.randn(5, generator=torch.Generator().manual_seed(3)).tolist()
    assert content["comparisons"][0]["paper"] == 0.25
    assert content["comparisons"][1] == {"quantity": "n", "ours": 5000, "paper": None, "error": None, "verdict": ""}
    assert re.search(r"mean\s+0\.25\s+\S+ ± 0\.125\s+within two errors", out)
    assert re.search(r"n\s+–\s+5,000", out)
    assert "A note." in out


def test_the_same_seed_gives_the_same_files(call: Call, calls: list[str], tmp_path: Path) -> None:
    for out, seed, before in (("one", 1, 17), ("two", 1, 18), ("three", 2, 17)):
        torch.manual_seed(before)  # what ran before does not matter
        assert call("reproduce", "own/figure1", "--seed", seed, "--out", tmp_path / out)[0] == 0
    one, two, three = (tmp_path / name / "own" / "figure1" for name in ("one", "two", "three"))
    for name in ("result.json", "figure.png", "figure.svg"):
        assert (one / name).read_bytes() == (two / name).read_bytes() != (three / name).read_bytes()
    assert (one / "figure.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (one / "figure.svg").read_text()


def test_an_interrupted_one_goes_on(call: Call, calls: list[str], tmp_path: Path) -> None:
    calls.append("broken")
    assert call("reproduce", "own/table1")[::2] == (2, "byov: The second part has no data.\n")
    assert not list(tmp_path.rglob("result.json"))
    calls.remove("broken")
    assert call("reproduce", "own/table1")[0] == 0
    assert calls == ["first"]
    assert call("reproduce", "own/table1", "--scale", "full", "--force")[0] == 0
    assert calls == ["first", "first"]  # another protocol


def test_minutes_stop_it_and_a_finished_one_is_shown_again(call: Call, calls: list[str], tmp_path: Path) -> None:
    status, out, _ = call("reproduce", "own/figure1", "--minutes", 0)
    assert (status, calls) == (0, [])
    assert "Not finished in 0 minutes: own/figure1. Repeat the command to continue" in out
    first = call("reproduce", "own/figure1", "--minutes", 5)[1]
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    status, out, _ = call("reproduce", "own/figure1", "--minutes", 0)
    assert status == 0
    assert calls == ["draws", "figure"]
    assert out.splitlines()[:-1] == first.splitlines()[:-1]
    assert "finished before" in out
    status, out, err = call("reproduce", "own/figure1", "--seed", 1)
    assert (status, out) == (2, "")
    assert "seed = 0, not 1" in err
    assert "--force" in err
    assert {path: path.read_bytes() for path in files} == files
    assert call("reproduce", "own/figure1", "--force")[0] == 0
    assert calls == ["draws", "figure", "figure"]  # drawn again from the part that was kept


def test_several_names_and_globs(call: Call, calls: list[str], tmp_path: Path) -> None:
    calls.append("broken")
    config = {"data": {"name": "digits"}, "model": {}, "posterior": {"family": "none"}, "train": {"seed": 0}}
    about = {"kind": "train", "config": config, "shape": [1, 8], "class_names": ["0", "1"]}
    about["data"] = {"digest": "0", "images": 1, "mean": [0.0], "std": [1.0]}
    checkpoint.save(tmp_path / "mine" / "checkpoint.safetensors", {"recipe": about, "step": 1, "total": 1})
    status, out, err = call("reproduce", "own/t*", "own/figure1", "--run", tmp_path / "mine")
    assert (status, err) == (2, "byov: 1 of 2 failed: own/table1.\n")
    assert "own/table1 failed: The second part has no data." in out
    assert list(tmp_path.rglob("result.json")) == [tmp_path / DONE]
    assert json.loads((tmp_path / DONE).read_text())["data"]["runs"] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Name a table or figure, such as byov/figure4"),
        (["byov/figure9"], "There is no table or figure 'byov/figure9'"),
        (["byov/figure1a"], "byov/figure1a cannot be reproduced: it is a diagram with nothing to measure."),
        (["patching/figure1"], "scraped"),
        (["byov/figure1a*"], "Nothing that matches byov/figure1a* can be reproduced"),
        (["own/figure1", "--scale", "huge"], "The scale must be quick or full, not 'huge'."),
        (["own/figure1", "--device", "tpu9"], "There is no device 'tpu9' here."),
        (["own/figure1", "--run", "nowhere"], "There is no run at nowhere:"),
        (["own/figure1", "--out", "file"], "file is a file: there can be no result.json below it."),
        (["own/figure1", "--out", "foreign"], "is not a file of `byov reproduce`"),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    call: Call, calls: list[str], tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "file").write_text("mine")
    foreign = tmp_path / "foreign" / "own" / "figure1"
    foreign.mkdir(parents=True)
    (foreign / "result.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    status, out, err = call("reproduce", *words)
    assert (status, out, calls) == (2, "", [])
    assert said in err
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_plain() -> None:
    value = {"a": (1, torch.tensor([1.5, float("inf")])), 2: torch.tensor(3), "n": float("nan"), "s": "x", "b": True}
    assert plain_json(value) == {"a": [1, [1.5, None]], "2": 3, "n": None, "s": "x", "b": True}
