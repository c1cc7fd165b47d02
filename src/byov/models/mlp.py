"""Fully connected networks of the patching paper: for regression, and the one of its Table 3."""

from torch import nn


def regression_mlp(
    features: int, hidden: int = 50, targets: int = 1, norm: bool = True, gamma: float = 0.2, dropout: float = 0.0
) -> nn.Sequential:
    """Build the regression network of the patching paper (D.7): one hidden ReLU layer.

    "BN/dropout … after the input and the hidden layer":
    x → BN → (dropout) → Linear → ReLU → BN → (dropout) → Linear, with BN's γ initialised at `gamma` (0.2 in the paper).
    The paper does not say on which side of the ReLU the second BN is; it mentions BN and dropout together, and dropout
    goes after the activation. `norm=False` is the explicit ensemble's network; Year and Protein use 100 units.
    """
    if min(features, hidden, targets) < 1:
        raise ValueError(f"features, hidden and targets are at least 1, not {features}, {hidden} and {targets}.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is a probability below 1, not {dropout}.")

    def after(width: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        if norm:
            layers.append(nn.BatchNorm1d(width))
            nn.init.constant_(layers[0].weight, gamma)  # type: ignore[arg-type]
        if dropout:
            layers.append(nn.Dropout(dropout))
        return layers

    return nn.Sequential(
        *after(features), nn.Linear(features, hidden), nn.ReLU(), *after(hidden), nn.Linear(hidden, targets)
    )


def table3_mlp(layers: int = 100, hidden: int = 100, features: int = 1, classes: int = 100) -> nn.Sequential:
    """Build the MLP of the patching paper's Table 3, L = 100 layers of H = 100 units.

    The paper gives only three totals: 1,009,900 for the network, 1,129,100 with its BN and output layers patched five
    times, 5,049,500 for five copies. By the first two, a patch has 29,800 parameters: 99 BN layers (200 each) and an
    output of 100×100 without a bias. The other 980,100 are 98 hidden layers of 100×100 and a first layer from one
    input, all without biases (BN's shift makes them redundant).
    """
    if layers < 2:
        raise ValueError(f"This network has an input and an output layer, so at least 2 layers, not {layers}.")
    body: list[nn.Module] = []
    for index in range(layers - 1):
        body += [nn.Linear(hidden if index else features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(hidden, classes, bias=False))
