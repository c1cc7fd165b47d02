"""`byov prune`: what it writes, what it shows, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from byov.data import load
from byov.metrics.functional import calibration_error
from byov.pruning import layers, load_sparse, prune, prune_groups
from byov.ssl.classifiers import linear_probe
from byov.ssl.features import features
from byov.ssl.pretrain import restore as restore_pretrained
from byov.ssl.probe import ProbeSettings
from byov.train import checkpoint
from byov.train.supervised import restore as restore_trained


def test_the_command_prunes_a_supervised_run(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "pruned.safetensors"
    status, said, _ = call("prune", runs / "bbb", "--sparsity", 0.7, "--out", out)
    assert status == 0
    model: Any = restore_trained(runs / "bbb")[0].net
    net = load_sparse(out, model.point())
    expected = prune(model, 0.7)
    for row in layers(expected):
        assert torch.equal(net.get_parameter(row.name), expected.get_submodule(row.name.rpartition(".")[0]).weight)
        line = next(line for line in said.splitlines() if row.name in line)
        assert f"{row.zeros:,}" in line
        assert f"{row.weights - row.zeros:,}" in line
    dense = sum(t.nbytes for t in model.point_state_dict().values())
    assert f"dense {dense:,} bytes, sparse {out.stat().st_size:,}" in said
    assert out.stat().st_size < 0.5 * dense
    about = {"kind": "train", "network": "convnet32", "run": str(runs / "bbb"), "sparsity": 0.7}
    assert checkpoint.peek(out)["about"] == {**about, "by": "snr", "scope": "layer"}


def test_the_command_prunes_the_encoder_of_a_pretraining_run(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "pruned.safetensors"
    checked = runs / "byov" / "checkpoint.safetensors"  # its file does as well as its folder
    status, said, _ = call("prune", checked, "--sparsity", 0.6, "--scope", "global", "--by", "magnitude", "--out", out)
    assert status == 0
    student: Any = restore_pretrained(runs / "byov")[0].student
    encoder = student.point().encoder
    total = sum(p.numel() for p in encoder.parameters() if p.ndim > 1)
    weights = torch.cat([p.detach().flatten() for p in encoder.parameters() if p.ndim > 1])
    net = load_sparse(out, encoder)
    kept = torch.cat([p.detach().flatten() for p in net.parameters() if p.ndim > 1])
    assert int((kept == 0).sum()) == round(0.6 * total)  # of the encoder's weights alone, without the heads'
    assert weights[kept == 0].abs().max() <= weights[kept != 0].abs().min()
    assert "projector" not in said
    assert f"{round(0.6 * total):,}" in said


def test_the_command_refuses_with_one_sentence(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    own = runs / "bbb" / "checkpoint.safetensors"
    before = own.read_bytes()
    to_sweep = ("--out", f"{out}.json", "--sweep")
    for words, says in [
        ((runs / "bbb", "--sparsity", 1.5, "--out", out), "below 1"),
        ((runs / "bbb", "--by", "luck", "--out", out), "'luck'"),
        ((runs / "bbb", "--scope", "all", "--out", out), "'all'"),
        ((runs / "bbb", "--scope", "both", "--out", out), "'both'"),
        ((runs / "bbb", "--by", "random", "--groups", "--out", out), "'random'"),
        ((runs / "bbb", "--by", "random", "--rounds", 2, "--out", out), "'random'"),
        ((runs / "bbb", "--out", f"{out}.json", "--sweep", "--by", "snr,luck"), "'luck'"),
        ((runs / "plain", "--out", f"{out}.json", "--sweep", "--by", "snr"), "no σ"),
        ((runs / "bbb", "--out", f"{out}.json", "--sweep", "--scope", "all"), "layer, global or both, not 'all'"),
        ((runs / "plain", "--out", out), "no σ"),
        ((runs / "none", "--out", out), "There is no run"),
        ((runs / "bbb", "--out", tmp_path), "folder"),
        ((runs / "bbb", "--out", own, "--force"), "own checkpoint"),
        ((runs / "bbb", "--out", out, "--refit"), "add --sweep"),
        ((runs / "bbb", "--out", out, "--groups", "--rounds", 2), "leave out --groups or --rounds"),
        ((runs / "bbb", "--out", out, "--sweep", "--groups"), "leave out --groups and --rounds"),
        ((runs / "bbb", "--out", out, "--sweep"), "ends in .json"),
        ((runs / "bbb", *to_sweep, "--sparsities", "0,x"), "'0,x'"),
        ((runs / "bbb", *to_sweep, "--sparsities", "0,1"), "below 1"),
        ((runs / "bbb", *to_sweep, "--twin", runs / "byov"), "differs by its posterior only"),
        ((runs / "bbb", *to_sweep, "--split", "moon"), "splits train, test"),
        ((runs / "byov", "--out", out, "--rounds", 2), "run of byov train"),
        ((runs / "bbb", "--out", out, "--rounds", 2, "--epochs", 0), "at least one epoch"),
    ]:
        status, _, err = call("prune", *words)
        assert (status, says in err, "Traceback" in err) == (2, True, False), (words, err)
        assert not out.exists()
    assert own.read_bytes() == before
    assert call("prune", runs / "plain", "--by", "magnitude", "--out", out)[0] == 0
    written = out.read_bytes()
    assert "exists" in call("prune", runs / "bbb", "--out", out)[2]
    assert out.read_bytes() == written
    assert call("prune", runs / "bbb", "--out", out, "--force")[0] == 0
    assert out.read_bytes() != written


def test_random_pruning_is_that_of_the_seed(runs: Path, call: Any, tmp_path: Path) -> None:
    model: Any = restore_trained(runs / "bbb")[0].net
    for seed in (0, 4):
        out = tmp_path / f"{seed}.safetensors"
        assert call("prune", runs / "bbb", "--by", "random", "--seed", seed, "--out", out)[0] == 0
        net = load_sparse(out, model.point())
        expected = prune(model, 0.5, "random", seed=seed)
        for row in layers(expected):
            assert torch.equal(net.get_parameter(row.name), expected.get_submodule(row.name.rpartition(".")[0]).weight)
        assert checkpoint.peek(out)["about"]["seed"] == seed


def test_names_with_brackets_are_no_markup(runs: Path, call: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[x]").symlink_to(runs / "bbb")
    said = call("prune", "[x]", "--out", "[red]a")[1]
    assert ("[x], 50 % by snr" in said, "[red]a" in said) == (True, True)
    assert "[red]a exists" in call("prune", "[x]", "--out", "[red]a")[2]


def test_a_sweep_holds_the_curves_of_a_run_and_its_twin(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    words = (runs / "bbb", "--sweep", "--twin", runs / "plain", "--sparsities", "0.9,0,0.5", "--device", "cpu")
    status, said, _ = call("prune", *words, "--out", out)
    assert status == 0
    content = json.loads(out.read_text())
    assert content["kind"] == "byov prune sweep"
    assert [(c["model"], c["by"]) for c in content["curves"]] == [
        ("bbb", "snr"),
        ("bbb", "magnitude"),
        ("bbb", "random"),
        ("plain", "magnitude"),
    ]
    assert content["protocol"]["retrained"] == "nothing"
    test = load("digits", "test")
    for curve in content["curves"]:
        assert curve["sparsity"] == [0.0, 0.5, 0.9]
        module, _ = restore_trained(runs / curve["model"])
        for i, sparsity in enumerate(curve["sparsity"]):
            net = prune(module.net, sparsity, curve["by"], curve["scope"], seed=0).eval()
            with torch.no_grad():
                logits = net((test.images.float() / 255 - module.augment.mean[0]) / module.augment.std[0])
            right = (logits.argmax(1) == test.labels).float().mean().item()
            assert curve["top1"][i] == pytest.approx(right, abs=1e-6)
            assert curve["ece"][i] == pytest.approx(calibration_error(logits.softmax(1), test.labels).item(), abs=1e-5)
            assert f"{100 * right:.2f}" in said
            # √(p(1−p)/n), which 1,000 resamples know to 2 %
            assert curve["error"]["top1"][i] == pytest.approx((right * (1 - right) / len(test)) ** 0.5, rel=0.12)
    snr, magnitude, random, _ = content["curves"]
    assert snr["top1"][0] == magnitude["top1"][0] == random["top1"][0]
    assert [each["minus"]["by"] for each in content["differences"]] == ["magnitude", "random", "magnitude"]
    ahead = content["differences"][1]
    assert ahead["top1"] == [a - b for a, b in zip(snr["top1"], random["top1"], strict=True)]
    assert ahead["error"]["top1"][0] == 0  # the same network
    assert 0 < ahead["error"]["top1"][1] < 2 * snr["error"]["top1"][1]
    assert (tmp_path / "sweep.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (tmp_path / "sweep.svg").read_text()
    before = out.read_bytes()
    status, _, err = call("prune", *words, "--out", out)
    assert (status, "exists" in err) == (2, True)
    assert call("prune", *words, "--out", out, "--force")[0] == 0
    assert out.read_bytes() == before


def test_a_sweep_of_an_encoder_says_whether_its_probe_was_refitted(
    runs: Path, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick: Any = {"l2": (1e-2,), "max_iter": 30}
    monkeypatch.setattr("byov.evaluation.pruning.ProbeSettings", partial(ProbeSettings, **quick))
    found, said = {}, ""
    words = ("--sweep", "--sparsities", "0,0.8", "--by", "snr,random")
    for more in ((), ("--refit", "--scope", "both")):
        out = tmp_path / f"sweep{len(more)}.json"
        status, said, _ = call("prune", runs / "byov", *words, "--out", out, *more)
        assert status == 0
        found[more] = json.loads(out.read_text())
    fixed, both = found.values()
    assert [fixed["protocol"]["retrained"], both["protocol"]["retrained"]] == ["nothing", "nothing; the linear probe"]
    assert [each["protocol"]["reading"]["probe"] for each in (fixed, both)] == ["fixed", "both"]
    assert [(c["by"], c["scope"], c["probe"]) for c in both["curves"]] == [
        (by, scope, probe)
        for scope in ("layer", "global")
        for by in ("snr", "random")
        for probe in ("fixed", "refitted")
    ]
    alone = {c["by"]: c for c in fixed["curves"]}
    for a, b in zip(both["curves"][::2], both["curves"][1::2], strict=True):
        assert a["top1"][0] == b["top1"][0]  # nothing is pruned yet, so it is the same probe
        assert a["top1"][1] < b["top1"][1]
        if a["scope"] == "layer":
            assert a == alone[a["by"]]
    assert len(both["differences"]) == 4
    words_said = " ".join(said.split())
    for how in ("linear probe refitted", "nothing retrained"):
        for scope in ("per layer", "all layers together"):
            assert words_said.count(f"{scope}; {how}") == 1
    module, recipe = restore_pretrained(runs / "byov")
    options: Any = {"mean": module.views.mean, "std": module.views.std}
    train, test = recipe.data.load("train"), recipe.data.load("test")
    head = linear_probe(features(module, train.images, **options), train.labels, classes=10, **quick)
    probs = head.probabilities(features(module, test.images, **options))
    assert fixed["curves"][0]["top1"][0] == pytest.approx((probs.argmax(1) == test.labels).float().mean().item())


def test_groups_give_a_smaller_network(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "small.safetensors"
    status, said, _ = call("prune", runs / "bbb", "--groups", "--sparsity", 0.5, "--out", out)
    assert status == 0
    model: Any = restore_trained(runs / "bbb")[0].net
    expected: Any = prune_groups(model, 0.5, 0.5)
    net: Any = load_sparse(out, model.point()).eval()
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(net(x), expected.eval()(x))
    assert [net[i].out_channels for i in (0, 3, 6)] == [16, 32, 64]
    count = sum(p.numel() for p in net.parameters())
    assert f"{count:,} left" in said
    assert checkpoint.peek(out)["about"]["groups"] is True


def test_rounds_fine_tune_what_is_left(runs: Path, call: Any, tmp_path: Path) -> None:
    out, once = tmp_path / "rounds.safetensors", tmp_path / "once.safetensors"
    words = ("--sparsity", 0.8, "--device", "cpu")
    words = (runs / "plain", *words, "--by", "magnitude")
    status, said, _ = call("prune", *words, "--rounds", 2, "--epochs", 3, "--out", out)
    assert status == 0
    assert said.count("fine-tuned: top-1") == 2
    assert call("prune", *words, "--out", once)[0] == 0
    module, recipe = restore_trained(runs / "plain")
    test = recipe.data.load("test")
    scores = []
    for path in (once, out):
        net = load_sparse(path, restore_trained(runs / "plain")[0].net).eval()
        zeros = [int((p == 0).sum()) for p in net.parameters() if p.ndim > 1]
        assert zeros == [round(0.8 * p.numel()) for p in net.parameters() if p.ndim > 1]
        with torch.no_grad():
            logits = net((test.images.float() / 255 - module.augment.mean[0]) / module.augment.std[0])
        scores.append((logits.argmax(1) == test.labels).float().mean().item())
    assert scores[1] > scores[0] + 0.1
    assert f"{100 * scores[1]:.2f} %" in said
