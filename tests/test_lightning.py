"""byov.lightning, with the real library: the KL's gradient, once for each step, and a Prediction that is carried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import mlp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import byov

lightning = pytest.importorskip("lightning.pytorch")
QUIET = {
    **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    "accelerator": "cpu",
}
X, Y = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Classifier(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> Tensor:
        with self.model.at_mean():
            return cross_entropy(self.model(batch[0]), batch[1])

    def predict_step(self, batch: Any, index: int) -> byov.Prediction:
        return byov.predict(self.model, batch[0], 5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def network() -> byov.BayesianModule:
    return byov.bayesianize(nn.Linear(6, 3), byov.Gaussian(-4.0))


@pytest.mark.parametrize("parts", [1, 3])
def test_each_step_pays_the_kl_once_however_many_batches_it_has(parts: int) -> None:
    """Three epochs of full-batch gradient descent, beside a loop by hand."""
    module, model = Classifier(network()), network()
    module.model.load_state_dict(model.state_dict())
    kl = byov.lightning.KL(n=50.0, beta_end=2.0)
    trainer = lightning.Trainer(max_epochs=3, callbacks=[kl], accumulate_grad_batches=parts, **QUIET)
    trainer.fit(module, DataLoader(TensorDataset(X, Y), 24 // parts))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with model.at_mean():
            loss = byov.elbo(cross_entropy(model(X), Y), model, 50.0, beta=byov.beta(step, 3, 2.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), module.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine)
    assert float(trainer.callback_metrics["beta"]) == pytest.approx(byov.beta(2, 3, 2.0))


def test_predict_carries_predictions() -> None:
    module = Classifier(byov.bayesianize(mlp(), byov.Gaussian()))
    found = lightning.Trainer(**QUIET).predict(module, DataLoader(TensorDataset(X, Y), 10))
    assert [type(each) for each in found] == [byov.Prediction] * 3
    joined = byov.Prediction.cat(found)
    assert len(joined.to_pandas()) == len(joined) == 24


def test_bad_use_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="n is the number of training examples and must be above 0, not 0"):
        byov.lightning.KL(n=0)
    with pytest.raises(ValueError, match="A β schedule is"):
        byov.lightning.KL(n=9, schedule="steep")
    trainer = lightning.Trainer(max_epochs=1, callbacks=[byov.lightning.KL(n=9)], **QUIET)
    with pytest.raises(TypeError, match=r"Classifier has no posterior: pass its network to byov.bayesianize first"):
        trainer.fit(Classifier(nn.Linear(6, 3)), DataLoader(TensorDataset(X, Y), 24))
