"""Tables 1 and 3 and Figure 3 of the patching paper, which need no training.

Tables 1 and 3: parameters and effective ensemble sizes, counted on the networks.

Figure 3 (D.1): functions drawn from the prior under dropout and under EMP,

    y = B + Σ_h W_h sign(b_h + w_h x),      H = 100,   B, b ~ N(0, 20),   W, w ~ N(0, 5)

The second number is taken as a standard deviation. Dropout sets each W and w to 0 with probability ½; EMP has K = 5
sets of weights and biases, drawn from the same normals, and picks one for each layer. Every hidden unit is a step at x
= −b/w, so the number of steps measures how fine the details of a function are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from byov.models import create, pyramidnet, table3_mlp
from byov.overhead import Row, overhead
from byov.posterior import EMP, BayesianModule, DropConnect, bayesianize
from byov.report.drawing import COLOURS, canvas, styled
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Tables 1 and 3

TABLE1 = {  # millions of parameters in ResNet-18 and PyramidNet
    "Gaussian": (23.4, 57.0),
    "Dropout": (11.7, 28.5),
    "EMP": (13.8, 28.8),
}
TABLE3 = {  # parameters in the MLP, in ResNet-18 and in PyramidNet
    "EMP": (1_129_100, 13_779_912, 28_825_299),
    "ECMP": (1_129_100, 13_779_912, 28_825_299),
    "Dropout": (1_009_900, 11_689_512, 28_511_307),
    "DropConnect": (1_009_900, 11_689_512, 28_511_307),
    "Ensemble": (5_049_500, 58_447_560, 142_556_535),
}


def networks() -> dict[str, nn.Module]:
    """Return the paper's three networks on the meta device."""
    with torch.device("meta"):
        return {"MLP": table3_mlp(), "ResNet-18": create("resnet18", 1000), "PyramidNet": pyramidnet()}


def counted() -> dict[str, dict[str, Row]]:
    """Count by network and family, placed as in the paper: EMP and ECMP on norm and output layers."""
    found = {name: overhead(net, 5) for name, net in networks().items()}
    return {name: {row.family: row for row in rows if row.on != "norm"} for name, rows in found.items()}


@experiment("patching/table1", "Parameters of variational methods on ResNet-18 and PyramidNet")
def table1(context: Context) -> Outcome:
    found = counted()
    rows = []
    for family, paper in TABLE1.items():
        for network, theirs in zip(("ResNet-18", "PyramidNet"), paper, strict=True):
            ours = found[network][family].parameters / 1e6
            verdict = "equal" if round(ours, 1) == theirs else "differs"
            rows.append(Comparison(f"{family} on {network}: million parameters", ours, theirs, verdict=verdict))
    data = {name: {family: vars(row) for family, row in each.items()} for name, each in found.items()}
    return Outcome(data, rows, note="PBP and MNFG, the other rows of the table, are not part of this library.")


@experiment("patching/table3", "Parameters and effective ensemble sizes of ensemble-based methods, K = 5")
def table3(context: Context) -> Outcome:
    found = counted()
    rows = []
    for family, paper in TABLE3.items():
        for network, theirs in zip(found, paper, strict=True):
            row = found[network][family]
            verdict = "equal" if row.parameters == theirs else "differs"
            label = f"{family} on {network} (effective size {row.ensemble_size}): parameters"
            rows.append(Comparison(label, row.parameters, theirs, verdict=verdict))
    data = {name: {family: vars(row) for family, row in each.items()} for name, each in found.items()}
    return Outcome(data, rows, note="Effective ensemble sizes are exact; the paper gives their order, such as O(K^L).")


# Figure 3

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
    """Draw every centroid from the prior, with the weights multiplied by `scale`."""
    factor = model.factors[0]
    for flat in factor.roles.values():
        for name, part in factor.layout.split(flat).items():
            std = BIAS if "bias" in name else WEIGHT * scale
            part.copy_(std * torch.randn(part.shape, generator=generator))


@torch.no_grad()
def functions(kind: str, count: int, seed: int) -> Tensor:
    """Draw `count` functions on the grid, each from newly drawn weights and one draw of the assignment."""
    generator = Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        family = DropConnect(P) if kind == "dropout" else EMP(K)
        model = bayesianize(Steps(), family).eval()
        # DropConnect stores the mean, which is (1 − p) times the weight when not dropped.
        _fill(model, 1.0 - P if kind == "dropout" else 1.0, generator)
        with model.draw(generator=generator):
            found.append(model(X[:, None])[:, 0])
    return torch.stack(found)


def steps(values: Tensor) -> Tensor:
    """Count the steps of each function on the grid."""
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
    note = "A unit contributes a step only if neither of its two weights is dropped, which holds for one in four."
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
