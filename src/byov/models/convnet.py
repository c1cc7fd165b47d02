"""A convolutional network small enough to learn on two cores in a minute: the demo's encoder."""

from torch import nn


def convnet(width: int = 32, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Three 3×3 convolutions with BatchNorm and ReLU, of 1, 2 and 4 times `width` channels, then the mean over pixels.

    `classes=0` leaves the last layer out: the module then gives its 4·width features.
    """
    if width < 1:
        raise ValueError(f"A convolutional network has at least one channel, not {width}.")
    layers: list[nn.Module] = []
    for i, inputs in enumerate((channels, width, 2 * width)):
        outputs = width << i
        conv = nn.Conv2d(inputs, outputs, 3, stride=1 if i == 0 else 2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    head = [nn.Linear(4 * width, classes)] if classes else [nn.Identity()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)
