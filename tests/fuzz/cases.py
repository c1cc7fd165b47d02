"""Malformed input for every command: each generator gives one case, and writes what it needs into the folder `here`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import typer
from PIL import Image

from byov.cli import VERBS, app
from byov.train.config import located

from .check import Case
from .damage import DEEP, spoiled_bytes, spoiled_checkpoint, spoiled_json
from .world import CPU, World

Generator = Callable[[Random, Path, World], Case]
FEW = ("--samples", 2, "--fit-samples", 1, *CPU)
BAD: dict[str, tuple[str, ...]] = {
    "--device": ("meta", "gpu", "cuda:99", "cpu:x", "", "xla", "privateuseone", "fpga", "cpu ", "META"),
    "--samples": ("-1", "x", "1e3", "nan", "2.5", "9" * 20),
    "--fit-samples": ("0", "-1", "x", "9" * 20),
    "--bins": ("0", "-3", "1.5", "100000000000", "x"),
    "--severities": ("0", "6", "9999999999", "1-9999999999", "5-1", "x", "1,,2", "", ",", "1-", "nan", "1e3"),
    "--shift": ("all", "Blur", "", "none,few"),
    "--split": ("validation", "../test"),
    "--limit": ("-1", "x"),
    "--train-limit": ("0", "-5"),
    "--batch-size": ("0", "-1", "1e3"),
    "--strategy": ("luck", "", "LOOP"),
    "--precision": ("16", "64-true", ""),
    "--tolerance": ("0", "-1", "nan"),
    "--k": ("0", "-1", "x"),
    "--image-size": ("0", "-1", "7"),
    "--channels": ("0", "-1", "5"),
    "--baseline": ("nowhere.json", "."),
    "--sparsity": ("1", "-0.1", "nan", "2", "inf", "x"),
    "--by": ("size", "", "SNR"),
    "--scope": ("all", ""),
    "--rounds": ("-1", "x"),
    "--what": ("everything", "", ",", "layers,nothing"),
    "--bootstraps": ("-1", "0"),
    "--minutes": ("nan", "-1", "x"),
    "--scale": ("huge", ""),
    "--on": ("none", ""),
    "--classes": ("0", "-1"),
    "--seed": ("x", "1e3", "99999999999999999999999"),
    "--out": (".", "taken/below.json", "x" * 300 + ".json", "/dev/null", "/dev/null/x.json"),
    "--run": ("taken", "taken/below", ""),
    "--set": ("train.epochs", "=1", "train.epoch=1", "train.lr=", "[[", "train=3", "train.lr=fast", ""),
    "--data": ("nothing", "folder:nowhere", "taken", "nowhere.npz", "python:os:getcwd"),
    "--sparsities": ("0,1", "nan", "x", "", "-1"),
    "--twin": ("nowhere", "taken"),
    "--nothing": ("1",),
}
"""Values that no command takes, by option."""


def settings(each: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for setting in each for word in ("--set", setting))


def good(verb: str, here: Path, world: World, kind: str = "train", run: Path | None = None) -> tuple[object, ...]:
    """Words that `byov` takes, as fast as can be; `run`, a copy of the world's of this kind, is read in its place."""
    table, out = kind == "table", here / "out.json"
    run = run or world.folder / ("pretrain" if verb in ("probe", "figure") else kind)
    limit, data = ((), world.folder / "table.csv") if table else (("--limit", 20), "digits")
    trained = "pretrain" if verb == "pretrain" or (verb, kind) == ("resume", "pretrain") else "train"
    words: dict[str, tuple[object, ...]] = {
        "pretrain": ("--run", here / "run", *settings(world.recipes["pretrain"])),
        "train": ("--run", here / "run", *settings(world.recipes["train"])),
        "resume": ("--run", run, "--resume", *settings(world.recipes[kind])),
        "probe": (run, "--k", 5, *FEW, "--out", out),
        "evaluate": (run, *limit, *FEW, "--out", out),
        "predict": (run, data, *FEW, "--out", here / "out.csv"),
        "prune": (run, "--out", here / "out.safetensors"),
        "explore": (run, "--what", "layers", "--samples", 2, *CPU, "--out", here / "explored"),
        "overhead": ("resnet18",),
        "reproduce": ("patching/table3", *CPU, "--out", here / "reproduced"),
        "figure": ("byov/figure7", "--scale", "quick", "--run", run, *CPU, "--out", here / "reproduced"),
        "report": (run, "--limit", 20, "--shift", "none", "--samples", 2, *CPU, "--cache", here / "cache",
                   "--out", here / "page.html"),
    }  # fmt: skip
    return ({"resume": trained, "figure": "reproduce"}.get(verb, verb), *words[verb])


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
UNUSED = {"prune": ("--split",), "explore": ("--out",), "reproduce": ("--out",)}
"""Options of which a command reads nothing here, or takes what others refuse."""


def option(rng: Random, here: Path, world: World) -> Case:
    """One option of a good command has a value that nothing takes."""
    verb = rng.choice([verb for verb in VERBS if verb != "demo"])
    known = {name for parameter in COMMANDS[verb].params for name in parameter.opts} - {*UNUSED.get(verb, ())}
    name = rng.choice(sorted({*BAD} & {*known, "--nothing"}))
    value = rng.choice(BAD[name])
    (here / "taken").write_text("mine")
    words, bare = good(verb, here, world), name.removeprefix("--")
    if verb == "evaluate" and name in ("--severities", "--baseline"):
        words = (*words, "--shift", "corruptions")
    spelled = (name, bare, bare.replace("-", "_"), bare[:-1])
    named = (*spelled, repr(value), value.removeprefix("folder:") or "''", *VERBATIM.get(name, ()))
    return Case((*words, name, value), named)


VERBATIM = {
    "--severities": ("Severities",),
    "--samples": ("draw",),
    "--fit-samples": ("draw",),
    "--limit": ("number of images",),
    "--classes": ("outputs", "classes="),
    "--out": ("/dev/null", "taken", "too long", ".json"),
    "--set": ("setting", "train", "reads"),
    "--batch-size": ("A batch",),
}
"""Words by which the sentences name an option."""

KEYS: dict[str, tuple[str, ...]] = {
    "train.epochs": ("0", "-1", '"ten"', "1.5", "true", "[]", "nan"),
    "train.batch": ("0", "-1", "1e400", '"x"', "10000000000"),
    "train.lr": ("nan", "-1.0", "inf", '"fast"', "[1]"),
    "train.momentum": ("2.0", "nan", "-1.0"),
    "train.minutes": ("nan", '"x"'),
    "train.save_minutes": ("nan", '"x"'),
    "train.accelerator": ('"tpu"', '"gpux"', "3", '""'),
    "train.precision": ('"16"', "64", '""'),
    "train.devices": ("0", "-7"),
    "train.seed": ('"x"', "1.5"),
    "train.optimizer": ('"luck"', '""', "1"),
    "train.nothing": ("1",),
    "data.name": ('"nowhere"', '""', "1", '"folder:nowhere"', '"table:nowhere"', '"taken"'),
    "data.image_size": ("-1", "0", "100000", '"x"'),
    "data.holdout": ("1.0", "-0.5", "nan", "2"),
    "posterior.family": ('"luck"', '""', "[]"),
    "posterior.log_var": ("1e308", "nan", "inf", '"x"'),
    "posterior.beta_end": ("nan", "-1.0", '"x"'),
    "posterior.kl_scale": ('"luck"', "0", "-1", "nan"),
    "posterior.prior_std": ("0.0", "-1.0", "nan"),
    "nothing.at_all": ("1",),
}
PRETRAIN = {
    "model.encoder": ('"resnet7"', '""', "1", '"timm:resnet18.no_such_tag"', '"python:nowhere_at_all:net"', '"a:b"'),
    "model.hidden": ("0", "-1", "10000000000", "1.5"),
    "model.outputs": ("0", "-1", "10000000000", '"x"'),
    "views.mean": ("[0.5, 0.5]", "[nan]", "0.5, 0.5"),
    "views.crop": ("1",),
    "ssl.tau_base": ("nan", "2.0", "-1.0"),
    "ssl.tau_batch": ("-1", "nan"),
}
TRAIN = {
    "model.name": ('"resnet7"', '""', "1", '"timm:resnet18.no_such_tag"', '"python:nowhere_at_all:net"', '"vit-ti/3"'),
    "posterior.k": ("0", "-1", "100000000", "1.5"),
    "augment": ('"luck"', "3"),
}

BROKEN = (
    *(b"a = " + b"[" * DEEP, b"a = " + b"{a=" * DEEP, b"a." * DEEP + b"a = 1", b"[" + b"a." * DEEP + b"a]"),
    *(b"[train\n", b"train = 3\n", b"[train]\nlr = ", b'base = "recipe.toml"\n', b"\xff\xfe"),
)
"""Recipes that are no TOML, or not ours."""


def recipe(rng: Random, here: Path, world: World) -> Case:
    """A recipe has a value that cannot be, or is no TOML; given as a file, by --set, or both."""
    verb = rng.choice(("pretrain", "train"))
    (here / "taken").write_text("mine")
    words = good(verb, here, world)
    how = rng.random()
    file = here / "recipe.toml"
    if how < 0.25:
        known = rng.random() < 0.5
        own = located("digits_byov" if verb == "pretrain" else "digits_train").read_bytes()
        file.write_bytes(rng.choice(BROKEN) if known else spoiled_bytes(own, rng))
        told = (file.name, "There is no key", "is a table", "views.", *KEYS)
        return Case((verb, file, *words[1:], "--set", "train.minutes=1e-9"), told, harmless=not known)
    keys = {**KEYS, **(PRETRAIN if verb == "pretrain" else TRAIN)}
    key = rng.choice(sorted(keys))
    value = rng.choice(keys[key])
    family = ("--set", "posterior.family=emp") if key == "posterior.k" else ()
    bare = value.strip('"')
    table, _, last = key.rpartition(".")
    named = (key, last, value, bare or "''", bare.removeprefix("timm:") or value, "nothing", "nowhere")
    if how < 0.6:
        return Case((*words, *family, "--set", f"{key}={bare if rng.random() < 0.5 else value}"), named)
    file.write_text(f"[{table}]\n{last} = {value}\n" if table else f"{last} = {value}\n")
    given = [word for each in world.recipes[verb] if not each.startswith(f"{key}=") for word in ("--set", each)]
    return Case((verb, file, "--run", here / "run", *given, *family), (*named, file.name))


def checkpoint(rng: Random, here: Path, world: World) -> Case:
    """A checkpoint is cut, has flipped bytes, or says something else, and any command is to read it."""
    kind = rng.choice(("pretrain", "train", "table"))
    folder = here / "run"
    folder.mkdir()
    file = folder / "checkpoint.safetensors"
    file.write_bytes(spoiled_checkpoint(world.checkpoint(kind), rng))
    verb = rng.choice(READERS[kind])
    words = good(verb, here, world, kind, folder)
    told = ("started with", "started on", "table.csv has changed", "The columns of", "None of the runs given")
    return Case(words, (folder, file, *told), harmless=True)


READERS = {
    "pretrain": ("evaluate", "predict", "probe", "explore", "prune", "report", "figure", "resume"),
    "train": ("evaluate", "predict", "explore", "prune", "report", "resume"),
    "table": ("evaluate", "predict", "resume", "report", "prune"),
}


def results(rng: Random, here: Path, world: World) -> Case:
    """A file of results is strange JSON, to be shown, continued or compared with."""
    kind = rng.choice(sorted(world.results))
    file = here / f"{kind}.json"
    file.write_bytes(spoiled_json(world.results[kind], rng))
    page = ("--shift", "none", *CPU, "--out", here / "page.html")
    if kind != "evaluate" or rng.random() < 0.5:
        return Case(("report", file, *page), (file.name,), harmless=True)
    compared = ("--shift", "corruptions", "--baseline", file) if rng.random() < 0.5 else ("--out", file)
    return Case((*good("evaluate", here, world), *compared), (file.name,), harmless=True)


def journal(rng: Random, here: Path, world: World) -> Case:
    """A run's log is strange, and the run is shown or continued."""
    folder = here / "run"
    folder.mkdir()
    (folder / "checkpoint.safetensors").write_bytes(world.checkpoint("train").read_bytes())
    for name in ("log.jsonl", "layers.jsonl"):
        lines = (world.train / name).read_text().splitlines()
        at = rng.randrange(len(lines))
        one = here / "line.json"
        one.write_text(lines[at])
        lines[at] = spoiled_json(one, rng).decode(errors="surrogateescape")
        one.unlink()
        (folder / name).write_text("\n".join(lines) + "\n", errors="surrogateescape")
    verb = rng.choice(("report", "explore", "resume"))
    words = good(verb, here, world, "train", folder) + (("--no-compute",) if verb == "report" else ())
    return Case(words, (folder, "run/", "layers.jsonl", "log.jsonl"), harmless=True)


TABLES = (
    "",
    "a,b,y\n",
    "a,b,y\n1,2,x\n",
    "a,b,y\n1,2\n3,4,5\n",
    "a;b;y\n1,5;2,5;3\n",
    "a,b,y\n1,2,nan\n3,4,5\n",
    "a,b,y\n1,inf,2\n3,4,5\n",
    "a,b,y\n" + "1,2,1e400\n" * 40,
    "\0\0\0",
    '"a,b,y\n1,2,3\n',
    "a,b,y\n" + "1,2,3\n" * 2,
    "a\n1\n2\n",
    ",a,b\n" + "0,1,2\n" * 20,
    "a,b,y\n" + "1,2,3e300\n4,5,6\n" * 20,
    "a,b,y\n" + "1,2,3e-300\n4,5,6e-300\n" * 20,
)


def table(rng: Random, here: Path, world: World) -> Case:
    """A table has no numbers, no rows, or is no table; to be trained on or predicted."""
    file = here / rng.choice(("rows.csv", "rows.csv", "rows.npz", "rows.txt"))
    known = rng.random() < 0.7 and file.suffix != ".npz"
    if known:
        file.write_text(rng.choice(TABLES))
    elif file.suffix == ".npz":
        arrays(file, rng)
    else:
        file.write_bytes(spoiled_bytes((world.folder / "table.csv").read_bytes(), rng))
    if rng.random() < 0.5:
        words: tuple[object, ...] = ("predict", world.table, file, *FEW, "--out", here / "out.csv")
        harmless = True  # some rows are good ones, without their target
    else:
        kept = [each for each in world.recipes["table"] if not each.startswith("data.name")]
        words = ("train", "--run", here / "run", *settings((*kept, f"data.name=table:{file}")))
        harmless = not known
    return Case(words, (file.name, "rows"), harmless=harmless)


def arrays(file: Path, rng: Random) -> None:
    """Write an .npz with something that no reader should take."""
    content = io.BytesIO()
    one = rng.choice(
        (
            np.zeros((0, 8, 8), np.uint8), np.zeros((3, 0, 8), np.uint8), np.zeros(4), np.array("x"),
            np.full((3, 8, 8), np.nan), np.zeros((3, 8, 8, 7), np.uint8), np.array([{"a": 1}], dtype=object),
            np.zeros((3, 8, 8), np.complex64), np.zeros((2, 3, 1, 1, 1), np.uint8),
        )
    )  # fmt: skip
    labels = rng.choice(
        (np.arange(3), np.arange(2), np.array([-1, 0, 1]), np.array([0, 1, 3.9e18]), np.array(["a"] * 3))
    )
    np.savez(content, **{rng.choice(("images", "x", "image", "data")): one, rng.choice(("labels", "y")): labels})
    file.write_bytes(spoiled_bytes(content.getvalue(), rng) if rng.random() < 0.4 else content.getvalue())


def images(rng: Random, here: Path, world: World) -> Case:
    """Pictures or an .npz that cannot be read, to be predicted or trained on."""
    if rng.random() < 0.4:
        data = here / "images.npz"
        arrays(data, rng)
    else:
        data = here / "pets"
        for i in range(3):
            place = data / "train" / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            unreadable(place / f"{i}.png", rng)
    verb = rng.choice(("predict", "train", "pretrain"))
    if verb == "predict":
        model = world.checkpoint("train")  # its file does as well as its folder
        words: tuple[object, ...] = ("predict", model, data, *FEW, "--out", here / "out.csv")
    else:
        own = tuple(each for each in world.recipes[verb] if not each.startswith(("data.", "train.batch")))
        words = (verb, "--run", here / "run", *settings((*own, f"data.name={data}", "train.batch=2")))
    return Case(words, (data.name,), harmless=True)


def unreadable(path: Path, rng: Random) -> None:
    content = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(content, "png")
    good = content.getvalue()
    how = rng.randrange(6)
    if how == 0:
        path.write_bytes(spoiled_bytes(good, rng))
    elif how == 1:  # a header that says 60,000 × 60,000 pixels
        path.write_bytes(good[:16] + (60_000).to_bytes(4, "big") * 2 + good[24:])
    elif how == 2:
        os.mkfifo(path)
    elif how == 3:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/stdin", path.name, "nowhere")))
    elif how == 4:
        path.mkdir()
    else:
        path.write_text("no picture")


KINDS: dict[str, Generator] = {
    "option": option,
    "recipe": recipe,
    "checkpoint": checkpoint,
    "results": results,
    "journal": journal,
    "table": table,
    "images": images,
}
