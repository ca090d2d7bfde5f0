"""Variances of the queries and keys of a model, from its weights alone, which are read by range.

The hidden states before the weights of the input norm are taken as isotropic: mean zero, and the identity as covariance
up to a factor. Then dimension j of q = W diag(g) x + b has the variance sum_c (W_jc g_c)^2, with g the weights of the
input norm; a layer norm removes the mean of x, and so that of the row. The bias b moves the mean alone, which cancels
from the bound. Where a norm of queries or keys follows, which divides by their root mean square and multiplies by its
weights, the dimensions are taken as gaussian and independent, with the mean that biases give them; a layer norm removes
the mean over the head first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..families import Family
from ..formats.floats import STORED, widened
from ..formats.safetensors import Tensor
from ..rope.bound.variances import normalised_variances
from ..sources.source import Source
from .projections import AttentionLayer, Projection

Vector = NDArray[np.float64]
PIECE = 1 << 26
"""Bytes that are read at a time, unless a head has more."""


class LayerVariances(NamedTuple):
    """Variances in a unit of each head's own: queries float64 [heads, head_dim], keys float64 [kv_heads, head_dim]."""

    layer: int
    queries: Vector
    keys: Vector


def bytes_to_read(layers: tuple[AttentionLayer, ...], head_dim: int) -> int:
    """How many bytes `measure` reads. layers: what is measured. head_dim: rows of a head."""
    sides = [side for layer in layers for side in (layer.queries, layer.keys)]
    small = [tensor for side in sides for tensor in side.norms]
    small += [side.bias for side in sides if side.bias is not None and side.norms]
    small += [one for layer in layers for one in (layer.input_norm, layer.input_bias) if one is not None]
    rows = sum((stop - start) * _row_bytes(side.tensor) for side in sides for start, stop, _ in _pieces(side, head_dim))
    return rows + sum(tensor.stop - tensor.start for tensor in small)


def measure(
    source: Source,
    layers: tuple[AttentionLayer, ...],
    family: Family,
    head_dim: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Iterator[LayerVariances]:
    """The variances of layers, one after the other; memory does not grow with the model.

    source: the checkpoint. layers: those to measure. family: of its model. head_dim: rows of a head. advance: called
    with the bytes read since the last call. Raises BadSource for weights that are not finite or do not fit
    together, OSError.
    """
    reader = _Reader(source, advance)
    for layer in layers:
        _check_widths(layer)
        kind = family.weights.input
        inputs = _Inputs(
            None if layer.input_norm is None else reader.weights(layer.input_norm, kind.endswith("plus-one")),
            None if layer.input_bias is None else reader.weights(layer.input_bias),
            kind.startswith("layer-norm"),
        )
        queries, keys = (
            _variances(side, reader, inputs, family.weights.norm, head_dim) for side in (layer.queries, layer.keys)
        )
        yield LayerVariances(layer.layer, queries, keys)


def _check_widths(layer: AttentionLayer) -> None:
    """Raises BadSource where a norm before the projections of a layer is not as wide as these."""
    for side in (layer.queries, layer.keys):
        for one in (layer.input_norm, layer.input_bias):
            if one is not None and math.prod(one.shape) != side.tensor.shape[1]:
                raise BadSource(
                    f"{one.name} has the shape {list(one.shape)} and {side.tensor.name} {list(side.tensor.shape)}, "
                    "which do not fit together; download the checkpoint again"
                )


class _Inputs(NamedTuple):
    """What is read by the projections of a layer: gain times a vector, centred for a layer norm, plus bias."""

    gain: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    centred: bool


class _Reader:
    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self.source, self.advance = source, advance
        self.files = {name: (file, header) for file, header in source.headers.items() for name in header.tensors}

    def read(self, tensor: Tensor, start: int, stop: int) -> NDArray[np.float32]:
        """Elements start .. stop - 1 of a tensor."""
        file, header = self.files[tensor.name]
        size = np.dtype(STORED[tensor.dtype]).itemsize
        place = header.data_start + tensor.start
        stored: NDArray[Any] = np.frombuffer(
            self.source.read(file, place + start * size, place + stop * size), STORED[tensor.dtype]
        )
        self.advance(stored.nbytes)
        values = widened(stored, tensor.dtype)
        if not np.isfinite(values).all():
            raise BadSource(f"{tensor.name} holds numbers that are not finite; download the checkpoint again")
        return values

    def weights(self, tensor: Tensor, plus_one: bool = False) -> NDArray[np.float32]:
        """All numbers of a norm or bias, flat."""
        values = self.read(tensor, 0, int(np.prod(tensor.shape)))
        return values + np.float32(1) if plus_one else values


def _variances(side: Projection, reader: _Reader, inputs: _Inputs, norm: str, head_dim: int) -> Vector:
    columns, centred = side.tensor.shape[1], norm.startswith("layer-norm")
    found, means = np.empty((len(side.heads), head_dim)), np.zeros((len(side.heads), head_dim))
    bias = reader.weights(side.bias) if side.bias is not None and side.norms else None
    for start, stop, heads in _pieces(side, head_dim):
        rows = reader.read(side.tensor, start * columns, stop * columns).reshape(-1, columns)
        for head in heads:
            first = side.heads[head]
            own = rows[first - start :][:head_dim]
            if inputs.bias is not None and side.norms:
                means[head] += own @ inputs.bias
            if bias is not None:
                means[head] += bias[first : first + head_dim]
            if inputs.gain is not None:
                own = own * inputs.gain
            if inputs.centred:
                own = own - own.mean(axis=1, keepdims=True)
            if side.norms and centred:
                own = own - own.mean(axis=0)
            found[head] = np.square(own).sum(axis=1, dtype=np.float64)
    if not side.norms:
        return found
    if centred:
        means -= means.mean(axis=1, keepdims=True)
    together = (1, -1) if norm == "rms-all-heads" else found.shape
    weights = np.concatenate([reader.weights(one, norm == "rms-plus-one") for one in side.norms])
    found = normalised_variances(found.reshape(together), means.reshape(together)).reshape(found.shape)
    return found * np.square(weights.reshape(-1, head_dim).astype(np.float64))


def _pieces(side: Projection, head_dim: int) -> Iterator[tuple[int, int, range]]:
    """Rows to read at once, [start, stop), and the heads that lie in them."""
    most, first = max(1, PIECE // _row_bytes(side.tensor)), 0
    for head in range(1, len(side.heads) + 1):
        if head == len(side.heads) or side.heads[head] + head_dim - side.heads[first] > most:
            yield side.heads[first], side.heads[head - 1] + head_dim, range(first, head)
            first = head


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[1] * np.dtype(STORED[tensor.dtype]).itemsize
