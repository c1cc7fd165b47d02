"""The generalised Gauss-Newton matrix of a last layer, Σ_n Λ_n ⊗ a_n a_nᵀ, and its eigenvalues.

a_n is the layer's input, Λ_n the Hessian of the negative log-likelihood in the layer's outputs. For every likelihood
here it is diag(d_n) − o_n o_nᵀ:

    softmax      d = o = p                    cross-entropy of mutually exclusive classes
    bernoulli    d = p (1 − p), o = 0         cross-entropy of independent labels, and of a single logit
    gaussian     d = 1, o = 0                 half the squared error; divided by σ² later

All batches are summed in one pass, in float64; no batch is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from byov.posthoc.labelled import class_numbers

Structure = Literal["full", "kron", "diag"]
Likelihood = Literal["softmax", "bernoulli", "gaussian"]


def loss_and_hessian(likelihood: Likelihood, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the summed loss, d and o (N, C), and the mask of rows that count: negative classes are ignored."""
    outputs = outputs.double()
    rows = torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)
    if likelihood == "softmax":
        labels = class_numbers(labels.flatten(), outputs.shape[1])
        _alike(outputs[:, 0], labels)
        rows = labels >= 0
        probs = outputs.softmax(1)[rows]
        return cross_entropy(outputs[rows], labels[rows], reduction="sum"), probs, probs, rows
    labels = labels.reshape(len(labels), -1).to(outputs) if labels.ndim <= 2 else labels.flatten(0, -2).to(outputs)
    _alike(outputs, labels)
    if likelihood == "gaussian":
        ones = torch.ones_like(outputs)
        return 0.5 * (outputs - labels).square().sum(), ones, torch.zeros_like(ones), rows
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise ValueError("The label of a single logit, or each of several labels, is 0 or 1.")
    probs = outputs.sigmoid()
    loss = binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
    return loss, probs * (1 - probs), torch.zeros_like(probs), rows


def _alike(outputs: Tensor, labels: Tensor) -> None:
    if outputs.shape != labels.shape:
        raise ValueError(f"The labels have shape {tuple(labels.shape)}, but the outputs have {tuple(outputs.shape)}.")


@dataclass
class Spectrum:
    """Eigenvalues of the curvature (P,), weight before bias, and the matrices of their eigenvectors.

    "full" has one matrix (P, P), "kron" one for the outputs and one for the inputs, "diag" none.
    """

    values: Tensor
    vectors: tuple[Tensor, ...]


class Curvature:
    """The sum over batches, in one of three structures.

    "kron" is Σ_n Λ_n ⊗ (1/N) Σ_n a_n a_nᵀ for the weight and Σ_n Λ_n for the bias, without terms between the two (KFAC,
    as in the package laplace-torch).
    """

    def __init__(self, structure: Structure, likelihood: Likelihood, layer: nn.Linear) -> None:
        self.structure, self.likelihood, self.bias = structure, likelihood, layer.bias is not None
        self.inputs, self.outputs = layer.in_features, layer.out_features
        self.loss, self.numbers, self.count = 0.0, 0, 0
        """The loss summed over the examples, the number of label values, and the number of examples that count."""
        inputs, outputs, wide = self.inputs, self.outputs, self.inputs + self.bias
        shapes: dict[str, list[tuple[int, ...]]] = {
            "full": [(outputs, wide, outputs * wide)],
            "kron": [(outputs, outputs), (inputs, inputs)],
            "diag": [(outputs, inputs), (outputs,)],
        }
        where = layer.weight.device
        self._sums = [torch.zeros(shape, dtype=torch.float64, device=where) for shape in shapes[structure]]

    def add(self, a: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Add a batch: the layer's inputs (N, D), its outputs (N, C), and their labels."""
        loss, d, o, rows = loss_and_hessian(self.likelihood, outputs, labels)
        a = a[rows].double()
        self.loss, self.numbers, self.count = self.loss + float(loss), self.numbers + d.numel(), self.count + len(a)
        if self.structure == "full":
            wide = torch.cat([a, a.new_ones(len(a), 1)], 1) if self.bias else a
            for c in range(self.outputs):
                row = -o[:, c, None] * o
                row[:, c] += d[:, c]
                self._sums[0][c] += wide.mT @ (row[:, :, None] * wide[:, None, :]).flatten(1)
        elif self.structure == "kron":
            self._sums[0] += d.sum(0).diag() - o.mT @ o
            self._sums[1] += a.mT @ a
        else:
            own = d - o.square()
            self._sums[0] += own.mT @ a.square()
            self._sums[1] += own.sum(0)

    def scale(self, by: float) -> None:
        """Count every example `by` times."""
        self.loss, self.numbers, self.count = by * self.loss, round(by * self.numbers), round(by * self.count)
        self._sums = [by * each for each in self._sums]

    def spectrum(self) -> Spectrum:
        """Return the eigendecomposition of the sum."""
        if self.structure == "diag":
            weight, bias = self._sums
            return Spectrum(torch.cat([weight.flatten(), bias] if self.bias else [weight.flatten()]), ())
        if self.structure == "full":
            wide = self.inputs + self.bias
            places = torch.arange(self.outputs * wide, device=self._sums[0].device).view(self.outputs, wide)
            order = torch.cat([places[:, : self.inputs].flatten(), *([places[:, -1]] if self.bias else [])])
            values, vectors = torch.linalg.eigh(self._sums[0].flatten(0, 1)[order][:, order])
            return Spectrum(values.clamp_min(0), (vectors,))
        (left, rows), (right, columns) = torch.linalg.eigh(self._sums[0]), torch.linalg.eigh(self._sums[1] / self.count)
        left, right = left.clamp_min(0), right.clamp_min(0)
        values = [(left[:, None] * right).flatten(), *([left] if self.bias else [])]
        return Spectrum(torch.cat(values), (rows, columns))
