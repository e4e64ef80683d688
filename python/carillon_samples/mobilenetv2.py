"""MobileNetV2 (Sandler et al., "Inverted Residuals and Linear Bottlenecks", 2018), table 2."""

from __future__ import annotations

from torch import nn

from .seeded import LINEAR_GAIN, RELU_GAIN

# expansion, output channels, repeats, stride of the first
ROWS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def unit(inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1,
         active: bool = True, gain: float = RELU_GAIN, scale: float = 1.0) -> nn.Sequential:
    """Convolution, batch norm and, where `active`, ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    conv.gain = gain
    norm = nn.BatchNorm2d(outputs)
    norm.scale = scale
    return nn.Sequential(conv, norm, *([nn.ReLU6()] if active else []))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
        super().__init__()
        wide = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        layers = []
        if expansion != 1:
            # The block's input is a linear bottleneck: nothing was cut off it.
            layers.append(unit(inputs, wide, 1, gain=LINEAR_GAIN))
        layers.append(unit(wide, wide, 3, stride=stride, groups=wide))
        layers.append(unit(wide, outputs, 1, active=False, scale=0.5 if self.adds else 1.0))
        self.branch = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.branch(x) if self.adds else self.branch(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes: int = 1000):
        super().__init__()
        layers = [unit(3, 32, 3, stride=2, gain=LINEAR_GAIN)]
        channels = 32
        for expansion, outputs, repeats, stride in ROWS:
            for index in range(repeats):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion))
                channels = outputs
        layers.append(unit(channels, 1280, 1, gain=LINEAR_GAIN))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(1280, classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def mobilenetv2() -> nn.Module:
    return MobileNetV2()
