"""DenseNet-121 and -201 (Huang et al., "Densely Connected Convolutional Networks", 2017).

Table 1, the "BC" variant: growth rate 32, bottlenecks of 4 * 32 channels,
compression 0.5. Normalisation comes before each convolution, so most of it
cannot be folded into a producer.
"""

from __future__ import annotations

import torch
from torch import nn

GROWTH = 32
BOTTLENECK = 4 * GROWTH


def before(channels: int, outputs: int, kernel: int) -> nn.Sequential:
    """Batch norm, ReLU, convolution."""
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(),
        nn.Conv2d(channels, outputs, kernel, padding=kernel // 2, bias=False))


class DenseLayer(nn.Module):
    """Adds GROWTH channels to those it was given."""

    def __init__(self, channels: int):
        super().__init__()
        self.squeeze = before(channels, BOTTLENECK, 1)
        self.grow = before(BOTTLENECK, GROWTH, 3)

    def forward(self, x):
        return torch.cat((x, self.grow(self.squeeze(x))), 1)


class DenseNet(nn.Module):
    def __init__(self, depths: tuple[int, ...], classes: int = 1000):
        super().__init__()
        channels = 2 * GROWTH
        first = nn.Conv2d(3, channels, 7, 2, padding=3, bias=False)
        first.gain = 1.0
        layers = [first, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        for index, depth in enumerate(depths):
            if index > 0:  # the transition between two dense blocks
                layers += [before(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            for _ in range(depth):
                layers.append(DenseLayer(channels))
                channels += GROWTH
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def densenet121() -> nn.Module:
    return DenseNet((6, 12, 24, 16))


def densenet201() -> nn.Module:
    return DenseNet((6, 12, 48, 32))
