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
    """Return the weights that make queries and keys, for each layer whose RoPE a method changes.

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

    # Most models normalise the hidden states in front of the projections. Some have their norms
    # after each layer (`NORM_AFTER`), so there is no input norm to read.
    text_config = text_part(config, family)
    norm_names: tuple[str, ...] = ()
    if family.weights.input and not text_config.get(NORM_AFTER):
        norm_names = family.weights.input_norm

    # some models share keys: a layer then uses those that an earlier layer has made
    heads = head_count(text_config, family)
    maker_of_keys = key_layers(text_config, family, len(spec.layers))
    layers = []
    for index, kind in enumerate(spec.layers):
        has_own_keys = maker_of_keys[index] == index
        if kind == "global" and has_own_keys:
            layers.append(_layer(index, heads, spec.head_dim, norm_names, family, tensors))
    return tuple(layers)


def _why_not_measured(spec: RopeSpec, family: Family) -> str:
    """Return why the effective lengths of a family's heads cannot be computed, or "" if they can.

    They need the variances of queries and keys, which follow from the weights of two projections.
    """
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
        # the bound of a score is a sum over the distance of two tokens only
        return (
            "weights multiply its queries and keys after the rotation, so that its sum depends on"
            " positions"
        )
    # a reason that the data of the family states in words; empty for most families
    return weights.unmeasured


def _layer(
    layer: int,
    heads: int,
    head_dim: int,
    norm_names: tuple[str, ...],
    family: Family,
    tensors: Mapping[str, Tensor],
) -> AttentionLayer:
    """Find the tensors that make the queries and keys of a layer, and check their shapes.

    Args:
        layer: The number of the layer.
        heads: The number of query heads in config.json.
        head_dim: The dimensions of a head.
        norm_names: The names that the norm before the projections may have, without the prefix of
            the layer; empty for a model without that norm.
        family: The family of the model, which names its projections.
        tensors: All tensors of the checkpoint, by name.
    """
    prefix = layer_prefix(layer, family, tensors)
    if prefix is None:
        raise _missing(layer, family, tensors)

    # grouped-query attention: every key head serves the same number of query heads
    queries = _projection("q", prefix, heads, head_dim, family, tensors)
    keys = _projection("k", prefix, heads, head_dim, family, tensors)
    if len(queries.heads) % len(keys.heads):
        query_heads = counted(len(queries.heads), "head")
        raise BadSource(
            f"{queries.tensor.name} has {query_heads}, not a multiple of the {len(keys.heads)} of"
            f" {keys.tensor.name}; correct the numbers of heads in config.json"
        )
    # both projections read the same hidden states, so they have the same number of columns
    columns = queries.tensor.shape[1:]
    _check_tensor(keys.tensor, (keys.tensor.shape[0], *columns))

    # the norm before both has the first of its possible names that the checkpoint has
    norm_weight = None
    norm_bias = None
    for name in norm_names:
        if f"{prefix}{name}.weight" in tensors:
            norm_weight = _optional(f"{prefix}{name}.weight", tensors, columns)
            norm_bias = _optional(f"{prefix}{name}.bias", tensors, columns)
            break
    return AttentionLayer(
        layer=layer, queries=queries, keys=keys, input_norm=norm_weight, input_bias=norm_bias
    )


def _projection(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> Projection:
    """Find the weights, bias and norm that make the queries or the keys of a layer.

    Args:
        which: "q" for the queries, "k" for the keys.
        prefix: The beginning of the names of the layer's tensors, such as `model.layers.0.`.
        heads: The number of query heads in config.json.
        head_dim: The dimensions of a head.
        family: The family of the model, which names its projections.
        tensors: All tensors of the checkpoint, by name.
    """
    # some families have one fused matrix for queries, keys and values
    weights = family.weights
    if weights.fused:
        module = weights.fused
    elif which == "q":
        module = weights.q
    else:
        module = weights.k
    name = f"{prefix}{module}.weight"
    if name not in tensors:
        raise BadSource(f"the checkpoint has no {name}; download it again")
    tensor = tensors[name]
    _check_tensor(tensor)
    if len(tensor.shape) != 2:
        raise BadSource(
            f"{name} has the shape {list(tensor.shape)}, not that of a matrix; {UNQUANTISED}"
        )

    rows = tensor.shape[0]
    first_rows = _first_row_of_each_head(which, rows, heads, head_dim, family)
    if not first_rows:
        raise BadSource(
            f"{name} has {counted(rows, 'row')}, too few for the heads of config.json; correct"
            " their number there"
        )
    bias = _optional(f"{prefix}{module}.bias", tensors, (rows,))
    norms = _norms(which, prefix, len(first_rows), head_dim, family, tensors)
    return Projection(tensor=tensor, bias=bias, heads=first_rows, norms=norms)


def _first_row_of_each_head(
    which: Which, rows: int, heads: int, head_dim: int, family: Family
) -> tuple[int, ...]:
    """The row of a projection at which each head begins; empty if there are too few rows."""
    if family.weights.fused:
        return fused_heads(which, rows, heads, head_dim, family)

    # A gated query head is wider than head_dim: the rows of its gate follow those of the query, as
    # in Qwen3-Next. Keys have no gate.
    rows_per_head = head_dim
    if which == "q":
        rows_per_head = rows // heads
    if rows_per_head < head_dim:
        return ()
    last_possible = rows - head_dim  # a head needs head_dim rows
    return tuple(range(0, last_possible + 1, rows_per_head))


def _norms(
    which: Which,
    prefix: str,
    heads: int,
    head_dim: int,
    family: Family,
    tensors: Mapping[str, Tensor],
) -> tuple[Tensor, ...]:
    """Find the weights of the norm between a projection and RoPE, as the q_norm of Qwen3.

    Args:
        which: Whether the projection makes queries or keys.
        prefix: The beginning of the names of the layer's tensors.
        heads: The number of heads of this projection.
        head_dim: The dimensions of a head.
        family: The family of the model, which knows the kind of the norm.
        tensors: The tensors of all files of the checkpoint, by name.

    Returns:
        One tensor for all heads, or one per head; empty for a model without that norm.
    """
    weights = family.weights
    kind = weights.norm
    if not kind or kind.endswith("after-rope"):
        return ()

    # a single tensor has head_dim numbers, which all heads share, or heads * head_dim
    module = weights.q_norm if which == "q" else weights.k_norm
    norm = f"{prefix}{module}"
    is_list = kind == "layer-norm-list"  # a ModuleList with one norm per head
    if is_list:
        names = [f"{norm}.norms.{head}.weight" for head in range(heads)]
    else:
        names = [f"{norm}.weight"]
    norms = tuple(tensors[name] for name in names if name in tensors)

    for tensor in norms:
        _check_tensor(tensor)
    sizes = {math.prod(tensor.shape) for tensor in norms}
    possible_sizes = {head_dim, heads * head_dim}
    has_other_size = not sizes <= possible_sizes
    lacks_some_heads = is_list and 0 < len(norms) < heads
    if has_other_size or lacks_some_heads:
        raise BadSource(
            f"{norm} does not fit {counted(heads, 'head')} of {head_dim} dimensions; download the"
            " checkpoint again"
        )
    return norms


def _check_tensor(tensor: Tensor, shape: tuple[int, ...] | None = None) -> None:
    """Refuse a tensor that does not hold floats, or that has another shape than `shape`."""
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
    _check_tensor(tensors[name], shape)
    return tensors[name]


def _missing(layer: int, family: Family, tensors: Mapping[str, Tensor]) -> BadSource:
    """Return the error for a layer without projections: the checkpoint is quantised, or damaged."""
    # A quantised k_proj has tensors such as k_proj.qweight and k_proj.scales, and no k_proj.weight.
    # Where another layer has k_proj.weight, the checkpoint is not quantised, and one is missing.
    module = family.weights.k or family.weights.fused
    has_plain_weights = any(name.endswith(f"{module}.weight") for name in tensors)
    if not has_plain_weights:
        for name in tensors:
            if f"{module}." in name and not name.endswith(".bias"):
                return BadSource(
                    f"the checkpoint has {name} in place of plain weights, so it is quantised;"
                    f" {UNQUANTISED}"
                )

    prefix, *_ = layer_prefixes(layer, family)  # the usual one comes first
    return BadSource(f"the checkpoint has no {prefix}{module}.weight; download it again")


Vector = NDArray[np.float64]
PIECE_BYTES = 1 << 26
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
    """Yield the variances of queries and keys in each layer, computed only from the weights.

    The variance of a dimension of a query is the one that it has for random hidden states.

    One layer after the other is read, so that memory does not grow with the model.

    Args:
        source: The checkpoint.
        layers: Its layers.
        family: Its family.
        head_dim: The dimensions of a head.
        advance: Called with the bytes read since the last call.

    Raises:
        BadSource: Weights are not finite.
        OSError: A file cannot be read.
    """
    # Gemma stores the weights of its norms minus one
    plus_one = family.weights.input.endswith("plus-one")
    reader = _Reader(source, advance)
    for layer in layers:
        # the norm before the projections, which queries and keys share
        norm_weight = None
        if layer.input_norm is not None:
            norm_weight = reader.weights(layer.input_norm, plus_one=plus_one)
        norm_bias = None
        if layer.input_bias is not None:
            norm_bias = reader.weights(layer.input_bias)

        queries = _variances(layer.queries, reader, norm_weight, norm_bias, family, head_dim)
        keys = _variances(layer.keys, reader, norm_weight, norm_bias, family, head_dim)
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
        """Read the elements `start` to `stop - 1` of a tensor, in its flat order."""
        # offsets of tensors in a safetensors file count from the end of its header
        file, header = self.files[tensor.name]
        first_byte = header.data_start + tensor.start
        element_size = np.dtype(STORED[tensor.dtype]).itemsize
        content = self.source.read(
            file, first_byte + start * element_size, first_byte + stop * element_size
        )
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
    projection: Projection,
    reader: _Reader,
    norm_weight: NDArray[np.float32] | None,
    norm_bias: NDArray[np.float32] | None,
    family: Family,
    head_dim: int,
) -> Vector:
    """Return the variance of each dimension of the queries or keys of a layer, for random inputs.

    A head computes q = W (g * x + b_n) + b: g and b_n are the weights and the bias of the norm
    before the projection, W and b those of the projection. If x has mean 0 and variance 1 in each
    dimension, dimension j of q has the variance sum_c (W_jc g_c)^2 and the mean (W b_n + b)_j.

    Args:
        projection: The tensors that make the queries or the keys.
        reader: Reads these tensors.
        norm_weight: g, [columns]; None for 1.
        norm_bias: b_n, [columns]; None for 0.
        family: The family of the model, with the kinds of its norms.
        head_dim: The dimensions of a head.

    Returns:
        float64 [heads, head_dim].
    """
    # the kinds of the norms around the projection, such as "rms" or "layer-norm"; "" without a norm
    norm_before = family.weights.input
    norm_after = family.weights.norm if projection.norms else ""
    heads = len(projection.heads)
    variances = np.empty((heads, head_dim))
    means = np.zeros((heads, head_dim))  # only a norm after the projection needs them
    bias = None
    if projection.bias is not None and norm_after:
        bias = reader.weights(projection.bias)

    for head, matrix in _matrices_of_heads(projection, reader, head_dim):
        # the means W b_n + b
        if norm_bias is not None and norm_after:
            means[head] += matrix @ norm_bias
        if bias is not None:
            first_row = projection.heads[head]
            means[head] += bias[first_row : first_row + head_dim]

        # the variances, from the matrix W g that makes q from x
        if norm_weight is not None:
            matrix = matrix * norm_weight
        # a layer norm before the projection removes the mean of x, and with it the mean of each row
        if norm_before.startswith("layer-norm"):
            matrix = matrix - matrix.mean(axis=1, keepdims=True)
        # a layer norm after it removes the mean of q, and with it the mean of each column
        if norm_after.startswith("layer-norm"):
            matrix = matrix - matrix.mean(axis=0)
        variances[head] = np.square(matrix).sum(axis=1, dtype=np.float64)

    if not norm_after:
        return variances
    return _variances_after_norm(projection, reader, norm_after, variances, means)


def _matrices_of_heads(
    projection: Projection, reader: _Reader, head_dim: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield each head and the rows of the projection that make it, [head_dim, columns].

    Args:
        projection: The tensors that make the queries or the keys.
        reader: Reads these tensors.
        head_dim: The dimensions of a head.
    """
    # a piece is the rows of some heads, so that a large matrix is never in memory as a whole
    columns = projection.tensor.shape[1]
    for start, stop, heads in _pieces(projection, head_dim):
        rows = reader.read(projection.tensor, start * columns, stop * columns)
        rows = rows.reshape(-1, columns)
        for head in heads:
            first_row = projection.heads[head]
            first_in_piece = first_row - start
            yield head, rows[first_in_piece : first_in_piece + head_dim]


def _variances_after_norm(
    projection: Projection, reader: _Reader, norm: str, variances: Vector, means: Vector
) -> Vector:
    """Return the variances of queries or keys q after the norm that follows their projection.

    A norm divides q by sqrt(mean(q^2)), which depends on the means and the variances of q. Then it
    multiplies each dimension by a weight.

    Args:
        projection: The projection, with the weights of the norm.
        reader: Reads these weights.
        norm: The kind of the norm: "rms", "rms-plus-one" (Gemma's weights are stored minus one),
            "rms-all-heads" (the mean is over all heads, OLMo 2), "layer-norm" and so on.
        variances: The variances before the norm, [heads, head_dim].
        means: The means before the norm, [heads, head_dim].

    Returns:
        float64 [heads, head_dim].
    """
    # a layer norm removes the mean of each head
    if norm.startswith("layer-norm"):
        means = means - means.mean(axis=1, keepdims=True)

    # the division, for each row of the matrix: a row is one head, or all heads together
    heads, head_dim = variances.shape
    rows = heads
    if norm == "rms-all-heads":
        rows = 1
    divided = normalised_variances(variances.reshape(rows, -1), means.reshape(rows, -1))

    # the weights: [head_dim] for all heads alike, or [heads * head_dim]
    has_plus_one = norm == "rms-plus-one"
    parts = [reader.weights(tensor, plus_one=has_plus_one) for tensor in projection.norms]
    weights = np.concatenate(parts).astype(np.float64)
    weights_by_head = weights.reshape(-1, head_dim)  # one row, or a row for each head
    return divided.reshape(heads, head_dim) * np.square(weights_by_head)


def _pieces(projection: Projection, head_dim: int) -> Iterator[tuple[int, int, range]]:
    """Yield pieces of a projection of about `PIECE_BYTES`, so that memory stays small.

    Each piece is (first row, row after the last, the numbers of the heads in it).
    """
    # The heads of a fused projection may have other rows in between, such as values between the
    # keys. These rows are read too, so the size of a head is its distance to the next head.
    first_rows = projection.heads  # the first row of each head, such as (0, 128, 256)
    rows_per_head = head_dim
    for row, next_row in pairwise(first_rows):
        rows_per_head = max(rows_per_head, next_row - row)
    bytes_per_head = rows_per_head * _row_bytes(projection.tensor)
    heads_per_piece = max(1, PIECE_BYTES // bytes_per_head)

    number_of_heads = len(first_rows)
    for first_head in range(0, number_of_heads, heads_per_piece):
        end_head = min(first_head + heads_per_piece, number_of_heads)
        last_head = end_head - 1
        yield first_rows[first_head], first_rows[last_head] + head_dim, range(first_head, end_head)


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
        """Return the figures that a command shows, as text by name."""
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
        """Return a table with a row for each layer: how far its heads can see.

        The sum over the pairs of a head bounds its scores. A head has the effective length n if its
        sum is negative at distance n + 1 for the first time; distances up to `below - 1` were
        tested.
        """
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
            effective = f"above {layer.below - 1:,}"  # no head has a negative sum
            if layer.worst is not None:
                worst, length = layer.worst
                head = f"{worst}"
                effective = f"{length:,}"
            share = f"{layer.violating} of {len(layer.violations)}"
            rows.append((f"{layer.layer}", share, head, effective, f"{layer.below:,}"))
        return [SummaryTable("layers", columns, rows)]

    def records(self) -> list[JsonObject]:
        """Return a row of a table for each head of each layer, with lengths in tokens.

        `violations` is the number of distances at which the bound of the head's scores is negative.
        All distances less than `below` were tested.
        """
        rows = []
        for layer in self.layers:
            heads = zip(layer.effective_lengths, layer.violations, strict=True)
            for head, (effective_length, violations) in enumerate(heads):
                rows.append(
                    {
                        "layer": layer.layer,
                        "head": head,
                        "below": layer.below,
                        "effective_length": effective_length,
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
        """Return how far every head can see with the frequencies of a schedule.

        A weighted sum over the cosines of a head bounds its scores at each distance. The effective
        length of the head is one less than the first distance at which this sum is negative.

        Args:
            schedule: The schedule, with frequencies and attention factor.
            length: Distances below it are tested, in tokens.
            advance: Called with the number of distances done since the last call.

        Raises:
            RecipeError: As `head_reach` does.
        """
        # Layers that see equally far are tested in one call, which is much faster. The limit is the
        # window of a layer that has one.
        layers_by_limit: dict[int, list[tuple[int, PairWeights]]] = {}
        for layer, weights in self.layers:
            limit = self.below(layer, length)
            layers_by_limit.setdefault(limit, []).append((layer, weights))

        results: list[LayerReach] = []
        for limit, layers in sorted(layers_by_limit.items()):
            # the heads of all these layers, one after another
            rotated = np.concatenate([weights.rotated for _, weights in layers])
            unrotated = np.concatenate([weights.unrotated for _, weights in layers])
            all_heads = PairWeights(rotated, unrotated).times(schedule.attention_factor)

            # for each head: the first distance with a negative sum (0 without one), and the number
            # of such distances
            first_violations, counts = head_reach(schedule.inv_freq, all_heads, limit, advance)

            # and back to the heads of each layer, which are next to each other
            first_head = 0
            for layer, weights in layers:
                heads = slice(first_head, first_head + len(weights.unrotated))
                first_head = heads.stop
                effective_lengths: list[int | None] = []
                for distance in first_violations[heads].tolist():
                    effective_lengths.append(distance - 1 if distance else None)
                results.append(
                    LayerReach(
                        layer=layer,
                        below=limit,
                        effective_lengths=tuple(effective_lengths),
                        violations=tuple(counts[heads].tolist()),
                    )
                )
        results.sort(key=lambda result: result.layer)
        return HeadLengths(tuple(results))


def head_weights(
    inspection: Inspection, set_total: Callable[[int], None], advance: Callable[[int], None]
) -> HeadWeights:
    """Return weights for all heads, from which the effective length of each head is computed.

    The bound of a head's scores is a sum of cosines, one for each pair of dimensions that RoPE
    rotates. The weight of a pair follows from the projections of queries and keys, which are read
    one layer at a time.

    Args:
        inspection: The inspection of the checkpoint.
        set_total: Called once with the number of bytes to read, for a progress bar.
        advance: Called with the bytes read since the last call.

    Raises:
        BadSource: The source has no safetensors weights, they are quantised, or the family cannot
            be measured.
    """
    # refuse sources from whose files single tensors cannot be read
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

    family = inspection.model_family
    layers = attention_layers(spec, family, source.config(), source.tensors)
    if not layers:
        raise BadSource(
            f"no layer of {source.reference} has frequencies that a method changes; leave"
            " --weights out"
        )
    set_total(sum(_bytes_to_read(layer, spec.head_dim) for layer in layers))

    # from the variances of queries and keys for random hidden states
    weights = []
    for variances in measure(source, layers, family, spec.head_dim, advance):
        pairs = pair_weights(variances.queries, variances.keys, spec.rotary_dim, spec.layout)
        weights.append((variances.layer, pairs))
    return HeadWeights(spec, tuple(weights))


def _bytes_to_read(layer: AttentionLayer, head_dim: int) -> int:
    """Return how many bytes `measure` reads for a layer, for its progress bar.

    A projection is read at the rows of its heads, and a norm as a whole. The bias of a projection
    is read only where a norm follows it, since the variances do not depend on it otherwise.
    """
    size = 0
    small_tensors = [layer.input_norm, layer.input_bias]
    for projection in (layer.queries, layer.keys):
        for start, stop, _ in _pieces(projection, head_dim):
            size += (stop - start) * _row_bytes(projection.tensor)
        if projection.norms:
            small_tensors += [*projection.norms, projection.bias]
    for tensor in small_tensors:
        if tensor is not None:
            size += tensor.stop - tensor.start
    return size
