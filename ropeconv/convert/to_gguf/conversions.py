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
from ...formats.safetensors import STORED, Header, widen
from ...models.family import Convert, Gguf
from ...models.schema import Config
from ...rope.errors import counted, shown
from .rows import VALUES, Rows, ShardWeights, StoredRows

OPERATORS = ((" + ", add), (" * ", mul))
INVERSE = {" + ": sub, " * ": floordiv}
LARGEST = 3e38  # of f32
NAMES = re.compile(r"[A-Za-z_]\w*")


def names_in(text: str) -> list[str]:
    """Return the config keys that an expression reads."""
    return NAMES.findall(text)


def value_of(config: Config, text: str) -> Any:
    """Return the value of an expression over the text part of a config, None where a key of it is
    absent or null.

    Raises:
        BadSource: For a value in a sum or product that is not a number.
    """
    for sign, operator in OPERATORS:
        if sign in text:
            values = [value_of(config, part) for part in text.split(sign)]
            if any(value is None for value in values):
                return None
            return reduce(operator, (number(value, text) for value in values))
    if text.isdigit():
        return int(text)
    return next((config[name] for name in text.split(" | ") if config.get(name) is not None), None)


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
    """Return a value as a whole number of 32 bits.

    Args:
        name: of its key. Raises BadSource.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise BadSource(
            f"config.json has {name} = {shown(value)}; write a whole number there, from 0 to"
            f" {(1 << 32) - 1:,}"
        )
    return value


def number(value: Any, name: str) -> Any:
    """Return a value as a number of 32 bits.

    Args:
        name: of its key. Raises BadSource.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise BadSource(
            f"config.json has {name} = {shown(value)}; write a number there, below {LARGEST:g}"
        )
    return value


def solved(values: Mapping[str, object]) -> Config:
    """Return the config keys with which expressions have these values, the inverse of `value_of`.

    Both keys of `a | b` get the value. A key that several expressions do not determine is left out.

    Raises:
        BadSource: Where no values of the keys make all expressions true.
    """
    config: Config = {}
    for text, value in values.items():
        if not _sign(text):
            config |= dict.fromkeys(names_in(text), value)
    left = {text for text in values if _sign(text)}
    while ready := {text for text in left if len(_unknown(text, config)) <= 1}:
        for text in sorted(ready):
            sign = _sign(text)
            unknown = _unknown(text, config)
            known = [value_of(config, part) for part in text.split(sign) if part not in unknown]
            config |= dict.fromkeys(unknown, reduce(INVERSE[sign], known, values[text]))
            if value_of(config, text) != values[text]:
                raise BadSource(
                    f"the header has {shown(values[text])} for {text}, and other keys deny it;"
                    " fetch it again"
                )
        left -= ready
    return config


def _sign(text: str) -> str:
    return next((sign for sign, _ in OPERATORS if sign in text), "")


def _unknown(text: str, known: Config) -> set[str]:
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
"""Makes tensors of one. names: of the results."""


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
        converted = [
            result for tensor in converted for result in _apply(tensor, rule, pattern, sizes)
        ]
    return converted


def _apply(
    tensor: StoredRows, rule: Convert, pattern: re.Pattern[str], sizes: ModelSizes
) -> list[StoredRows]:
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
    return replace(
        tensor,
        parts=tuple(replace(part, factors=(*part.factors, *changing)) for part in tensor.parts),
    )


def _factor(sizes: ModelSizes, key: str) -> float:
    name, _, index = key.partition(".")
    value = sizes.config.get(name)
    if index and value is not None:
        if not isinstance(value, list) or len(value) <= int(index):
            raise BadSource(
                f"config.json has {name} = {shown(value)}; write a list of {int(index) + 1} numbers"
                " or more"
            )
        value = value[int(index)]
    return 1.0 if value is None else float(number(value, name))


def rename(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """The same tensor under another name."""
    return [replace(tensor, name=names[0])]


def interleave(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Rows of a head reordered from pairs (i, i + d/2) to (2i, 2i + 1)."""
    parts = tuple(tensor.matrices) if len(tensor.shape) < 2 else tensor.parts
    return [replace(tensor, parts=parts, interleave=sizes.head_dim)]


def to_vocabulary(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Rows of zeros behind the others, up to the size of the vocabulary."""
    (matrix,), rows = tensor.matrices, count(sizes.config, "vocab_size")
    more = (replace(matrix, rows=rows - matrix.rows, zeros=True),) if rows > matrix.rows else ()
    return [
        replace(tensor, shape=(max(rows, matrix.rows), *tensor.shape[1:]), parts=(matrix, *more))
    ]


def squeeze(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Without dimensions of one, as in the weights of a convolution over channels."""
    shape = tuple(size for size in tensor.shape if size != 1) or (1,)
    width = shape[-1]
    parts = tuple(
        replace(flat, rows=flat.rows // width, columns=width, stride=width)
        for flat in _flat(tensor)
    )
    return [replace(tensor, name=names[0], shape=shape, parts=parts)]


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
    """All queries, then keys, then values, of a projection that has them together for each head of
    keys.
    """
    width = sizes.head_dim
    each = sizes.heads // sizes.kv_heads
    (matrix,) = tensor.matrices
    _fits(tensor, (each + 2) * sizes.kv_heads * width)
    blocks = (
        (0, each),
        (each, 1),
        (each + 1, 1),
    )  # where they begin in a group, and how many heads they have
    parts = tuple(
        matrix.part((group * (each + 2) + first) * width, heads * width)
        for first, heads in blocks
        for group in range(sizes.kv_heads)
    )
    return [replace(tensor, name=names[0], parts=parts)]


def latent(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """The keys, transposed, and the values of each head, from the second projection of multi-head
    latent attention.
    """
    key = count(sizes.config, "qk_nope_head_dim")
    value = count(sizes.config, "v_head_dim")
    _fits(tensor, sizes.heads * (key + value))
    (matrix,), rank = tensor.matrices, tensor.shape[-1]
    starts = [head * (key + value) for head in range(sizes.heads)]
    keys = tuple(matrix.part(start, key).transpose() for start in starts)
    values = tuple(matrix.part(start + key, value) for start in starts)
    return [
        replace(tensor, name=names[0], shape=(sizes.heads, rank, key), parts=keys),
        replace(tensor, name=names[1], shape=(sizes.heads, value, rank), parts=values),
    ]


def by_key_head(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """All queries, keys and values of linear attention, and its gates, which are together for each
    head of keys.
    """
    heads, each, key, value = _linear(sizes)
    widths = (key, key, each * value, each * value)
    (matrix,) = tensor.matrices
    _fits(tensor, heads * sum(widths))
    blocks = [
        tuple(matrix.part(head * sum(widths) + sum(widths[:which]), width) for head in range(heads))
        for which, width in enumerate(widths)
    ]
    rows = heads * (2 * key + each * value)
    return [
        replace(
            tensor,
            name=names[0],
            shape=(rows, tensor.shape[-1]),
            parts=(*blocks[0], *blocks[1], *blocks[2]),
        ),
        replace(
            tensor, name=names[1], shape=(heads * each * value, tensor.shape[-1]), parts=blocks[3]
        ),
    ]


def state_space_input(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Falcon H1: gate, input, both state projections and time steps, each times its own one of
    `ssm_multipliers`.
    """
    inner = count(sizes.config, "mamba_d_ssm")
    states = count(sizes.config, "mamba_n_groups * mamba_d_state")
    blocks = (inner, inner, states, states, count(sizes.config, "mamba_n_heads"))
    (matrix,) = tensor.matrices
    _fits(tensor, sum(blocks))
    parts: list[Rows] = []
    for index, rows in enumerate(blocks):
        block = replace(tensor, parts=(matrix.part(sum(blocks[:index]), rows),))
        parts += times(block, [_factor(sizes, f"ssm_multipliers.{index}")]).parts
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
    """Value heads of linear attention from (key head, value head) to (value head, key head); rows
    before them stay.

    https://github.com/ggml-org/llama.cpp/pull/19468
    """
    heads, each, key, value = _linear(sizes)
    (matrix,) = tensor.matrices
    width = (
        value if matrix.rows >= heads * each * value else 1
    )  # a number, or the dimensions of a head
    before = matrix.rows - heads * each * width
    _fits(tensor, heads * each * width + (2 * heads * key if before else 0))
    parts = [
        matrix.part(before + (head * each + row) * width, width)
        for row in range(each)
        for head in range(heads)
    ]
    return [
        replace(
            tensor, name=names[0], parts=(*([matrix.part(0, before)] if before else []), *parts)
        )
    ]


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
    """The sizes of linear attention: key heads, value heads for each of them, and the widths of
    both.
    """
    heads = count(sizes.config, "linear_num_key_heads")
    values = count(sizes.config, "linear_num_value_heads")
    widths = (
        count(sizes.config, "linear_key_head_dim"),
        count(sizes.config, "linear_value_head_dim"),
    )
    return heads, values // heads, *widths


def _shares(
    tensor: StoredRows, names: list[str], cut: Callable[[Rows, int, int], Rows]
) -> list[StoredRows]:
    """One tensor per name, with an equal share of the rows of every matrix, which `cut` selects by
    index and number.
    """
    matrices = tensor.matrices
    height = matrices[0].rows
    if height % len(names):
        raise BadSource(
            f"{tensor.name} has {counted(height, 'row')}, which are not {len(names)} equal parts;"
            " download it again"
        )
    rows = height // len(names)
    shape = (rows,) if len(tensor.shape) < 2 else (*tensor.shape[:-2], rows, tensor.shape[-1])
    return [
        replace(
            tensor, name=name, shape=shape, parts=tuple(cut(part, index, rows) for part in matrices)
        )
        for index, name in enumerate(names)
    ]


def _flat(tensor: StoredRows) -> list[Rows]:
    return [part.flat() for part in tensor.parts]


def _fits(tensor: StoredRows, rows: int) -> None:
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
OTHERS = re.compile(
    r"^model\.mtp_"
)  # ERNIE 4.5: mtp_block, mtp_emb_norm, mtp_hidden_norm, mtp_linear_proj
NEXTN = ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head.head", "shared_head.norm")
"""Tensors that only a layer that predicts further tokens has; gguf 0.19 does not know them for
Qwen.
"""


def gguf_name(name: str) -> str | None:
    """Return the name in GGUF of a tensor that only a layer that predicts further tokens has; None
    for others.
    """
    layer = LAYER.match(name)
    part = name[layer.end() :].removesuffix(".weight") if layer else ""
    return (
        f"blk.{layer[1]}.nextn.{part.replace('.', '_')}.weight" if layer and part in NEXTN else None
    )


def as_layer(name: str, layers: int) -> str:
    """Return the name of a tensor, in Qwen's `mtp` as that of a layer behind the others, whose
    number is `layers`.
    """
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
    """Return the number of layers behind the others.

    Args:
        names: of tensors, by `as_layer`.
        layers: Without these.
    """
    matches = (LAYER.match(name) for name in names)
    return max((int(match[1]) + 1 - layers for match in matches if match), default=0)


LAYER_NUMBER = re.compile(r"\blayers\.(\d+)\.")


def scalars(
    headers: Iterable[tuple[ShardWeights, Header]], rules: Gguf, layers: int
) -> dict[str, GgufValue]:
    """Return the metadata keys that list a number of every layer.

    Raises:
        BadSource: Where a layer has none.
    """
    values = {}
    for key, (ending, _) in rules.scalars.items():
        numbers: dict[int, float] = {}
        for file, header in headers:
            for name, tensor in header.tensors.items():
                layer = LAYER_NUMBER.search(name)
                if layer and name.endswith(ending) and tensor.dtype in STORED:
                    start = header.data_start + tensor.start
                    dtype = np.dtype(STORED[tensor.dtype])
                    stored = np.frombuffer(file.read(start, start + dtype.itemsize), dtype)
                    numbers[int(layer[1])] = float(widen(stored, tensor.dtype)[0])
        if sorted(numbers) != list(range(layers)):
            raise BadSource(
                f"{ending} is not there for every one of the {layers} layers; download the"
                " checkpoint again"
            )
        values[key] = array(FLOAT32, [numbers[layer] for layer in range(layers)])
    return values
