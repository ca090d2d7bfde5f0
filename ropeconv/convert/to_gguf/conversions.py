"""The conversions of tensors of a checkpoint, by the names that `convert` in the family files uses.

Every conversion gets a tensor, the names of its results, and the sizes of the model. It moves rows
and reads no numbers, so that memory use does not depend on the tensor.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from operator import add, floordiv, mul, sub
from typing import Any

import numpy as np

from ...errors import BadSource
from ...formats.gguf.header import FLOAT32, GgufValue, array
from ...formats.safetensors import STORED, Header, Tensor, widen
from ...models.family import Convert, Gguf
from ...models.schema import Config
from ...rope.errors import counted, shown
from .rows import VALUES, Rows, ShardWeights, StoredRows

OPERATORS = ((" + ", add), (" * ", mul))
INVERSE = {" + ": sub, " * ": floordiv}
LARGEST = 3e38
"""The largest number of 32 bits that is written."""
NAMES = re.compile(r"[A-Za-z_]\w*")


def names_in(text: str) -> list[str]:
    """Return the config keys that an expression reads."""
    return NAMES.findall(text)


def value_of(config: Config, text: str) -> Any:
    """Return the value of an expression over the text part of a config.

    None where a key of it is absent or null.

    Raises:
        BadSource: For a value in a sum or product that is not a number.
    """
    # a sum is split before its products, such as in "a * b + c"; "a | b" is whichever key is there
    for sign, operator in OPERATORS:
        if sign in text:
            values = [value_of(config, part) for part in text.split(sign)]
            if any(value is None for value in values):
                return None
            return reduce(operator, (number(value, text) for value in values))

    if text.isdigit():
        return int(text)
    for name in text.split(" | "):
        if config.get(name) is not None:
            return config[name]
    return None


def count(config: Config, text: str) -> int:
    """Return the value of an expression as a whole number of 32 bits.

    Raises:
        BadSource: Where it is not one.
    """
    value = value_of(config, text)
    if value is None:
        raise BadSource(f"config.json has no {text}, which GGUF needs; add it")
    return whole(value, text)


def whole(value: object, name: str) -> int:
    """Return a value as a whole number of 32 bits. Raises BadSource with the `name` of its key."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise BadSource(
            f"config.json has {name} = {shown(value)}; write a whole number there, from 0 to"
            f" {(1 << 32) - 1:,}"
        )
    return value


def number(value: Any, name: str) -> Any:
    """Return a value as a number of 32 bits. Raises BadSource with the `name` of its key."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise BadSource(
            f"config.json has {name} = {shown(value)}; write a number there, below {LARGEST:g}"
        )
    return value


def solve(values: Mapping[str, object]) -> Config:
    """Return the config keys with which expressions have these values, the inverse of `value_of`.

    Both keys of `a | b` get the value. A key that several expressions do not determine is left out.

    Raises:
        BadSource: Where no values of the keys make all expressions true.
    """
    # plain keys have their values
    config: Config = {}
    for text, value in values.items():
        if not _sign(text):
            config |= dict.fromkeys(names_in(text), value)

    # an expression with one unknown key gives that key, which may make others solvable; one without
    # is checked
    left = {text for text in values if _sign(text)}
    while True:
        ready = {text for text in left if len(_unknown(text, config)) <= 1}
        if not ready:
            return config
        for text in sorted(ready):
            sign = _sign(text)
            unknown = _unknown(text, config)
            known = [value_of(config, part) for part in text.split(sign) if part not in unknown]
            solution = reduce(INVERSE[sign], known, values[text])
            config |= dict.fromkeys(unknown, solution)
            if value_of(config, text) != values[text]:
                raise BadSource(
                    f"the header has {shown(values[text])} for {text}, and other keys deny it;"
                    " fetch it again"
                )
        left -= ready


def _sign(text: str) -> str:
    """The operator of an expression; empty for a key or a number."""
    return next((sign for sign, _ in OPERATORS if sign in text), "")


def _unknown(text: str, known: Config) -> set[str]:
    """The keys of an expression that are not known."""
    return {name for name in names_in(text) if name not in known}


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model."""

    config: Config
    """Its text part, with the defaults of its class."""

    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    """Without the `prediction` layers that predict further tokens."""

    prediction: int = 0


Conversion = Callable[[StoredRows, list[str], ModelSizes], list[StoredRows]]
"""Makes tensors with the names in its second argument from one tensor."""


def convert(
    tensors: Iterable[StoredRows], rules: Iterable[Convert], sizes: ModelSizes
) -> list[StoredRows]:
    """Return the tensors of a checkpoint after all rules, in order.

    Raises:
        BadSource: Where shapes do not fit.
    """
    converted = list(tensors)
    for rule in rules:
        pattern = re.compile(rule.match)
        results = list[StoredRows]()
        for tensor in converted:
            results += _apply(tensor, rule, pattern, sizes)
        converted = results
    return converted


def _apply(
    tensor: StoredRows, rule: Convert, pattern: re.Pattern[str], sizes: ModelSizes
) -> list[StoredRows]:
    """The tensors that a rule makes of one: the tensor itself where its name does not match."""
    if not pattern.search(tensor.name):
        return [tensor]
    names = [pattern.sub(name, tensor.name) for name in rule.names] or [tensor.name]
    if rule.times:
        tensor = times(tensor, [_factor(sizes, key) for key in rule.times])
    if rule.how in VALUES:
        return [replace(tensor, name=names[0], values=rule.how)]
    return CONVERSIONS[rule.how](tensor, names, sizes)


def times(tensor: StoredRows, factors: Iterable[float]) -> StoredRows:
    """Return a tensor whose numbers are multiplied by factors."""
    changing = tuple(factor for factor in factors if factor != 1)
    parts = [replace(part, factors=(*part.factors, *changing)) for part in tensor.parts]
    return replace(tensor, parts=tuple(parts))


def _factor(sizes: ModelSizes, key: str) -> float:
    """The factor under a config key, KEY.N for the N-th of a list; 1 where it is absent."""
    # such as ssm_multipliers.2 of Falcon H1
    name, _, index = key.partition(".")
    value = sizes.config.get(name)
    if index and value is not None:
        if not isinstance(value, list) or len(value) <= int(index):
            raise BadSource(
                f"config.json has {name} = {shown(value)}; write a list of {int(index) + 1} numbers"
                " or more"
            )
        value = value[int(index)]
    if value is None:
        return 1.0
    return float(number(value, name))


def rename(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """The same tensor under another name."""
    return [replace(tensor, name=names[0])]


def interleave(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Rows of a head reordered from pairs (i, i + d/2) to (2i, 2i + 1)."""
    parts = tuple(tensor.matrices) if len(tensor.shape) < 2 else tensor.parts
    return [replace(tensor, parts=parts, interleave=sizes.head_dim)]


def to_vocabulary(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Rows of zeros behind the others, up to the size of the vocabulary."""
    (matrix,) = tensor.matrices
    rows = count(sizes.config, "vocab_size")
    parts = [matrix]
    if rows > matrix.rows:
        parts.append(replace(matrix, rows=rows - matrix.rows, zeros=True))
    shape = (max(rows, matrix.rows), *tensor.shape[1:])
    return [replace(tensor, shape=shape, parts=tuple(parts))]


def squeeze(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Without dimensions of one, as in the weights of a convolution over channels."""
    shape = tuple(size for size in tensor.shape if size != 1) or (1,)
    width = shape[-1]
    parts = []
    for flat in _flat(tensor):
        parts.append(replace(flat, rows=flat.rows // width, columns=width, stride=width))
    return [replace(tensor, name=names[0], shape=shape, parts=tuple(parts))]


def transpose(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Every matrix of a stack transposed."""
    parts = tuple(part.transpose() for part in tensor.matrices)
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    return [replace(tensor, name=names[0], shape=shape, parts=parts)]


def split(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Equal blocks of rows, one for each name; of a stack, the blocks of each matrix."""
    return _shares(tensor, names, lambda part, index, rows: part.part(index * rows, rows))


def alternate(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Rows in turns, one for each name: with two names, the even and the odd rows."""
    return _shares(tensor, names, lambda part, index, rows: part.part(index, rows, len(names)))


def alternate_columns(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Elements of each row in turns, one for each name, as the biases of experts are stored."""
    flat = replace(tensor, shape=(*tensor.shape, 1), parts=tuple(_flat(tensor)))
    return [replace(result, shape=result.shape[:-1]) for result in alternate(flat, names, sizes)]


def by_projection(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """All queries, then keys, then values, of a projection that has them by key head."""
    # with 2 queries per key head: q q k v q q k v -> q q q q k k v v
    width = sizes.head_dim
    queries = sizes.heads // sizes.kv_heads  # of each head of keys
    group = (queries + 2) * width
    (matrix,) = tensor.matrices
    _fits(tensor, sizes.kv_heads * group)

    starts = [head * group for head in range(sizes.kv_heads)]
    parts = [matrix.part(start, queries * width) for start in starts]
    parts += [matrix.part(start + queries * width, width) for start in starts]
    parts += [matrix.part(start + (queries + 1) * width, width) for start in starts]
    return [replace(tensor, name=names[0], parts=tuple(parts))]


def latent(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """The keys, transposed, and the values of each head of multi-head latent attention.

    They are together in its second projection.
    """
    # kv_b_proj [heads * (key_width + value_width), rank]; llama.cpp multiplies queries by the keys'
    # part in place of making keys, and so needs it transposed
    key_width = count(sizes.config, "qk_nope_head_dim")
    value_width = count(sizes.config, "v_head_dim")
    _fits(tensor, sizes.heads * (key_width + value_width))
    (matrix,) = tensor.matrices
    rank = tensor.shape[-1]

    starts = [head * (key_width + value_width) for head in range(sizes.heads)]
    keys = tuple(matrix.part(start, key_width).transpose() for start in starts)
    values = tuple(matrix.part(start + key_width, value_width) for start in starts)
    return [
        replace(tensor, name=names[0], shape=(sizes.heads, rank, key_width), parts=keys),
        replace(tensor, name=names[1], shape=(sizes.heads, value_width, rank), parts=values),
    ]


def by_key_head(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Queries, keys and values of linear attention, and its gates, which are stored by key head."""
    # a key head has `each` value heads: q k v.. z.. q k v.. z.. -> q q k k v.. v.., and z.. z..
    heads, each, key, value = _linear(sizes)
    widths = (key, key, each * value, each * value)  # of queries, keys, values and gates
    group = sum(widths)
    (matrix,) = tensor.matrices
    _fits(tensor, heads * group)

    parts: list[list[Rows]] = []
    start = 0
    for width in widths:
        parts.append([matrix.part(head * group + start, width) for head in range(heads)])
        start += width
    queries, keys, values, gates = parts
    columns = tensor.shape[-1]
    rows = heads * (2 * key + each * value)
    return [
        replace(tensor, name=names[0], shape=(rows, columns), parts=(*queries, *keys, *values)),
        replace(tensor, name=names[1], shape=(heads * each * value, columns), parts=tuple(gates)),
    ]


def state_space_input(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Falcon H1: gate, input, state projections and time steps, each times its multiplier."""
    inner = count(sizes.config, "mamba_d_ssm")
    states = count(sizes.config, "mamba_n_groups * mamba_d_state")
    blocks = (inner, inner, states, states, count(sizes.config, "mamba_n_heads"))
    (matrix,) = tensor.matrices
    _fits(tensor, sum(blocks))

    # llama.cpp has no keys for the multipliers, so they go into the rows
    parts: list[Rows] = []
    start = 0
    for index, rows in enumerate(blocks):
        block = replace(tensor, parts=(matrix.part(start, rows),))
        parts += times(block, [_factor(sizes, f"ssm_multipliers.{index}")]).parts
        start += rows
    return [replace(tensor, name=names[0], parts=tuple(parts))]


def column(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """A vector as a matrix with one column."""
    return [replace(tensor, name=names[0], shape=(*tensor.shape, 1), parts=tuple(_flat(tensor)))]


def in_groups(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """A vector as a matrix with a row for each group of a state space."""
    groups = count(sizes.config, "mamba_n_groups")
    (size,) = tensor.shape
    if not groups or size % groups:
        raise BadSource(
            f"{tensor.name} has {size} numbers, which are not {groups} equal groups; correct"
            " mamba_n_groups"
        )
    return [replace(tensor, name=names[0], shape=(groups, size // groups))]


def tiled_values(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Value heads of linear attention from (key head, value head) to (value head, key head).

    Rows before them stay. https://github.com/ggml-org/llama.cpp/pull/19468
    """
    # Qwen 3.5 repeats key heads for their value heads, and llama.cpp tiles them: a b -> a a b b
    # there, a b a b here. So value heads are sorted by their place within a key head.
    heads, each, key, value = _linear(sizes)
    (matrix,) = tensor.matrices
    # a row is a number of each head (time steps), or a dimension of a head; queries and keys may be
    # in front (the convolution)
    width = value if matrix.rows >= heads * each * value else 1
    before = matrix.rows - heads * each * width
    _fits(tensor, heads * each * width + (2 * heads * key if before else 0))

    parts = []
    if before:
        parts.append(matrix.part(0, before))
    for place in range(each):
        for head in range(heads):
            value_head = head * each + place
            parts.append(matrix.part(before + value_head * width, width))
    return [replace(tensor, name=names[0], parts=tuple(parts))]


def tiled_columns(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """The columns of value heads of linear attention in the same order."""
    heads, each, _, _ = _linear(sizes)
    return [replace(tensor, name=names[0], tiles=(heads, each))]


CONVERSIONS: dict[str, Conversion] = {
    function.__name__: function
    for function in (
        rename,
        interleave,
        to_vocabulary,
        squeeze,
        transpose,
        split,
        alternate,
        alternate_columns,
        by_projection,
        latent,
        by_key_head,
        state_space_input,
        column,
        in_groups,
        tiled_values,
        tiled_columns,
    )
}


def _linear(sizes: ModelSizes) -> tuple[int, int, int, int]:
    """Sizes of linear attention: key heads, value heads for each of them, and both widths."""
    heads = count(sizes.config, "linear_num_key_heads")
    values = count(sizes.config, "linear_num_value_heads")
    key = count(sizes.config, "linear_key_head_dim")
    value = count(sizes.config, "linear_value_head_dim")
    return heads, values // heads, key, value


def _shares(
    tensor: StoredRows, names: list[str], cut: Callable[[Rows, int, int], Rows]
) -> list[StoredRows]:
    """One tensor per name, with an equal share of the rows of every matrix.

    `cut` selects a share by its index and number of rows.
    """
    # of a stack [experts, rows, columns], each matrix is cut, and the stacks of the parts remain
    matrices = tensor.matrices
    height = matrices[0].rows
    if height % len(names):
        raise BadSource(
            f"{tensor.name} has {counted(height, 'row')}, which are not {len(names)} equal parts;"
            " download it again"
        )

    rows = height // len(names)
    shape: tuple[int, ...] = (rows,)
    if len(tensor.shape) >= 2:
        shape = (*tensor.shape[:-2], rows, tensor.shape[-1])

    shares = []
    for index, name in enumerate(names):
        parts = tuple(cut(matrix, index, rows) for matrix in matrices)
        shares.append(replace(tensor, name=name, shape=shape, parts=parts))
    return shares


def _flat(tensor: StoredRows) -> list[Rows]:
    """Every number of a tensor as a row of its own."""
    return [part.flat() for part in tensor.parts]


def _fits(tensor: StoredRows, rows: int) -> None:
    """Raise BadSource for a tensor with another number of rows."""
    height = prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
    if height != rows:
        raise BadSource(
            f"{tensor.name} has {counted(height, 'row')}, and the heads of config.json make {rows};"
            " the config is of another checkpoint, download both again"
        )


LAYER = re.compile(r"^model\.layers\.(\d+)\.")
APART = re.compile(r"^(?:model\.)?mtp\.(?:layers\.(\d+)\.)?")
PARTS = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
"""The first parts of names in Qwen's `mtp`, and their names in the other families."""
# ERNIE 4.5 has mtp_block, mtp_emb_norm, mtp_hidden_norm and mtp_linear_proj
OTHERS = re.compile(r"^model\.mtp_")
NEXTN = ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head.head", "shared_head.norm")
"""Tensors that only a layer that predicts further tokens has.

gguf 0.19 does not know them for Qwen.
"""


def gguf_name(name: str) -> str | None:
    """Return the name in GGUF of a tensor that only a predicting layer has; None for others."""
    layer = LAYER.match(name)
    if layer is None:
        return None
    part = name[layer.end() :].removesuffix(".weight")
    if part not in NEXTN:
        return None
    return f"blk.{layer[1]}.nextn.{part.replace('.', '_')}.weight"


def as_layer(name: str, layers: int) -> str:
    """Return the name of a tensor; those in Qwen's `mtp` are named as layers behind the others."""
    # mtp.layers.0.self_attn.q_proj.weight -> model.layers.48.self_attn.q_proj.weight, and the parts
    # that only one such layer has: mtp.fc.weight -> model.layers.48.eh_proj.weight
    apart = APART.match(name)
    if apart is None:
        return name
    rest = name[apart.end() :]
    if apart[1] is None:
        first, dot, following = rest.partition(".")
        rest = PARTS.get(first, first) + dot + following
    return f"model.layers.{layers + int(apart[1] or 0)}.{rest}"


def predicts(name: str, layers: int) -> bool:
    """Return whether a tensor, named by `as_layer`, is of a layer that predicts further tokens."""
    layer = LAYER.match(name)
    return bool(OTHERS.match(name)) or (layer is not None and int(layer[1]) >= layers)


def count_layers(names: Iterable[str], layers: int) -> int:
    """Return the number of layers behind the first `layers`, by names that `as_layer` gives."""
    further = 0
    for name in names:
        match = LAYER.match(name)
        if match:
            further = max(further, int(match[1]) + 1 - layers)
    return further


LAYER_NUMBER = re.compile(r"\blayers\.(\d+)\.")


def scalars(
    headers: Iterable[tuple[ShardWeights, Header]], rules: Gguf, layers: int
) -> dict[str, GgufValue]:
    """Return the metadata keys that list a number of every layer.

    Raises:
        BadSource: Where a layer has none.
    """
    # a list needs a number of every layer, in order, and files may have them in any order
    values = {}
    for key, (ending, _) in rules.scalars.items():
        numbers: dict[int, float] = {}
        for file, header in headers:
            for name, tensor in header.tensors.items():
                layer = LAYER_NUMBER.search(name)
                if layer and name.endswith(ending) and tensor.dtype in STORED:
                    numbers[int(layer[1])] = _first_number(file, header, tensor)
        if sorted(numbers) != list(range(layers)):
            raise BadSource(
                f"{ending} is not there for every one of the {layers} layers; download the"
                " checkpoint again"
            )
        values[key] = array(FLOAT32, [numbers[layer] for layer in range(layers)])
    return values


def _first_number(file: ShardWeights, header: Header, tensor: Tensor) -> float:
    """The first number of a tensor."""
    start = header.data_start + tensor.start
    dtype = np.dtype(STORED[tensor.dtype])
    stored = np.frombuffer(file.read(start, start + dtype.itemsize), dtype)
    return float(widen(stored, tensor.dtype)[0])
