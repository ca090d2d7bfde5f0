"""Variances of the queries and keys of a model, from its weights, which are read by range.

The hidden states before the weights of the input norm are assumed to be isotropic: mean zero, and the identity as
covariance up to a factor. Then dimension j of q = W diag(g) x + b has the variance sum_c (W_jc g_c)^2, with g the
weights of the input norm; a layer norm removes the mean of x, and so that of the row. The bias b only moves the mean,
which cancels from the bound. If a norm of queries or keys follows, which divides by their root mean square and
multiplies by its weights, the dimensions are assumed to be gaussian and independent, with the mean of their biases; a
layer norm removes the mean over the head first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..formats.safetensors import STORED, Tensor, widened
from ..models.config import text_part
from ..models.family import Family
from ..models.layers import key_layers
from ..models.schema import NORM_AFTER, Config
from ..models.source import Source
from ..models.suggest import Which, fused_heads, head_count, layer_prefix, layer_prefixes
from ..rope.bound.sums import normalised_variances
from ..rope.errors import counted
from ..rope.spec import RopeSpec

FLOATS = ("F64", "F32", "F16", "BF16")
UNQUANTISED = "give the checkpoint before its quantisation"


@dataclass(frozen=True)
class Projection:
    """The rows that make the queries or the keys of a layer.

    tensor: of the projection, [rows, columns]. bias: [rows], or None. heads: the first row of each head. norms: the
    weights of the norm after it, or empty; one for all heads, or one per head.
    """

    tensor: Tensor
    bias: Tensor | None
    heads: tuple[int, ...]
    norms: tuple[Tensor, ...]


@dataclass(frozen=True)
class AttentionLayer:
    """The projections of a layer.

    input_norm, input_bias: weights and biases of the norm before them; None for 1 and 0.
    """

    layer: int
    queries: Projection
    keys: Projection
    input_norm: Tensor | None
    input_bias: Tensor | None


def attention_layers(
    spec: RopeSpec, family: Family, config: Config, tensors: Mapping[str, Tensor]
) -> tuple[AttentionLayer, ...]:
    """Return the projections of every layer that rotates with the frequencies of `spec` and has its own keys.

    tensors: of all files of the checkpoint, by name. Raises BadSource for families whose variances do not follow from
    these tensors, for quantised weights, and if a tensor is missing.
    """
    weights = family.weights
    if not (weights.q or weights.fused):
        raise BadSource(f"the projections of {family.display_name} are not known; leave --weights out")
    if spec.mla:
        raise BadSource(
            f"{family.display_name} has multi-head latent attention, whose queries and keys are products of several "
            "projections; leave --weights out"
        )
    if family.encoder:
        raise BadSource(
            f"{family.display_name} reads in both directions, and the bound is for models that read from left to right;"
            " leave --weights out"
        )
    if weights.norm == "rms-after-rope":
        raise BadSource(
            f"{family.display_name} multiplies queries and keys by weights after the rotation, so its sum depends on "
            "positions and not only on distances; leave --weights out"
        )
    if weights.unmeasured:
        raise BadSource(f"{family.display_name} cannot be measured: {weights.unmeasured}; leave --weights out")
    part = text_part(config, family)
    heads, makers = head_count(part, family), key_layers(part, family, len(spec.layers))
    layers = (index for index, kind in enumerate(spec.layers) if kind == "global" and makers[index] == index)
    norms = weights.input_norm if weights.input and not part.get(NORM_AFTER) else ()
    return tuple(_layer(layer, heads, spec.head_dim, norms, family, tensors) for layer in layers)


def _layer(
    layer: int, heads: int, head_dim: int, norms: tuple[str, ...], family: Family, tensors: Mapping[str, Tensor]
) -> AttentionLayer:
    prefix = layer_prefix(layer, family, tensors)
    if prefix is None:
        raise _missing(layer, family, tensors)
    norm = next((name for name in (f"{prefix}{norm}" for norm in norms) if f"{name}.weight" in tensors), "")
    queries, keys = (_projection(which, prefix, heads, head_dim, family, tensors) for which in ("q", "k"))
    if len(queries.heads) % len(keys.heads):
        raise BadSource(
            f"{queries.tensor.name} has {counted(len(queries.heads), 'head')}, not a multiple of the {len(keys.heads)} "
            f"of {keys.tensor.name}; correct the numbers of heads in config.json"
        )
    columns = queries.tensor.shape[1:]
    weight, bias = (_optional(f"{norm}.{name}", tensors, columns) for name in ("weight", "bias"))
    return AttentionLayer(layer, queries, keys, weight, bias)


def _projection(
    which: Which, prefix: str, heads: int, head_dim: int, family: Family, tensors: Mapping[str, Tensor]
) -> Projection:
    weights = family.weights
    name = f"{prefix}{weights.fused or (weights.q if which == 'q' else weights.k)}.weight"
    if name not in tensors:
        raise BadSource(f"the checkpoint has no {name}; download it again")
    tensor = _checked(tensors[name])
    if len(tensor.shape) != 2:
        raise BadSource(f"{name} has the shape {list(tensor.shape)}, not that of a matrix; {UNQUANTISED}")
    rows = tensor.shape[0]
    if weights.fused:
        starts = fused_heads(which, rows, heads, head_dim, family)
    else:
        # heads of gated queries are wider: the rows of the gate follow those of the query
        width = rows // heads if which == "q" else head_dim
        starts = tuple(range(0, rows - head_dim + 1, width)) if width >= head_dim else ()
    if not starts:
        raise BadSource(
            f"{name} has {counted(rows, 'row')}, too few for the heads of config.json; correct their number there"
        )
    bias = _optional(f"{name.removesuffix('.weight')}.bias", tensors, (rows,))
    return Projection(tensor, bias, starts, _norms(which, prefix, len(starts), head_dim, family, tensors))


def _norms(
    which: Which, prefix: str, heads: int, head_dim: int, family: Family, tensors: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    weights = family.weights
    norm, kind = f"{prefix}{weights.q_norm if which == 'q' else weights.k_norm}", weights.norm
    if not kind or kind.endswith("after-rope"):
        return ()
    per_head = kind == "layer-norm-list"
    names = [f"{norm}.norms.{head}.weight" for head in range(heads)] if per_head else [f"{norm}.weight"]
    norms = tuple(_checked(tensors[name]) for name in names if name in tensors)
    sizes = {math.prod(tensor.shape) for tensor in norms}
    if sizes - {head_dim, heads * head_dim} or (per_head and len(norms) not in (0, heads)):
        raise BadSource(
            f"{norm} does not fit {counted(heads, 'head')} of {head_dim} dimensions; download the checkpoint again"
        )
    return norms


def _checked(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    if tensor.dtype not in FLOATS:
        raise BadSource(f"{tensor.name} is stored as {tensor.dtype}, and only floats can be measured; {UNQUANTISED}")
    if shape is not None and tensor.shape != shape:
        raise BadSource(f"{tensor.name} has the shape {list(tensor.shape)}, not {list(shape)}; download it again")
    return tensor


def _optional(name: str, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor | None:
    return _checked(tensors[name], shape) if name in tensors else None


def _missing(layer: int, family: Family, tensors: Mapping[str, Tensor]) -> BadSource:
    probe = family.weights.k or family.weights.fused
    stored = next((name for name in tensors if f"{probe}." in name and not name.endswith(".bias")), None)
    if stored is not None and not any(name.endswith(f"{probe}.weight") for name in tensors):
        return BadSource(f"the checkpoint has {stored} in place of plain weights, so it is quantised; {UNQUANTISED}")
    name = f"{layer_prefixes(layer, family)[0]}{probe}.weight"
    return BadSource(f"the checkpoint has no {name}; download it again")


Vector = NDArray[np.float64]
PIECE = 1 << 26
"""Bytes to read at a time, unless a head has more."""


class LayerVariances(NamedTuple):
    """Variances, in a unit of each head: queries float64 [heads, head_dim], keys float64 [kv_heads, head_dim]."""

    layer: int
    queries: Vector
    keys: Vector


def bytes_to_read(layers: tuple[AttentionLayer, ...], head_dim: int) -> int:
    """Return how many bytes `measure` reads. head_dim: rows of a head."""
    sides = [side for layer in layers for side in (layer.queries, layer.keys)]
    small = [tensor for side in sides for tensor in side.norms]
    small += [side.bias for side in sides if side.bias is not None and side.norms]
    small += [tensor for layer in layers for tensor in (layer.input_norm, layer.input_bias) if tensor is not None]
    rows = sum((stop - start) * _row_bytes(side.tensor) for side in sides for start, stop, _ in _pieces(side, head_dim))
    return rows + sum(tensor.stop - tensor.start for tensor in small)


def measure(
    source: Source,
    layers: tuple[AttentionLayer, ...],
    family: Family,
    head_dim: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Iterator[LayerVariances]:
    """Yield the variances of layers, one after the other; memory does not grow with the model.

    head_dim: rows of a head. advance: called with the bytes read since the last call. Raises BadSource for weights that
    are not finite or do not fit together, OSError.
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
    """Raise BadSource if the norm before the projections of a layer has another width than these."""
    for side in (layer.queries, layer.keys):
        for norm in (layer.input_norm, layer.input_bias):
            if norm is not None and math.prod(norm.shape) != side.tensor.shape[1]:
                raise BadSource(
                    f"{norm.name} has the shape {list(norm.shape)} and {side.tensor.name} {list(side.tensor.shape)}, "
                    "which do not fit together; download the checkpoint again"
                )


class _Inputs(NamedTuple):
    """Inputs of the projections of a layer: gain times a vector, centred for a layer norm, plus bias."""

    gain: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    centred: bool


class _Reader:
    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self.source, self.advance = source, advance
        self.files = {name: (file, header) for file, header in source.headers.items() for name in header.tensors}

    def read(self, tensor: Tensor, start: int, stop: int) -> NDArray[np.float32]:
        """Read elements start .. stop - 1 of a tensor."""
        file, header = self.files[tensor.name]
        size = np.dtype(STORED[tensor.dtype]).itemsize
        begin = header.data_start + tensor.start
        content = self.source.read(file, begin + start * size, begin + stop * size)
        stored: NDArray[np.generic] = np.frombuffer(content, STORED[tensor.dtype])
        self.advance(stored.nbytes)
        values = widened(stored, tensor.dtype)
        if not np.isfinite(values).all():
            raise BadSource(f"{tensor.name} has infinite numbers or NaN; download the checkpoint again")
        return values

    def weights(self, tensor: Tensor, plus_one: bool = False) -> NDArray[np.float32]:
        """Read all numbers of a norm or bias, flat."""
        values = self.read(tensor, 0, math.prod(tensor.shape))
        return values + np.float32(1) if plus_one else values


def _variances(side: Projection, reader: _Reader, inputs: _Inputs, norm: str, head_dim: int) -> Vector:
    columns, centred = side.tensor.shape[1], norm.startswith("layer-norm")
    variances, means = np.empty((len(side.heads), head_dim)), np.zeros((len(side.heads), head_dim))
    bias = reader.weights(side.bias) if side.bias is not None and side.norms else None
    for start, stop, heads in _pieces(side, head_dim):
        rows = reader.read(side.tensor, start * columns, stop * columns).reshape(-1, columns)
        for head in heads:
            first = side.heads[head]
            matrix = rows[first - start :][:head_dim]
            if inputs.bias is not None and side.norms:
                means[head] += matrix @ inputs.bias
            if bias is not None:
                means[head] += bias[first : first + head_dim]
            if inputs.gain is not None:
                matrix = matrix * inputs.gain
            if inputs.centred:
                matrix = matrix - matrix.mean(axis=1, keepdims=True)
            if side.norms and centred:
                matrix = matrix - matrix.mean(axis=0)
            variances[head] = np.square(matrix).sum(axis=1, dtype=np.float64)
    if not side.norms:
        return variances
    if centred:
        means -= means.mean(axis=1, keepdims=True)
    shape = (1, -1) if norm == "rms-all-heads" else variances.shape
    weights = np.concatenate([reader.weights(tensor, norm == "rms-plus-one") for tensor in side.norms])
    normalised = normalised_variances(variances.reshape(shape), means.reshape(shape)).reshape(variances.shape)
    return normalised * np.square(weights.reshape(-1, head_dim).astype(np.float64))


def _pieces(side: Projection, head_dim: int) -> Iterator[tuple[int, int, range]]:
    """Yield rows to read at once, [start, stop), and their heads."""
    most, first = max(1, PIECE // _row_bytes(side.tensor)), 0
    for head in range(1, len(side.heads) + 1):
        if head == len(side.heads) or side.heads[head] + head_dim - side.heads[first] > most:
            yield side.heads[first], side.heads[head - 1] + head_dim, range(first, head)
            first = head


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[1] * np.dtype(STORED[tensor.dtype]).itemsize
