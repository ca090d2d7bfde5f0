"""Which tensors of a checkpoint make the queries and keys of the layers that a context extension changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ..errors import BadSource, counted
from ..families import Family
from ..families.config import Config, text_part
from ..families.layers import key_layers
from ..families.rows import Which, fused_heads, head_count, layer_prefix, layer_prefixes
from ..formats.safetensors import Tensor
from ..rope.spec import RopeSpec

FLOATS = ("F64", "F32", "F16", "BF16")
UNQUANTISED = "give the checkpoint before its quantisation"


@dataclass(frozen=True)
class Projection:
    """The rows that make the queries or the keys of a layer.

    tensor: of the projection, [rows, columns]. bias: [rows], None without one. heads: the first row of each head.
    norms: the weights of the norm behind it, empty without one; one for all heads, or one per head.
    """

    tensor: Tensor
    bias: Tensor | None
    heads: tuple[int, ...]
    norms: tuple[Tensor, ...]


@dataclass(frozen=True)
class AttentionLayer:
    """The projections of a layer.

    input_norm, input_bias: weights and biases of the norm before them; None where they are 1 and 0.
    """

    layer: int
    queries: Projection
    keys: Projection
    input_norm: Tensor | None
    input_bias: Tensor | None


def attention_layers(
    spec: RopeSpec, family: Family, config: Config, tensors: Mapping[str, Tensor]
) -> tuple[AttentionLayer, ...]:
    """The projections of every layer that rotates with the frequencies of `spec` and makes its own keys.

    spec: the RoPE of the checkpoint. family: of its model. config: its whole config.json. tensors: of all its files, by
    name. Raises BadSource for families whose variances do not follow from these tensors, for quantised weights, and
    where a tensor is missing.
    """
    weights = family.weights
    if not (weights.q or weights.fused):
        raise BadSource(
            f"where {family.display_name} has its projections is not known, so that nothing can be measured"
        )
    if spec.mla:
        raise BadSource(
            f"{family.display_name} has multi-head latent attention, whose queries and keys are products of several "
            "projections; leave --weights out"
        )
    if family.encoder:
        raise BadSource(
            f"{family.display_name} reads in both directions, and the bound is one for models that read from left to "
            "right; leave --weights out"
        )
    if weights.norm == "rms-after-rope":
        raise BadSource(
            f"{family.display_name} multiplies queries and keys by weights after the rotation, so that its sum depends "
            "on positions and not on distances alone; leave --weights out"
        )
    if weights.unmeasured:
        raise BadSource(f"of {family.display_name} nothing can be measured: {weights.unmeasured}; leave --weights out")
    part = text_part(config, family)
    heads, makers = head_count(part, family), key_layers(part, family, len(spec.layers))
    layers = (index for index, kind in enumerate(spec.layers) if kind == "global" and makers[index] == index)
    norms = weights.input_norm if weights.input and not part.get(weights.input_after) else ()
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
            f"{queries.tensor.name} has {counted(len(queries.heads), 'head')}, no multiple of the {len(keys.heads)} of "
            f"{keys.tensor.name}; correct the numbers of heads in config.json"
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
        raise BadSource(f"{name} has the shape {list(tensor.shape)}, which is no matrix; {UNQUANTISED}")
    rows = tensor.shape[0]
    if weights.fused:
        starts = fused_heads(which, rows, heads, head_dim, family)
    else:
        # heads of gated queries are wider: the gate's rows follow those of the query
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
    names = [f"{norm}.norms.{head}.weight" for head in range(heads)]
    if kind != "layer-norm-list":
        names = [f"{norm}.weight"]
    found = tuple(_checked(tensors[name]) for name in names if name in tensors)
    sizes = {prod(tensor.shape) for tensor in found}
    if sizes - {head_dim, heads * head_dim} or (kind == "layer-norm-list" and len(found) not in (0, heads)):
        raise BadSource(
            f"{norm} does not fit {counted(heads, 'head')} of {head_dim} dimensions; download the checkpoint again"
        )
    return found


def _checked(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    if tensor.dtype not in FLOATS:
        raise BadSource(f"{tensor.name} is stored in {tensor.dtype}, and only floats can be measured; {UNQUANTISED}")
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
