"""Twenty splits of a regression table trained at once, against one at a time: seconds per step of all of them.

Three ways to take one step on every split, on the same rows with the same settings:
  batched   byov.train.regression, all splits in one stack
  looped    the ordinary loop: a bayesianized regression_mlp, autograd and torch.optim.Adam for each split in turn
  one each  byov.train.regression with one split at a time, which has the batched code but not the batch
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import torch
from timing import Ratio, Step, interleaved
from torch import Tensor, nn

import byov
from byov.models import regression_mlp
from byov.train.regression import Settings, fit

BAR = 10.0


def table(rows: int, features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(rows, features, generator=generator)
    return X, X[:, 0] * X[:, 1] + 0.1 * torch.randn(rows, generator=generator)


def batched(X: Tensor, y: Tensor, rows: list[Tensor], family: byov.Family, epochs: int) -> None:
    fit(X, y, family, rows, settings=Settings(epochs=epochs))


def one_each(X: Tensor, y: Tensor, rows: list[Tensor], family: byov.Family, epochs: int) -> None:
    for number, index in enumerate(rows):
        fit(X, y, family, [index], [number], Settings(epochs=epochs))


def looped(X: Tensor, y: Tensor, rows: list[Tensor], family: byov.Family, epochs: int) -> None:
    settings = Settings()
    for index in rows:
        model = byov.bayesianize(regression_mlp(X.shape[1]), {byov.norm_layers: family}).train()
        adam = torch.optim.Adam(model.parameters(), settings.lr, weight_decay=0.01, fused=True)
        x, target = X[index], y[index, None]
        for _ in range(epochs):
            for part in torch.randperm(len(index)).split(settings.batch):
                adam.zero_grad()
                nn.functional.mse_loss(model(x[part]), target[part]).backward()
                adam.step()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--features", type=int, default=13)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--family", choices=["EMP", "ECMP"], default="ECMP")
    parser.add_argument("--threads", type=int, default=1, help="of each way")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    X, y = table(asked.rows, asked.features)
    order = [torch.randperm(asked.rows, generator=torch.Generator().manual_seed(i)) for i in range(asked.splits)]
    rows = [index[: round(0.9 * asked.rows)] for index in order]
    family = getattr(byov, asked.family)(5)
    steps: dict[str, Step] = {
        way.__name__: partial(way, X, y, rows, family, asked.epochs) for way in (batched, looped, one_each)
    }
    for step in steps.values():
        step()
    seconds = interleaved(steps, asked.repetitions, torch.device("cpu"))
    count = asked.epochs * Settings().cut(len(rows[0]))[0]
    for name, times in seconds.items():
        print(
            f"{name:10} {1e3 * sorted(times)[len(times) // 2] / count:8.2f} ms for a step of all {asked.splits} splits"
        )
    ratio, itself = (Ratio.of(seconds[name], seconds["batched"]) for name in ("looped", "one_each"))
    print(f"looped / batched   {ratio.median:.1f} ({ratio.low:.1f} – {ratio.high:.1f}), at least {BAR:.0f} wanted")
    print(f"one each / batched {itself.median:.1f} ({itself.low:.1f} – {itself.high:.1f})")
    return int(ratio.median < BAR)


if __name__ == "__main__":
    sys.exit(main())
