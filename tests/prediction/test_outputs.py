"""Each task against its closed form; what is returned beside the logits; and what may be two things is refused."""

from collections import OrderedDict, namedtuple
from math import e, log, pi
from typing import Any

import pandas
import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close

import byov

from .networks import HEAD, STRATEGIES, Net, by_hand

Pair = namedtuple("Pair", "features logits")


class Returns(nn.Module):
    """A layer whose outputs (N, 4) are passed on as something else."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.body, self.head, self.what = nn.Tanh(), nn.Linear(6, 4), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.head(self.body(x)))


def made(what: Any = lambda h: h) -> tuple[byov.BayesianModule, Tensor, Tensor]:
    """A model that returns that, inputs, and the layer's own output under each of six draws (6, 5, 4)."""
    torch.manual_seed(3)
    model, x = byov.bayesianize(Returns(what), byov.Gaussian(-1.0)), torch.randn(5, 6)
    twin = byov.bayesianize(Returns(lambda h: h), byov.Gaussian(-1.0))
    twin.load_state_dict(model.state_dict())
    return model, x, by_hand(twin, x, 6, softmax=False)


def found(model: Any, x: Any, **options: Any) -> byov.Prediction:
    return byov.predict(model, x, 6, generator=seeded(), keep=True, **options)


def entr(p: Tensor) -> Tensor:
    return torch.special.entr(p)


# Tasks, by every strategy


def both(p: Tensor) -> Tensor:
    """The probabilities of the two classes, in dimension 2, of that of the second one."""
    return torch.stack([1 - p, p], 2)


# What a network makes of its layer's outputs (N, 4), what is said of it, and the probabilities of draws (S, N, 4), with
# the dimension of the classes: None where every number is a probability by itself.
TASKS: dict[str, tuple[Any, str | None, Any, int | None]] = {
    "probabilities": (lambda h: h.softmax(1), "probabilities", lambda o: o.softmax(2), 2),
    "logits that sum to one": (lambda h: h.softmax(1), "classification", lambda o: o.softmax(2).softmax(2), 2),
    "a logit": (lambda h: h[:, :1], "classification", lambda o: both(o[..., 0].sigmoid()), 2),
    "a flat logit": (lambda h: h[:, 0], "classification", lambda o: both(o[..., 0].sigmoid()), 2),
    "a probability": (lambda h: h[:, :1].sigmoid(), "probabilities", lambda o: both(o[..., 0].sigmoid()), 2),
    "a flat probability": (lambda h: h[:, 0].sigmoid(), "probabilities", lambda o: both(o[..., 0].sigmoid()), 2),
    "labels": (lambda h: h, "multilabel", lambda o: o.sigmoid(), None),
    "tokens": (lambda h: h.view(5, 2, 2), "token", lambda o: o.view(6, 5, 2, 2).softmax(3), 3),
    "a line of pixels": (lambda h: h.view(5, 2, 2), "segmentation", lambda o: o.view(6, 5, 2, 2).softmax(2), 2),
    "pixels": (lambda h: h.view(5, 2, 2, 1), None, lambda o: o.view(6, 5, 2, 2, 1).softmax(2), 2),
    "a logit of each": (lambda h: h.view(5, 1, 2, 2), "segmentation", lambda o: both(o.view(6, 5, 2, 2).sigmoid()), 2),
}


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_is_its_closed_form(kind: str, strategy: Any) -> None:
    what, task, probabilities, classes = TASKS[kind]
    model, x, outputs = made(what)
    got, p = found(model, x, strategy=strategy, task=task), probabilities(outputs)
    assert got.task == (task or "segmentation")
    assert_close(got.draws, p)
    assert_close(got.mean, p.mean(0))
    assert_close(got.std, p.std(0, correction=0))

    def entropy(p: Tensor) -> Tensor:
        return entr(p) + entr(1 - p) if classes is None else entr(p).sum(classes)

    total, aleatoric = entropy(p.mean(0, keepdim=True))[0], entropy(p).mean(0)
    assert_close(got.entropy, total)
    assert_close(got.expected_entropy, aleatoric)
    assert_close(got.mutual_information, total - aleatoric)


@pytest.mark.parametrize("way", ["halves", "pair", "names", "flat"])
def test_a_mean_and_a_variance(strategy: Any, way: str) -> None:
    ways = {
        "halves": lambda h: h,
        "pair": lambda h: (h[:, :2], h[:, 2:]),
        "names": lambda h: {"log_var": h[:, 2:], "mean": h[:, :2]},
        "flat": lambda h: (h[:, 0], h[:, 1]),
    }
    model, x, outputs = made(ways[way])
    got = found(model, x, strategy=strategy, task="gaussian")
    mu, log_var = (outputs[..., :1], outputs[..., 1:2]) if way == "flat" else (outputs[..., :2], outputs[..., 2:])
    assert_close(got.mean, mu.mean(0))
    assert_close(got.aleatoric, log_var.exp().mean(0))
    assert_close(got.epistemic, mu.var(0, correction=0))
    assert_close(got.std.square(), got.aleatoric + got.epistemic)
    assert_close(got.entropy, 0.5 * (2 * pi * e * got.std.square()).log())
    assert_close(got.expected_entropy, 0.5 * (log(2 * pi * e) + log_var).mean(0))
    assert_close(got.draws, torch.cat([mu, log_var], 2))


def test_a_gaussian_stops_and_is_joined_as_any_other() -> None:
    model, x, _ = made()
    whole = byov.predict(model, x, 100, generator=seeded(), task="gaussian")
    batches = byov.predict(model, [x[:2], x[2:]], 100, generator=seeded(), task="gaussian")
    stopped = byov.predict(model, x, 100, tolerance=1e-9, generator=seeded(), task="gaussian")
    loose = byov.predict(model, x, 100, tolerance=0.1, generator=seeded(), task="gaussian")
    for name in ("mean", "std", "aleatoric", "epistemic", "entropy", "mutual_information"):
        for other in (batches, stopped):
            assert_close(getattr(other, name), getattr(whole, name))
        assert getattr(loose, name).shape == (5, 2)
    assert len(set(loose.samples.tolist())) > 1
    with torch.no_grad():
        model.factors[0].get_parameter("mean")[-1] = torch.inf  # the bias of a log-variance
    with pytest.raises(ValueError, match="not finite for 5 of 5"):
        found(model, x, task="gaussian")


# What is returned


RETURNED: dict[str, tuple[Any, Any]] = {
    "dict": (lambda h: {"hidden": h * 2, "logits": h}, None),
    "out": (lambda h: OrderedDict(out=h, aux=h * 2), None),
    "named tuple": (lambda h: Pair(h * 2, h), None),
    "the only one": (lambda h: {"scores": h}, None),
    "a tuple of one": (lambda h: (h,), None),
    "name": (lambda h: {"logits": h * 2, "other": h}, "other"),
    "place": (lambda h: (h * 2, h), 1),
    "function": (lambda h: (h * 2, [h]), lambda out: out[1][0]),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_the_logits_are_found(kind: str) -> None:
    what, output = RETURNED[kind]
    model, x, outputs = made(what)
    for strategy in STRATEGIES:
        got = found(model, x, strategy=strategy, output=output)
        assert_close(got.draws, outputs.softmax(2))
        assert got.strategy == ("head" if strategy == "auto" else strategy)
    assert_close(byov.Serving(model, 6, output=output)([x[:2], x[2:]], seeded()).mean, outputs.softmax(2).mean(0))


def test_the_head_is_not_used_for_another_output() -> None:
    model, x, outputs = made(lambda h: {"logits": h, "half": h / 2})
    got = found(model, x, output="half")
    assert got.strategy == "loop"
    assert_close(got.draws, (outputs / 2).softmax(2))


ONE = "one number per position, .*add task='classification'.*'regression'"


@pytest.mark.parametrize(
    ("what", "options", "error", "sentence"),
    [
        (
            lambda h: {"logits": h},
            {"output": "logit"},
            ValueError,
            "returns 'logits', without an output 'logit': 'logits'?",
        ),
        (lambda h: h, {"output": "logits"}, ValueError, "returns one tensor, without an output 'logits'"),
        (lambda h: (h, h), {"output": 2}, ValueError, "a tuple, without an output 2"),
        (lambda h: h, {"output": 1.5}, TypeError, r"a name, an index in a tuple or a function, not 1\.5"),
        (lambda h: h, {"output": lambda h: None}, TypeError, "The output must be one tensor, not NoneType"),
        (lambda h: {"a": h, "b": h}, {}, TypeError, "returns 'a', 'b': add output="),
        (lambda h: (h, h), {}, TypeError, "returns a tuple of 2: add output=0"),
        (lambda h: h.softmax(1), {}, ValueError, "sum to one, as probabilities do: add task='probabilities'"),
        (lambda h: h, {"task": "probabilities"}, ValueError, "sum to one over dimension 1"),
        *[(one, {}, ValueError, ONE) for one in (lambda h: h[:, 0], lambda h: h[:, :1], lambda h: h[:, :1].sigmoid())],
        (lambda h: h.view(5, 2, 2), {}, ValueError, r"add task='token' for \(B, L, C\), 'segmentation'"),
        (lambda h: "text", {"task": "regression"}, TypeError, "must be one tensor, not str"),
        (lambda h: h.argmax(1), {}, TypeError, "floating-point outputs, not torch.int64"),
        (lambda h: h[:, :, None], {"task": "classification"}, ValueError, r"logits \(N, C\), not .* \(5, 4, 1\)"),
        (lambda h: h.sum(), {"task": "regression"}, ValueError, r"a tensor of shape \(\) for 5 inputs"),
        (lambda h: h.mean(0, keepdim=True), {}, ValueError, r"shape \(1, 4\) for 5 inputs"),
        (lambda h: [{"boxes": h}] * 5, {}, TypeError, "A detector's boxes .* have no mean: add output="),
        (lambda h: (h[0, 0], [{"boxes": h}]), {}, TypeError, "A detector's boxes"),
        (lambda h: h[:, :3], {"task": "gaussian"}, ValueError, r"halves of dimension 1, \(N, 2 T\), not .*\(5, 3\)"),
        (lambda h: (h[:, :1], h), {"task": "gaussian"}, ValueError, r"have the same shape, not \(5, 1\) and \(5, 4\)"),
        (lambda h: h, {"task": "token"}, ValueError, r"Tokens' logits are \(B, L, C\), not .*\(5, 4\)"),
        (lambda h: h, {"task": "segmentation"}, ValueError, r"logits are \(N, C, H, W\), not .*\(5, 4\)"),
        (lambda h: h, {"task": "tokens"}, ValueError, "A task is 'classification', .*not 'tokens'"),
        (lambda h: h, {"task": "gaussian", "precision": 1.0}, ValueError, "belongs to a regression"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_bad_tasks_and_outputs(
    what: Any, options: Any, error: type[Exception], sentence: str, strategy: Any, plain: bool
) -> None:
    posterior, x, _ = made(what)
    model: nn.Module = Returns(what) if plain else posterior
    with pytest.raises(error, match=sentence) as refusal:
        found(model, x, strategy=strategy, **options)
    assert "\n" not in str(refusal.value)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_task_is_decided_once_for_a_serving() -> None:
    """A row of logits that is all probabilities by chance is no reason to stop a serving that has seen others."""
    serving = byov.Serving(nn.Identity(), 1)
    with pytest.raises(ValueError, match="sum to one"):
        serving(torch.tensor([[0.25, 0.75]]))
    serving(torch.randn(4, 2))
    assert_close(serving(torch.tensor([[0.25, 0.75]])).mean, torch.tensor([[0.25, 0.75]]).softmax(1))


# Wrapped, moved, written down


class Around(nn.Module):
    """A module around the model, with something fixed before and after it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.before, self.model = nn.Linear(6, 6), model

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.model(self.before(x))


@pytest.mark.parametrize("rules", [byov.Gaussian(-3.0), HEAD], ids=["all", "head"])
def test_a_module_around_a_posterior(strategy: Any, rules: Any) -> None:
    outer, x = Around(byov.bayesianize(Net(), rules)), torch.randn(5, 6)
    generator, expected = seeded(), []
    outer.eval()
    for _ in range(6):
        with torch.no_grad(), outer.model.draw(generator=generator):
            expected.append(outer(x).softmax(1))
    outer.train()
    got = found(outer, x, strategy=strategy)
    assert_close(got.draws, torch.stack(expected))
    assert "forward" not in vars(outer.model)
    assert all(module.training for module in outer.modules())
    with pytest.raises(ValueError, match=r"Sequential holds several posteriors \(0, 1\)"):
        found(nn.Sequential(outer.model, byov.bayesianize(Net(), rules)), x)


def test_a_module_around_a_posterior_whose_last_layer_is_all() -> None:
    outer, x = nn.Sequential(nn.Linear(6, 6), byov.bayesianize(Net(), HEAD)), torch.randn(5, 6)
    got = found(outer, x)
    assert got.strategy == "head"
    assert_close(got.draws, found(outer, x, strategy="loop").draws)


def test_a_prediction_moves_and_stays_itself() -> None:
    model, x, _ = made()
    got = found(model, x)
    moved = got.to("meta")
    assert moved.mean.is_meta
    assert moved.draws.is_meta
    assert (moved.task, moved.samples) == (got.task, 6)
    assert torch.equal(got.cpu().mean, got.mean)


def test_a_lightning_module_without_a_forward_is_its_posterior() -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = byov.bayesianize(mlp(), byov.Gaussian(-3.0))

    module, x = Module(), torch.randn(6, 6)
    whole = byov.predict(module, x, 5, generator=seeded())
    assert_close(byov.predict(module.model, x, 5, generator=seeded()).mean, whole.mean)


def test_tables() -> None:
    model, x, outputs = made()
    table = found(model, x).to_pandas(["a", "b", "c", "d"])
    probs = outputs.softmax(2).mean(0)
    assert list(table.columns[:3]) == ["class", "confidence", "std"]
    assert list(table["class"]) == ["abcd"[i] for i in probs.argmax(1)]
    assert_close(torch.tensor(table["confidence"].to_numpy()), probs.amax(1))
    assert_close(
        torch.tensor(table["std"].to_numpy()), outputs.softmax(2).std(0, correction=0)[range(5), probs.argmax(1)]
    )
    labels = found(model, x, task="multilabel").to_pandas(["a", "b", "c", "d"])
    assert labels.index.names == ["input", "label"]
    assert labels.loc[(3, "b"), "probability"] == pytest.approx(float(outputs.sigmoid().mean(0)[3, 1]))
    several = found(model, x, task="gaussian").to_pandas()
    assert several.index.names == ["input", "output"]
    assert {"mean", "std", "aleatoric", "epistemic"} < set(several.columns)
    tokens = found(made(lambda h: h.view(5, 2, 2))[0], x, task="token").to_pandas()
    assert (tokens.index.names, len(tokens)) == (["input", "token"], 10)
    pixels = found(made(lambda h: h.view(5, 2, 2, 1))[0], x).to_pandas()
    assert pixels.index.names == ["input", "row", "column"]
    one = found(made(lambda h: h[:, 0])[0], x, task="regression").to_pandas()
    assert (list(one.columns), one.index.name) == (["mean", "std", "epistemic"], "input")
    assert isinstance(one, pandas.DataFrame)
    with pytest.raises(ValueError, match="4 classes or outputs, not 2"):
        found(model, x).to_pandas(["a", "b"])
