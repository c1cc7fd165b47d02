"""`byov prune`: what it writes, and what it shows."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from byov.data import load
from byov.metrics.functional import accuracy, calibration_error
from byov.pruning import layers, load_sparse, prune, prune_groups
from byov.report.figures import pruning_figure
from byov.ssl.classifiers import linear_probe
from byov.ssl.features import features
from byov.ssl.pretrain import restore as restore_pretrained
from byov.ssl.probe import ProbeSettings
from byov.train import checkpoint
from byov.train.supervised import restore as restore_trained


def of_test_digits(net: Any, run: Path) -> tuple[Tensor, Tensor]:
    """Class probabilities of the test digits by a network of a supervised run, and their labels."""
    module, test = restore_trained(run)[0], load("digits", "test")
    with torch.no_grad():
        logits = net.eval()((test.images.float() / 255 - module.augment.mean[0]) / module.augment.std[0])
    return logits.softmax(1), test.labels


@pytest.mark.parametrize(("by", "seed"), [("snr", None), ("random", 0), ("random", 4)])
def test_the_command_prunes_a_supervised_run(runs: Path, call: Any, tmp_path: Path, by: Any, seed: int | None) -> None:
    out = tmp_path / "pruned.safetensors"
    words = ("--sparsity", 0.7, "--by", by, *(() if seed is None else ("--seed", seed)))
    status, said, _ = call("prune", runs / "bbb", *words, "--out", out)
    assert status == 0
    model: Any = restore_trained(runs / "bbb")[0].net
    net = load_sparse(out, model.point())
    expected = prune(model, 0.7, by, **({} if seed is None else {"seed": seed}))
    for row in layers(expected):
        assert torch.equal(net.get_parameter(row.name), expected.get_submodule(row.name.rpartition(".")[0]).weight)
        line = next(line for line in said.splitlines() if row.name in line)
        assert f"{row.zeros:,}" in line
        assert f"{row.weights - row.zeros:,}" in line
    following = said.splitlines()[-1].removeprefix("Next: byov ")
    copy = shutil.copytree(runs / "bbb", tmp_path / "copy")
    assert call(*shlex.split(following.replace(str(runs / "bbb"), str(copy))), "--device", "cpu")[0] == 0
    curve = json.loads((copy / "pruned_sweep.json").read_text())["curves"][0]
    probs, labels = of_test_digits(net, runs / "bbb")
    assert (curve["by"], curve["sparsity"]) == (by, [0.0, 0.7])
    assert curve["top1"][1] == pytest.approx(accuracy(probs, labels).item())
    dense = sum(t.nbytes for t in model.point_state_dict().values())
    assert f"dense {dense:,} bytes, sparse {out.stat().st_size:,}" in said
    assert out.stat().st_size < 0.5 * dense
    about = {"kind": "train", "network": "convnet32", "run": str(runs / "bbb"), "sparsity": 0.7, "by": by}
    about |= {"scope": "layer"} | ({} if seed is None else {"seed": seed})
    assert checkpoint.peek(out)["about"] == about


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


def test_names_with_brackets_are_no_markup(runs: Path, call: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("[x]").symlink_to(runs / "bbb")
    said = call("prune", "[x]", "--out", "[red]a")[1]
    assert ("[x], 50 % by snr" in said, "[red]a" in said) == (True, True)
    written = Path("[red]a").read_bytes()
    assert "[red]a exists" in call("prune", "[x]", "--sparsity", 0.2, "--out", "[red]a")[2]
    assert Path("[red]a").read_bytes() == written
    assert call("prune", "[x]", "--sparsity", 0.2, "--out", "[red]a", "--force")[0] == 0
    assert Path("[red]a").read_bytes() != written


def test_a_sweep_holds_the_curves_of_a_run_and_its_twin(runs: Path, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    words = (runs / "bbb", "--sweep", "--twin", runs / "plain", "--sparsities", "0.9,0,0.5", "--device", "cpu")
    status, said, _ = call("prune", *words, "--out", out)
    assert status == 0
    content = json.loads(out.read_text())
    assert content["kind"] == "byov prune sweep"
    found = [f"{curve['model']} {curve['by']}" for curve in content["curves"]]
    assert found == ["bbb snr", "bbb magnitude", "bbb random", "plain magnitude"]
    assert content["protocol"]["retrained"] == "nothing"
    for curve in content["curves"]:
        assert curve["sparsity"] == [0.0, 0.5, 0.9]
        model: Any = restore_trained(runs / curve["model"])[0].net
        for i, sparsity in enumerate(curve["sparsity"]):
            pruned = prune(model, sparsity, curve["by"], curve["scope"], seed=0)
            probs, labels = of_test_digits(pruned, runs / curve["model"])
            right = accuracy(probs, labels).item()
            assert curve["top1"][i] == pytest.approx(right, abs=1e-6)
            assert curve["ece"][i] == pytest.approx(calibration_error(probs, labels).item(), abs=1e-5)
            assert f"{100 * right:.2f}" in said
            # √(p(1−p)/n), which 1,000 resamples know to 2 %
            assert curve["error"]["top1"][i] == pytest.approx((right * (1 - right) / len(labels)) ** 0.5, rel=0.12)
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
    wanted = product(("layer", "global"), ("snr", "random"), ("fixed", "refitted"))
    assert [(c["scope"], c["by"], c["probe"]) for c in both["curves"]] == list(wanted)
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
    titles = [axes.get_title() for axes in pruning_figure(both).axes]
    assert titles[::2] == titles[1::2]
    assert set(titles) == {
        f"{scope}, {how}"
        for scope in ("per layer", "all layers together")
        for how in ("linear probe refitted", "nothing retrained")
    }
    module, recipe = restore_pretrained(runs / "byov")
    options: Any = {"mean": module.views.mean, "std": module.views.std}
    train, test = recipe.data.load("train"), recipe.data.load("test")
    head = linear_probe(features(module, train.images, **options), train.labels, classes=10, **quick)
    probs = head.probabilities(features(module, test.images, **options))
    assert fixed["curves"][0]["top1"][0] == pytest.approx(accuracy(probs, test.labels).item())


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
    words = (runs / "plain", "--sparsity", 0.8, "--device", "cpu", "--by", "magnitude")
    scores = []
    for name, more in (("once", ()), ("rounds", ("--rounds", 2, "--epochs", 3))):
        status, said, _ = call("prune", *words, *more, "--out", tmp_path / name)
        assert (status, said.count("fine-tuned: top-1")) == (0, 2 if more else 0)
        net = load_sparse(tmp_path / name, restore_trained(runs / "plain")[0].net)
        for weight in (p for p in net.parameters() if p.ndim > 1):
            assert int((weight == 0).sum()) == round(0.8 * weight.numel())
        scores.append(accuracy(*of_test_digits(net, runs / "plain")).item())
    assert scores[1] > scores[0] + 0.1
    assert f"{100 * scores[1]:.2f} %" in said
