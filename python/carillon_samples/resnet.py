"""ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015).

Table 1 and section 4.1. The bottleneck's stride sits on its 3x3 convolution,
the variant that most published ResNet-50 weights use ("v1.5").
"""

from __future__ import annotations

from torch import nn

BRANCH_END = 0.3  # scale of the last normalisation of a residual branch


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def norm(channels: int, scale: float = 1.0) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels)
    layer.scale = scale
    return layer


class Basic(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.branch = nn.Sequential(
            conv(inputs, width, 3, stride), norm(width), nn.ReLU(),
            conv(width, width, 3), norm(width, BRANCH_END))
        self.shortcut = shortcut(inputs, width, stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.branch(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up by four, around a shortcut."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = width * self.widening
        self.branch = nn.Sequential(
            conv(inputs, width, 1), norm(width), nn.ReLU(),
            conv(width, width, 3, stride), norm(width), nn.ReLU(),
            conv(width, outputs, 1), norm(outputs, BRANCH_END))
        self.shortcut = shortcut(inputs, outputs, stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.branch(x) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))


class ResNet(nn.Module):
    def __init__(self, block, depths: tuple[int, ...], classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(conv(3, 64, 7, 2), norm(64), nn.ReLU(),
                                  nn.MaxPool2d(3, 2, padding=1))
        stages = []
        channels = 64
        for stage, depth in enumerate(depths):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, 64 << stage, stride))
                channels = (64 << stage) * block.widening
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)
        self.stem[0].gain = 1.0  # images, not the output of a ReLU

    def forward(self, x):
        x = self.pool(self.stages(self.stem(x)))
        return self.head(x.flatten(1))


def resnet18() -> nn.Module:
    return ResNet(Basic, (2, 2, 2, 2))


def resnet50() -> nn.Module:
    return ResNet(Bottleneck, (3, 4, 6, 3))


def resnet152() -> nn.Module:
    return ResNet(Bottleneck, (3, 8, 36, 3))
