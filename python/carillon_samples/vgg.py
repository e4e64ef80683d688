"""VGG-16 and -19 (Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014): columns D and E of table 1."""

from __future__ import annotations

from torch import nn

WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    def __init__(self, depths: tuple[int, ...], classes: int = 1000):
        super().__init__()
        layers = []
        channels = 3
        for width, depth in zip(WIDTHS, depths):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        layers[0].gain = 1.0
        self.features = nn.Sequential(*layers)
        # A 224x224 image is 7x7 after five poolings.
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, classes))
        # Max pooling raises the power of what it lets through.
        for layer in self.features:
            if isinstance(layer, nn.Conv2d) and layer.in_channels != 3:
                layer.gain = 1.25

    def forward(self, x):
        return self.head(self.features(x))


def vgg16() -> nn.Module:
    return VGG((2, 2, 3, 3, 3))


def vgg19() -> nn.Module:
    return VGG((2, 2, 4, 4, 4))
