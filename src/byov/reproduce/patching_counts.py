"""Tables 1 and 3 of the patching paper: parameters and effective ensemble sizes, counted on the networks themselves."""

from __future__ import annotations

import torch
from torch import nn

from byov.models import create, pyramidnet, table3_mlp
from byov.overhead import Row, overhead
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

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
    """Return the paper's three networks, without memory for their weights."""
    with torch.device("meta"):
        return {"MLP": table3_mlp(), "ResNet-18": create("resnet18", 1000), "PyramidNet": pyramidnet()}


def counted() -> dict[str, dict[str, Row]]:
    """Count by network and family, each where the paper has it: EMP and ECMP on norm and output layers."""
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
    return Outcome(data, rows, note="PBP and MNFG, the table's other rows, are no families of this library.")


@experiment("patching/table3", "Parameters and effective ensemble sizes of ensemble-based methods, K = 5")
def table3(context: Context) -> Outcome:
    found = counted()
    rows = []
    for family, paper in TABLE3.items():
        for network, theirs in zip(found, paper, strict=True):
            row = found[network][family]
            verdict = "equal" if row.parameters == theirs else "differs"
            size = f"effective size {row.ensemble_size}"
            rows.append(Comparison(f"{family} on {network}, {size}", row.parameters, theirs, verdict=verdict))
    data = {name: {family: vars(row) for family, row in each.items()} for name, each in found.items()}
    return Outcome(data, rows, note="Effective ensemble sizes are exact; the paper gives their order, such as O(K^L).")
