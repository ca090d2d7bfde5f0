"""The conversions of tensors of a checkpoint, by the names that `convert` in the family files uses.

`convert` applies them; read it first. Every conversion is a function of a tensor, the names of its
results, and the sizes of the model. It says which rows of the checkpoint a result has, in which
order, and reads none of their numbers. So memory use does not depend on the size of the tensor.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from .rows import NUMBER_FUNCTIONS, Rows, ShardWeights, StoredRows

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

    With {"heads": 8, "head_dim": 64}, "heads * head_dim" gives 512. The value is None where a key
    of the expression is absent or null.

    Args:
        config: The text part of the config.
        text: A key such as "hidden_size", a number, a sum or product such as "a * b + c", or
            "a | b" for whichever key is there.

    Raises:
        BadSource: For a value in a sum or product that is not a number.
    """
    # a sum is split before its products: "a * b + c" is (a * b) + c
    for sign, operator in OPERATORS:
        if sign in text:
            values = [value_of(config, part) for part in text.split(sign)]
            if None in values:
                return None
            numbers = [number(value, text) for value in values]
            return reduce(operator, numbers)

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

    Both keys of `a | b` get the value. A key that the expressions do not determine is left out.

    Args:
        values: Values by expression: {"a": 2, "a * b": 6} gives {"a": 2, "b": 3}.

    Raises:
        BadSource: Where no values of the keys make all expressions true.
    """
    # an expression without an operator is a key, and has its value
    config: Config = {}
    unsolved = set()
    for text, value in values.items():
        if _operator_in(text):
            unsolved.add(text)
            continue
        for name in names_in(text):
            config[name] = value

    # an expression with one unknown key gives that key, which may make others solvable; one without
    # an unknown key is checked
    while True:
        solvable = {text for text in unsolved if len(_unknown_keys(text, config)) <= 1}
        if not solvable:
            return config
        for text in sorted(solvable):
            _solve_for_unknown(text, values[text], config)
        unsolved -= solvable


def _solve_for_unknown(text: str, value: object, config: Config) -> None:
    """Put the unknown key of an expression into a config, and check that the values agree.

    The config {"a": 2}, with the expression "a * b" and its value 6, becomes {"a": 2, "b": 3}. With
    both keys it stays, and with {"a": 2, "b": 4} the header contradicts itself.

    Args:
        text: A sum or product with at most one key that the config does not have.
        value: The value of the expression.
        config: The keys that are known.
    """
    # the inverse operation takes the known parts away, one after the other: 6 // 2
    sign = _operator_in(text)
    unknown = _unknown_keys(text, config)  # one key or none
    take_away = INVERSE[sign]
    solution = value
    for part in text.split(sign):
        if part not in unknown:
            solution = take_away(solution, value_of(config, part))
    for name in unknown:
        config[name] = solution

    # a division may have a remainder, and keys that were known may not fit
    if value_of(config, text) != value:
        raise BadSource(
            f"the header has {shown(value)} for {text}, and other keys deny it; fetch it again"
        )


def _operator_in(text: str) -> str:
    """The operator of an expression, " + " before " * "; empty for a key or a number."""
    for sign, _ in OPERATORS:
        if sign in text:
            return sign
    return ""


def _unknown_keys(text: str, known: Config) -> set[str]:
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

    rotary_dim: int = 0
    """The dimensions of a head that rotate."""

    prediction: int = 0
    whole: Config = field(default_factory=dict)
    """The whole config.json, with the settings of a vision part."""


Conversion = Callable[[StoredRows, list[str], ModelSizes], list[StoredRows]]
"""Makes the tensors of the GGUF file from one tensor of the checkpoint.

It gets the tensor, a name for each result, and the sizes of the model.
"""


def convert(
    tensors: Iterable[StoredRows], rules: Iterable[Convert], sizes: ModelSizes
) -> list[StoredRows]:
    """Return the tensors of a checkpoint after all rules that change them on the way to GGUF.

    A rule may rename tensors, split one, or change its order or its numbers. The results of one
    rule are the input of the next.

    Args:
        tensors: The tensors of the checkpoint.
        rules: The conversions of the family, each for tensors whose names match.
        sizes: The sizes of the model.

    Raises:
        BadSource: Where shapes do not fit.
    """
    converted = list(tensors)
    for rule in rules:
        if rule.when and not value_of(sizes.config, rule.when):
            continue
        if rule.unless and value_of(sizes.config, rule.unless):
            continue
        pattern = re.compile(rule.match)
        results = list[StoredRows]()
        for tensor in converted:
            results += _apply(tensor, rule, pattern, sizes)
        converted = results
    return converted


def _apply(
    tensor: StoredRows, rule: Convert, pattern: re.Pattern[str], sizes: ModelSizes
) -> list[StoredRows]:
    """Apply a conversion rule to a tensor, and return the tensors that it becomes.

    For example, a rule splits kv_b_proj into k_b_proj and v_b_proj. A tensor to which the rule does
    not apply is returned unchanged.

    Args:
        tensor: A tensor of the checkpoint, or a result of earlier rules.
        rule: The change. `rule.how` is the name of a conversion, such as "split".
        pattern: The regular expression for the names of the tensors to which the rule applies.
        sizes: The sizes of the model.
    """
    if not pattern.search(tensor.name):
        return [tensor]

    # rule.names: the texts that replace the match, here ("k_b_proj", "v_b_proj") for kv_b_proj
    new_names = [pattern.sub(name, tensor.name) for name in rule.names]
    if not new_names:
        new_names = [tensor.name]

    # rule.times: config keys with factors by which the weights are multiplied first
    if rule.times:
        factors = [_factor(sizes, key) for key in rule.times]
        tensor = times(tensor, factors)

    # rule.unless_columns: a config key; a tensor that already has so many columns is only renamed
    if rule.unless_columns:
        final_columns = count(sizes.config, rule.unless_columns)
        if tensor.shape[-1] == final_columns:
            return rename(tensor, new_names, sizes)

    # a function of each number, such as "plus_one": its name is noted, and the writer applies it
    if rule.how in NUMBER_FUNCTIONS:
        return [replace(tensor, name=new_names[0], values=rule.how)]

    # a change of rows or names, such as "split"
    convert = CONVERSIONS[rule.how]
    return convert(tensor, new_names, sizes)


def times(tensor: StoredRows, factors: Iterable[float]) -> StoredRows:
    """Return a tensor whose numbers are multiplied by factors."""
    changing = tuple(factor for factor in factors if factor != 1)
    parts = [replace(part, factors=(*part.factors, *changing)) for part in tensor.parts]
    return replace(tensor, parts=tuple(parts))


def _factor(sizes: ModelSizes, key: str) -> float:
    """Return a number of the config by which weights are multiplied; 1 where it is absent.

    Args:
        sizes: The sizes of the model, with its config.
        key: A config key, or an entry of a list under it, such as ssm_multipliers.2 of Falcon H1.
    """
    name, _, index = key.partition(".")
    value = sizes.config.get(name)
    if value is None:
        return 1.0

    # an entry of a list, which may be null too
    if index:
        place = int(index)
        if not isinstance(value, list) or len(value) <= place:
            raise BadSource(
                f"config.json has {name} = {shown(value)}; write a list of {place + 1} numbers"
                " or more"
            )
        value = value[place]
    if value is None:
        return 1.0
    return float(number(value, name))


def rename(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Give the tensor another name."""
    return [replace(tensor, name=names[0])]


def interleave(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Reorder the rows of each head, so that the two that rotate together are neighbours.

    A head of 4 rows 0 1 2 3 becomes 0 2 1 3: transformers rotates rows i and i + d/2, and llama.cpp
    2i and 2i + 1.
    """
    # a bias has one number for each row of the weights
    parts = tuple(tensor.matrices) if len(tensor.shape) < 2 else tensor.parts
    return [replace(tensor, parts=parts, interleave=sizes.head_dim)]


def interleave_rotary(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Reorder the rows of each head that rotate, and leave the others behind them.

    A head of 6 rows of which 4 rotate, 0 1 2 3 4 5, becomes 0 2 1 3 4 5.
    """
    (matrix,) = tensor.matrices
    half = sizes.rotary_dim // 2
    still_rows = sizes.head_dim - sizes.rotary_dim
    parts = []
    for head_start in range(0, matrix.rows, sizes.head_dim):
        # the two rows of a pair are half of the rotating ones apart: 0 and 2, then 1 and 3
        for pair in range(half):
            parts.append(matrix.part(head_start + pair, 2, step=half))
        if still_rows:
            parts.append(matrix.part(head_start + sizes.rotary_dim, still_rows))
    return [replace(tensor, name=names[0], parts=tuple(parts))]


def to_vocabulary(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Append rows of zeros, up to the size of the vocabulary.

    Embeddings [32000, hidden] with a vocabulary of 32064 get 64 rows of zeros.
    """
    (matrix,) = tensor.matrices
    vocabulary = count(sizes.config, "vocab_size")
    parts = [matrix]
    if vocabulary > matrix.rows:
        parts.append(replace(matrix, rows=vocabulary - matrix.rows, zeros=True))
    shape = (max(vocabulary, matrix.rows), *tensor.shape[1:])
    return [replace(tensor, shape=shape, parts=tuple(parts))]


def squeeze(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Drop dimensions of one: weights of a convolution [channels, 1, 4] become [channels, 4]."""
    shape = tuple(size for size in tensor.shape if size != 1) or (1,)
    width = shape[-1]
    parts = []
    for numbers in _numbers_as_rows(tensor):
        parts.append(replace(numbers, rows=numbers.rows // width, columns=width, stride=width))
    return [replace(tensor, name=names[0], shape=shape, parts=tuple(parts))]


def transpose(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Transpose every matrix of a stack: [experts, rows, columns] to [experts, columns, rows]."""
    parts = tuple(part.transpose() for part in tensor.matrices)
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    return [replace(tensor, name=names[0], shape=shape, parts=parts)]


def split(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Cut the rows of every matrix into equal blocks, one for each name.

    With two names, rows a b c d become a b, and c d.
    """
    return _divide_rows(tensor, names, in_turn=False)


def alternate(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Deal out the rows of every matrix to the names in turn.

    With two names, rows a b c d become a c, and b d.
    """
    return _divide_rows(tensor, names, in_turn=True)


def alternate_columns(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Deal out the numbers of each row to the names in turn, as biases of experts need.

    With two names, biases [experts, 2n] become two tensors [experts, n].
    """
    # each row becomes a matrix with one column, whose rows are dealt out
    columns = replace(tensor, shape=(*tensor.shape, 1), parts=tuple(_numbers_as_rows(tensor)))
    results = alternate(columns, names, sizes)
    return [replace(result, shape=result.shape[:-1]) for result in results]


def by_projection(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Sort the heads of a fused projection: all queries, then all keys, then all values.

    The checkpoint has a group for each key head: its query heads, the key, and the value. Two
    groups with two query heads each, q q k v q q k v, become q q q q k k v v.
    """
    rows = sizes.head_dim  # of every head
    query_rows = sizes.heads // sizes.kv_heads * rows
    group_rows = query_rows + 2 * rows
    (matrix,) = tensor.matrices
    _check_row_count(tensor, sizes.kv_heads * group_rows)

    queries = []
    keys = []
    values = []
    for group in range(sizes.kv_heads):
        start = group * group_rows
        queries.append(matrix.part(start, query_rows))
        keys.append(matrix.part(start + query_rows, rows))
        values.append(matrix.part(start + query_rows + rows, rows))
    return [replace(tensor, name=names[0], parts=(*queries, *keys, *values))]


def projections(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Separate queries, keys and values of a fused projection; `by_projection` sorts its heads."""
    (sorted_heads,) = by_projection(tensor, names, sizes)
    parts = sorted_heads.parts  # one of each group: of all queries, then of all keys, then values
    results = []
    for index, name in enumerate(names):
        own = parts[index * sizes.kv_heads : (index + 1) * sizes.kv_heads]
        shape = (sum(part.rows for part in own), *tensor.shape[1:])
        results.append(replace(tensor, name=name, shape=shape, parts=own))
    return results


def latent(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Separate keys and values in the second projection of multi-head latent attention.

    kv_b_proj [heads * (key_width + value_width), rank] has for each head the rows of the key, then
    the rows of the value. The results are keys [heads, rank, key_width] and values
    [heads, value_width, rank].
    """
    key_width = count(sizes.config, "qk_nope_head_dim")
    value_width = count(sizes.config, "v_head_dim")
    head_rows = key_width + value_width
    _check_row_count(tensor, sizes.heads * head_rows)
    (matrix,) = tensor.matrices
    rank = tensor.shape[-1]

    # llama.cpp does not compute keys: it multiplies queries by the weights of keys instead, for
    # which it needs them transposed
    keys = []
    values = []
    for head in range(sizes.heads):
        start = head * head_rows
        keys.append(matrix.part(start, key_width).transpose())
        values.append(matrix.part(start + key_width, value_width))
    key_shape = (sizes.heads, rank, key_width)
    value_shape = (sizes.heads, value_width, rank)
    return [
        replace(tensor, name=names[0], shape=key_shape, parts=tuple(keys)),
        replace(tensor, name=names[1], shape=value_shape, parts=tuple(values)),
    ]


def by_key_head(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Sort the heads of the input projection of linear attention, with its gates apart.

    The checkpoint has a group for each key head: a query, a key, its value heads, and as many
    gates. Two groups with two value heads each, q k v v z z q k v v z z, become q q k k v v v v,
    and z z z z.
    """
    key_heads, values_per_key, key_dim, value_dim = _linear_attention_sizes(sizes)
    value_rows = values_per_key * value_dim  # of all value heads of a key head; gates have as many
    group_rows = 2 * key_dim + 2 * value_rows
    (matrix,) = tensor.matrices
    _check_row_count(tensor, key_heads * group_rows)

    queries = []
    keys = []
    values = []
    gates = []
    for group in range(key_heads):
        start = group * group_rows
        queries.append(matrix.part(start, key_dim))
        keys.append(matrix.part(start + key_dim, key_dim))
        values.append(matrix.part(start + 2 * key_dim, value_rows))
        gates.append(matrix.part(start + 2 * key_dim + value_rows, value_rows))

    columns = tensor.shape[-1]
    projection_shape = (key_heads * (2 * key_dim + value_rows), columns)
    projection = (*queries, *keys, *values)
    gate_shape = (key_heads * value_rows, columns)
    return [
        replace(tensor, name=names[0], shape=projection_shape, parts=projection),
        replace(tensor, name=names[1], shape=gate_shape, parts=tuple(gates)),
    ]


def state_space_input(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Return Falcon H1's input projection of Mamba, each block of rows with its multiplier.

    The config has a multiplier for each of the five blocks in the list `ssm_multipliers`. llama.cpp
    does not read them, so the weights are multiplied.

    Args:
        tensor: The matrix of the projection.
        names: The name of the result in GGUF, as a list with one entry.
        sizes: The sizes of the model.
    """
    # the rows of the five blocks, from whole numbers of the config or products of them
    inner_size = count(sizes.config, "mamba_d_ssm")
    state_size = count(sizes.config, "mamba_n_groups * mamba_d_state")
    heads = count(sizes.config, "mamba_n_heads")
    rows_of_blocks = (
        inner_size,  # the gate
        inner_size,  # the input
        state_size,  # the first projection of the state
        state_size,  # the second projection of the state
        heads,  # the time steps
    )
    (matrix,) = tensor.matrices
    _check_row_count(tensor, sum(rows_of_blocks))

    multiplied_rows: list[Rows] = []
    start = 0
    for index, row_count in enumerate(rows_of_blocks):
        block = replace(tensor, parts=(matrix.part(start, row_count),))
        multiplier = _factor(sizes, f"ssm_multipliers.{index}")  # entry `index` of the list
        multiplied_rows += times(block, [multiplier]).parts
        start += row_count
    return [replace(tensor, name=names[0], parts=tuple(multiplied_rows))]


def column(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Make a vector [n] a matrix with one column [n, 1]."""
    parts = tuple(_numbers_as_rows(tensor))
    return [replace(tensor, name=names[0], shape=(*tensor.shape, 1), parts=parts)]


def in_groups(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Make a vector [n] a matrix [groups, n / groups], with a row for each state space group."""
    groups = count(sizes.config, "mamba_n_groups")
    (size,) = tensor.shape
    if not groups or size % groups:
        raise BadSource(
            f"{tensor.name} has {size} numbers, which are not {groups} equal groups; correct"
            " mamba_n_groups"
        )
    return [replace(tensor, name=names[0], shape=(groups, size // groups))]


def tiled_values(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Reorder the value heads of linear attention as llama.cpp pairs them with key heads.

    With key heads a and b of two value heads each, the checkpoint has the value heads in the order
    a0 a1 b0 b1, and the result has a0 b0 a1 b1. The reason is how both give each value head its key
    head: transformers repeats key heads (a a b b), and llama.cpp tiles them (a b a b).
    https://github.com/ggml-org/llama.cpp/pull/19468
    """
    key_heads, values_per_key, key_dim, value_dim = _linear_attention_sizes(sizes)
    value_heads = key_heads * values_per_key
    (matrix,) = tensor.matrices

    # Projections have a row for each dimension of a value head, such as 128. Tensors of the time
    # steps have one row for each value head, so they are shorter.
    rows_per_head = value_dim if matrix.rows >= value_heads * value_dim else 1

    # The convolution also has the rows of all queries and keys, in front of the values. They stay.
    value_rows = value_heads * rows_per_head
    rows_in_front = matrix.rows - value_rows
    query_and_key_rows = 2 * key_heads * key_dim if rows_in_front else 0
    _check_row_count(tensor, query_and_key_rows + value_rows)

    # first a0 b0, the first value head of each key head, then a1 b1, and so on
    parts = []
    if rows_in_front:
        parts.append(matrix.part(0, rows_in_front))
    for number in range(values_per_key):
        for key_head in range(key_heads):
            value_head = key_head * values_per_key + number
            first_row = rows_in_front + value_head * rows_per_head
            parts.append(matrix.part(first_row, rows_per_head))
    return [replace(tensor, name=names[0], parts=tuple(parts))]


def tiled_columns(tensor: StoredRows, names: list[str], sizes: ModelSizes) -> list[StoredRows]:
    """Reorder the columns of value heads as `tiled_values` reorders rows.

    The output projection [hidden, value heads * width] reads the value heads as its columns.
    """
    key_heads, values_per_key, _, _ = _linear_attention_sizes(sizes)
    return [replace(tensor, name=names[0], tiles=(key_heads, values_per_key))]


CONVERSIONS: dict[str, Conversion] = {
    function.__name__: function
    for function in (
        rename,
        interleave,
        interleave_rotary,
        to_vocabulary,
        squeeze,
        transpose,
        split,
        alternate,
        alternate_columns,
        by_projection,
        projections,
        latent,
        by_key_head,
        state_space_input,
        column,
        in_groups,
        tiled_values,
        tiled_columns,
    )
}


def _linear_attention_sizes(sizes: ModelSizes) -> tuple[int, int, int, int]:
    """The sizes of linear attention: key heads, value heads per key head, and both head widths."""
    key_heads = count(sizes.config, "linear_num_key_heads")
    value_heads = count(sizes.config, "linear_num_value_heads")
    key_dim = count(sizes.config, "linear_key_head_dim")
    value_dim = count(sizes.config, "linear_value_head_dim")
    return key_heads, value_heads // key_heads, key_dim, value_dim


def _divide_rows(tensor: StoredRows, names: list[str], in_turn: bool) -> list[StoredRows]:
    """Make a tensor for each name, with an equal share of the rows of every matrix.

    A stack [experts, rows, columns] with two names becomes two stacks [experts, rows / 2, columns].

    Args:
        tensor: The tensor.
        names: The names of the results.
        in_turn: Whether rows are dealt out to the names one by one, or in blocks.
    """
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
        parts = []
        for matrix in matrices:
            if in_turn:
                parts.append(matrix.part(index, rows, step=len(names)))
            else:
                parts.append(matrix.part(index * rows, rows))
        shares.append(replace(tensor, name=name, shape=shape, parts=tuple(parts)))
    return shares


def _numbers_as_rows(tensor: StoredRows) -> list[Rows]:
    """The parts of a tensor with every number as a row of its own: [n, m] becomes [n * m, 1]."""
    return [part.flat() for part in tensor.parts]


def _check_row_count(tensor: StoredRows, rows: int) -> None:
    """Raise BadSource for a tensor with another number of rows, those of all matrices together."""
    height = prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
    if height != rows:
        raise BadSource(
            f"{tensor.name} has {counted(height, 'row')}, and the heads of config.json make {rows};"
            " the config is of another checkpoint, download both again"
        )


LAYER = re.compile(r"^model\.layers\.(\d+)\.")
BEGINNING_OF_MTP = re.compile(r"^(?:model\.)?mtp\.(?:layers\.(\d+)\.)?")
"""The beginning of names in Qwen's `mtp`, which has layers that predict further tokens."""
PARTS_OF_MTP = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
"""The first parts of names in Qwen's `mtp`, and their names in the other families."""
# ERNIE 4.5 has mtp_block, mtp_emb_norm, mtp_hidden_norm and mtp_linear_proj
PREDICTION_OF_ERNIE = re.compile(r"^model\.mtp_")
PARTS_OF_PREDICTION = (
    "eh_proj",
    "embed_tokens",
    "enorm",
    "hnorm",
    "shared_head.head",
    "shared_head.norm",
)
"""Tensors that only a layer that predicts further tokens has.

gguf 0.19 does not know them for Qwen.
"""


def gguf_name(name: str) -> str | None:
    """Return the name in GGUF of a tensor that only a predicting layer has; None for others."""
    layer = LAYER.match(name)
    if layer is None:
        return None
    part = name[layer.end() :].removesuffix(".weight")
    if part not in PARTS_OF_PREDICTION:
        return None
    return f"blk.{layer[1]}.nextn.{part.replace('.', '_')}.weight"


def as_layer(name: str, layers: int) -> str:
    """Return the usual name of a tensor in Qwen's `mtp`, and all other names unchanged.

    Qwen's `mtp` has the layers that predict further tokens. In other families these are layers with
    numbers after the last usual layer. With 48 usual `layers`, mtp.layers.0.self_attn.q_proj.weight
    becomes model.layers.48.self_attn.q_proj.weight, and mtp.fc.weight becomes
    model.layers.48.eh_proj.weight.
    """
    # the name begins with "mtp.layers.0.", or with "mtp." for a tensor without a layer's number
    beginning = BEGINNING_OF_MTP.match(name)
    if beginning is None:
        return name

    rest = name[beginning.end() :]
    number = beginning[1]
    if number is not None:
        return f"model.layers.{layers + int(number)}.{rest}"

    # Tensors without a number belong to the first layer of `mtp`. They also have other names in
    # other families: "fc" is "eh_proj".
    part, dot, following = rest.partition(".")
    usual_part = PARTS_OF_MTP.get(part, part)
    return f"model.layers.{layers}.{usual_part}{dot}{following}"


def is_of_prediction_layer(name: str, layers: int) -> bool:
    """Return whether a tensor, named by `as_layer`, is of a layer that predicts further tokens."""
    layer = LAYER.match(name)
    return bool(PREDICTION_OF_ERNIE.match(name)) or (layer is not None and int(layer[1]) >= layers)


def count_layers(names: Iterable[str], layers: int) -> int:
    """Return the number of layers behind the first `layers`, by names that `as_layer` gives."""
    further = 0
    for name in names:
        match = LAYER.match(name)
        if match:
            further = max(further, int(match[1]) + 1 - layers)
    return further


LAYER_NUMBER = re.compile(r"\blayers\.(\d+)\.")


def numbers_by_layer(
    headers: Collection[tuple[ShardWeights, Header]], rules: Gguf, layers: int
) -> dict[str, GgufValue]:
    """Return metadata keys of GGUF for tensors that have one number in each layer.

    For example, Apertus has tensors such as model.layers.3.mlp.act_fn.beta. GGUF has their numbers
    as a list under the key xielu.beta, with an entry for each layer.

    Args:
        headers: The files of the checkpoint with their headers.
        rules: How checkpoints of the family become GGUF. `scalars` has the ending of the tensors'
            names and their shape for each key: {"xielu.beta": ("mlp.act_fn.beta", (1,))}.
        layers: The number of layers of the model.

    Raises:
        BadSource: Where the tensor of a layer is missing.
    """
    values = {}
    for key, (ending, _shape) in rules.scalars.items():
        numbers: dict[int, float] = {}  # by layer, since files may have layers in any order
        for file, header in headers:
            for name, tensor in header.tensors.items():
                layer = LAYER_NUMBER.search(name)
                is_number = name.endswith(ending) and tensor.dtype in STORED
                if layer and is_number:
                    numbers[int(layer[1])] = _first_number(file, header, tensor)

        every_layer = list(range(layers))
        if sorted(numbers) != every_layer:
            raise BadSource(
                f"{ending} is not there for every one of the {layers} layers; download the"
                " checkpoint again"
            )
        values[key] = array(FLOAT32, [numbers[layer] for layer in every_layer])
    return values


def _first_number(file: ShardWeights, header: Header, tensor: Tensor) -> float:
    """The first number of a tensor."""
    start = header.data_start + tensor.start
    dtype = np.dtype(STORED[tensor.dtype])
    stored = np.frombuffer(file.read(start, start + dtype.itemsize), dtype)
    return float(widen(stored, tensor.dtype)[0])
