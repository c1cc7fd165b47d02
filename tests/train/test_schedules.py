"""The learning rate, τ and the EMA scaling rule at the steps where they are known."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byov.train.schedules import scale_decay, tau, warmup_cosine


def test_the_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.01)
    for step in range(50):
        assert warmup_cosine(step, 50, base=0.3, end=0.01) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


@given(total=st.integers(1, 1000), data=st.data())
def test_a_learning_rate_stays_between_0_and_base(total: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, total))
    step = data.draw(st.integers(-5, total + 5))
    assert 0.0 <= warmup_cosine(step, total, warmup) <= 1.0
    later = warmup_cosine(step + 1, total, warmup)
    before = warmup_cosine(step, total, warmup)
    assert later >= before if step < warmup else later <= before


def test_tau_at_start_middle_and_end() -> None:
    assert tau(0, 100, 0.99) == pytest.approx(0.99)
    assert tau(50, 100, 0.99) == pytest.approx(0.995)
    assert tau(25, 100, 0.9) == pytest.approx(1 - 0.1 * (2**-0.5 + 1) / 2)
    assert tau(100, 100, 0.99) == 1.0
    assert tau(200, 100, 0.99) == 1.0
    assert tau(50, 100, 0.9, end=0.96) == pytest.approx(0.93)
    assert [tau(step, 100, 0.99, end=0.99) for step in (0, 30, 100)] == [0.99] * 3


def test_a_scaled_decay_forgets_as_much_per_example() -> None:
    """κ steps with τ, on a student that stands still, are one step with τ^κ."""
    mean = student = 1.0
    mean = 0.0
    for _ in range(8):
        mean = 0.98 * mean + 0.02 * student
    scaled = scale_decay(0.98, 8)
    assert (1 - scaled) * student == pytest.approx(mean)
    assert scale_decay(0.98, 1) == 0.98
    assert scale_decay(scale_decay(0.99, 4), 0.25) == pytest.approx(0.99)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: warmup_cosine(0, 0),
        lambda: warmup_cosine(0, 10, 11),
        lambda: warmup_cosine(0, 10, -1),
        lambda: warmup_cosine(0, 10, base=float("nan")),
        lambda: tau(0, 0, 0.9),
        lambda: tau(0, 10, 1.1),
        lambda: tau(0, 10, 0.9, end=-0.1),
        lambda: scale_decay(-0.1, 2),
        lambda: scale_decay(0.9, 0),
    ],
)
def test_bad_input_gets_one_sentence(bad) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\.$"):
        bad()
