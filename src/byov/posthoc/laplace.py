"""byov.laplace: a posterior over the last layer of a network that is already trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from byov.posterior.bayesianize import bayesianize
from byov.posterior.correlated import FULL_AT_MOST, FullGaussian, KroneckerGaussian
from byov.posterior.factor import Factor
from byov.posterior.family import Family
from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule
from byov.posterior.prior import Normal
from byov.posthoc.curvature import Curvature, Likelihood, Structure, loss_and_hessian
from byov.posthoc.evidence import (
    Evidence,
    best_noise,
    best_precision,
    gaussian_log_likelihood,
    hill_climb,
    log_marginal,
    predictive_loss,
)
from byov.posthoc.labelled import align_labels, labelled, task_of
from byov.prediction.inputs import Batch, call, posterior_of, ready, unwrap
from byov.prediction.outputs import Output, OutputSpec, Task
from byov.prediction.resident import evaluating

FULL = 2048
"""Up to this many weights, "auto" is a full covariance: it takes seconds, and 32 MB."""
FAMILIES: dict[str, Family] = {"full": FullGaussian(), "kron": KroneckerGaussian(), "diag": Gaussian()}
LIKELIHOODS: dict[str, Likelihood] = {
    "classification": "softmax",
    "token": "softmax",
    "multilabel": "bernoulli",
    "regression": "gaussian",
}


def laplace(
    model: nn.Module,
    loader: Any,
    structure: Literal["auto", "full", "kron", "diag"] = "auto",
    *,
    task: Task | None = None,
    output: Output | None = None,
    prior_precision: float | None = None,
    noise: float | None = None,
    examples: int | None = None,
    validation: Any = None,
) -> BayesianModule:
    """Fit a Laplace approximation of the last layer, in one pass and without training: the weights become the means.

    q(w) = N(w, (H + δ)⁻¹), where H is the generalised Gauss-Newton matrix of the loss over the data, and δ the
    precision of the prior N(0, 1/δ). The model's attribute `evidence` holds the fitted values and the marginal
    likelihood.

    Args:
        model: a trained network that ends in an nn.Linear. It is copied and not changed.
        loader: the training data: a loader or data set of (x, y), of mappings with "labels", or one pair (x, y).
        structure: the structure of the covariance: "full", for at most 20,000 weights; "kron", Kronecker factors;
            "diag"; or "auto", which is "full" up to 2048 weights and "kron" beyond.
        task: "classification" (a single logit is that of a sigmoid), "token", "multilabel" or "regression", as for
            `byov.predict`, and by default decided in the same way; for a single output, the labels decide.
        output: which of several outputs, as for `byov.predict`.
        prior_precision: δ; by default the one with the highest marginal likelihood.
        noise: for a regression, the standard deviation of the noise; by default the most likely one, together with δ.
        examples: the number of labels in the training data, if the loader gives only a random part of them: the
            curvature of a few thousand examples estimates that of a million, in less time.
        validation: held-out data, like `loader`: δ is then the one whose posterior predicts these data best. A network
            trained without weight decay needs this: its most likely δ is far too small.

    Example:
        >>> model = byov.laplace(net, train_loader)
        >>> byov.predict(model, x, samples=100).strategy  # one pass of the network
        'head'
    """
    _check(structure, prior_precision, noise, validation)
    net = unwrap(model)
    if posterior_of(net) is not None:
        raise ValueError("The network already has a posterior: byov.laplace takes a plain one, such as model.point().")
    reading = OutputSpec(task, output, net)
    with torch.inference_mode(False), torch.no_grad(), evaluating(net), (last := LastLayer(net, reading)).watching():
        curvature = None
        for features, outputs, labels in _passes(net, last, reading, loader):
            curvature = curvature or _curvature(structure, _likelihood(reading.task, outputs, noise), last.found())
            curvature.add(features, outputs, labels)
        assert curvature is not None
        if not curvature.count or not isfinite(curvature.loss):
            raise ValueError("The loss of the network on these data is not finite, or no label counts.")
        held = None if validation is None else _held_out(_passes(net, last, reading, validation), curvature.likelihood)
    share = 1.0 if examples is None else examples / curvature.count
    if share < 1:
        raise ValueError(f"The loader gives {curvature.count} examples, so there cannot be {examples} in total.")
    curvature.scale(share)
    return _fitted(net, last, curvature, prior_precision, noise, held)


def _passes(
    net: nn.Module, last: LastLayer, reading: OutputSpec, loader: Any
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the last layer's inputs (N, D), its outputs (N, C), and the labels."""
    for x, labels in labelled(loader, net):
        features, outputs = last(ready(x, net))
        if reading.task is None and outputs.shape[1:] in ((), (1,)) and not reading.configured:
            reading.task = task_of(outputs, labels)  # a logit or a number: the labels decide
        reading.shaped(outputs[None])  # decides the task, or raises
        yield features.flatten(0, -2), outputs.flatten(0, -2), align_labels(labels, reading).to(outputs.device)


def _held_out(passes: Iterable[tuple[Tensor, Tensor, Tensor]], likelihood: Likelihood) -> tuple[Tensor, Tensor]:
    """Collect the features and the labels of the held-out data, after checking the labels."""
    kept = [(features, labels, loss_and_hessian(likelihood, outputs, labels)) for features, outputs, labels in passes]
    return torch.cat([features for features, *_ in kept]), torch.cat([labels.flatten() for _, labels, _ in kept])


def _check(structure: str, prior_precision: float | None, noise: float | None, validation: Any) -> None:
    if validation is not None and prior_precision is not None:
        raise ValueError("validation= chooses the prior precision: pass it or prior_precision=, not both.")
    if structure != "auto" and structure not in get_args(Structure):
        raise ValueError(f"A covariance is 'full', 'kron', 'diag' or 'auto', not {structure!r}.")
    for name, value in (("prior precision", prior_precision), ("noise", noise)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"A {name} is above 0, not {value!r}.")


def _likelihood(task: str | None, outputs: Tensor, noise: float | None) -> Likelihood:
    if task not in LIKELIHOODS:
        raise ValueError(f"byov.laplace is for the tasks {', '.join(map(repr, LIKELIHOODS))}, not {task!r}.")
    if noise is not None and task != "regression":
        raise ValueError(f"A noise belongs to task='regression', not to {task!r}.")
    return "bernoulli" if task == "classification" and outputs.shape[-1] == 1 else LIKELIHOODS[task]


def _curvature(structure: str, likelihood: Likelihood, layer: nn.Linear) -> Curvature:
    weights = sum(parameter.numel() for parameter in layer.parameters())
    if structure == "auto":
        structure = "full" if weights <= FULL else "kron"
    if structure == "full" and weights > FULL_AT_MOST:
        raise ValueError(
            f"A full covariance of {weights:,} weights does not fit: use structure='kron', or cover at most"
            f" {FULL_AT_MOST:,}."
        )
    return Curvature(structure, likelihood, layer)  # type: ignore[arg-type]


def _fitted(
    net: nn.Module,
    last: LastLayer,
    curvature: Curvature,
    precision: float | None,
    noise: float | None,
    held: tuple[Tensor, Tensor] | None,
) -> BayesianModule:
    """Choose the prior, and the noise of a regression, and build the posterior."""
    loss, numbers, likelihood = curvature.loss, curvature.numbers, curvature.likelihood
    layer, spectrum, name, family = last.found(), curvature.spectrum(), last.name(), FAMILIES[curvature.structure]
    square = sum(float(parameter.detach().double().square().sum()) for parameter in layer.parameters())
    log_likelihood, values = -loss, spectrum.values
    if likelihood == "gaussian":
        noise = best_noise(values, square, loss, numbers, precision) if noise is None else noise
        log_likelihood, values = gaussian_log_likelihood(loss, numbers, noise), values / noise**2
    precision = best_precision(values, square) if precision is None else precision
    if held is not None:
        head = bayesianize(layer, family).requires_grad_(False)

        def score(delta: float) -> float:
            _write(head.factors[0], values + delta, spectrum.vectors)
            return predictive_loss(head, *held, likelihood, noise)

        precision = hill_climb(score, precision)
    evidence = Evidence(
        log_marginal(log_likelihood, values, square, precision),
        log_likelihood,
        precision,
        noise,
        curvature.structure,
        curvature.count,
    )
    own = {f"{name}.{leaf}" if name else leaf for leaf in ("weight", "bias")}
    rules = {lambda parameter, *_: parameter in own: family}
    model = bayesianize(net, rules, prior=Normal(0.0, precision**-0.5))
    model.sigma_is_trained = False
    _write(model.factors[0], values + precision, spectrum.vectors)
    vars(model)["evidence"] = evidence
    return model.eval()


@torch.no_grad()
def _write(factor: Factor, precisions: Tensor, vectors: tuple[Tensor, ...]) -> None:
    """Set the covariance to the inverse of the precision with these eigenvalues and eigenvectors."""
    if isinstance(factor.family, FullGaussian):
        (turn,) = vectors
        factor.get_parameter("factor").copy_(torch.linalg.cholesky((turn / precisions) @ turn.mT))
        return
    factor.get_parameter("log_var").copy_(-precisions.log())
    for i in range(len(factor.layout.slots) if vectors else 0):
        factor.get_parameter(f"rows{i}").copy_(vectors[0])
        factor.get_parameter(f"columns{i}").copy_(vectors[1] if i == 0 else torch.ones(1, 1))


class LastLayer:
    """Find the linear layer whose output the network returns, and record its inputs."""

    def __init__(self, net: nn.Module, reading: OutputSpec) -> None:
        self.net, self.reading = net, reading
        self.layer: nn.Linear | None = None
        self._last: tuple[Any, ...] = ()
        self._calls = 0

    @contextmanager
    def watching(self) -> Iterator[LastLayer]:
        """Watch the network's passes inside."""
        linear = [module for module in self.net.modules() if type(module) is nn.Linear]
        hooks = [layer.register_forward_hook(self._called) for layer in linear]
        try:
            yield self
        finally:
            for hook in hooks:
                hook.remove()
            self._last = ()

    def _called(self, layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        self._last = (layer, args, out)
        self._calls += layer is self.layer

    def __call__(self, x: Batch) -> tuple[Tensor, Tensor]:
        """Return the inputs and outputs of the last layer, (N, …, D) and (N, …, C)."""
        self._last, self._calls = (), 0
        out = call(self.net, x, self.reading.tensor)
        layer, args, returned = self._last or (None, (), None)
        if returned is not out or len(args) != 1 or self.layer not in (None, layer) or self._calls > 1:
            raise ValueError(
                f"{type(self.net).__name__} does not end in one nn.Linear whose output it returns: a last-layer Laplace"
                " approximation needs this."
            )
        self.layer = layer
        return args[0], out

    def found(self) -> nn.Linear:
        """Return the layer, once a pass has shown it."""
        assert self.layer is not None
        return self.layer

    def name(self) -> str:
        """Return the layer's name; raise if its weights are tied to other layers."""
        names = [name for name, module in self.net.named_modules(remove_duplicate=False) if module is self.layer]
        own = {id(parameter) for parameter in self.found().parameters()}
        places = [p for m in self.net.modules() for p in m._parameters.values() if p is not None and id(p) in own]
        if len(names) > 1 or len(places) > len(own):
            raise ValueError(
                f"The weights of the last layer, {names[0]}, are tied to others: it cannot have its own posterior."
            )
        return names[0]
