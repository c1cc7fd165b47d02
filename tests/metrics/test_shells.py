"""A shell over any split into batches, or into processes, gives the number of its function on the whole."""

import doctest
import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_utilities.core.apply_func import apply_to_collection
from torchmetrics import Metric, MetricCollection

from byov import metrics

from .cases import CASES, LABELS, PROBS, SAMPLES, Case, assert_equal, fed

everything = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_every_shell_has_a_case() -> None:
    shells = {name for name in metrics.__all__ if name != "functional"}
    assert shells == {type(case.build()).__name__ for case in CASES.values()}


@everything
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.sets(st.integers(1, SAMPLES - 1), max_size=8))
def test_any_split_gives_the_whole(case: Case, seed: int, cuts: set[int]) -> None:
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))
    metric = case.build()
    for index in order.tensor_split(sorted(cuts)):
        fed(case, index, metric)
    assert_equal(metric.compute(), case.expected())


@everything
def test_reset_pickle_and_an_empty_metric(case: Case) -> None:
    metric = fed(case, torch.arange(SAMPLES))
    assert_equal(pickle.loads(pickle.dumps(metric)).compute(), case.expected())
    metric.reset()
    with (
        pytest.warns(UserWarning, match="before the ``update`` method"),
        pytest.raises(ValueError, match="has seen no"),
    ):
        metric.compute()
    assert_equal(fed(case, torch.arange(SAMPLES), metric).compute(), case.expected())


@everything
def test_float_and_half_leave_the_states_alone(case: Case) -> None:
    metric = fed(case, torch.arange(SAMPLES), case.build().half().to("cpu"))
    assert metric.dtype == torch.float64
    assert_equal(metric.compute(), case.expected())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@everything
def test_a_device_gives_the_same_numbers(case: Case) -> None:
    metric = case.build().to("cuda")
    for arguments in case.batch(torch.arange(SAMPLES)):
        metric.update(*(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments))
    value = metric.compute()
    assert_equal(apply_to_collection(value, torch.Tensor, torch.Tensor.cpu), case.expected())


@everything
def test_a_refused_batch_changes_nothing(case: Case) -> None:
    metric = fed(case, torch.arange(SAMPLES))
    for arguments in list(case.batch(torch.arange(SAMPLES)))[:1]:
        with pytest.raises(ValueError, match=r"must be finite|must not be NaN"):
            metric.update(arguments[0] * float("nan"), *arguments[1:])
    assert_equal(metric.compute(), case.expected())


def test_a_collection_does_not_confuse_equal_first_batches() -> None:
    """On a perfect first batch both accuracies hold the same numbers, as do NLL and Brier; none may be shared."""
    names = ["accuracy", "top-3", "nll", "brier", "ece", "mce", "parts"]
    collection = MetricCollection({name: CASES[name].build() for name in names})
    perfect, labels = torch.eye(4, dtype=torch.float64), torch.arange(4)
    collection.update(perfect, labels)
    collection.update(PROBS, LABELS)
    for name, value in collection.compute().items():
        alone = CASES[name].build()
        alone.update(perfect, labels)
        alone.update(PROBS, LABELS)
        assert_equal(value, alone.compute())


@pytest.mark.parametrize("name", ["accuracy", "parts", "ce", "diagram", "risk"])
@pytest.mark.parametrize("own_axes", [True, False])
def test_plot_returns_a_figure_with_the_numbers(name: str, own_axes: bool) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    metric: Metric = fed(CASES[name], torch.arange(SAMPLES))
    given_axes = None if own_axes else plt.subplots()[1]
    fig, ax = metric.plot(ax=given_axes)
    assert isinstance(fig, plt.Figure)
    assert given_axes is None or ax is given_axes
    expected = CASES[name].expected()
    if name == "risk":
        assert ax.lines[0].get_ydata() == pytest.approx(expected.risk.numpy())
    if name == "diagram":
        heights = [bar.get_height() for bar in ax.containers[0]]
        assert heights == pytest.approx(expected.accuracy[expected.count > 0].tolist())
        tops = [bar.get_y() + bar.get_height() for bar in ax.containers[1]]
        assert tops == pytest.approx(expected.confidence[expected.count > 0].tolist())
    plt.close("all")


def report(rank: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    try:
        for split in ([60, 30], [SAMPLES, 0]):
            mine = torch.arange(SAMPLES).split(split)[rank]
            for case in CASES.values():
                metric = fed(case, mine) if len(mine) else case.build()
                assert_equal(metric.compute(), case.expected())
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_two_processes_report_the_whole(tmp_path: Path) -> None:
    """Also where one of them has nothing. Forked, as a DataLoader's workers are: it saves two imports of torch."""
    mp.start_processes(report, (str(tmp_path / "rendezvous"),), nprocs=2, start_method="fork")


MODULES = [module.name for module in pkgutil.walk_packages(metrics.__path__, "byov.metrics.")]


@pytest.mark.parametrize("name", ["byov.metrics", *MODULES])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("home", [metrics, metrics.functional], ids=["shells", "functions"])
def test_every_public_name_has_an_example(home) -> None:
    for name in home.__all__:
        thing = getattr(home, name)
        if inspect.ismodule(thing) or issubclass(thing if inspect.isclass(thing) else object, tuple):
            continue
        assert ">>>" in (thing.__doc__ or ""), name
