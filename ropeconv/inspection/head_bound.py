"""The effective length of every head of a checkpoint, by the variances of its queries and keys.

The variances follow from the weights, which are read by range.

The hidden states before the weights of the input norm are assumed to be isotropic: mean zero, and
the identity as covariance up to a factor. Then dimension j of q = W diag(g) x + b has the variance
sum_c (W_jc g_c)^2, with g the weights of the input norm; a layer norm removes the mean of x, and so
that of the row. The bias b only moves the mean, which cancels from the bound. If a norm of queries
or keys follows, which divides by their root mean square and multiplies by its weights, the
dimensions are assumed to be gaussian and independent, with the mean of their biases; a layer norm
removes the mean over the head first.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from statistics import median_low
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource
from ..formats.jsontext import JsonObject
from ..formats.safetensors import STORED, Tensor, widen
from ..models.config import text_part
from ..models.family import Family
from ..models.layers import Which, fused_heads, head_count, key_layers, layer_prefix, layer_prefixes
from ..models.schema import NORM_AFTER, Config
from ..models.source import Source
from ..rope.bound.reach import head_reach
from ..rope.bound.sums import PairWeights, normalised_variances, pair_weights
from ..rope.errors import counted
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..rope.summary import SummaryTable, TableSummary
from .inspection import ConfigInspection, Inspection

FLOATS = ("F64", "F32", "F16", "BF16")
UNQUANTISED = "give the checkpoint before its quantisation"


@dataclass(frozen=True)
class Projection:
    """The rows that make the queries or the keys of a layer.

    tensor: of the projection, [rows, columns]. bias: [rows], or None. heads: the first row of each
    head. norms: the weights of the norm after it, or empty; one for all heads, or one per head.
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
    """Return the projections of every layer that rotates with the frequencies of `spec` and has its
    own keys.

    tensors: of all files of the checkpoint, by name. Raises BadSource for families whose variances
    do not follow from these tensors, for quantised weights, and if a tensor is missing.
    """
    weights = family.weights
    reasons = (
        ("its projections are not known", not (weights.q or weights.fused)),
        ("multi-head latent attention makes queries and keys by several projections", spec.mla),
        (
            "it reads in both directions, and the bound is for models that read from left to right",
            family.encoder,
        ),
        (
            (
                "weights multiply its queries and keys after the rotation, so that its sum depends"
                " on positions"
            ),
            weights.norm == "rms-after-rope",
        ),
        (weights.unmeasured, bool(weights.unmeasured)),
    )
    for reason, holds in reasons:
        if holds:
            raise BadSource(
                f"{family.display_name} cannot be measured: {reason}; leave --weights out"
            )
    part = text_part(config, family)
    heads = head_count(part, family)
    makers = key_layers(part, family, len(spec.layers))
    layers = (
        index
        for index, kind in enumerate(spec.layers)
        if kind == "global" and makers[index] == index
    )
    norms = weights.input_norm if weights.input and not part.get(NORM_AFTER) else ()
    return tuple(_layer(layer, heads, spec.head_dim, norms, family, tensors) for layer in layers)


def _layer(
    layer: int,
    heads: int,
    head_dim: int,
    norms: tuple[str, ...],
    family: Family,
    tensors: Mapping[str, Tensor],
) -> AttentionLayer:
    prefix = layer_prefix(layer, family, tensors)
    if prefix is None:
        raise _missing(layer, family, tensors)
    norm = next(
        (name for name in (f"{prefix}{norm}" for norm in norms) if f"{name}.weight" in tensors), ""
    )
    queries, keys = (
        _projection(which, prefix, heads, head_dim, family, tensors) for which in ("q", "k")
    )
    if len(queries.heads) % len(keys.heads):
        raise BadSource(
            f"{queries.tensor.name} has {counted(len(queries.heads), 'head')}, not a multiple of"
            f" the {len(keys.heads)} of {keys.tensor.name}; correct the numbers of heads in"
            " config.json"
        )
    columns = queries.tensor.shape[1:]
    _checked(keys.tensor, (keys.tensor.shape[0], *columns))
    weight, bias = (_optional(f"{norm}.{name}", tensors, columns) for name in ("weight", "bias"))
    return AttentionLayer(layer, queries, keys, weight, bias)


def _projection(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> Projection:
    weights = family.weights
    name = f"{prefix}{weights.fused or (weights.q if which == 'q' else weights.k)}.weight"
    if name not in tensors:
        raise BadSource(f"the checkpoint has no {name}; download it again")
    tensor = _checked(tensors[name])
    if len(tensor.shape) != 2:
        raise BadSource(
            f"{name} has the shape {list(tensor.shape)}, not that of a matrix; {UNQUANTISED}"
        )
    rows = tensor.shape[0]
    if weights.fused:
        starts = fused_heads(which, rows, heads, head_dim, family)
    else:
        # heads of gated queries are wider: the rows of the gate follow those of the query
        width = rows // heads if which == "q" else head_dim
        starts = tuple(range(0, rows - head_dim + 1, width)) if width >= head_dim else ()
    if not starts:
        raise BadSource(
            f"{name} has {counted(rows, 'row')}, too few for the heads of config.json; correct"
            " their number there"
        )
    bias = _optional(f"{name.removesuffix('.weight')}.bias", tensors, (rows,))
    return Projection(
        tensor, bias, starts, _norms(which, prefix, len(starts), head_dim, family, tensors)
    )


def _norms(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> tuple[Tensor, ...]:
    weights = family.weights
    norm = f"{prefix}{weights.q_norm if which == 'q' else weights.k_norm}"
    kind = weights.norm
    if not kind or kind.endswith("after-rope"):
        return ()
    per_head = kind == "layer-norm-list"
    names = (
        [f"{norm}.norms.{head}.weight" for head in range(heads)] if per_head else [f"{norm}.weight"]
    )
    norms = tuple(_checked(tensors[name]) for name in names if name in tensors)
    sizes = {math.prod(tensor.shape) for tensor in norms}
    if sizes - {head_dim, heads * head_dim} or (per_head and len(norms) not in (0, heads)):
        raise BadSource(
            f"{norm} does not fit {counted(heads, 'head')} of {head_dim} dimensions; download the"
            " checkpoint again"
        )
    return norms


def _checked(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    if tensor.dtype not in FLOATS:
        raise BadSource(
            f"{tensor.name} is stored as {tensor.dtype}, and only floats can be measured;"
            f" {UNQUANTISED}"
        )
    if shape is not None and tensor.shape != shape:
        raise BadSource(
            f"{tensor.name} has the shape {list(tensor.shape)}, not {list(shape)}; download it"
            " again"
        )
    return tensor


def _optional(name: str, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor | None:
    return _checked(tensors[name], shape) if name in tensors else None


def _missing(layer: int, family: Family, tensors: Mapping[str, Tensor]) -> BadSource:
    probe = family.weights.k or family.weights.fused
    stored = next(
        (name for name in tensors if f"{probe}." in name and not name.endswith(".bias")), None
    )
    if stored is not None and not any(name.endswith(f"{probe}.weight") for name in tensors):
        return BadSource(
            f"the checkpoint has {stored} in place of plain weights, so it is quantised;"
            f" {UNQUANTISED}"
        )
    name = f"{layer_prefixes(layer, family)[0]}{probe}.weight"
    return BadSource(f"the checkpoint has no {name}; download it again")


Vector = NDArray[np.float64]
PIECE = 1 << 26
"""Bytes to read at a time, unless a head has more."""


class LayerVariances(NamedTuple):
    """Variances, in a unit of each head: queries float64 [heads, head_dim], keys float64 [kv_heads,
    head_dim].
    """

    layer: int
    queries: Vector
    keys: Vector


def measure(
    source: Source,
    layers: tuple[AttentionLayer, ...],
    family: Family,
    head_dim: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Iterator[LayerVariances]:
    """Yield the variances of layers, one after the other; memory does not grow with the model.

    head_dim: rows of a head. advance: called with the bytes read since the last call. Raises
    BadSource for weights that are not finite, OSError.
    """
    reader = _Reader(source, advance)
    kind = family.weights.input
    for layer in layers:
        gain = (
            None
            if layer.input_norm is None
            else reader.weights(layer.input_norm, kind.endswith("plus-one"))
        )
        bias = None if layer.input_bias is None else reader.weights(layer.input_bias)
        queries, keys = (
            _variances(side, reader, gain, bias, family, head_dim)
            for side in (layer.queries, layer.keys)
        )
        yield LayerVariances(layer.layer, queries, keys)


class _Reader:
    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self.source, self.advance = source, advance
        self.files = {
            name: (file, header)
            for file, header in source.headers.items()
            for name in header.tensors
        }

    def read(self, tensor: Tensor, start: int, stop: int) -> NDArray[np.float32]:
        """Read elements start .. stop - 1 of a tensor."""
        file, header = self.files[tensor.name]
        size = np.dtype(STORED[tensor.dtype]).itemsize
        begin = header.data_start + tensor.start
        content = self.source.read(file, begin + start * size, begin + stop * size)
        stored: NDArray[np.generic] = np.frombuffer(content, STORED[tensor.dtype])
        self.advance(stored.nbytes)
        values = widen(stored, tensor.dtype)
        if not np.isfinite(values).all():
            raise BadSource(
                f"{tensor.name} has infinite numbers or NaN; download the checkpoint again"
            )
        return values

    def weights(self, tensor: Tensor, plus_one: bool = False) -> NDArray[np.float32]:
        """Read all numbers of a norm or bias, flat."""
        values = self.read(tensor, 0, math.prod(tensor.shape))
        return values + np.float32(1) if plus_one else values


def _variances(
    side: Projection,
    reader: _Reader,
    gain: NDArray[np.float32] | None,
    input_bias: NDArray[np.float32] | None,
    family: Family,
    head_dim: int,
) -> Vector:
    """The variances of queries or keys. gain, input_bias: weights and bias of the norm before the
    projection.
    """
    norm = family.weights.norm
    columns = side.tensor.shape[1]
    centred = norm.startswith("layer-norm")
    variances = np.empty((len(side.heads), head_dim))
    means = np.zeros((len(side.heads), head_dim))
    bias = reader.weights(side.bias) if side.bias is not None and side.norms else None
    for start, stop, heads in _pieces(side, head_dim):
        rows = reader.read(side.tensor, start * columns, stop * columns).reshape(-1, columns)
        for head in heads:
            first = side.heads[head]
            matrix = rows[first - start :][:head_dim]
            if input_bias is not None and side.norms:
                means[head] += matrix @ input_bias
            if bias is not None:
                means[head] += bias[first : first + head_dim]
            if gain is not None:
                matrix = matrix * gain
            if family.weights.input.startswith("layer-norm"):
                matrix = matrix - matrix.mean(axis=1, keepdims=True)
            if side.norms and centred:
                matrix = matrix - matrix.mean(axis=0)
            variances[head] = np.square(matrix).sum(axis=1, dtype=np.float64)
    if not side.norms:
        return variances
    if centred:
        means -= means.mean(axis=1, keepdims=True)
    shape = (1, -1) if norm == "rms-all-heads" else variances.shape
    weights = np.concatenate(
        [reader.weights(tensor, norm == "rms-plus-one") for tensor in side.norms]
    )
    normalised = normalised_variances(variances.reshape(shape), means.reshape(shape)).reshape(
        variances.shape
    )
    return normalised * np.square(weights.reshape(-1, head_dim).astype(np.float64))


def _pieces(side: Projection, head_dim: int) -> Iterator[tuple[int, int, range]]:
    """Yield rows to read at once, [start, stop), and their heads."""
    heads = side.heads
    distance = max((stop - start for start, stop in pairwise(heads)), default=head_dim)
    count = max(1, PIECE // _row_bytes(side.tensor) // max(distance, head_dim))
    for first in range(0, len(heads), count):
        some = range(first, min(first + count, len(heads)))
        yield heads[some[0]], heads[some[-1]] + head_dim, some


def _row_bytes(tensor: Tensor) -> int:
    return tensor.shape[1] * np.dtype(STORED[tensor.dtype]).itemsize


@dataclass(frozen=True)
class LayerReach:
    """The effective lengths of a layer's heads, in tokens.

    layer: its number. below: distances below it were tested: the length, or the layer's window if
    that is shorter. effective_lengths: one less than the first distance with a negative sum, None
    if there is none. violations: number of distances with a negative sum. Both have one entry per
    query head.
    """

    layer: int
    below: int
    effective_lengths: tuple[int | None, ...]
    violations: tuple[int, ...]

    @property
    def worst(self) -> tuple[int, int] | None:
        """The head with the shortest effective length, and that length; None if no sum is
        negative.
        """
        lengths = [
            (length, head)
            for head, length in enumerate(self.effective_lengths)
            if length is not None
        ]
        return (min(lengths)[1], min(lengths)[0]) if lengths else None

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(count > 0 for count in self.violations)


@dataclass(frozen=True)
class HeadLengths(TableSummary):
    """The effective lengths of all heads of a model. layers: those with the frequencies of the
    schedule.
    """

    layers: tuple[LayerReach, ...]

    record_keys: ClassVar[tuple[str, ...]] = (
        "layer",
        "head",
        "below",
        "effective_length",
        "violations",
    )

    @property
    def sentence(self) -> str:
        """How many heads have a negative sum, and the shortest effective length."""
        having = "has" if self.violating == 1 else "have"
        words = f"{self.violating} of {counted(self.heads, 'head')} {having} a negative sum"
        if self.worst is None:
            return f"{words}."
        return f"{words}; the shortest effective length is {self.worst:,} tokens."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        return {
            "sentence": self.sentence,
            "heads": f"{self.heads:,}",
            "violating": f"{self.violating:,}",
            "worst": "" if self.worst is None else f"{self.worst:,} tokens",
            "median": "" if self.median is None else f"{self.median:,} tokens",
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each layer."""
        columns = (
            "layer",
            "heads with a negative sum",
            "worst head",
            "its effective length",
            "of distances below",
        )
        rows = []
        for layer in self.layers:
            head, length = layer.worst or ("", None)
            share = f"{layer.violating} of {len(layer.violations)}"
            reached = f"above {layer.below - 1:,}" if length is None else f"{length:,}"
            rows.append((f"{layer.layer}", share, f"{head}", reached, f"{layer.below:,}"))
        return [SummaryTable("layers", columns, rows)]

    def records(self) -> list[JsonObject]:
        """Return a row for each head of each layer, with lengths in tokens."""
        rows = []
        for layer in self.layers:
            figures = zip(layer.effective_lengths, layer.violations, strict=True)
            for head, (length, violations) in enumerate(figures):
                rows.append(
                    {
                        "layer": layer.layer,
                        "head": head,
                        "below": layer.below,
                        "effective_length": length,
                        "violations": violations,
                    }
                )
        return rows

    @property
    def heads(self) -> int:
        """Number of heads that were tested."""
        return sum(len(layer.violations) for layer in self.layers)

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(layer.violating for layer in self.layers)

    @property
    def worst(self) -> int | None:
        """The shortest effective length; None if no sum is negative."""
        return min((layer.worst[1] for layer in self.layers if layer.worst), default=None)

    @property
    def median(self) -> int | None:
        """The lower median of the effective lengths; None if fewer than half of the heads have a
        negative sum.
        """
        lengths = [length for layer in self.layers for length in layer.effective_lengths]
        middle = median_low(np.inf if length is None else length for length in lengths)
        return None if middle == np.inf else int(middle)

    def to_dict(self) -> JsonObject:
        """Return the figures and the layers as JSON-ready data; keys stay within a schema."""
        return {
            "heads": self.heads,
            "heads_with_violations": self.violating,
            "effective_length": self.worst,
            "median_effective_length": self.median,
            "layers": [asdict(layer) for layer in self.layers],
        }


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a model's heads. spec: its RoPE. layers: the number and the weights of each
    measured layer.
    """

    spec: RopeSpec
    layers: tuple[tuple[int, PairWeights], ...]

    def below(self, layer: int, length: int) -> int:
        """Return the limit of the distances of a layer that are tested: a length, or its window."""
        window = self.spec.windows[layer] if self.spec.windows else None
        return min(length, window or length)

    def work(self, length: int) -> int:
        """Return how many distances `reach` tests."""
        return sum({self.below(layer, length) - 1 for layer, _ in self.layers})

    def reach(
        self, schedule: Schedule, length: int, advance: Callable[[int], None] = lambda done: None
    ) -> HeadLengths:
        """Return the effective length of every head with a schedule. Raises what `head_reach`
        raises.

        length: distances below it are tested, in tokens. advance: called with the number of
        distances done since the last call.
        """
        results: list[LayerReach] = []
        ordered = sorted(self.layers, key=lambda item: self.below(item[0], length))
        for below, group in groupby(ordered, key=lambda item: self.below(item[0], length)):
            layers = list(group)
            rotated, unrotated = (
                np.concatenate(parts) for parts in zip(*(heads for _, heads in layers), strict=True)
            )
            weights = PairWeights(rotated, unrotated).times(schedule.attention_factor)
            first, count = head_reach(schedule.inv_freq, weights, below, advance)
            lengths = [int(distance) - 1 if distance else None for distance in first]
            begin = 0
            for layer, layer_weights in layers:
                heads = slice(begin, begin + len(layer_weights.unrotated))
                begin = heads.stop
                results.append(
                    LayerReach(layer, below, tuple(lengths[heads]), tuple(count.tolist()[heads]))
                )
        return HeadLengths(tuple(sorted(results, key=lambda result: result.layer)))


def head_weights(
    inspection: Inspection, total: Callable[[int], None], advance: Callable[[int], None]
) -> HeadWeights:
    """Read the projections of a checkpoint by range, one layer at a time, and return the weights of
    its heads.

    total, advance: called with the bytes to read, and with those read since the last call. Raises
    BadSource for a source without safetensors weights, and what `attention_layers` and `measure`
    raise.
    """
    source, spec = inspection.source, inspection.spec
    if not isinstance(inspection, ConfigInspection) or not isinstance(source, Source):
        raise BadSource(
            f"{source.reference} is a GGUF file; give the safetensors checkpoint that it was made"
            " from"
        )
    if source.kind == "meta" and source.commit:
        raise BadSource(
            f"{source.reference} has Meta's layout, whose files cannot be read in part from the"
            " Hub; download it with `hf download`, and name its folder"
        )
    if not source.weights():
        raise BadSource(
            f"{source.reference} has no safetensors weights; give a checkpoint folder or a Hub id"
        )
    layers = attention_layers(spec, inspection.model_family, source.config(), source.tensors)
    if not layers:
        raise BadSource(
            f"no layer of {source.reference} has frequencies that a method changes; leave"
            " --weights out"
        )
    total(sum(_size(layer, spec.head_dim) for layer in layers))
    variances = measure(source, layers, inspection.model_family, spec.head_dim, advance)
    return HeadWeights(
        spec,
        tuple(
            (row.layer, pair_weights(row.queries, row.keys, spec.rotary_dim, spec.layout))
            for row in variances
        ),
    )


def _size(layer: AttentionLayer, head_dim: int) -> int:
    """The bytes of a layer to read."""
    size = 0
    small = [layer.input_norm, layer.input_bias]
    for side in (layer.queries, layer.keys):
        small += [*side.norms, side.bias if side.norms else None]
        size += sum(stop - start for start, stop, _ in _pieces(side, head_dim)) * _row_bytes(
            side.tensor
        )
    return size + sum(tensor.stop - tensor.start for tensor in small if tensor is not None)
