"""Networks of a user's own, for `python:some_nets:NAME`."""

import torch
from torch import nn

import byov


def plain(classes: int = 10, pixels: int = 64) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 16), nn.ReLU(), nn.Linear(16, classes))


def bayes() -> nn.Module:
    return byov.bayesianize(plain(), byov.Gaussian(log_var=-4.0))


def reset() -> nn.Module:
    return byov.bayesianize(plain(), byov.Ensemble(2, start="reset"))


def copy() -> nn.Module:
    return byov.bayesianize(plain(), byov.Ensemble(2, start="copy", spread=0.1))


def random() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def five() -> nn.Module:
    return plain(5)


def larger() -> nn.Module:
    return plain(pixels=65)


def maps() -> nn.Module:
    return nn.Conv2d(1, 10, 1)


def nan() -> nn.Module:
    net = plain()
    net[3].weight.data.fill_(float("nan"))
    return net


def pets() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2))
