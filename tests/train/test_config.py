"""Recipes are read by the types their dataclasses declare, and come back equal from dicts."""

import json
import re
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byov.train.config import Count, Fraction, Positive, Range, check, from_dict, load_config, to_dict, value_of


@dataclass(frozen=True)
class Probe:
    c: float = 1.0
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Train:
    epochs: int = 10
    lr: float = 1e-3
    amp: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    kl_scale: Literal["dataset", "parameters", "none"] | float = "dataset"
    tolerance: Optional[float] = 0.5  # noqa: UP045 (both spellings are read)
    name: str | None = None
    seeds: tuple[int, ...] | None = (1,)
    size: int | str = 32
    probe: Probe | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"train.epochs is at least 1, not {self.epochs}.")


@dataclass(frozen=True)
class Recipe:
    seed: int = 0
    train: Train = field(default_factory=Train)
    probes: tuple[Probe, ...] = ()
    β: float = 1.0


@dataclass(frozen=True)
class Strict:
    data: str
    level: Literal[1, 2] = 1


def test_defaults_a_file_and_overrides_in_this_order(tmp_path: Path) -> None:
    assert load_config(Recipe) == Recipe()
    path = tmp_path / "r.toml"
    path.write_text("seed = 3\n[train]\nepochs = 7\nlr = 1\n")
    config = load_config(Recipe, path, ["train.epochs=9", "train.amp=true"])
    assert config == Recipe(seed=3, train=Train(epochs=9, lr=1.0, amp=True))
    assert type(config.train.lr) is float


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.epochs=1_000", Train(epochs=1000)),
        ("train.lr=3e-4", Train(lr=3e-4)),
        ("train.amp=True", Train(amp=True)),
        ("train.betas=0.8,0.9", Train(betas=(0.8, 0.9))),
        ("train.betas = [0.8, 1]", Train(betas=(0.8, 1.0))),
        ("train.kl_scale=none", Train(kl_scale="none")),
        ("train.kl_scale=50000", Train(kl_scale=50000.0)),
        ("train.tolerance=none", Train(tolerance=None)),
        ("train.tolerance=0", Train(tolerance=0.0)),
        ("train.name=a=b c", Train(name="a=b c")),
        ("train.name=", Train(name="")),
        ("train.seeds=", Train(seeds=())),
        ("train.seeds=5", Train(seeds=(5,))),
        ("train.seeds=(1, 2,)", Train(seeds=(1, 2))),
        ("train.seeds=none", Train(seeds=None)),
        ("train.size=64", Train(size=64)),
        ("train.size=none", Train(size="none")),
        ("train.name=5", Train(name="5")),
        ("train.name=None", Train(name=None)),
        ("train.lr=.5", Train(lr=0.5)),
        ("train.probe.c=2", Train(probe=Probe(c=2.0))),
        ("train.probe.layers=fc,conv.1", Train(probe=Probe(layers=("fc", "conv.1")))),
        ('train.probe={c = 2, layers = ["x"]}', Train(probe=Probe(2.0, ("x",)))),
    ],
)
def test_an_override_is_read_by_its_type(override: str, value: Train) -> None:
    found = load_config(Recipe, None, [override]).train
    assert repr(found) == repr(value)  # types too: 2 is not 2.0


def test_a_base_is_inherited_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "root.toml").write_text("seed = 1\n[train]\nepochs = 5\nlr = 0.5\n[train.probe]\nc = 3.0\n")
    (tmp_path / "deep" / "mid.toml").write_text('base = "../root.toml"\n[train]\nlr = 0.25\n')
    (tmp_path / "top.toml").write_text('base = "deep/mid.toml"\n[train]\nprobe = "none"\n')
    assert load_config(Recipe, tmp_path / "deep" / "mid.toml") == Recipe(1, Train(epochs=5, lr=0.25, probe=Probe(3.0)))
    assert load_config(Recipe, tmp_path / "top.toml") == Recipe(1, Train(epochs=5, lr=0.25))
    (tmp_path / "root.toml").write_text('base = "top.toml"\n')
    with pytest.raises(ValueError, match="its own base"):
        load_config(Recipe, tmp_path / "top.toml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.epoch=5", "There is no key 'train.epoch'; the nearest is 'train.epochs'."),
        ("epochs=5", "There is no key 'epochs'; the nearest is 'train.epochs'."),
        ("train.probe.cc=5", "There is no key 'train.probe.cc'; the nearest is 'train.probe.c'."),
        ("train.epochs.x=5", "train.epochs is a whole number, not {'x': '5'}."),
        ("train.epochs=5.5", "train.epochs is a whole number, not '5.5'."),
        ("train.epochs=", "train.epochs is a whole number, not ''."),
        ("train.lr=fast", "train.lr is a number, not 'fast'."),
        ("train.amp=1", "train.amp is true or false, not '1'."),
        ("train.betas=0.9", "train.betas is a list of 2, not '0.9'."),
        ("train.kl_scale=data", "train.kl_scale is 'dataset' or 'parameters' or 'none' or a number, not 'data'."),
        ("train.seeds=1,x", "train.seeds is a list, each a whole number or none, not '1,x'."),
        ("train.epochs=0", "train.epochs is at least 1, not 0."),
        ("train.epochs", "An override is key=value, not 'train.epochs'."),
        ("=5", "An override is key=value, not '=5'."),
        ("train.lr=nan", "train.lr is a number, not 'nan'."),
        ("train.lr=1e400", "train.lr is a number, not '1e400'."),
        (f"seed={2**63}", f"seed is a whole number, not '{2**63}'."),
        ("train.betas=[0.5, inf]", "train.betas[1] is a number, not inf."),
        ("probes=[{cc = 1}]", "There is no key 'probes[0].cc'; the nearest is 'probes[0].c'."),
    ],
)
def test_a_bad_override_gets_one_sentence(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        load_config(Recipe, None, [override])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sead = 1", "There is no key 'sead'; the nearest is 'seed'."),
        ("[train]\nepochs = '5'", "train.epochs is a whole number, not '5'."),
        ("[train]\nepochs = true", "train.epochs is a whole number, not True."),
        ("[train]\nlr = true", "train.lr is a number, not True."),
        ("[train]\nbetas = [0.9, 'x']", "train.betas[1] is a number, not 'x'."),
        ("[train]\nbetas = [0.9]", "train.betas is a list of 2, not [0.9]."),
        (
            "[train]\nkl_scale = 'data'",
            "train.kl_scale is 'dataset' or 'parameters' or 'none' or a number, not 'data'.",
        ),
        (
            "train = 5",
            "train is a table with epochs, lr, amp, betas, kl_scale, tolerance, name, seeds, size, probe, not 5.",
        ),
        ("[train.probe]\nlayer = 1", "There is no key 'train.probe.layer'; the nearest is 'train.probe.layers'."),
        ("base = 5", "base names another recipe, it cannot be 5."),
        ("seed = ", "is not TOML"),
        (f"seed = {'9' * 5000}", "r.toml is not TOML"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        load_config(Recipe, tmp_path / "r.toml")


@pytest.mark.parametrize("text", ["train = 3", "train = 'x'", "train = [1]", "train = false"])
def test_a_malformed_table_is_not_hidden_by_what_is_laid_over_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    (tmp_path / "above.toml").write_text('base = "r.toml"\n[train]\nepochs = 2\n')
    for path, overrides in ((tmp_path / "r.toml", ["train.epochs=5"]), (tmp_path / "above.toml", [])):
        with pytest.raises(ValueError, match=r"^train is a table, not (3|'x'|\[1\]|False)\.$"):
            load_config(Recipe, path, overrides)


def test_a_deep_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(f"seed = {'[' * 5000}{']' * 5000}")
    with pytest.raises(ValueError, match=r"r\.toml is (nested too deeply|not TOML)"):
        load_config(Recipe, tmp_path / "r.toml")
    for override in (f"train={'{a=' * 3000}", f"train.betas={'[' * 3000}"):
        with pytest.raises(ValueError, match=r"^train(\.betas)? is a (table|list)"):
            load_config(Recipe, None, [override])


@dataclass(frozen=True)
class Layer:
    width: Count = 1
    drop: Fraction = 0.0
    rate: Positive | None = 1.0
    ends: tuple[Annotated[float, Range(0, 10, above=True)], ...] = ()

    def __post_init__(self) -> None:
        check(self, "model")
        if self.drop and self.width < 2:
            raise ValueError("Layer.drop needs a width of at least 2.")


@dataclass(frozen=True)
class Pair:
    first: Layer = field(default_factory=Layer)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("width", 0, "a whole number from 1 to 1,000,000,000, not {}."),
        ("width", 10**10, "a whole number from 1 to 1,000,000,000, not {}."),
        ("drop", 1.5, "a number from 0 to 1, not {}."),
        ("drop", nan, "a number from 0 to 1, not {}."),
        ("rate", 0.0, "a number above 0 or none, not {}."),
        ("rate", inf, "a number above 0 or none, not {}."),
        ("rate", True, "a number above 0 or none, not {}."),
    ],
)
def test_a_number_out_of_its_range_is_named_in_full(key: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"first.{key} is {said.format(repr(str(value)))}")):
        load_config(Pair, None, [f"first.{key}={value}"])
    with pytest.raises(ValueError, match=re.escape(f"model.{key} is {said.format(value)}")):
        Layer(**{key: value})


def test_the_ends_of_a_range() -> None:
    found = load_config(Pair, None, ["first.width=1_000_000_000", "first.drop=1", "first.rate=none", "first.ends=10,1"])
    assert found.first == Layer(10**9, 1.0, None, (10.0, 1.0))
    with pytest.raises(ValueError, match=r"first\.ends\[1\] is a number above 0 and at most 10, not '0'\."):
        load_config(Pair, None, ["first.ends=1,0"])
    with pytest.raises(ValueError, match=r"^first\.drop needs a width of at least 2\."):
        load_config(Pair, None, ["first.drop=0.5"])


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no recipe at .*no\.toml"):
        load_config(Recipe, tmp_path / "no.toml")
    (tmp_path / "r.toml").write_text('base = "gone.toml"')
    with pytest.raises(FileNotFoundError, match=r"There is no recipe at .*gone\.toml"):
        load_config(Recipe, tmp_path / "r.toml")
    with pytest.raises(ValueError, match=r"The recipe lacks data, a text\."):
        load_config(Strict)
    assert load_config(Strict, None, ["data=x", "level=2"]) == Strict("x", 2)
    with pytest.raises(ValueError, match="level is 1 or 2, not '3'"):
        load_config(Strict, None, ["data=x", "level=3"])


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="a list of key=value"):
        load_config(Recipe, None, "seed=1")
    with pytest.raises(TypeError, match="A config is a dataclass, not int"):
        to_dict(5)
    with pytest.raises(TypeError, match="A config is a dataclass, not dict"):
        from_dict(dict, {})


finite = st.floats(-1e38, 1e38)
whole = st.integers(-(2**63), 2**63 - 1)
probes = st.builds(Probe, finite, st.lists(st.text(), max_size=3).map(tuple))
trains = st.builds(
    Train,
    epochs=st.integers(1, 2**63 - 1),
    lr=finite,
    amp=st.booleans(),
    betas=st.tuples(finite, finite),
    kl_scale=st.sampled_from(["dataset", "parameters", "none"]) | finite,
    tolerance=st.none() | finite,
    name=st.none() | st.text() | st.just("none"),
    seeds=st.none() | st.lists(whole, max_size=3).map(tuple),
    size=whole | st.text(),
    probe=st.none() | probes,
)
recipes = st.builds(Recipe, whole, trains, st.lists(probes, max_size=2).map(tuple), finite)


@settings(deadline=None, max_examples=150)
@given(config=recipes)
def test_from_dict_undoes_to_dict(config: Recipe) -> None:
    plain = to_dict(config)
    assert json.loads(json.dumps(plain)) == plain
    assert repr(from_dict(Recipe, plain)) == repr(config)
    assert plain == to_dict(config)  # and is left alone


def test_one_key_is_read_without_knowing_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "root.toml").write_text("[train]\nname = 'below'\n")
    (tmp_path / "top.toml").write_text("base = 'root.toml'\n")
    assert value_of(tmp_path / "top.toml", [], "train.name") == "below"
    assert value_of(tmp_path / "top.toml", ["train.name=a", "train.name='b'"], "train.name") == "b"
    assert value_of(tmp_path / "top.toml", [], "train.name.x") is None
    assert value_of(None, ["train.names=a"], "train.name") is None
