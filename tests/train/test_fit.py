"""byov.fit: its steps beside a loop by hand, the loss it chooses beside torch's, and when it stops."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_networks import CausalLM
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import byov
from byov.posterior.objective import gaussian_weights, usual_n
from byov.posthoc.labelled import task_of
from byov.train.history import History
from byov.train.labelled_loss import negative_log_likelihood, scored

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)


def model() -> byov.BayesianModule:
    return byov.bayesianize(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), byov.Gaussian(relative=0.05))


@pytest.mark.parametrize("given", [[(X, Y)], (X, Y), [{"input": X, "labels": Y}]], ids=["pairs", "pair", "mapping"])
def test_it_does_what_a_loop_by_hand_does(given: Any) -> None:
    mine = model()
    theirs, noise = copy.deepcopy(mine), mine.noise()
    with theirs.draw(noise=noise):
        history = byov.fit(theirs, given, epochs=4, lr=0.01, beta_end=0.5, n=50)
    optimizer = torch.optim.AdamW(byov.parameter_groups(mine, 0.01, 4), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for step in range(4):
        with mine.draw(noise=noise):
            loss = F.cross_entropy(mine(X), Y)
        optimizer.zero_grad()
        byov.elbo(loss, mine, 50, byov.beta(step, 4, 0.5)).backward()
        optimizer.step()
        scheduler.step()
        assert history["loss"][step] == pytest.approx(float(loss.detach()), rel=1e-5)
    for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
        assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not theirs.training


def test_it_learns_and_says_so_in_a_table() -> None:
    loader = DataLoader(TensorDataset(X, Y), 10, shuffle=True)
    history = byov.fit(model(), loader, 20, TensorDataset(X, Y), lr=0.03, precision="bf16-mixed")
    assert history["accuracy"][-1] > 0.8
    assert history["nll"][history.best - 1] == min(history["nll"])
    lines = repr(history).splitlines()
    assert lines[0].split() == ["epoch", "loss", "kl", "nll", "accuracy", "ece", "seconds"]
    assert sum(line.endswith("*") for line in lines) == 1
    assert lines[-1].startswith("classification, N = 40;")
    assert list(history.to_pandas().index) == list(range(1, len(history.rows) + 1))


@pytest.mark.parametrize(("examples", "n"), [(40, 40), (28, 28), (27, 50 * 83)])
def test_many_weights_for_each_example_are_paid_for_by_weight(examples: int, n: int) -> None:
    """6·8 + 8 + 8·3 + 3 = 83 weights: more than three times 27."""
    assert usual_n(examples, gaussian_weights(model())) == pytest.approx(n)
    history = byov.fit(model(), (X[:examples], Y[:examples]), 1)
    assert history.n == pytest.approx(n)
    assert gaussian_weights(nn.Linear(6, 3)) == 0


DATA = TensorDataset(X, Y)
SUBSET = SubsetRandomSampler(range(9))


@pytest.mark.parametrize(
    ("how", "n"),
    [
        ({"sampler": SUBSET}, 9),
        ({"batch_sampler": BatchSampler(SUBSET, 3, drop_last=False)}, 9),
        ({"batch_sampler": [[0, 1], [2, 3]]}, 40),  # which others it gives in another epoch nobody knows
        ({"sampler": BatchSampler(SUBSET, 3, drop_last=False), "batch_size": None}, 9),
        ({"sampler": DistributedSampler(DATA, num_replicas=4, rank=1)}, 40),
        ({"sampler": RandomSampler(DATA, num_samples=5)}, 40),
        ({"sampler": WeightedRandomSampler([1.0] * 30 + [0.0] * 10, 80)}, 30),
        ({"batch_size": 32, "drop_last": True}, 40),
    ],
)
def test_n_is_of_what_the_loader_gives(how: dict[str, Any], n: int) -> None:
    net = byov.bayesianize(nn.Linear(6, 3, bias=False), byov.Gaussian(relative=0.05))  # 18 weights: N is of examples
    assert byov.fit(net, DataLoader(DATA, **how), 1).n == n


@pytest.mark.parametrize(("batch", "epochs"), [(4, 100), (7, 167), (1, 25)])
def test_by_default_it_takes_a_thousand_steps(batch: int, epochs: int) -> None:
    """Of ten batches 100 epochs, of six 167, of forty 25."""
    history = byov.fit(nn.Linear(6, 3), DataLoader(DATA, batch))
    assert len(history.rows) == epochs


def test_a_validation_that_is_not_finite_is_never_the_best() -> None:
    history = History("classification", 1.0)
    for nll in (float("nan"), 2.0, float("inf"), 1.0, 1.5):
        history.add({"epoch": float(len(history.rows) + 1), "nll": nll})
    assert history.best == 4


def test_it_stops_and_keeps_the_best_weights() -> None:
    """Validated on other labels, it only gets worse: two epochs of patience, and the weights of the first are kept."""
    torch.manual_seed(1)
    start, other = model(), (Y + 1) % 3
    short, whole = copy.deepcopy(start), copy.deepcopy(start)
    noise = start.noise()
    with whole.draw(noise=noise):
        history = byov.fit(whole, [(X, Y)], 6, [(X, other)], lr=0.05, patience=2)
    assert (history.best, len(history.rows)) == (1, 3)
    with short.draw(noise=noise):
        byov.fit(short, [(X, Y)], 6, [(X, other)], lr=0.05, patience=1)
    for a, b in zip(short.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_causal_language_model_predicts_the_next_word() -> None:
    ids, net = torch.randint(9, (4, 5)), CausalLM(words=9)
    with torch.no_grad():
        expected = F.cross_entropy(net(ids)["logits"][:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    given = [{"input_ids": ids, "labels": ids}]
    history = byov.fit(copy.deepcopy(net), given, 1, given, lr=1e-9)
    assert history.task == "token"
    assert history["loss"][0] == pytest.approx(float(expected), rel=1e-5)
    assert history["nll"][0] == pytest.approx(float(expected), rel=1e-5)


Z, IMAGES = torch.randn(5, 1), torch.randn(5, 3, 2, 4)
WHERE, SEVERAL = torch.randint(3, (5, 2, 4)), torch.randn(5, 3)
TAGS = torch.tensor([[0, 2, -100, 1]] * 5)


@pytest.mark.parametrize(
    ("outputs", "labels", "task", "expected"),
    [
        (SEVERAL, torch.arange(5) % 3, "classification", lambda o, y: F.cross_entropy(o, y)),
        (Z, torch.arange(5) % 2, "classification", lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.float())),
        (IMAGES, WHERE, "segmentation", lambda o, y: F.cross_entropy(o, y)),
        (torch.randn(5, 4, 3), TAGS, "token", lambda o, y: F.cross_entropy(o.transpose(1, 2), y)),
        (SEVERAL, (SEVERAL > 0).float(), "multilabel", lambda o, y: 3 * F.binary_cross_entropy_with_logits(o, y)),
        (Z, torch.randn(5), "regression", lambda o, y: F.gaussian_nll_loss(o[:, 0], y, torch.ones(5), full=True)),
    ],
)
def test_the_loss_is_chosen_by_the_labels(outputs: Tensor, labels: Tensor, task: Any, expected: Any) -> None:
    assert task_of(outputs, labels) == task
    given = (
        torch.cat([torch.zeros_like(outputs), outputs], 1)
        if task == "classification" and len(outputs.T) == 1
        else outputs
    )
    assert_close(negative_log_likelihood(task, given, labels), expected(outputs, labels))


def test_a_mean_and_a_variance_are_scored_as_a_gaussian() -> None:
    net, y = nn.Linear(6, 2), torch.randn(40)
    mean, log_var = net(X).detach().unbind(1)
    expected = float(F.gaussian_nll_loss(mean, y, log_var.exp(), full=True))
    history = byov.fit(copy.deepcopy(net), [(X, y)], 1, [(X, y)], lr=1e-9, task="gaussian")
    assert [history["loss"][0], history["nll"][0]] == pytest.approx([expected] * 2, rel=1e-4)
    assert history["rmse"][0] == pytest.approx(float((mean - y).square().mean().sqrt()), rel=1e-4)


def test_labels_that_do_not_count_are_not_scored() -> None:
    prediction = byov.predict(nn.Identity(), torch.randn(5, 4, 3), task="token")
    found = scored(prediction, TAGS)
    kept = prediction.mean[TAGS != -100].double(), TAGS[TAGS != -100]
    assert found["nll"] == pytest.approx(float(F.nll_loss(kept[0].log(), kept[1])))


def test_a_loss_of_ones_own() -> None:
    history = byov.fit(model(), [(X, X[:, :3])], 2, [(X, X[:, :3])], loss=F.smooth_l1_loss)
    assert history.task == "its own loss"
    assert {"loss", "nll"} <= set(history.rows[0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(TensorDataset(X, Y))


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "The loader is empty: there is nothing to fit on"),
    ([(X, Y)], {"validation": []}, "The loader is empty"),
    ([(X, Y + 7)], {}, "The label 9 is not one of the network's 3 classes, 0 to 2"),
    ([(X, Y.float() + 0.5)], {"task": "classification"}, "class indices, not fractions"),
    ([(X, Y[:, None].float())], {}, "fit several tasks, or none: add task= or loss="),
    ([(X, Y - 1)], {}, "The label -1 is neither a class nor -100, which is ignored"),
    ([(X,)], {}, "Labels are needed, too"),
    ([{"input": X}], {}, "or of mappings with 'labels'"),
    (X, {}, r"fit takes a loader of \(x, y\)"),
    (iter([(X, Y)]), {}, "fit needs a loader with a length"),
    (Stream(), {}, "fit needs a data set with a length, which Stream lacks"),
    ([(X, Y)], {"validation": [(X, Y.view(20, 2)), (X, Y.view(8, 5))]}, r"shape, \(2,\) and \(5,\): pad all"),
    ([(X, Y)], {"epochs": 0}, "fit's epochs are a whole number above 0, not 0"),
    ([(X, Y)], {"lr": -1.0}, "fit's lr is a number above 0, not -1"),
    ([(X, Y)], {"n": 0.0}, "fit's n is a number above 0"),
    ([(X, Y)], {"precision": "fp8"}, "A precision is 'auto', '32-true' or 'bf16-mixed', not 'fp8'"),
    ([(X, Y)], {"task": "colour"}, "A task is 'classification'"),
]


def test_whole_numbers_beside_one_output_may_be_quantities() -> None:
    with pytest.raises(
        ValueError, match=r"integers other than 0 and 1: add task='regression' if they are quantities\.$"
    ):
        byov.fit(nn.Linear(6, 1), [(X, Y)])


@pytest.mark.parametrize(("loader", "how", "sentence"), BAD, ids=[sentence[:40] for *_, sentence in BAD])
def test_bad_input_is_one_sentence_and_changes_nothing(loader: Any, how: dict[str, Any], sentence: str) -> None:
    given = model()
    before = copy.deepcopy(given.state_dict())
    with pytest.raises((ValueError, TypeError), match=sentence):
        byov.fit(given, loader, **how)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


def test_a_loss_that_is_not_finite_ends_it() -> None:
    from byov.train import Diverged

    with pytest.raises(Diverged, match="The loss is nan after 1 steps: try a lower lr"):
        byov.fit(model(), [(X * float("nan"), Y)])
