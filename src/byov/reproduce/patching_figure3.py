"""Figure 3 of the patching paper (D.1): functions drawn from the prior under dropout and under EMP.

    y = B + Σ_h W_h sign(b_h + w_h x),      H = 100,   B, b ~ N(0, 20),   W, w ~ N(0, 5)

The second number is read as a standard deviation. Dropout sets each W and w to 0 with probability ½; EMP has K = 5 sets
of weights and biases, drawn from the same normals, and takes one for each layer. Every hidden unit is a step at
x = −b/w, so that the finest detail a function can have is the number of its steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from byov.posterior import EMP, BayesianModule, DropConnect, bayesianize
from byov.report.drawing import COLOURS, canvas, styled
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIDDEN, K, FUNCTIONS, COUNTED = 100, 5, 3, 400
BIAS, WEIGHT, P = 20.0, 5.0, 0.5
X = torch.linspace(-10.0, 10.0, 2001)


class Steps(nn.Module):
    """The network of D.1: one hidden layer of signs."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.sign(self.hidden(x)))


@torch.no_grad()
def _fill(model: BayesianModule, scale: float, generator: Generator) -> None:
    """Draw every centroid from the prior; `scale` is what the weights are kept by."""
    factor = model.factors[0]
    for flat in factor.roles.values():
        for name, part in factor.layout.split(flat).items():
            std = BIAS if "bias" in name else WEIGHT * scale
            part.copy_(std * torch.randn(part.shape, generator=generator))


@torch.no_grad()
def functions(kind: str, count: int, seed: int) -> Tensor:
    """Draw `count` functions on the grid, each from a prior of its own and one draw of its assignment."""
    generator = Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        family = DropConnect(P) if kind == "dropout" else EMP(K)
        model = bayesianize(Steps(), family).eval()
        # DropConnect keeps the mean, (1 − p) times the weight that is there when it is not dropped.
        _fill(model, 1.0 - P if kind == "dropout" else 1.0, generator)
        with model.draw(generator=generator):
            found.append(model(X[:, None])[:, 0])
    return torch.stack(found)


def steps(values: Tensor) -> Tensor:
    """Count how many steps each function has on the grid."""
    return (values.diff(dim=1).abs() > 1e-4).sum(1)


@experiment("patching/figure3", "Functions drawn from the prior under dropout and EMP")
def figure3(context: Context) -> Outcome:
    drawn = {kind: functions(kind, FUNCTIONS, context.seed) for kind in ("dropout", "emp")}
    counts = {kind: steps(functions(kind, COUNTED, context.seed + 1)).float() for kind in drawn}
    ratio = float(counts["emp"].mean() / counts["dropout"].mean())
    rows = [
        Comparison(f"{kind}: steps of a function on [−10, 10]", float(c.mean()), None, float(c.std() / COUNTED**0.5))
        for kind, c in counts.items()
    ]
    verdict = "EMP expresses finer details" if ratio > 1 else "EMP does not express finer details"
    rows.append(Comparison("EMP's steps over dropout's", ratio, verdict=verdict))
    data = {"x": X.tolist(), **{kind: values.tolist() for kind, values in drawn.items()}}
    note = "A unit is expressed where neither of its two weights is dropped, which happens to one in four."
    return Outcome(data, rows, _draw(drawn), note)


@styled
def _draw(drawn: dict[str, Tensor]) -> Figure:
    figure, [panels] = canvas(7.6, 3.0, 1, 2, sharey=True)
    titles = {"dropout": "dropout, p = ½", "emp": f"EMP, K = {K}"}
    for axes, (kind, values) in zip(panels, drawn.items(), strict=True):
        for line, colour in zip(values, COLOURS, strict=False):
            axes.plot(X, line, color=colour, linewidth=1.0)
        axes.set(title=titles[kind], xlabel="x")
    panels[0].set_ylabel("f(x)")
    return figure
