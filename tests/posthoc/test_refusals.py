"""Bad input to anything that is done after training is one sentence, and no hook is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import mlp
from torch import Tensor, nn

import byov

NET = nn.Linear(4, 3)
X, Y = torch.randn(20, 4), torch.randint(3, (20,))
STATE = mlp().state_dict()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def check(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words) as error:
        call()
    assert "\n" not in str(error.value)
    assert not any(module._forward_hooks for module in NET.modules())


@pytest.mark.parametrize("made", [byov.laplace, byov.temperature, byov.conformal])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], r"The loader is empty: there is nothing to fit on\."),
        (X, r"^Labels are needed, too: pass a loader of \(x, y\) pairs, .*\.$"),
        ([X], r"Labels are needed, too"),
        ([(X,)], r"Labels are needed, too"),
        ([{"input": X}], r"Labels are needed, too"),
        ((X, Y + 3), r"The label \d is not one of the network's 3 classes, 0 to 2\."),
        ((X, Y + 0.5), r"The labels of a classification are class indices"),
        ((X, Y[:5]), r"The labels have shape \(5,\)"),
    ],
)
def test_labels_that_are_not_there_or_do_not_fit(made: Any, data: Any, words: str) -> None:
    check(lambda: made(NET, data, task="classification"), words)


@pytest.mark.parametrize(
    ("net", "data", "options", "words"),
    [
        (NET, (X, Y * 0 - 100), {}, r"no label counts"),
        (NET, (X, Y), {"structure": "half"}, r"A covariance is 'full', 'kron', 'diag' or 'auto', not 'half'\."),
        (NET, (X, Y), {"prior_precision": -1.0}, r"A prior precision is above 0, not -1\.0\."),
        (NET, (X, Y), {"examples": 7}, r"The loader gives 20 examples, so there cannot be 7 in total\."),
        (NET, (X, Y), {"noise": 1.0}, r"A noise belongs to task='regression', not to 'classification'\."),
        (NET, (X, Y), {"validation": []}, r"The loader is empty"),
        (NET, (X, Y), {"validation": (X, Y), "prior_precision": 1.0}, r"pass it or prior_precision=, not both\."),
        (NET, (X, Y), {"task": "segmentation"}, r"segmentation"),
        (NET, (X, Y), {"task": "classify"}, r"A task is 'classification'"),
        (NET, (X, X @ NET.weight.mT.detach() + NET.bias.detach()), {"task": "regression"}, r"fits .* exactly"),
        (nn.Sequential(NET, nn.Softmax(1)), (X, Y), {}, r"Sequential does not end in one nn\.Linear"),
        (Tied(), (X, Y), {}, r"The weights of the last layer, last, are tied to others"),
        (byov.bayesianize(NET, byov.Gaussian()), (X, Y), {}, r"The network already has a posterior"),
        (nn.Linear(4, 5000), (X, Y), {"structure": "full"}, r"A full covariance of 25,000 weights does not fit"),
    ],
)
def test_laplace(net: nn.Module, data: Any, options: dict[str, Any], words: str) -> None:
    check(lambda: byov.laplace(net, data, **options), words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: byov.temperature(NET, (X, Y), "matrix"), r"A temperature is 'scalar' or 'vector', not 'matrix'\."),  # type: ignore[arg-type]
        (lambda: byov.temperature(NET, (X, Y), task="regression"), r"class probabilities, not for a regression"),
        (lambda: byov.temperature(NET, (X, Y[:, None].expand(-1, 3))), r"have shape \(20, 3\), not \(20,\)\."),
        (lambda: byov.Temperature(0.0), r"A temperature is above 0, not 0\.0\."),
        (lambda: byov.predict(NET, X, temperature=1.5), r"what byov\.temperature returns, or .*, not 1\.5"),  # type: ignore[arg-type]
        (
            lambda: byov.predict(NET, X, temperature=byov.Temperature(1.0, torch.ones(2), torch.ones(2))),
            r"The vector scaling is for 2 classes, not for 3\.",
        ),
        (lambda: byov.conformal(NET, (X[:8], Y[:8])), r"coverage of 0\.9 needs at least 9 examples .*, not 8\."),
        (lambda: byov.conformal(NET, (X, Y), 0.99), r"coverage of 0\.99 needs at least 99 examples .*, not 20\."),
        (lambda: byov.conformal(NET, (X, Y), 90), r"A coverage is above 0 and below 1, not 90\."),
        (lambda: byov.conformal(NET, (X, Y), score="raps"), r"is 'probability' or 'aps', not 'raps'\."),  # type: ignore[arg-type]
        (lambda: byov.conformal(NET, (X, Y), task="regression"), r"labels have shape \(20,\), not \(20, 3\)\."),
        (lambda: byov.conformal(NET, (X, X[:, :3] > 0), task="multilabel"), r"mutually exclusive classes"),
        (
            lambda: byov.conformal(NET, (X, Y))(byov.predict(NET, X, task="regression")),
            r"fitted with the score 'probability', which a regression does not have\.",
        ),
    ],
)
def test_temperatures_and_sets(call: Callable[[], object], words: str) -> None:
    check(call, words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([STATE], r"An ensemble needs at least 2 checkpoints, not 1\."),
        (STATE, r"takes a list of checkpoints, not one\."),
        ([STATE, nn.Linear(3, 2)], r"Checkpoint 2 is from a different network than net: it has no '0.weight'"),
        ([{**STATE, "x": torch.ones(1)}, STATE], r"Checkpoint 1 .* it has a 'x' that net does not have"),
        ([STATE, {**STATE, "3.bias": torch.ones(9)}], r"Checkpoint 2 .* its '3\.bias' is \(9,\), net's \(3,\)\."),
        ([STATE, "broken.pt"], r"Checkpoint broken\.pt cannot be read as tensors alone"),
        ([STATE, "none.pt"], r"There is no checkpoint none\.pt\."),
        ([STATE, 3], r"Checkpoint 2 is neither a file, a state dict nor a module, but int\."),
    ],
)
def test_checkpoints(given: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.pt").write_bytes(b"no checkpoint")
    check(lambda: byov.from_checkpoints(given, net=mlp()), words)
    check(lambda: byov.from_checkpoints([STATE, STATE]), r"do not define their network: pass one as net=\.")
