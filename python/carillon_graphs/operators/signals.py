"""Windows, spectra, and counts of n-grams."""

from __future__ import annotations

import numpy as np

from ..sketch import F32, F64, I32, I64, TEXT, PROTO, draw_numbers
from .registry import row


@row("BlackmanWindow", "HammingWindow", "HannWindow")
def window(s, op):
    symmetric = s.chance(0.4)  # over one less than the length, which is then no divisor where the length is 1
    if not symmetric and s.chance(0.6):
        sizes, = s.node("Shape", [s.tensor(rank=(1, 3), where=lambda v: v.rank >= 1)])
        length, = s.node("Gather", [sizes, s.const(np.array(0))])
    else:
        length = s.const(s.one([2, 4, 5]), s.one([I64, I32]))
    s.node(op, [length], periodic=0 if symmetric else s.one([1, None]), output_datatype=s.one([None, PROTO[F32], PROTO[F64]]))


@row("DFT")
def dft(s, op):
    value = s.tensor(s.types(op, 0, among=(F32, F32, F64)), rank=(3, 4), where=lambda v: v.fixed(v.rank - 1) and v.shape[-1] in (1, 2),
                     dims=(*s.dims(s.one([2, 2, 3])), s.one([1, 2])))
    inverse = s.one([None, 0, 1])
    onesided = 1 if value.shape[-1] == 1 and not inverse and s.chance(0.4) else None
    length = s.const(s.one([2, 4, 3]), I64) if s.chance(0.3) else None
    axis = s.within(1, value.rank - 2) if s.chance(0.8) else 0
    if s.opset < 20:
        return s.node(op, [value, length], axis=axis, inverse=inverse, onesided=onesided)
    s.node(op, [value, length, s.const(axis, I64) if s.chance(0.8) else None], inverse=inverse, onesided=onesided)


@row("STFT")
def stft(s, op):
    value = s.input(s.one([F32, F32, F64]), (*s.dims(1), s.one([8, 12])) if s.chance(0.5) else (*s.dims(1), s.one([8, 12]), 1))
    frame = s.one([4, 8])
    windowed = s.chance(0.6)
    s.node(op, [value, s.const(s.one([2, 4]), I64), s.weights(frame, dtype=value.dtype) if windowed else None,
                s.const(frame, I64) if not windowed or s.chance(0.5) else None], onesided=s.one([0, 1, None]))


@row("MelWeightMatrix")
def mel(s, op):
    numbers = [s.const(4, I64), s.const(16, I64), s.const(8000, I64), s.const(0.0, F32), s.const(4000.0, F32)]
    found, = s.node(op, numbers, output_datatype=s.one([None, PROTO[F32], PROTO[F64]]))
    value = s.find(lambda v: v.dtype == found.dtype and v.rank >= 2 and v.fixed(v.rank - 1) and v.shape[-1] == 9)
    if value is not None:
        s.node("MatMul", [value, found])


@row("TfIdfVectorizer")
def tf_idf(s, op):
    texts = s.chance(0.3)
    dtype = TEXT if texts else s.one([I64, I32])
    rank = s.one([1, 2, 2])
    value = s.input(dtype, s.dims(rank), None if texts else draw_numbers(dtype, "index", 0, 5))
    pool = {"pool_strings": ["a", "b", "be", "a", "b"]} if texts else {"pool_int64s": [1, 2, 3, 1, 2]}
    s.node(op, [value], mode=s.one(["TF", "IDF", "TFIDF"]), min_gram_length=1, max_gram_length=2, max_skip_count=s.one([0, 1]),
           ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3], weights=s.one([None, [1.0, 0.5, 2.0, 3.0]]), **pool)
