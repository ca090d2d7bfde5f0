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
from itertools import pairwise
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
    """The rows that make the queries or the keys of a layer."""

    tensor: Tensor
    """The weights of the projection, [rows, columns]."""

    bias: Tensor | None
    """Its bias, [rows]."""

    heads: tuple[int, ...]
    """The first row of each head."""

    norms: tuple[Tensor, ...]
    """The weights of the norm after it: none, one for all heads, or one per head."""


@dataclass(frozen=True)
class AttentionLayer:
    """The projections of a layer."""

    layer: int
    """Its number."""

    queries: Projection
    keys: Projection

    input_norm: Tensor | None
    """The weights of the norm before them; None for 1."""

    input_bias: Tensor | None
    """The biases of that norm; None for 0."""


def attention_layers(
    spec: RopeSpec, family: Family, config: Config, tensors: Mapping[str, Tensor]
) -> tuple[AttentionLayer, ...]:
    """Return the projections of every layer whose heads a method changes.

    These are the layers that rotate with the frequencies of `spec` and have their own keys.

    Args:
        spec: The RoPE of the model.
        family: Its family.
        config: Its config.json.
        tensors: The tensors of all files of the checkpoint, by name.

    Raises:
        BadSource: The variances of the family do not follow from these tensors, the weights are
            quantised, or a tensor is missing.
    """
    reason = _why_not_measured(spec, family)
    if reason:
        raise BadSource(f"{family.display_name} cannot be measured: {reason}; leave --weights out")

    # a model may normalise behind its layers, and then queries and keys see the states as they are
    part = text_part(config, family)
    heads = head_count(part, family)
    norms: tuple[str, ...] = ()
    if family.weights.input and not part.get(NORM_AFTER):
        norms = family.weights.input_norm

    layers = []
    key_makers = key_layers(part, family, len(spec.layers))
    for index, kind in enumerate(spec.layers):
        if kind == "global" and key_makers[index] == index:
            layers.append(_layer(index, heads, spec.head_dim, norms, family, tensors))
    return tuple(layers)


def _why_not_measured(spec: RopeSpec, family: Family) -> str:
    """Why the variances of a family do not follow from its tensors; empty where they do."""
    weights = family.weights
    if not weights.q and not weights.fused:
        return "its projections are not known"
    if spec.mla:
        return "multi-head latent attention makes queries and keys by several projections"
    if family.encoder:
        return (
            "it reads in both directions, and the bound is for models that read from left to right"
        )
    if weights.norm == "rms-after-rope":
        return (
            "weights multiply its queries and keys after the rotation, so that its sum depends on"
            " positions"
        )
    return weights.unmeasured


def _layer(
    layer: int,
    heads: int,
    head_dim: int,
    norms: tuple[str, ...],
    family: Family,
    tensors: Mapping[str, Tensor],
) -> AttentionLayer:
    """The projections of a layer; `norms` are the names that the norm before them may have."""
    prefix = layer_prefix(layer, family, tensors)
    if prefix is None:
        raise _missing(layer, family, tensors)

    # grouped-query attention: each head of keys serves as many heads of queries
    queries = _projection("q", prefix, heads, head_dim, family, tensors)
    keys = _projection("k", prefix, heads, head_dim, family, tensors)
    if len(queries.heads) % len(keys.heads):
        query_heads = counted(len(queries.heads), "head")
        raise BadSource(
            f"{queries.tensor.name} has {query_heads}, not a multiple of the {len(keys.heads)} of"
            f" {keys.tensor.name}; correct the numbers of heads in config.json"
        )
    columns = queries.tensor.shape[1:]
    _check(keys.tensor, (keys.tensor.shape[0], *columns))

    # the norm before both, under the first of its possible names that is there
    weight = None
    bias = None
    for norm in norms:
        if f"{prefix}{norm}.weight" in tensors:
            weight = _optional(f"{prefix}{norm}.weight", tensors, columns)
            bias = _optional(f"{prefix}{norm}.bias", tensors, columns)
            break
    return AttentionLayer(
        layer=layer, queries=queries, keys=keys, input_norm=weight, input_bias=bias
    )


def _projection(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> Projection:
    """The projection of the queries or the keys of a layer."""
    weights = family.weights
    module = weights.q if which == "q" else weights.k
    if weights.fused:
        module = weights.fused
    name = f"{prefix}{module}.weight"
    if name not in tensors:
        raise BadSource(f"the checkpoint has no {name}; download it again")
    tensor = tensors[name]
    _check(tensor)
    if len(tensor.shape) != 2:
        raise BadSource(
            f"{name} has the shape {list(tensor.shape)}, not that of a matrix; {UNQUANTISED}"
        )

    # the first row of each head
    rows = tensor.shape[0]
    starts: tuple[int, ...] = ()
    if weights.fused:
        starts = fused_heads(which, rows, heads, head_dim, family)
    else:
        # heads of gated queries are wider: the rows of the gate follow those of the query
        width = rows // heads if which == "q" else head_dim
        if width >= head_dim:
            starts = tuple(range(0, rows - head_dim + 1, width))
    if not starts:
        raise BadSource(
            f"{name} has {counted(rows, 'row')}, too few for the heads of config.json; correct"
            " their number there"
        )
    bias = _optional(f"{prefix}{module}.bias", tensors, (rows,))
    norms = _norms(which, prefix, len(starts), head_dim, family, tensors)
    return Projection(tensor=tensor, bias=bias, heads=starts, norms=norms)


def _norms(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> tuple[Tensor, ...]:
    """The weights of the norm after a projection; empty without one."""
    weights = family.weights
    kind = weights.norm
    if not kind or kind.endswith("after-rope"):
        return ()

    # one tensor [head_dim] for all heads, or [heads * head_dim]; or one per head (a list)
    name = weights.q_norm if which == "q" else weights.k_norm
    norm = f"{prefix}{name}"
    per_head = kind == "layer-norm-list"
    names = [f"{norm}.weight"]
    if per_head:
        names = [f"{norm}.norms.{head}.weight" for head in range(heads)]
    norms = tuple(tensors[name] for name in names if name in tensors)

    for tensor in norms:
        _check(tensor)
    sizes = {math.prod(tensor.shape) for tensor in norms}
    incomplete = per_head and len(norms) not in (0, heads)
    if incomplete or sizes - {head_dim, heads * head_dim}:
        raise BadSource(
            f"{norm} does not fit {counted(heads, 'head')} of {head_dim} dimensions; download the"
            " checkpoint again"
        )
    return norms


def _check(tensor: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Refuse a tensor that is not of floats, or of another shape."""
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


def _optional(name: str, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor | None:
    """A tensor of this name and shape; None where there is no tensor of the name."""
    if name not in tensors:
        return None
    _check(tensors[name], shape)
    return tensors[name]


def _missing(layer: int, family: Family, tensors: Mapping[str, Tensor]) -> BadSource:
    """The error for a layer whose projections are not there: the checkpoint may be quantised."""
    probe = family.weights.k or family.weights.fused
    stored = [name for name in tensors if f"{probe}." in name and not name.endswith(".bias")]
    if stored and not any(name.endswith(f"{probe}.weight") for name in tensors):
        return BadSource(
            f"the checkpoint has {stored[0]} in place of plain weights, so it is quantised;"
            f" {UNQUANTISED}"
        )
    name = f"{layer_prefixes(layer, family)[0]}{probe}.weight"
    return BadSource(f"the checkpoint has no {name}; download it again")


Vector = NDArray[np.float64]
PIECE = 1 << 26
"""Bytes to read at a time, unless a head has more."""


class LayerVariances(NamedTuple):
    """The variances of a layer, in a unit of each head."""

    layer: int

    queries: Vector
    """float64 [heads, head_dim]"""

    keys: Vector
    """float64 [kv_heads, head_dim]"""


def measure(
    source: Source,
    layers: tuple[AttentionLayer, ...],
    family: Family,
    head_dim: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Iterator[LayerVariances]:
    """Yield the variances of layers, one after the other; memory does not grow with the model.

    Args:
        source: The checkpoint.
        layers: Its layers.
        family: Its family.
        head_dim: The rows of a head.
        advance: Called with the bytes read since the last call.

    Raises:
        BadSource: Weights are not finite.
        OSError: A file cannot be read.
    """
    # Gemma stores the weights of its norms minus one
    reader = _Reader(source, advance)
    plus_one = family.weights.input.endswith("plus-one")
    for layer in layers:
        gain = None
        if layer.input_norm is not None:
            gain = reader.weights(layer.input_norm, plus_one)
        bias = None
        if layer.input_bias is not None:
            bias = reader.weights(layer.input_bias)
        queries = _variances(layer.queries, reader, gain, bias, family, head_dim)
        keys = _variances(layer.keys, reader, gain, bias, family, head_dim)
        yield LayerVariances(layer.layer, queries, keys)


class _Reader:
    """Reads numbers of tensors by range."""

    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self.source = source
        self.advance = advance
        self.files = {}
        for file, header in source.headers.items():
            for name in header.tensors:
                self.files[name] = (file, header)

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
    """The variances of queries or keys, float64 [heads, head_dim].

    `gain` and `input_bias` are weights and bias of the norm before the projection.
    """
    norm = family.weights.norm
    is_centred = norm.startswith("layer-norm")
    input_is_centred = family.weights.input.startswith("layer-norm")
    columns = side.tensor.shape[1]
    variances = np.empty((len(side.heads), head_dim))
    means = np.zeros((len(side.heads), head_dim))
    bias = None
    if side.bias is not None and side.norms:  # without a norm after it, it cancels
        bias = reader.weights(side.bias)

    for start, stop, heads in _pieces(side, head_dim):
        rows = reader.read(side.tensor, start * columns, stop * columns).reshape(-1, columns)
        for head in heads:
            first = side.heads[head]
            matrix = rows[first - start :][:head_dim]  # W of the head, [head_dim, columns]

            # means, which count only where a norm follows
            if input_bias is not None and side.norms:
                means[head] += matrix @ input_bias
            if bias is not None:
                means[head] += bias[first : first + head_dim]

            # W diag(g), without what a layer norm before (a row's mean) or after it (a column's
            # mean over the head) takes out; the variance of a dimension is its row squared
            if gain is not None:
                matrix = matrix * gain
            if input_is_centred:
                matrix = matrix - matrix.mean(axis=1, keepdims=True)
            if side.norms and is_centred:
                matrix = matrix - matrix.mean(axis=0)
            variances[head] = np.square(matrix).sum(axis=1, dtype=np.float64)
    if not side.norms:
        return variances

    if is_centred:
        means -= means.mean(axis=1, keepdims=True)
    # a norm over all heads divides all of them by one root mean square
    shape = (1, -1) if norm == "rms-all-heads" else variances.shape
    normalised = normalised_variances(variances.reshape(shape), means.reshape(shape))
    weights = [reader.weights(tensor, norm == "rms-plus-one") for tensor in side.norms]
    gains = np.concatenate(weights).reshape(-1, head_dim).astype(np.float64)
    return normalised.reshape(variances.shape) * np.square(gains)


def _pieces(side: Projection, head_dim: int) -> Iterator[tuple[int, int, range]]:
    """Yield rows to read at once, [start, stop), and their heads."""
    # as many heads as fit into a piece; in a fused projection they lie apart
    heads = side.heads
    distance = max((stop - start for start, stop in pairwise(heads)), default=head_dim)
    head_bytes = _row_bytes(side.tensor) * max(distance, head_dim)
    count = max(1, PIECE // head_bytes)
    for first in range(0, len(heads), count):
        piece = range(first, min(first + count, len(heads)))
        yield heads[piece[0]], heads[piece[-1]] + head_dim, piece


def _row_bytes(tensor: Tensor) -> int:
    """The bytes of a row of a matrix."""
    return tensor.shape[1] * np.dtype(STORED[tensor.dtype]).itemsize


@dataclass(frozen=True)
class LayerReach:
    """The effective lengths of a layer's heads, in tokens."""

    layer: int
    """The number of the layer."""

    below: int
    """Distances below it were tested: the length, or the layer's window if that is shorter."""

    effective_lengths: tuple[int | None, ...]
    """Per query head, one less than the first distance with a negative sum; None without one."""

    violations: tuple[int, ...]
    """Per query head, the number of distances with a negative sum."""

    @property
    def worst(self) -> tuple[int, int] | None:
        """The head with the shortest effective length, and that length; None without one."""
        lengths = [
            (length, head)
            for head, length in enumerate(self.effective_lengths)
            if length is not None
        ]
        if not lengths:
            return None
        length, head = min(lengths)
        return head, length

    @property
    def violating(self) -> int:
        """Number of heads with a negative sum."""
        return sum(count > 0 for count in self.violations)


@dataclass(frozen=True)
class HeadLengths(TableSummary):
    """The effective lengths of all heads of a model."""

    layers: tuple[LayerReach, ...]
    """The layers with the frequencies of the schedule."""

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
        values = {
            "sentence": self.sentence,
            "heads": f"{self.heads:,}",
            "violating": f"{self.violating:,}",
            "worst": "",
            "median": "",
        }
        if self.worst is not None:
            values["worst"] = f"{self.worst:,} tokens"
        if self.median is not None:
            values["median"] = f"{self.median:,} tokens"
        return values

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
            head = ""
            effective = f"above {layer.below - 1:,}"
            if layer.worst is not None:
                worst, length = layer.worst
                head = f"{worst}"
                effective = f"{length:,}"
            share = f"{layer.violating} of {len(layer.violations)}"
            rows.append((f"{layer.layer}", share, head, effective, f"{layer.below:,}"))
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
        """The lower median of the effective lengths; None if fewer than half of them are known."""
        lengths = []
        for layer in self.layers:
            for length in layer.effective_lengths:
                lengths.append(math.inf if length is None else length)
        middle = median_low(lengths)
        if middle == math.inf:
            return None
        return int(middle)

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
    """The weights of a model's heads."""

    spec: RopeSpec
    """The RoPE of the model."""

    layers: tuple[tuple[int, PairWeights], ...]
    """The number and the weights of each measured layer."""

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
        """Return the effective length of every head with a schedule.

        Args:
            schedule: The schedule, with frequencies and attention factor.
            length: Distances below it are tested, in tokens.
            advance: Called with the number of distances done since the last call.

        Raises:
            RecipeError: As `head_reach` does.
        """
        # layers with one limit are tested together
        groups: dict[int, list[tuple[int, PairWeights]]] = {}
        for layer, weights in self.layers:
            groups.setdefault(self.below(layer, length), []).append((layer, weights))

        results: list[LayerReach] = []
        for below, layers in sorted(groups.items()):
            rotated = np.concatenate([weights.rotated for _, weights in layers])
            unrotated = np.concatenate([weights.unrotated for _, weights in layers])
            together = PairWeights(rotated, unrotated).times(schedule.attention_factor)
            first, counts = head_reach(schedule.inv_freq, together, below, advance)

            # back to layers, each with its share of the heads
            begin = 0
            for layer, weights in layers:
                end = begin + len(weights.unrotated)
                lengths: list[int | None] = []
                for distance in first[begin:end].tolist():  # 0 where no distance violates
                    lengths.append(distance - 1 if distance else None)
                violations = counts[begin:end].tolist()
                results.append(
                    LayerReach(
                        layer=layer,
                        below=below,
                        effective_lengths=tuple(lengths),
                        violations=tuple(violations),
                    )
                )
                begin = end
        return HeadLengths(tuple(sorted(results, key=lambda result: result.layer)))


def head_weights(
    inspection: Inspection, total: Callable[[int], None], advance: Callable[[int], None]
) -> HeadWeights:
    """Return the weights of the heads of a checkpoint, read by range, one layer at a time.

    Args:
        inspection: The inspection of the checkpoint.
        total: Called with the bytes to read.
        advance: Called with the bytes read since the last call.

    Raises:
        BadSource: The source has no safetensors weights, or as `attention_layers` and `measure`
            do.
    """
    # weights that can be read by range
    source = inspection.source
    spec = inspection.spec
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

    # the projections of each layer, and what follows from their numbers
    layers = attention_layers(spec, inspection.model_family, source.config(), source.tensors)
    if not layers:
        raise BadSource(
            f"no layer of {source.reference} has frequencies that a method changes; leave"
            " --weights out"
        )
    total(sum(_size(layer, spec.head_dim) for layer in layers))

    weights = []
    for row in measure(source, layers, inspection.model_family, spec.head_dim, advance):
        pairs = pair_weights(row.queries, row.keys, spec.rotary_dim, spec.layout)
        weights.append((row.layer, pairs))
    return HeadWeights(spec, tuple(weights))


def _size(layer: AttentionLayer, head_dim: int) -> int:
    """The bytes of a layer to read."""
    whole = [layer.input_norm, layer.input_bias]
    size = 0
    for side in (layer.queries, layer.keys):
        for start, stop, _ in _pieces(side, head_dim):
            size += (stop - start) * _row_bytes(side.tensor)
        if side.norms:
            whole += [*side.norms, side.bias]
    for tensor in whole:
        if tensor is not None:
            size += tensor.stop - tensor.start
    return size
