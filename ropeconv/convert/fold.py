"""Folds the attention factor and the softmax scale into weights. Read `fold` first.

cos and sin times A scale queries and keys by A, and their product by A^2, over the dimensions that
rotate. So the rows of those dimensions are multiplied instead: of keys by A^2, of queries by A^2,
or of both by A. A norm between the projection and the rotation would cancel that, so its weight is
multiplied instead. Multi-head latent attention also has a softmax scale, which goes into every row
of its queries. An indexer, which chooses the keys that attention sees by products of its own
queries and keys, rotates these as attention does: the norm of its keys is multiplied by A^2.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import frexp, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSource, UnsupportedBake
from ..formats.disk import Advance, threads, write_at
from ..formats.safetensors import STORED, Header, Tensor, read_header, widen
from ..models.config import text_part
from ..models.family import Family
from ..models.layers import Which, fused_heads, head_count, key_layers, layer_prefix, layer_prefixes
from ..models.schema import Config, positive_int
from ..models.source import Source
from ..models.stored.checkpoint import QuantisedWeights
from ..options import FoldInto
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec

Span = tuple[int, int]
CLIP = "clip_qkv"
"""The config key of a limit on the outputs of the projections."""


def per_head(heads: int, width: int, rotary_dim: int, start: int = 0) -> tuple[Span, ...]:
    """Return spans of the first `rotary_dim` of every `width` rows; one span where all rotate.

    Args:
        heads: The number of heads.
        width: Rows of a head.
        rotary_dim: Rows of a head that rotate.
        start: The first row.
    """
    if rotary_dim == width:
        return ((start, start + heads * width),)
    return tuple((start + head * width, start + head * width + rotary_dim) for head in range(heads))


def _elements(rows: tuple[Span, ...], columns: int) -> tuple[Span, ...]:
    """Spans of rows as spans of elements."""
    return tuple((start * columns, stop * columns) for start, stop in rows)


FLOATS = {"F64": 0.0, "F32": 0.0, "F16": 2e-6, "BF16": 1e-4}
"""By dtype, the KL that rounding costs at usual attention factors, measured."""
SAME_FACTOR = 1e-9


@dataclass(frozen=True)
class Scaling:
    """Elements of a tensor to multiply."""

    tensor: str
    spans: tuple[Span, ...]
    """[start, stop) in the flat tensor."""

    factor: float
    plus_one: bool = False
    """The tensor stores w - 1, so that the result is factor (1 + w) - 1."""


@dataclass(frozen=True)
class Fold:
    """The factors that are multiplied into weights."""

    fold_into: FoldInto
    """Rows of queries, of keys, or both."""

    scalings: tuple[Scaling, ...]
    expected_kl: float
    """KL in nats that rounding costs, by the dtype of weights; 0 for F32 and for powers of two."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that change, sorted."""
        return tuple(sorted({scaling.tensor for scaling in self.scalings}))


def fold(
    schedule: Schedule,
    spec: RopeSpec,
    family: Family,
    config: Config,
    tensors: Mapping[str, Tensor],
    fold_into: FoldInto = "k",
    quantised: QuantisedWeights | None = None,
) -> Fold:
    """Return what to multiply so that weights have the attention factor and softmax scale.

    An attention factor A scales queries and keys by A, and so their products by A^2.

    Args:
        schedule: The factors.
        spec: The RoPE of the checkpoint.
        family: The family of the checkpoint.
        config: Its whole config.json.
        tensors: Its tensors by name.
        fold_into: "q" multiplies queries by A^2, "k" keys by A^2, "qk" both by A.
        quantised: Its quantised weights, whose scales are multiplied in their place.

    Raises:
        UnsupportedBake: For families and dtypes that cannot hold the factors.
        BadSource: Where a tensor is missing.
    """
    part = text_part(config, family)
    _refuse_unscalable(family, part)

    # Quantised weights are looked up as if they were stored as floats. The scales that are stored
    # beside them are multiplied in their place, at the end.
    as_floats = tensors
    if quantised is not None:
        as_floats = _as_floats(tensors, quantised)

    # only "global" layers are extended by a method; the others keep their RoPE or have none
    scalings: list[Scaling] = []
    maker_of_keys = key_layers(part, family, len(spec.layers))
    for layer, kind in enumerate(spec.layers):
        if kind != "global":
            continue

        # a layer that uses the keys of an earlier one has no keys to multiply
        makes_own_keys = maker_of_keys[layer] == layer
        sides: list[Which] = []
        if "q" in fold_into:
            sides.append("q")
        if "k" in fold_into and makes_own_keys:
            sides.append("k")
        of_layer = _Layer(
            prefix=_prefix(layer, family, as_floats),
            spec=spec,
            family=family,
            part=part,
            tensors=as_floats,
        )
        scalings += of_layer.scalings(schedule, sides, both_are_multiplied=fold_into == "qk")
    if not scalings and abs(schedule.attention_factor - 1) > SAME_FACTOR:
        raise _refusal(family.display_name, "no layer is extended")
    if quantised is not None:
        scalings = list(_into_scales(scalings, quantised))
    return Fold(fold_into, tuple(scalings), _expected_kl(scalings, tensors))


def _refuse_unscalable(family: Family, part: Config) -> None:
    """Raise UnsupportedBake for a model whose queries and keys no factor in the weights scales.

    Args:
        family: The family of the checkpoint.
        part: The text part of its config.
    """
    if not (family.weights.q or family.weights.fused):
        raise _refusal(family.display_name, "its projections are not known")
    if family.weights.fixed:  # the reason, as that a norm behind the rotation cancels factors
        raise _refusal(family.display_name, family.weights.fixed)
    if part.get(CLIP) is not None:
        raise _refusal(family.display_name, f"{CLIP} limits the outputs of its projections")


def _as_floats(tensors: Mapping[str, Tensor], quantised: QuantisedWeights) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose quantised weights have their names and shapes as floats."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.dtype in FLOATS}
    for name, weight in quantised.by_name.items():
        floats[name] = Tensor(name, "F32", weight.shape, 0, 4 * prod(weight.shape))
    return floats


def _into_scales(scalings: Iterable[Scaling], quantised: QuantisedWeights) -> Iterator[Scaling]:
    """Yield the scalings of a checkpoint, with the scales of weights in place of quantised weights.

    A quantised weight is a small number times a scale. So where rows of a matrix should be
    multiplied, their scales are multiplied instead: "elements 0 to 8192 of q_proj.weight", which
    are its rows 0 and 1, become "elements 0 to 2 of q_proj.weight_scale". Scalings of weights that
    are floats do not change.

    Args:
        scalings: The tensors to multiply, as if all weights were floats.
        quantised: The weights that are quantised.

    Raises:
        UnsupportedBake: For rows that have no scales of their own.
    """
    for scaling in scalings:
        weight = quantised.by_name.get(scaling.tensor)
        if weight is None:  # floats
            yield scaling
            continue

        # spans are ranges of elements, which are always whole rows
        columns = weight.shape[-1]
        for start, stop in scaling.spans:
            first_row = start // columns
            end_row = stop // columns  # the row after the last
            scales = weight.scales_of_rows(quantised.stored, first_row, end_row)
            if scales is None:
                raise _refusal(
                    f"{scaling.tensor}, which is quantised",
                    "the rows that rotate have no scales of their own",
                    "use --encoding native, or `ropeconv apply BASE` with the checkpoint that it"
                    " was made from",
                )
            yield Scaling(scales.tensor, scales.spans, scaling.factor)


def _expected_kl(scalings: list[Scaling], tensors: Mapping[str, Tensor]) -> float:
    """How far rounding the multiplied weights may move the predictions, as a KL divergence in nats.

    It is 0 where no weight is rounded, else the value that was measured for the dtype (FLOATS), as
    1e-4 for BF16.

    Args:
        scalings: The elements that are multiplied, each with its factor.
        tensors: The tensors of the checkpoint by name.

    Raises:
        UnsupportedBake: For dtypes that cannot be scaled.
    """
    dtypes = {tensors[scaling.tensor].dtype for scaling in scalings}
    unsupported = dtypes - FLOATS.keys()
    if unsupported:
        names = [each.tensor for each in scalings if tensors[each.tensor].dtype in unsupported]
        first_name = names[0]
        first_dtype = min(unsupported)
        repair = (
            "use --encoding native, or `ropeconv apply BASE` with the checkpoint that it was made"
            " from"
        )
        raise _refusal(
            f"{first_name} in {first_dtype}",
            "only floats of 16 bits and more can be scaled",
            repair,
        )

    # A power of two only changes exponents, so nothing is rounded. A norm that stores its weight
    # minus 1 (`plus_one`, as in Gemma) is rounded when the 1 is added.
    is_rounded = False
    for scaling in scalings:
        if scaling.plus_one or not _is_power_of_two(scaling.factor):
            is_rounded = True
    if not is_rounded:
        return 0.0
    return max(FLOATS[dtype] for dtype in dtypes)


def _is_power_of_two(factor: float) -> bool:
    mantissa, _ = frexp(factor)
    return abs(mantissa - 0.5) <= SAME_FACTOR


def _refusal(target: str, reason: str, repair: str = "use --encoding native") -> UnsupportedBake:
    return UnsupportedBake("an attention factor in the weights", target, reason, repair)


def times_queries(
    gain: float, spec: RopeSpec, family: Family, tensors: Mapping[str, Tensor]
) -> tuple[Scaling, ...]:
    """Return the scalings that multiply all queries of a model by a power of two.

    A power of two changes only the exponents of the weights, so no bit is lost.

    Args:
        gain: The power of two, such as 2^-13.
        spec: The RoPE of the checkpoint.
        family: The family of the checkpoint.
        tensors: The tensors of the checkpoint by name.

    Raises:
        UnsupportedBake: For dtypes other than F32 and BF16, whose exponents have too small a range.
    """
    scalings = []
    layer_count = len(spec.layers)
    for number in range(layer_count):
        layer = _Layer(
            prefix=_prefix(number, family, tensors),
            spec=spec,
            family=family,
            part={},  # the name of the projection, all that is needed here, depends on no setting
            tensors=tensors,
        )
        name = layer.queries  # such as model.layers.0.self_attn.q_proj.weight
        projection = tensors[name]

        # float16 has no numbers below 6e-8, so small weights times a gain of 2^-13 would lose bits
        if projection.dtype not in ("F32", "BF16"):
            raise UnsupportedBake(
                f"a factor of {gain:g} in the queries",
                f"{name} in {projection.dtype}",
                "bits would be lost",
                "save the checkpoint as bfloat16 first, or use --encoding buffers",
            )
        all_elements = (0, prod(projection.shape))
        scalings.append(Scaling(name, spans=(all_elements,), factor=gain))
    return tuple(scalings)


def _prefix(layer: int, family: Family, tensors: Mapping[str, Tensor]) -> str:
    """The prefix of a layer's tensors. Raises BadSource or UnsupportedBake where it has none."""
    prefix = layer_prefix(layer, family, tensors)
    if prefix is not None:
        return prefix

    # no tensor has the expected name: GPTQ and AWQ have qweight and qzeros in place of weight
    projection = family.weights.k or family.weights.fused
    for name, tensor in tensors.items():
        if f"{projection}.q" in name or f"{projection}.weight_" in name:
            raise _refusal(f"{name} in {tensor.dtype}", "it is quantised to integers")
    expected = f"{layer_prefixes(layer, family)[0]}{projection}.weight"
    raise BadSource(f"the checkpoint has no {expected}; download it again")


@dataclass(frozen=True)
class _Layer:
    """A layer of a checkpoint, whose tensors begin with `prefix`."""

    prefix: str
    spec: RopeSpec
    family: Family
    part: Config
    """The text part of its config."""

    tensors: Mapping[str, Tensor]

    @property
    def queries(self) -> str:
        """The name of the projection of queries.

        q_b_proj, or q_proj for DeepSeek models without low-rank queries.
        """
        name = f"{self.prefix}{self.family.weights.q}.weight"
        if name in self.tensors:
            return name
        return name.replace("q_b_proj", "q_proj")

    @property
    def gate_rows(self) -> int:
        """The rows of an output gate behind the queries of each head.

        Raises:
            BadSource: Where it is not known.
        """
        key = self.family.weights.q_gate
        gate = positive_int(self.part, (key,)) if key else 0
        if gate is None:
            raise BadSource(f"config.json has no {key}; add it")
        return gate

    def scalings(
        self, schedule: Schedule, sides: Iterable[Which], both_are_multiplied: bool
    ) -> Iterator[Scaling]:
        """Yield the weights to multiply in this layer, each with its factor.

        An attention factor A makes a logit, the product of a query and a key, A^2 times as large.
        Either queries and keys are both multiplied by A, or one of the two by A^2.

        Args:
            schedule: The attention factor and the softmax scale.
            sides: Queries ("q"), keys ("k"), or both, to be multiplied in this layer. A layer that
                uses the keys of an earlier layer has only queries.
            both_are_multiplied: Whether the model's queries and keys are both multiplied.
        """
        attention_factor = schedule.attention_factor
        squared = attention_factor**2
        factor = attention_factor if both_are_multiplied else squared
        if abs(factor - 1) > SAME_FACTOR:
            for side in sides:
                yield from self._scale_side(side, factor)

        # DeepSeek V3.2: an indexer selects the keys that attention sees, by products of its own
        # queries and keys. Only its keys have a norm, so this norm is always multiplied by A^2. The
        # family's file marks such a norm with "product".
        if abs(squared - 1) > SAME_FACTOR:
            yield from self._scale_further_norms("product", squared)

        # The softmax scale multiplies whole logits, so it goes into all rows of the queries, also
        # into rows that do not rotate. The projection may have further rows, for an output gate,
        # which are not multiplied.
        if abs(schedule.softmax_scale - 1) > SAME_FACTOR:
            _, *columns = self.tensors[self.queries].shape
            elements_of_queries = _elements(self._query_rows(), prod(columns))
            yield Scaling(self.queries, elements_of_queries, schedule.softmax_scale)

    def _query_rows(self) -> tuple[Span, ...]:
        """The rows of the projection of queries, without an output gate behind each head."""
        rows = self.tensors[self.queries].shape[0]
        if not self.gate_rows:
            return ((0, rows),)
        head_rows = rows // head_count(self.part, self.family)
        starts = range(0, rows, head_rows)
        return tuple((start, start + head_rows - self.gate_rows) for start in starts)

    def _scale_side(self, which: Which, factor: float) -> Iterator[Scaling]:
        """Yield the weights by which queries or keys are multiplied: their norm, or projection.

        Args:
            which: "q" for queries, "k" for keys.
            factor: The factor of the queries or keys.
        """
        # without a norm, the rows of the projection are multiplied; a norm would cancel that
        weights = self.family.weights
        norm = weights.q_norm if which == "q" else weights.k_norm
        names_of_norm = self._norm_tensors(f"{self.prefix}{norm}")
        if not names_of_norm:
            yield from self._scale_projection(which, factor)
            return

        # The norm is a vector for one head, [head_dim], which all heads share, or for all heads,
        # [heads * head_dim]. Gemma stores a weight w as w - 1.
        spec = self.spec
        stores_minus_1 = weights.norm == "rms-plus-one"
        for name in names_of_norm:
            heads_in_norm = prod(self.tensors[name].shape) // spec.head_dim
            rotating = per_head(heads_in_norm, spec.head_dim, spec.rotary_dim)
            yield Scaling(tensor=name, spans=rotating, factor=factor, plus_one=stores_minus_1)

        # some layers have a second set of queries and keys with norms, which rotate with the first
        yield from self._scale_further_norms(which, factor)

    def _scale_projection(self, which: Which, factor: float) -> Iterator[Scaling]:
        """Yield the rows to multiply in the weight matrix and the bias of queries or of keys.

        These are the rows whose outputs rotate. In a matrix with 4096 columns, the rows 0 to 64 are
        the elements 0 to 262144 of the flat tensor; a bias has one element for each row.

        Args:
            which: "q" for queries, "k" for keys.
            factor: The factor by which they are multiplied.
        """
        tensors = self.tensors
        weights = self.family.weights
        if weights.fused:  # one tensor has the rows of queries, keys and values
            name = f"{self.prefix}{weights.fused}.weight"
            rotating_rows = self._rotating_rows_of_fused(which, tensors[name].shape[0])
        else:
            name_of_keys = f"{self.prefix}{weights.k}.weight"
            name = self.queries if which == "q" else name_of_keys
            if name not in tensors:
                raise BadSource(f"the checkpoint has no {name}; download it again")
            row_count = prod(tensors[name].shape[:-1])
            rotating_rows = self._rotating_rows(which, row_count)

        columns = tensors[name].shape[-1]
        yield Scaling(name, _elements(rotating_rows, columns), factor)
        bias = f"{name.removesuffix('.weight')}.bias"
        if bias in tensors:
            elements_of_bias = rotating_rows
            yield Scaling(bias, elements_of_bias, factor)

    def _rotating_rows_of_fused(self, which: Which, rows: int) -> tuple[Span, ...]:
        """The rows of a fused projection that rotate, of queries or of keys."""
        spec = self.spec
        heads = head_count(self.part, self.family)
        starts = fused_heads(which, rows, heads, spec.head_dim, self.family)
        if self.family.weights.fused_order.endswith("blocks"):
            return per_head(len(starts), spec.head_dim, spec.rotary_dim, starts[0])
        return tuple((start, start + spec.rotary_dim) for start in starts)

    def _rotating_rows(self, which: Which, rows: int) -> tuple[Span, ...]:
        """Return the rows of a matrix of queries or keys that rotate, as spans [start, stop).

        Where the first 64 of 128 rows of each head rotate, the spans are (0, 64), (128, 192), ...

        Args:
            which: "q" for queries, "k" for keys.
            rows: The number of rows of the whole weight matrix.
        """
        spec = self.spec
        weights = self.family.weights

        # a matrix with both keys and values: its first half is the keys
        if which == "k" and weights.keys_and_values:
            rows //= 2

        # most models: the first rows of each head rotate
        if weights.rows == "first":
            heads = rows // spec.head_dim
            return per_head(heads, spec.head_dim, spec.rotary_dim)

        # latent attention (MLA), keys: the last rows of the matrix rotate, and all heads share them
        if which == "k":
            return ((rows - spec.rotary_dim, rows),)

        # MLA, queries: the last rows of each head rotate. Rows of an output gate may follow them.
        heads = head_count(self.part, self.family)
        rows_of_head = rows // heads
        spans = []
        for head in range(heads):
            end_of_head = (head + 1) * rows_of_head
            end_of_query = end_of_head - self.gate_rows
            spans.append((end_of_query - spec.rotary_dim, end_of_query))
        return tuple(spans)

    def _scale_further_norms(
        self, side: Literal["q", "k", "product"], factor: float
    ) -> Iterator[Scaling]:
        """Yield the weights to multiply in norms of a layer's second set of queries and keys.

        DeepSeek V3.2 has such a set in its indexer, which selects the keys that attention sees. In
        the weight and the bias of a norm, [head_dim], the dimensions that rotate are multiplied.

        Args:
            side: Which norms: norms of queries ("q") or of keys ("k") where both have a norm, or
                the only norm where just one of the two has a norm ("product"), as in an indexer.
            factor: The factor of these norms. For "product" the norm gets the whole factor of the
                product of queries and keys.
        """
        rotary_dim = self.spec.rotary_dim
        for norm in self.family.weights.further_norms:
            if norm.side != side:
                continue
            stores_minus_1 = norm.kind == "rms-plus-one"
            for name in (f"{self.prefix}{norm.name}.weight", f"{self.prefix}{norm.name}.bias"):
                if name not in self.tensors:
                    continue
                # the first dimensions of a head rotate, or in some models the last
                start = 0
                if norm.rows == "last":
                    head_dim = prod(self.tensors[name].shape)
                    start = head_dim - rotary_dim
                rotating = (start, start + rotary_dim)
                yield Scaling(
                    tensor=name, spans=(rotating,), factor=factor, plus_one=stores_minus_1
                )

    def _norm_tensors(self, norm: str) -> list[str]:
        """The tensors of a norm that is before the rotation; empty without one."""
        kind = self.family.weights.norm
        if not kind or kind.endswith("after-rope"):
            return []
        if kind == "layer-norm-list":
            return sorted(name for name in self.tensors if name.startswith(f"{norm}.norms."))
        names = [f"{norm}.weight"]
        if kind == "layer-norm":
            names.append(f"{norm}.bias")
        return [name for name in names if name in self.tensors]


PIECE = 1 << 17
"""Elements at a time: what is read, scaled and written stays in the cache."""


def scale_ranges(path: Path, scalings: Iterable[Scaling]) -> None:
    """Scale elements of tensors in a safetensors file, in place and in pieces.

    Scalings of the same element are applied in their order, each rounded.

    Args:
        path: The file.
        scalings: The elements to multiply, and their factors.
    """
    header = read_header(path)
    file = os.open(path, os.O_RDWR)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            # one scaling after another: two may change the same elements
            for scaling in scalings:
                pieces = []
                for first, last in scaling.spans:
                    for start in range(first, last, PIECE):
                        pieces.append((start, min(start + PIECE, last)))
                scale_piece = partial(_scale_piece, file, header, scaling)
                list(pool.map(scale_piece, pieces))  # waits, and raises what a piece raised
    finally:
        os.close(file)


def _scale_piece(file: int, header: Header, scaling: Scaling, piece: Span) -> None:
    """Scale the elements [start, stop) of a tensor in an open safetensors file, in place."""
    start, stop = piece
    tensor = header.tensors[scaling.tensor]
    dtype = np.dtype(STORED[tensor.dtype])
    size = (stop - start) * dtype.itemsize
    place = header.data_start + tensor.start + start * dtype.itemsize
    old = np.frombuffer(os.pread(file, size, place), dtype)
    new = scale_numbers(old, tensor.dtype, scaling.factor, plus_one=scaling.plus_one)
    write_at(file, np.ascontiguousarray(new).data, place)


def scale_numbers(
    old: NDArray[np.generic], dtype: str, factor: float, plus_one: bool = False
) -> NDArray[np.generic]:
    """Return stored numbers times a factor, in the form in which they were stored.

    They are multiplied in float32 (F64 in float64), and rounded to the nearest number of their
    dtype, ties to even.

    Args:
        old: The numbers as numpy reads them, BF16 as uint16.
        dtype: "F64", "F32", "F16" or "BF16".
        factor: The factor.
        plus_one: Whether they are the weights of a norm that multiplies by 1 + w, as in Gemma. The
            result is then factor (1 + w) - 1, so that the norm multiplies by factor (1 + w).
    """
    values: NDArray[Any] = old.astype(np.float64) if dtype == "F64" else widen(old, dtype)
    if plus_one:
        values += 1
    values *= factor
    if plus_one:
        values -= 1
    if dtype == "BF16":
        return _bfloat16(values)
    return values.astype(STORED[dtype], copy=False)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """32-bit floats rounded to bfloat16, as uint16 in the same shape; the input is overwritten."""
    is_nan = np.isnan(values)
    bits = values.view(np.uint32)

    # bfloat16 is the upper 16 bits of a float32. The lower 16 are cut off after half of the last
    # upper bit was added, which rounds to the nearest. Exactly half, 0x8000, would round a tie up;
    # 0x7FFF, which is a little less, rounds it down. The former is added where the last upper bit
    # is 1, and the latter where it is 0, so that this bit becomes 0 (even) in both cases.
    last_upper_bit = (bits >> 16) & 1
    bits += last_upper_bit + 0x7FFF
    bits >>= 16
    rounded = bits.astype("<u2")

    # the sum may have turned a NaN into a number
    if is_nan.any():
        rounded[is_nan] = 0x7FC0  # NaN in bfloat16
    return rounded


Write = Callable[[Path, Advance], None]
"""Writes a file to a path."""


def shard_writers(source: Source, fold: Fold) -> dict[str, Write]:
    """Return a function that writes each shard of a checkpoint that a fold changes, by name."""
    writers: dict[str, Write] = {}
    for shard, header in source.headers.items():
        scalings = [scaling for scaling in fold.scalings if scaling.tensor in header.tensors]
        if scalings:
            writers[shard] = partial(_write_shard, source, shard, scalings)
    return writers


def _write_shard(
    source: Source, shard: str, scalings: list[Scaling], target: Path, advance: Advance
) -> None:
    """Copy a shard of a checkpoint and scale elements of the copy."""
    source.copy(shard, target, advance)
    scale_ranges(target, scalings)
