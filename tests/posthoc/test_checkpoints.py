"""An ensemble of checkpoints predicts what averaging its members by hand does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_networks import NETWORKS, mlp, shake
from torch import Tensor, nn

import byov


def trained(kind: str, count: int = 3) -> tuple[list[nn.Module], Tensor]:
    """Networks apart from each other, with buffers of their own, and a batch."""
    make, batch = NETWORKS[kind]
    nets, x = [make() for _ in range(count)], batch()
    for net in nets:
        shake(net, 0.2)
        net.train()(x)
    return nets, x


@pytest.mark.parametrize("kind", NETWORKS)
def test_it_averages_the_softmax_of_its_members(kind: str) -> None:
    nets, x = trained(kind)
    model = byov.from_checkpoints(nets)
    with torch.no_grad():
        by_hand = torch.stack([net.eval()(x).softmax(1) for net in nets])
    found = byov.predict(model, x, samples="members", keep=True)
    assert found.samples == 3
    torch.testing.assert_close(found.draws, by_hand)
    torch.testing.assert_close(found.mean, by_hand.mean(0))
    drawn = byov.predict(model, x, samples=5, keep=True).draws
    assert all(any(torch.allclose(draw, member, atol=1e-6) for member in by_hand) for draw in drawn)


def test_from_files_as_training_scripts_write_them(tmp_path: Path) -> None:
    nets, x = trained("mlp-batchnorm", 4)
    first, second, third, fourth = (net.state_dict() for net in nets)
    torch.save(first, tmp_path / "a.pt")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in second.items()}}, tmp_path / "b.pth")
    save_file(third, tmp_path / "c.safetensors")
    model = byov.from_checkpoints([*sorted(tmp_path.iterdir()), fourth], net=mlp())
    again = byov.predict(byov.from_checkpoints(nets), x, samples="members")
    assert torch.equal(byov.predict(model, x, samples="members").mean, again.mean)
    other = byov.bayesianize(mlp(), byov.Ensemble(4)).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


def test_frozen_networks_are_members_and_their_mean_is_the_average_of_weights() -> None:
    nets, _ = trained("mlp-batchnorm")
    for net in nets:
        net.requires_grad_(False)
    mean = byov.from_checkpoints(nets).mean()
    for name in mean:
        torch.testing.assert_close(mean[name], torch.stack([net.get_parameter(name) for net in nets]).mean(0))


def test_members_are_of_one_ensemble_of_equals() -> None:
    for family in (byov.Gaussian(), byov.Ensemble(2, probs=(0.3, 0.7)), byov.Ensemble(2, sigma=0.1), byov.EMP(2)):
        with pytest.raises(ValueError, match="samples='members' is for one explicit ensemble"):
            byov.predict(byov.bayesianize(mlp(), family), torch.randn(2, 6), samples="members")
    with pytest.raises(ValueError, match="samples='members' is for one explicit ensemble"):
        byov.predict(mlp(), torch.randn(2, 6), samples="members")
    with pytest.raises(ValueError, match="set no strategy and no tolerance"):
        byov.predict(byov.from_checkpoints([mlp(), mlp()]), torch.randn(2, 6), samples="members", tolerance=0.1)
