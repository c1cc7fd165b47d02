"""A batch on its way through the draws."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from byov.prediction.forward import Forward
from byov.prediction.inputs import size_of
from byov.prediction.result import Moments, Prediction

TOGETHER, SMALL = 8, 1 << 22
"""On a GPU so many draws wait to be taken in at once, where they have no more than so many elements: for each of them
alone it is half a dozen small kernels."""


class Running:
    """The moments of the draws that a batch has seen, and which of its inputs have stopped."""

    def __init__(self, forward: Forward, precision: float | None, keep: bool) -> None:
        x, task = forward.x, forward.task
        self.forward = forward
        self.size, self.precision, self.keep = size_of(x), precision, keep
        self.moments, self.open = Moments(task), torch.arange(self.size)
        self._waiting: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._done: list[tuple[Tensor, dict[str, Tensor | None], int]] = []

    @property
    def repeats(self) -> bool:
        """Whether its passes are known to touch nothing but its own inputs and the weights handed to it."""
        return self.forward.recording is not None and self.forward.recording.sound

    @property
    def held(self) -> int:
        """Bytes that it keeps until its last draw."""
        x, recording = self.forward.x, self.forward.recording
        tensors = [*(x.values() if isinstance(x, Mapping) else [x]), self.moments.mean, self.moments.square]
        tensors += [self.moments.mean] * (TOGETHER - 1) if _wait(self.moments.mean) else []
        return sum(t.numel() * t.element_size() for t in tensors) + (0 if recording is None else recording.kept)

    def take(self, values: Tensor) -> None:
        """Take in what some draws predict (K, N, …)."""
        self._waiting.append(values)
        if self.moments.count == 0 or not _wait(values[0]) or sum(map(len, self._waiting)) >= TOGETHER:
            self._flush()
        if self.keep:
            self._kept.append(values)

    def _flush(self) -> None:
        if self._waiting:
            self.moments.update(self._waiting[0] if len(self._waiting) == 1 else torch.cat(self._waiting))
            self._waiting.clear()

    def stop(self, tolerance: float) -> bool:
        """Stop the inputs whose standard error is below the tolerance; whether there are others."""
        self._flush()
        goes_on = self.moments.standard_error() >= tolerance
        if bool(goes_on.all()):
            return True
        before = self.forward
        task, x = before.task, before.x
        stopped = Moments(task)
        stopped.__dict__.update(self.moments.__dict__)
        stopped.take(~goes_on)
        self._done.append((self.open[~goes_on.cpu()], stopped.result(self.precision), stopped.count))
        self.open = self.open[goes_on.cpu()]
        if len(self.open) == 0:
            return False
        self.moments.take(goes_on)
        x = x[goes_on] if isinstance(x, Tensor) else {name: tensor[goes_on] for name, tensor in x.items()}
        self.forward = Forward(before.model, x, task, before.watch, before.handover, sleep=before.sleep)
        return True

    def result(self, strategy: str, each: bool) -> Prediction:
        """The prediction, in the order of the inputs; with one number of draws for `each` of them, or one for all."""
        self._flush()
        done = [*self._done]
        if len(self.open):
            done.append((self.open, self.moments.result(self.precision), self.moments.count))
        if len(done) == 1:
            return self._whole(done[0][1], strategy, torch.full((self.size,), done[0][2]) if each else done[0][2])
        order = torch.cat([index for index, _, _ in done]).argsort()
        fields: dict[str, Tensor | None] = {}
        for name in done[0][1]:
            parts = [result[name] for _, result, _ in done]
            fields[name] = None if parts[0] is None else torch.cat(parts)[order.to(parts[0].device)]  # type: ignore[arg-type]
        used = torch.cat([torch.full((len(index),), count) for index, _, count in done])[order]
        return self._whole(fields, strategy, used)

    def _whole(self, fields: dict[str, Tensor | None], strategy: str, used: int | Tensor) -> Prediction:
        mean: Tensor = fields["mean"]  # type: ignore[assignment]
        if not torch.isfinite(mean).all():
            bad = int((~torch.isfinite(mean)).reshape(len(mean), -1).any(1).sum())
            raise ValueError(f"The network's outputs are not finite for {bad} of {len(mean)} inputs.")
        draws = torch.cat(self._kept) if self._kept else None
        return Prediction(**fields, samples=used, strategy=strategy, draws=draws)  # type: ignore[arg-type]


def _wait(draw: Tensor) -> bool:
    """Whether what one draw predicts waits for others."""
    return draw.is_cuda and TOGETHER * draw.numel() <= SMALL
