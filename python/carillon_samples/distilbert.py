"""An encoder of DistilBERT's size (Sanh et al., 2019; BERT: Devlin et al., 2018).

Six post-norm transformer layers, 768 wide, 12 heads, vocabulary 30522, no
token types and no pooler; GELU by the error function.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from .seeded import LINEAR_GAIN

VOCABULARY = 30522
POSITIONS = 512
WIDTH = 768
HEADS = 12
HIDDEN = 4 * WIDTH
LAYERS = 6
SEQUENCE = 128


def linear(inputs: int, outputs: int, gain: float = LINEAR_GAIN) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    layer.gain = gain
    return layer


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.register_buffer("places", torch.arange(POSITIONS).unsqueeze(0), persistent=False)

    def forward(self, ids):
        return self.norm(self.word(ids) + self.position(self.places[:, :ids.size(1)]))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = linear(WIDTH, WIDTH)
        self.key = linear(WIDTH, WIDTH)
        self.value = linear(WIDTH, WIDTH)
        self.out = linear(WIDTH, WIDTH)

    def forward(self, x, hidden):
        """`hidden` is true where a position may not be looked at: [batch, 1, 1, sequence]."""
        batch, length, _ = x.shape

        def heads(projected):
            return projected.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

        query = heads(self.query(x)) / math.sqrt(WIDTH // HEADS)
        scores = query @ heads(self.key(x)).transpose(2, 3)
        scores = scores.masked_fill(hidden.expand_as(scores), torch.finfo(scores.dtype).min)
        mixed = scores.softmax(-1) @ heads(self.value(x))
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.feed = nn.Sequential(linear(WIDTH, HIDDEN), nn.GELU(), linear(HIDDEN, WIDTH, math.sqrt(2)))
        self.feed_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x, hidden):
        x = self.attention_norm(x + self.attention(x, hidden))
        return self.feed_norm(x + self.feed(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids, attention_mask):
        hidden = (attention_mask == 0)[:, None, None, :]
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, hidden)
        return x


def distilbert() -> nn.Module:
    return Encoder()
