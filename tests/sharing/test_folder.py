"""A posterior saved and loaded is the same posterior: its draws for a seed, its moments, its KL, what is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from small_networks import Tied, mlp, seeded, shake
from torch import nn

import byov
from byov.sharing.folder import save
from byov.sharing.origin import build
from byov.train import checkpoint

from .grid import GRID, KINDS, Kind, timm_vit

FILES = {"README.md", "byov.json", "model.safetensors"}


def same(model: byov.BayesianModule, other: byov.BayesianModule, x: Any) -> None:
    a, b = (byov.predict(m, x, 3, generator=seeded(), task="classification", keep=True) for m in (model, other))
    assert torch.equal(a.draws, b.draws)
    assert a.draws.std(0).max() > 0
    assert torch.equal(model.kl(), other.kl())
    assert {n: p.requires_grad for n, p in model.named_parameters()} == {
        n: p.requires_grad for n, p in other.named_parameters()
    }
    state, loaded = model.state_dict(), other.state_dict()
    assert state.keys() == loaded.keys()
    assert all(torch.equal(state[key], loaded[key]) for key in state)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "family"), GRID)
def test_a_round_trip_changes_no_bit(kind: Kind, family: Any, tmp_path: Path) -> None:
    model = kind.model(family)
    model.save_pretrained(tmp_path / "there", **kind.saving)
    given = kind.loading()
    before = torch.get_rng_state()
    loaded = byov.load(tmp_path / "there", **given)
    assert torch.equal(before, torch.get_rng_state())
    assert not loaded.training
    same(model, loaded, kind.batch())


@pytest.mark.slow
@pytest.mark.parametrize("family", [byov.Gaussian(), byov.EMP(2)], ids=["Gaussian", "EMP"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torchvision.models.resnet18(num_classes=3),
        lambda: torchvision.models.vit_b_32(image_size=64),
        lambda: torchvision.models.mobilenet_v2(num_classes=5),
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=7, drop_path_rate=0.1),
        lambda: timm.create_model("tf_efficientnet_lite0", num_classes=102, drop_rate=0.2, in_chans=1),
        lambda: timm.create_model("resnet18", num_classes=2),
    ],
)
def test_a_library_s_network_says_itself_how_it_is_made(make: Any, family: Any, tmp_path: Path) -> None:
    model = byov.bayesianize(make(), {byov.norm_layers: family, byov.output_layer: family})
    shake(model, 0.01)
    model.save_pretrained(tmp_path)
    channels = next(m.in_channels for m in model.net.modules() if isinstance(m, nn.Conv2d))
    same(model, byov.load(tmp_path), torch.randn(2, channels, 64, 64))


OUTPUT = byov.output_layer
TWO = {"0.weight": byov.Gaussian(relative=0.1), "3.bias": byov.EMP(2)}


@pytest.mark.parametrize(
    ("rules", "prior"),
    [
        ({OUTPUT: byov.FullGaussian()}, None),
        ({OUTPUT: byov.KroneckerGaussian()}, None),
        ({OUTPUT: byov.Shared(0.1)}, None),
        ({OUTPUT: byov.ECMP(3, learn_probs=True, sigma=0.1)}, None),
        (TWO, byov.Normal({"0.weight": torch.randn(8, 6), "3.bias": 0.5}, 2.0)),
        (TWO, byov.TeacherMean(std=0.5)),
        (TWO, byov.TeacherNormal()),
    ],
    ids=["full", "kron", "shared", "ecmp", "named prior", "teacher's mean", "teacher's moments"],
)
def test_other_families_priors_dtypes_and_frozen_weights_travel(rules: Any, prior: Any, tmp_path: Path) -> None:
    net = mlp().double()
    net[0].bias.requires_grad_(False)
    model = byov.bayesianize(net, rules, shared_draw=True, **({} if prior is None else {"prior": prior}))
    shake(model)
    if isinstance(prior, byov.TeacherMean | byov.TeacherNormal):
        prior.ema.update(model, 0.9)
    model.save_pretrained(tmp_path)
    loaded = byov.load(tmp_path, mlp())
    same(model, loaded, torch.randn(3, 6, dtype=torch.float64))
    assert loaded.shared_draw


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = byov.bayesianize(Tied(), byov.Gaussian())
    model.save_pretrained(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert {"embed.weight", "embed.weight.log_var"} <= set(found)
    assert "out.weight" not in found
    loaded = byov.load(tmp_path, Tied())
    net = loaded.point()
    assert net.out.weight is net.embed.weight
    assert torch.equal(model.kl(), loaded.kl())


def test_the_file_has_the_network_s_own_keys(tmp_path: Path) -> None:
    """Anybody's safetensors reads the means into the plain network."""
    model = byov.bayesianize(mlp(), {"0.*": byov.Gaussian(), "3.*": byov.Ensemble(2)})
    shake(model)
    model.save_pretrained(tmp_path)
    found, net = load_file(tmp_path / "model.safetensors"), mlp()
    assert checkpoint.load(tmp_path / "model.safetensors").keys() == found.keys()  # by byov's own reader, too
    before = {key: value.clone() for key, value in net.state_dict().items()}
    byov.load(tmp_path, net)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())  # it is left as it is
    missing, more = net.load_state_dict(found, strict=False)
    assert missing == []
    assert {"0.weight.log_var", "3.bias.components", "byov.prior.std"} <= set(more)
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in model.point().state_dict().items())


def test_the_card_says_what_was_measured(tmp_path: Path) -> None:
    model, labels = byov.bayesianize(mlp(), byov.Gaussian()), torch.tensor([0, 1, 2, 0])
    prediction = byov.predict(model, torch.randn(4, 6), 5)
    model.save_pretrained(tmp_path / "a", measured=(prediction, labels))
    ece = byov.metrics.functional.calibration_error(prediction.mean, labels).item()
    assert f"{ece:.4f}" in (tmp_path / "a" / "README.md").read_text()
    assert json.loads((tmp_path / "a" / "byov.json").read_text())["measured"]["5 draws"]["ECE"] == ece
    model.save_pretrained(tmp_path / "b", measured={"μ": {"ECE": 0.25}, "20 draws": {"NLL": 1.5}})
    assert "| μ | 0.2500 | – |" in (tmp_path / "b" / "README.md").read_text()
    model.save_pretrained(tmp_path / "c")
    assert "Nothing was measured" in (tmp_path / "c" / "README.md").read_text()


@dataclass(frozen=True)
class Mine(byov.Gaussian):
    """A family that byov does not know."""


def saved(folder: Path, family: Any = None) -> byov.BayesianModule:
    model = byov.bayesianize(mlp(), family or byov.Gaussian())
    model.save_pretrained(folder)
    return model


def test_a_family_of_one_s_own_is_given_by_its_class(tmp_path: Path) -> None:
    model = saved(tmp_path, Mine(log_var=-4.0))
    with pytest.raises(ValueError, match="family 'Mine'"):
        byov.load(tmp_path, mlp())
    same(model, byov.load(tmp_path, mlp(), families=[Mine]), torch.randn(3, 6))


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_what_a_laplace_was_fitted_to_travels(task: Any, tmp_path: Path) -> None:
    """Of a regression that is its noise, which `byov.predict` asks for as a precision."""
    labels = torch.randn(20, 3) if task == "regression" else torch.randint(3, (20,))
    model = byov.laplace(mlp(), (torch.randn(20, 6), labels), task=task)
    model.save_pretrained(tmp_path)
    loaded = byov.load(tmp_path, mlp())
    assert loaded.evidence == model.evidence
    assert (loaded.evidence.precision is None) == (task == "classification")
    edited(tmp_path, lambda about: about.pop("evidence"))  # as folders were before
    assert not hasattr(byov.load(tmp_path, mlp()), "evidence")


def edited(folder: Path, change: Any) -> None:
    about = json.loads((folder / "byov.json").read_text())
    change(about)
    (folder / "byov.json").write_text(json.dumps(about))


def network(recipe: Any) -> Any:
    return lambda about: about["network"].update(recipe=recipe)


def wrapped(backbone: str) -> Any:
    config = {"model_type": "detr", "backbone_config": {"model_type": "timm_backbone", "backbone": backbone}}
    return {"transformers": "DetrModel", "config": config}


def adapter(**config: Any) -> Any:
    return {"peft": {"default": config}, "on": {"byov": "mlp", "classes": 3}}


@pytest.mark.parametrize(
    ("change", "net", "sentence"),
    [
        (None, lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), "another Sequential than this network"),
        (None, lambda: nn.Sequential(nn.Linear(6, 9), *mlp()[1:]), r"0.weight is \(9, 6\) in it, but \(8, 6\) in"),
        (None, lambda: nn.Sequential(*mlp(), nn.Linear(3, 3)), "4.weight is missing"),
        (None, None, "does not record how to build its network, a Sequential: pass it as net="),
        (lambda about: about["posterior"][0].update(family="Cauchy"), mlp, "family 'Cauchy', which is not one of"),
        (lambda about: about["posterior"][0]["arguments"].update(log_var=None), mlp, "Gaussian needs a finite log_var"),
        (lambda about: about["posterior"][0]["arguments"].update(scale=1), mlp, "has no argument 'scale'"),
        (lambda about: about.update(posterior="all"), mlp, "is not what byov writes: posterior is text"),
        (lambda about: about.update(prior="Cauchy"), mlp, "there is no prior 'Cauchy'"),
        (lambda about: about.update(format=9), mlp, "newer than this one"),
        (lambda about: about.update(evidence={}), mlp, "is not what byov writes: evidence.log_marginal_likelihood is"),
        (network({"os": "system"}), None, "A recipe is a dictionary that names a network of one library"),
        (network({"timm": "hf-hub:somebody/theirs"}), None, "there is no such model"),
        (network({"timm": "resnet18", "checkpoint_path": "x.pth"}), None, "cannot have 'checkpoint_path'"),
        (network({"torchvision": "resnet18", "weights": "DEFAULT"}), None, "cannot have 'weights'"),
        (network({"transformers": "pipeline", "config": {}}), None, "there is no such model"),
        (
            network(adapter(peft_type="PROMPT_TUNING", prompt_tuning_init="TEXT")),
            None,
            "LN_TUNING, not 'PROMPT_TUNING'",
        ),
        (network(wrapped("hf-hub:somebody/theirs")), None, "there is no backbone 'hf-hub:somebody/theirs'"),
        (network(wrapped("../theirs")), None, "there is no backbone '../theirs'"),
        (network(adapter(peft_type="LORA", arrow_config={"x": 1})), None, "an adapter has no 'arrow_config'"),
        (network({"torchvision": "resnet18"}), None, "another Sequential than this network"),
    ],
)
def test_what_does_not_fit_is_one_sentence(change: Any, net: Any, sentence: str, tmp_path: Path) -> None:
    saved(tmp_path)
    if change is not None:
        edited(tmp_path, change)
    with pytest.raises(ValueError, match=sentence) as error:
        byov.load(tmp_path, None if net is None else net())
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_no_module_is_imported_by_a_name_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT imports what `megatron_core` names, and Transformers what `auto_map` does."""
    model = KINDS["lora-bert"].model(byov.Gaussian())
    model.save_pretrained(tmp_path / "there")

    def change(about: Any) -> None:
        recipe = about["network"]["recipe"]
        recipe["peft"]["default"] |= {"megatron_config": {"x": 1}, "megatron_core": "stranger"}
        recipe["on"]["config"] |= {"auto_map": {"AutoModel": "stranger.Net"}}

    edited(tmp_path / "there", change)
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    same(model, byov.load(tmp_path / "there"), KINDS["lora-bert"].batch())
    edited(tmp_path / "there", lambda about: about["network"]["recipe"]["on"].update(attention="somebody/kernels"))
    with pytest.raises(ValueError, match="its attention is eager, sdpa"):
        byov.load(tmp_path / "there")


@pytest.mark.filterwarnings("ignore")
def test_no_tokenizer_is_made_for_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEFT's prompt tuning runs the code of the tokenizer that its configuration names."""
    transformers = pytest.importorskip("transformers")
    asked: list[Any] = []
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *given, **more: asked.append(given))
    KINDS["lora-bert"].model(byov.Gaussian()).save_pretrained(tmp_path)
    words = {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": "a", "tokenizer_name_or_path": str(tmp_path)}
    prompt = {"peft_type": "PROMPT_TUNING", "task_type": "SEQ_CLS", "num_virtual_tokens": 1, **words}
    prompt |= {"tokenizer_kwargs": {"trust_remote_code": True}}
    edited(tmp_path, lambda about: about["network"]["recipe"]["peft"].update(default=prompt))
    with pytest.raises(ValueError, match="an adapter is LORA, ADALORA") as error:
        byov.load(tmp_path)
    assert (asked, "\n" in str(error.value)) == ([], False)


@pytest.mark.parametrize("name", ["fcn_resnet50", "lraspp_mobilenet_v3_large"])
def test_no_backbone_is_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchvision's segmentation networks have pretrained backbones unless told."""
    asked: list[str] = []
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda url, *a, **k: asked.append(url))
    with torch.device("meta"):
        made = build({"torchvision": name, "num_classes": 3})
    assert (type(made).__module__.split(".")[:3], asked) == (["torchvision", "models", "segmentation"], [])


@pytest.mark.parametrize("name", ["byov.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    saved(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-40] ^= 1
    (tmp_path / name).write_bytes(content[:-1] if name.endswith("json") else content)
    with pytest.raises(ValueError, match=name):
        byov.load(tmp_path, mlp())
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}"):
        byov.load(tmp_path, mlp())


def test_bad_input_to_save_writes_nothing(tmp_path: Path) -> None:
    model = byov.bayesianize(timm_vit(), byov.Gaussian())
    for options, sentence in (
        ({"recipe": {"timm": "vit_tiny_patch16_224"}}, "builds a different network"),
        ({"recipe": {"timm": "vit_tiny"}}, "no such model"),
        ({"recipe": "resnet18"}, "A recipe is a dictionary"),
        ({"measured": {"accuracy": [1]}}, "accuracy is a list"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            model.save_pretrained(tmp_path / "there", **options)
    assert not (tmp_path / "there").exists()
    with pytest.raises(TypeError, match="takes a BayesianModule"):
        save(mlp(), tmp_path / "there")  # type: ignore[arg-type]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    first = saved(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="force=True"):
        saved(tmp_path)
    same(first, byov.load(tmp_path, mlp()), torch.randn(3, 6))
    second = byov.bayesianize(mlp(), byov.EMP(2))
    shake(second)
    second.save_pretrained(tmp_path, force=True)
    same(second, byov.load(tmp_path, mlp()), torch.randn(3, 6))
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "notes.txt"}


# The Hub


class Hub:
    """huggingface_hub's client, with a folder for a server."""

    place: Path
    made: list[str]

    def __init__(self, token: str | None = None) -> None:
        pass

    def create_repo(self, repo_id: str, **_: Any) -> Any:
        self.made.append(repo_id)
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str, **_: Any) -> str:
        for path in Path(folder_path).iterdir():
            (self.place / repo_id).mkdir(parents=True, exist_ok=True)
            (self.place / repo_id / path.name).write_bytes(path.read_bytes())
        return commit_message


def test_to_the_hub_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    mixin = pytest.importorskip("huggingface_hub.hub_mixin")
    Hub.place, Hub.made = tmp_path, []
    monkeypatch.setattr(mixin, "HfApi", Hub)
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(tmp_path / name))
    monkeypatch.chdir(tmp_path / "..")
    model = KINDS["bert"].model(byov.Gaussian())
    with pytest.raises(ValueError, match="A recipe is"):
        model.push_to_hub("me/posterior", recipe={})
    assert Hub.made == []
    assert model.push_to_hub("me/posterior", hub={"commit_message": "First"}) == "First"
    assert {path.name for path in (tmp_path / "me/posterior").iterdir()} == FILES
    same(model, byov.load("me/posterior"), KINDS["bert"].batch())
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        byov.load("no/such/folder")
