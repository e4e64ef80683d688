"""Networks in plain torch: convolutions, recurrences, recommenders, and parts that exporters write in ways of their own."""

from __future__ import annotations

from .catalogue import BATCHES, IMAGES, Architecture, Input, image


def block(i, o, k=3, stride=1, groups=1, act="relu"):
    from torch import nn
    last = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "leaky": lambda: nn.LeakyReLU(0.1),
            "hardswish": nn.Hardswish, "none": nn.Identity}[act]()
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o), last)


def module(forward, **parts):
    """A module of `parts` whose forward is forward(self, *arrays)."""
    from torch import nn

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *arrays):
            result = forward(self, *arrays)
            return result if isinstance(result, tuple) else (result,)

    return Made()


def residual(i, o, stride=1):
    from torch import nn
    import torch.nn.functional as F
    short = nn.Identity() if stride == 1 and i == o else block(i, o, 1, stride, act="none")
    two = nn.Sequential(block(i, o, 3, stride), block(o, o, 3, act="none"))

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.short, self.two = short, two

        def forward(self, x):
            return F.relu(self.two(x) + self.short(x))

    return Residual()


def head(width, classes=10):
    from torch import nn
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def plain(*layers):
    from torch import nn
    return module(lambda self, x: self.body(x), body=nn.Sequential(*layers))


def resnet():
    from torch import nn
    return plain(block(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), residual(8, 8), residual(8, 16, 2), residual(16, 32, 2), head(32))


def inverted(i, o, stride, act="relu6", squeeze=False):
    from torch import nn
    wide = 4 * i
    parts = [block(i, wide, 1, act=act), block(wide, wide, 3, stride, wide, act)]
    if squeeze:
        parts.append(Squeeze(wide))
    parts.append(block(wide, o, 1, act="none"))
    body = nn.Sequential(*parts)
    return Skip(body) if stride == 1 and i == o else body


def Skip(body):
    from torch import nn

    class Skipped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, x):
            return x + self.body(x)

    return Skipped()


def Squeeze(width):
    from torch import nn

    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.SiLU(),
                                      nn.Conv2d(width // 4, width, 1), nn.Sigmoid())

        def forward(self, x):
            return x * self.gate(x)

    return Squeezed()


def mobilenet():
    return plain(block(3, 8, 3, 2, act="relu6"), inverted(8, 8, 1), inverted(8, 16, 2), inverted(16, 16, 1),
                 block(16, 32, 1, act="relu6"), head(32))


def mobilenet_v3():
    return plain(block(3, 8, 3, 2, act="hardswish"), inverted(8, 8, 1, "hardswish", True), inverted(8, 16, 2, "hardswish"),
                 head(16))


def efficientnet():
    return plain(block(3, 8, 3, 2, act="silu"), inverted(8, 8, 1, "silu", True), inverted(8, 16, 2, "silu", True),
                 inverted(16, 16, 1, "silu", True), block(16, 32, 1, act="silu"), head(32))


def densenet():
    import torch
    from torch import nn

    class Dense(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 8, 3, padding=1))

        def forward(self, x):
            return torch.cat([x, self.body(x)], 1)

    return plain(nn.Conv2d(3, 8, 3, padding=1), Dense(8), Dense(16), nn.AvgPool2d(2), Dense(24), head(32))


def shufflenet():
    import torch
    from torch import nn

    class Shuffle(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(block(width // 2, width // 2, 1), block(width // 2, width // 2, 3, 1, width // 2, "none"))

        def forward(self, x):
            a, b = x.chunk(2, 1)
            x = torch.cat([a, self.body(b)], 1)
            n, c, h, w = x.shape
            return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    return plain(block(3, 16, 3, 2), Shuffle(16), Shuffle(16), head(16))


def unet():
    import torch
    from torch import nn

    def forward(self, x):
        a = self.a(x)
        b = self.b(self.pool(a))
        c = self.c(self.pool(b))
        b = self.up_b(torch.cat([self.to_b(c), b], 1))
        return self.out(self.up_a(torch.cat([self.to_a(b), a], 1)))

    return module(forward, a=block(3, 8), b=block(8, 16), c=block(16, 32), pool=nn.MaxPool2d(2),
                  to_b=nn.ConvTranspose2d(32, 16, 2, 2), up_b=block(32, 16), to_a=nn.ConvTranspose2d(16, 8, 2, 2),
                  up_a=block(16, 8), out=nn.Conv2d(8, 4, 1))


def fpn():
    import torch.nn.functional as F
    from torch import nn

    def forward(self, x):
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        c = self.lc(c)
        b = self.lb(b) + F.interpolate(c, size=b.shape[-2:], mode="nearest")
        a = self.la(a) + F.interpolate(b, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return a, b, c

    return module(forward, a=block(3, 8, stride=2), b=block(8, 16, stride=2), c=block(16, 32, stride=2),
                  la=nn.Conv2d(8, 8, 1), lb=nn.Conv2d(16, 8, 1), lc=nn.Conv2d(32, 8, 1))


def deeplab():
    import torch
    import torch.nn.functional as F
    from torch import nn

    def forward(self, x):
        y = self.back(x)
        whole = F.interpolate(self.whole(y), size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = self.out(torch.cat([self.one(y), self.two(y), whole], 1))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=True)

    return module(forward, back=nn.Sequential(block(3, 8, stride=2), block(8, 16, stride=2)), one=nn.Conv2d(16, 8, 1),
                  two=nn.Conv2d(16, 8, 3, padding=4, dilation=4), out=nn.Conv2d(24, 5, 1),
                  whole=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 8, 1)))


def yolo():
    """Boxes as [batch, 4, places] and scores as [batch, 3, places], decoded on a grid."""
    import torch
    from torch import nn

    def forward(self, x):
        y = self.out(self.back(x))
        n, _, h, w = y.shape
        gy, gx = torch.meshgrid(torch.arange(h, dtype=y.dtype), torch.arange(w, dtype=y.dtype), indexing="ij")
        grid = torch.stack([gx, gy]).reshape(1, 2, h * w)
        y = y.reshape(n, 7, h * w)
        centre = (y[:, :2].sigmoid() * 2 - 0.5 + grid) * 8
        size = (y[:, 2:4].sigmoid() * 2) ** 2 * 16
        return torch.cat([centre - size / 2, centre + size / 2], 1), y[:, 4:].sigmoid()

    return module(forward, out=nn.Conv2d(32, 7, 1), back=nn.Sequential(
        block(3, 8, stride=2, act="silu"), block(8, 16, stride=2, act="silu"), block(16, 32, stride=2, act="silu"),
        nn.MaxPool2d(5, 1, 2)))


def with_nms(model):
    """Ends in NonMaxSuppression, which says which boxes are left."""
    from onnx import TensorProto, helper, numpy_helper
    import numpy as np
    graph = model.graph
    boxes, scores = graph.output[0].name, graph.output[1].name
    for name, value in (("most", np.array([20], np.int64)), ("overlap", np.array([0.5], np.float32)),
                        ("least", np.array([0.5], np.float32))):
        graph.initializer.append(numpy_helper.from_array(value, f"nms_{name}"))
    graph.node.append(helper.make_node("Transpose", [boxes], ["nms_boxes"], perm=[0, 2, 1]))
    graph.node.append(helper.make_node("NonMaxSuppression", ["nms_boxes", scores, "nms_most", "nms_overlap", "nms_least"],
                                       ["selected"]))
    graph.output.append(helper.make_tensor_value_info("selected", TensorProto.INT64, ["boxes", 3]))
    return model


def crnn():
    from torch import nn
    return module(lambda self, x: self.out(self.lstm(self.back(x).mean(2).transpose(1, 2))[0]).log_softmax(-1),
                  back=nn.Sequential(block(1, 8), nn.MaxPool2d(2), block(8, 16), nn.MaxPool2d((2, 1))),
                  lstm=nn.LSTM(16, 12, bidirectional=True, batch_first=True), out=nn.Linear(24, 11))


def recurrent(kind, **options):
    def build():
        from torch import nn
        net = getattr(nn, kind)(16, 24, num_layers=2, batch_first=True, **options)
        width = 48 if options.get("bidirectional") else 24
        return module(lambda self, x: self.out(self.net(x)[0]), net=net, out=nn.Linear(width, 8))
    return build


def tagger():
    from torch import nn
    return module(lambda self, ids: self.out(self.net(self.table(ids))[0]), table=nn.Embedding(99, 16),
                  net=nn.LSTM(16, 16, batch_first=True, bidirectional=True), out=nn.Linear(32, 9))


def tcn():
    import torch.nn.functional as F
    from torch import nn

    def forward(self, x):
        y = self.first(x)
        for layer in self.layers:
            gate, value = layer(F.pad(y, (2 * layer.dilation[0], 0))).chunk(2, 1)
            y = y + gate.sigmoid() * value.tanh()
        return self.last(y)

    return module(forward, first=nn.Conv1d(4, 16, 1), last=nn.Conv1d(16, 3, 1),
                  layers=nn.ModuleList(nn.Conv1d(16, 32, 3, dilation=d) for d in (1, 2, 4)))


def text_cnn():
    import torch
    from torch import nn
    return module(lambda self, ids: self.out(torch.cat([
        conv(self.table(ids).transpose(1, 2)).relu().amax(-1) for conv in self.convs], 1)),
        table=nn.Embedding(99, 16), convs=nn.ModuleList(nn.Conv1d(16, 8, k) for k in (2, 3, 4)), out=nn.Linear(24, 5))


def autoencoder():
    from torch import nn
    return plain(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4), nn.ELU(), nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 32))


def generator():
    from torch import nn
    return plain(nn.Linear(16, 32 * 4 * 4), nn.Unflatten(1, (32, 4, 4)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16),
                 nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())


def super_resolution():
    from torch import nn
    return plain(nn.Conv2d(1, 16, 5, padding=2), nn.PReLU(16), nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3))


def style():
    from torch import nn
    return plain(nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
                 nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.Upsample(scale_factor=2, mode="nearest"),
                 nn.Conv2d(16, 3, 3, padding=1))


def transformer():
    import torch
    from torch import nn
    torch.backends.mha.set_fastpath_enabled(False)  # one operator, which no exporter has
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", norm_first=True)
    return module(lambda self, x: self.net(x), net=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def einsum_attention():
    import torch
    from torch import nn

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 8)) for part in self.qkv(x).chunk(3, -1))
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))

    return module(forward, qkv=nn.Linear(32, 96), out=nn.Linear(32, 32))


def mixer():
    from torch import nn

    def forward(self, x):
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = y + self.tokens(self.a(y).transpose(1, 2)).transpose(1, 2)
        y = y + self.channels(self.b(y))
        return self.out(y.mean(1))

    return module(forward, patch=nn.Conv2d(3, 32, 8, 8), a=nn.LayerNorm(32), b=nn.LayerNorm(32),
                  tokens=nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)),
                  channels=nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), out=nn.Linear(32, 10))


def experts():
    """The two best of four experts, each weighed by the gate."""
    import torch
    from torch import nn

    def forward(self, x):
        score, which = self.gate(x).softmax(-1).topk(2, -1)
        weight = torch.zeros_like(self.gate(x)).scatter(-1, which, score)
        every = torch.stack([expert(x) for expert in self.experts], -1)
        return (every * weight.unsqueeze(-2)).sum(-1)

    return module(forward, gate=nn.Linear(16, 4), experts=nn.ModuleList(nn.Linear(16, 16) for _ in range(4)))


def recommender():
    """A dense part, four tables, and the products of all pairs."""
    import torch
    from torch import nn

    def forward(self, dense, sparse):
        parts = torch.stack([self.bottom(dense)] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)
        pairs = parts @ parts.transpose(1, 2)
        rows, columns = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([parts[:, 0], pairs[:, rows, columns]], 1)).sigmoid()

    return module(forward, bottom=nn.Sequential(nn.Linear(13, 16), nn.ReLU()), top=nn.Linear(26, 1),
                  tables=nn.ModuleList(nn.Embedding(50, 16) for _ in range(4)))


def graph_network():
    """Messages along edges, summed where they arrive."""
    import torch
    from torch import nn

    def forward(self, x, edges):
        messages = self.message(x.index_select(0, edges[0]))
        total = torch.zeros_like(x).index_add(0, edges[1], messages)
        return self.out((x + total).relu())

    return module(forward, message=nn.Linear(16, 16), out=nn.Linear(16, 4))


def point_net():
    from torch import nn
    return module(lambda self, x: self.out(self.net(x).amax(-1)), out=nn.Linear(32, 10),
                  net=nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)))


def spectrogram():
    import torch
    from torch import nn

    def forward(self, x):
        bins = torch.stft(x, 64, 32, window=self.window, center=False, return_complex=False)
        return self.out((bins ** 2).sum(-1).add(1e-5).log().transpose(1, 2))

    net = module(forward, out=nn.Linear(33, 8))
    net.register_buffer("window", torch.hann_window(64))
    return net


def video():
    from torch import nn
    return plain(nn.Conv3d(3, 8, 3, 1, 1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, 2, 1), nn.ReLU(),
                 nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 6))


SERIES = ({"batch": 1, "time": 32}, {"batch": 2, "time": 9}, {"batch": 4, "time": 50})


def series(name, build, channels=16, family="sequence", first=False, quantise=()):
    shape = ("batch", channels, "time") if first else ("batch", "time", channels)
    return Architecture(name, family, build, (Input("x", shape),), SERIES, quantise)


def rows(name, build, width, quantise=()):
    return Architecture(name, "tabular", build, (Input("x", ("batch", width)),), BATCHES, quantise)


def seen(name, build, channels=3, side=None, quantise=(), after=None):
    return Architecture(name, "vision", build, (image(channels, side, "image"),), BATCHES if side else IMAGES, quantise, after)


ARCHITECTURES = [
    seen("resnet", resnet, quantise=("dynamic", "qdq", "qoperator")),
    seen("mobilenet_v2", mobilenet, quantise=("qdq", "qoperator")),
    seen("mobilenet_v3", mobilenet_v3, quantise=("qdq",)),
    seen("efficientnet", efficientnet, quantise=("qdq",)),
    seen("densenet", densenet),
    seen("shufflenet", shufflenet),
    seen("unet", unet, quantise=("qdq",)),
    seen("fpn", fpn),
    seen("deeplab", deeplab),
    seen("yolo", yolo, quantise=("qdq",)),
    seen("yolo_nms", yolo, after=with_nms),
    seen("super_resolution", super_resolution, channels=1),
    seen("style_transfer", style),
    seen("mlp_mixer", mixer, side=32),
    Architecture("crnn_ctc", "vision", crnn, (Input("image", ("batch", 1, 32, "width")),),
                 ({"batch": 1, "width": 64}, {"batch": 2, "width": 100}, {"batch": 3, "width": 32})),
    Architecture("video_3d", "vision", video, (Input("clip", ("batch", 3, 8, 16, 16)),), BATCHES),
    rows("generator", generator, 16),
    rows("autoencoder", autoencoder, 32, ("dynamic", "qdq")),
    rows("mixture_of_experts", experts, 16),
    Architecture("recommender", "tabular", recommender,
                 (Input("dense", ("batch", 13)), Input("sparse", ("batch", 4), "tokens", 50)), BATCHES),
    series("lstm", recurrent("LSTM"), quantise=("dynamic",)),
    series("lstm_both_ways", recurrent("LSTM", bidirectional=True)),
    series("gru", recurrent("GRU"), quantise=("dynamic",)),
    series("rnn", recurrent("RNN")),
    series("transformer", transformer, 32, quantise=("dynamic", "qdq")),
    series("einsum_attention", einsum_attention, 32),
    series("tcn", tcn, 4, first=True),
    series("point_net", point_net, 3, first=True),
    Architecture("tagger", "sequence", tagger, (Input("tokens", ("batch", "time"), "tokens", 99),), SERIES),
    Architecture("text_cnn", "sequence", text_cnn, (Input("tokens", ("batch", "time"), "tokens", 99),), SERIES),
    Architecture("graph_network", "graph", graph_network,
                 (Input("nodes", ("nodes", 16)), Input("edges", (2, "edges"), "tokens", 4)),
                 ({"nodes": 6, "edges": 10}, {"nodes": 9, "edges": 30}, {"nodes": 4, "edges": 3})),
    Architecture("spectrogram", "audio", spectrogram, (Input("sound", ("batch", "samples")),),
                 ({"batch": 1, "samples": 320}, {"batch": 2, "samples": 512}, {"batch": 3, "samples": 200})),
]
