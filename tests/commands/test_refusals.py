"""Bad input to any command: one sentence on stderr that says what to mend, status 2, and nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from saved_runs import contents

from byov.train import checkpoint

REFUSED = [
    # Words that no verb takes: these are told by typer.
    ("prob", "No such command"),
    ("probe", "Missing argument"),
    ("predict bbb", "Missing argument"),
    ("probe byov --sample 3", "No such option"),
    ("probe byov --samples three", "--samples"),
    ("probe byov again", "unexpected extra argument"),
    ("predict bbb ''", "There is an empty argument after bbb: leave it out"),
    ("train --run ' '", "There is an empty argument after --run: leave it out"),
    ("evaluate bbb --data ''", "an empty argument after --data"),
    # Recipes
    ("pretrain broken.toml --run new", "broken.toml"),
    ("train broken.toml --run new", "broken.toml"),
    ("train empty --run new", "empty"),
    ("train boston_emp --run new --set data.name=csv:t.csv", "has the unknown prefix 'csv:': a table is table:FILE"),
    ("train boston_emp --run new --set data.name=t.csv", "lacks a prefix: a table is table:FILE"),
    # What is no run
    ("probe none", "There is no run at none"),
    ("probe empty", "There is no run at empty"),
    ("probe file/below", "There is no run at file/below"),
    ("probe file", "file is not a byov checkpoint"),
    ("probe pickle.pt", "pickle.pt is not a byov checkpoint"),
    ("probe cut", "is truncated: it has"),
    ("probe headless", "is damaged: in its header, config is absent"),
    ("probe other", "other is not a"),
    ("probe list", "list is not a"),
    ("evaluate empty --out out.json", "There is no run at empty"),
    ("predict none digits", "There is no run"),
    ("prune none --out out", "There is no run"),
    ("report nowhere", "There is no run at"),
    # byov probe
    ("probe byov --split validation", "digits has the splits train, test"),
    ("probe byov --samples -1", "read under none or more"),
    ("probe byov --fit-samples 0", "at least one draw"),
    ("probe byov --k 0", "k lies between 1"),
    ("probe byov --protocol simclr", "The protocol must be lbfgs or byol, not 'simclr'."),
    ("probe byov --protocol byol --epochs 0", "epochs is at least 1, not 0."),
    ("probe byov --network pupil", "A network is the student or the teacher, not 'pupil'."),
    ("probe byov --precision 16", "A precision is 32-true or bf16-mixed, not '16'."),
    ("probe byov --device gpu", "There is no device 'gpu' here."),
    ("probe byov --device cuda:77", "There is no device 'cuda:77' here."),
    ("probe byov --out empty --force", "empty is a folder: --out takes the name of a file"),
    ("probe byov --out file", "file exists: choose another --out, or add --force."),
    ("probe byov --out file/a/b.json", "is a file: there can be no b.json below it"),
    # byov evaluate
    ("evaluate python:some_nets:bayes", "--data NAME"),
    ("evaluate bbb --data digit", "did you mean digits"),
    ("evaluate bbb --data npz:unlabelled.npz --split train", "no labels"),
    ("evaluate bbb --data npz:empty.npz --split train", "none of them 0"),
    ("evaluate bbb --data 'npz:a\x1b[31m\nb'", r"a\x1b[31m\nb"),
    ("evaluate bbb --limit 0", "at least one image"),
    ("evaluate bbb --bins 0", "bins"),
    ("evaluate bbb --bins 100000000000", "bins lie between 1 and 100,000"),
    ("evaluate bbb --severities 0-5", "1 to 5"),
    ("evaluate bbb --severities 1-9999999999", "Severities run from 1 to 5"),
    ("evaluate bbb --shift fog", "corruptions, not 'fog'"),
    ("evaluate bbb --temper", "A temperature is for the probe"),
    ("evaluate byov --strategy vmap", "its strategy is loop"),
    ("evaluate byov --image-size 32", "1 channels and 8 pixels"),
    ("evaluate byov --data folder:odd", "different classes (2 and 1)"),
    ("evaluate bbb --data folder:spoiled", "put the test images of each class in spoiled/test/CLASS"),
    ("evaluate bbb --out .", "a folder"),
    ("evaluate bbb --out /dev/full --force", "/dev/full is a device or a pipe"),
    ("evaluate python:some_nets:five --data digits", "5 outputs, but digits has 10 classes"),
    ("evaluate python:some_nets:larger --data digits", "cannot take images of 1×8×8"),
    ("evaluate python:some_nets:maps --data digits", "logits (N, C)"),
    # byov predict
    ("predict bbb digits --out p.txt", "written as .csv or .npz, not as .txt"),
    ("predict bbb digits --out p", "a file without a suffix"),
    ("predict bbb digits --batch-size 0", "batch_size is at least 1"),
    ("predict bbb digits --image-size 9", "8 pixels"),
    ("predict bbb digits --split moon", "splits train, test"),
    ("predict bbb odd --split moon", "not 'moon'"),
    ("predict bbb digit", "did you mean digits"),
    ("predict bbb empty", "no images"),
    ("predict bbb spoiled", "None of the 1 images of folder:spoiled can be read; the first is a.png: cannot identify"),
    ("predict bbb folder:nowhere", "is not a folder"),
    ("predict bbb text.npz", "text.npz"),
    ("predict bbb nowhere.npz", "nowhere.npz"),
    ("predict bbb none.jpg", "There is no picture at none.jpg"),
    ("predict bbb eight.png digits", "digits is not an image"),
    ("predict bbb eight.png --split test", "no splits"),
    ("predict bbb digits --temper", "A temperature is for the probe"),
    ("predict byov digits --tolerance 0.1", "leave out --tolerance"),
    ("predict python:os:getcwd digits", "not a torch.nn.Module"),
    ("predict python:some_nets:larger eight.png --image-size 8", "cannot take images of"),
    ("predict python:some_nets:maps eight.png --image-size 8 --channels 1", "logits (N, C)"),
    ("predict python:some_nets:nan eight.png --image-size 8 --channels 1", "not finite"),
    # byov prune
    ("prune bbb --sparsity 1.5 --out out", "below 1"),
    ("prune bbb --by luck --out out", "'luck'"),
    ("prune bbb --scope all --out out", "'all'"),
    ("prune bbb --scope both --out out", "'both'"),
    ("prune bbb --by random --groups --out out", "'random'"),
    ("prune bbb --by random --rounds 2 --out out", "'random'"),
    ("prune plain --out out", "--by magnitude"),
    ("prune bbb --out .", "folder"),
    ("prune bbb --out file", "file exists"),
    ("prune bbb --out bbb/checkpoint.safetensors --force", "own checkpoint"),
    ("prune bbb --out out --refit", "add --sweep"),
    ("prune bbb --out out --groups --rounds 2", "leave out --groups or --rounds"),
    ("prune bbb --out out --rounds 2 --epochs 0", "at least one epoch"),
    ("prune byov --out out --rounds 2", "runs of byov train"),
    ("prune bbb --out out --sweep --groups", "leave out --groups and --rounds"),
    ("prune bbb --out out --sweep", "ends in .json"),
    ("prune bbb --out out.json --sweep --by snr,luck", "'luck'"),
    ("prune bbb --out out.json --sweep --scope all", "layer, global or both, not 'all'"),
    ("prune bbb --out out.json --sweep --sparsities 0,x", "'0,x'"),
    ("prune bbb --out out.json --sweep --sparsities 0,1", "below 1"),
    ("prune bbb --out out.json --sweep --twin byov", "may differ only in its posterior"),
    ("prune bbb --out out.json --sweep --split moon", "splits train, test"),
    ("prune plain --out out.json --sweep --by snr", "no σ"),
    # byov overhead
    ("overhead resnet81", "resnet18"),
    ("overhead hub:resnet18", "timm:"),
    ("overhead resnet18 --on norms", "norm or output, not 'norms'"),
    ("overhead resnet18 --k 1", "at least 2"),
    ("overhead resnet18 --json file", "choose another --json"),
    ("overhead resnet18 --json '[b]taken[/c]'", "[b]taken[/c] is a folder: --json takes the name of a file."),
    # byov report
    ("report nowhere.json", "There is no file of results at"),
    ("report no.json", "no.json is not a JSON file."),
    ("report other.json", "is not a file that byov evaluate, probe, prune, explore or reproduce writes"),
    ("report bbb --shift all", "The shift must be few, none, augmentations, corruptions, not 'all'."),
    ("report bbb --severities 9", "Severities run from 1 to 5"),
    ("report bbb --samples 0", "A report needs at least one draw"),
    ("report bbb --limit -1", "--limit is a number of images"),
    ("report bbb --split nothing --cache cache", "digits has the splits train, test."),
    ("report bbb --out file", "file exists"),
    # byov reproduce
    ("reproduce patching/tabel3", "There is no table or figure 'patching/tabel3'; the nearest is patching/table3;"),
    # byov demo
    ("demo --out file", "file is a file, but the demo needs a folder."),
    ("demo --out file/below", "file/below: Not a directory."),
    ("demo --out demo", "demo already holds a demo (results.json): choose another --out."),
    ("demo", "runs/demo already holds a demo (byov): choose another --out."),
    ("demo --out new --epochs 0", "train.epochs is a whole number from 1 to 1,000,000,000 or 'auto', not '0'."),
]


@pytest.fixture(scope="module")
def here(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, and with everything that is no run, no recipe, no results and no data."""
    here = tmp_path_factory.mktemp("here")
    for run in ("byov", "bbb", "plain"):
        (here / run).symlink_to(runs / run)
    for name in ("file", "demo/results.json", "spoiled/a.png", "text.npz"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("mine, and nothing that byov writes")
    for folder in ("empty", "runs/demo/byov", "[b]taken[/c]"):
        (here / folder).mkdir(parents=True)
    (here / "broken.toml").write_text("[train\n")
    (here / "no.json").write_text("{]")
    (here / "other.json").write_text('{"a": 1}')
    (here / "pickle.pt").write_bytes(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.")
    contents = {"headless": {"recipe": {"kind": "train"}}, "other": {"weights": torch.zeros(3)}, "list": [1, 2]}
    for name, content in contents.items():
        checkpoint.save(here / name / "checkpoint.safetensors", content)
    whole = (runs / "byov" / "checkpoint.safetensors").read_bytes()
    (here / "cut").mkdir()
    (here / "cut" / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    np.savez(here / "unlabelled.npz", train_images=np.zeros((3, 8, 8), np.uint8))
    np.savez(here / "empty.npz", train_images=np.zeros((0, 8, 8), np.uint8))
    picture = Image.new("L", (8, 8))
    picture.save(here / "eight.png")
    for split, label in (("train", "cat"), ("train", "dog"), ("test", "dog")):  # labels would be off by one
        (here / "odd" / split / label).mkdir(parents=True)
        picture.save(here / "odd" / split / label / "0.png")
    return here


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[words for words, _ in REFUSED])
def test_bad_input_is_refused(
    call: Any, here: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    monkeypatch.chdir(here)
    before = contents(here), contents(runs)
    status, out, err = call(*shlex.split(words))
    assert (status, out) == (2, ""), err
    assert says in err
    assert err.startswith("Usage: ") or (err.startswith("byov: ") and err.count("\n") == 1), err
    assert (contents(here), contents(runs)) == before
