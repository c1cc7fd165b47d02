"""Run the examples of every docstring."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

from byov import metrics

MODULES = [module.name for module in pkgutil.walk_packages(metrics.__path__, "byov.metrics.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("home", [metrics, metrics.functional], ids=["shells", "functions"])
def test_every_public_name_has_an_example(home) -> None:  # type: ignore[no-untyped-def]
    for name in home.__all__:
        thing = getattr(home, name)
        if inspect.ismodule(thing) or issubclass(thing if inspect.isclass(thing) else object, tuple):
            continue
        assert ">>>" in (thing.__doc__ or ""), name
