"""Inception v3 (Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016).

Table 1 and figures 5 to 7, for images of 299 pixels, without the auxiliary classifier, which serves training alone.
The paper leaves widths open; these are those of the authors' published model.
"""

from __future__ import annotations

import torch
from torch import nn


def conv(inputs: int, outputs: int, kernel, stride: int = 1, padding=0) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=padding, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def across(inputs: int, outputs: int) -> nn.Sequential:
    return conv(inputs, outputs, (1, 7), padding=(0, 3))


def down(inputs: int, outputs: int) -> nn.Sequential:
    return conv(inputs, outputs, (7, 1), padding=(3, 0))


def pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), conv(inputs, outputs, 1))


class Branches(nn.Module):
    """What each of them makes of the input, one beside the other."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def grid_35(inputs: int, pool: int) -> nn.Module:
    """Figure 5; the 5x5 of the published model is whole."""
    return Branches(
        conv(inputs, 64, 1),
        nn.Sequential(conv(inputs, 48, 1), conv(48, 64, 5, padding=2)),
        nn.Sequential(conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1)),
        pooled(inputs, pool))


def shrink_to_17(inputs: int) -> nn.Module:
    return Branches(
        conv(inputs, 384, 3, 2),
        nn.Sequential(conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, 2)),
        nn.MaxPool2d(3, 2))


def grid_17(width: int) -> nn.Module:
    """Figure 6, with n = 7."""
    return Branches(
        conv(768, 192, 1),
        nn.Sequential(conv(768, width, 1), across(width, width), down(width, 192)),
        nn.Sequential(conv(768, width, 1), down(width, width), across(width, width), down(width, width),
                      across(width, 192)),
        pooled(768, 192))


def shrink_to_8() -> nn.Module:
    return Branches(
        nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2)),
        nn.Sequential(conv(768, 192, 1), across(192, 192), down(192, 192), conv(192, 192, 3, 2)),
        nn.MaxPool2d(3, 2))


def grid_8(inputs: int) -> nn.Module:
    """Figure 7."""
    def split() -> nn.Module:
        return Branches(conv(384, 384, (1, 3), padding=(0, 1)), conv(384, 384, (3, 1), padding=(1, 0)))

    return Branches(
        conv(inputs, 320, 1),
        nn.Sequential(conv(inputs, 384, 1), split()),
        nn.Sequential(conv(inputs, 448, 1), conv(448, 384, 3, padding=1), split()),
        pooled(inputs, 192))


class InceptionV3(nn.Module):
    def __init__(self, classes: int = 1000):
        super().__init__()
        self.features = nn.Sequential(
            conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
            conv(64, 80, 1), conv(80, 192, 3), nn.MaxPool2d(3, 2),
            grid_35(192, 32), grid_35(256, 64), grid_35(288, 64),
            shrink_to_17(288), grid_17(128), grid_17(160), grid_17(160), grid_17(192),
            shrink_to_8(), grid_8(1280), grid_8(2048), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(2048, classes)
        self.features[0][0].gain = 1.0  # images, not the output of a ReLU

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def inceptionv3() -> nn.Module:
    return InceptionV3()
