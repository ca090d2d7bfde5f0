"""What can happen to the tensors of a checkpoint, by the names that `convert` in the family files uses.

Every conversion takes a tensor, the names of what comes out, and the sizes of the model. It moves rows and reads no
numbers, so that memory use does not depend on the tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod

from ..errors import BadSource
from ..families.config import Config
from ..families.gguf import Convert
from .expression import count
from .rows import Rows, Stored
from .values import VALUES


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model. config: its text part, with the defaults of its class. kv_heads: of keys and values."""

    config: Config
    heads: int
    kv_heads: int
    head_dim: int
    layers: int


Conversion = Callable[[Stored, list[str], Sizes], list[Stored]]
CONVERSIONS: dict[str, Conversion] = {}


def conversion(function: Conversion) -> Conversion:
    """Registers a conversion under the name of its function."""
    CONVERSIONS[function.__name__] = function
    return function


def convert(tensors: Iterable[Stored], rules: Iterable[Convert], sizes: Sizes) -> list[Stored]:
    """The tensors after all rules, in order.

    tensors: of the checkpoint. rules: of the family. sizes: of the model. Raises BadSource where shapes do not fit.
    """
    found = list(tensors)
    for rule in rules:
        pattern = re.compile(rule.match)
        found = [made for tensor in found for made in _apply(tensor, rule, pattern, sizes)]
    return found


def _apply(tensor: Stored, rule: Convert, pattern: re.Pattern[str], sizes: Sizes) -> list[Stored]:
    if not pattern.search(tensor.name):
        return [tensor]
    names = [pattern.sub(name, tensor.name) for name in rule.names] or [tensor.name]
    if rule.how in VALUES:
        return [replace(tensor, name=names[0], values=rule.how)]
    return CONVERSIONS[rule.how](tensor, names, sizes)


@conversion
def rename(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """The same under another name."""
    return [replace(tensor, name=names[0])]


@conversion
def interleave(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Rows of a head reordered from pairs (i, i + d/2) to (2i, 2i + 1)."""
    parts = tuple(tensor.matrices) if len(tensor.shape) < 2 else tensor.parts
    return [replace(tensor, parts=parts, interleave=sizes.head_dim)]


@conversion
def squeeze(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Without dimensions of one, as the weights of a convolution over channels are."""
    shape = tuple(size for size in tensor.shape if size != 1) or (1,)
    width = shape[-1]
    parts = tuple(replace(flat, rows=flat.rows // width, columns=width, stride=width) for flat in _flat(tensor))
    return [replace(tensor, name=names[0], shape=shape, parts=parts)]


@conversion
def transpose(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Every matrix of a stack transposed."""
    parts = tuple(part.transposed() for part in tensor.matrices)
    shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    return [replace(tensor, name=names[0], shape=shape, parts=parts)]


@conversion
def split(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Equal blocks of rows, one for each name; of a stack, the blocks of each matrix."""
    return _shares(tensor, names, lambda part, index, rows: part.part(index * rows, rows))


@conversion
def alternate(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Rows in turns, one for each name: with two names, the even and the odd rows."""
    return _shares(tensor, names, lambda part, index, rows: part.part(index, rows, len(names)))


@conversion
def alternate_columns(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """Elements of each row in turns, one for each name, as the biases of experts are stored."""
    flat = replace(tensor, shape=(*tensor.shape, 1), parts=tuple(_flat(tensor)))
    return [replace(made, shape=made.shape[:-1]) for made in alternate(flat, names, sizes)]


@conversion
def by_projection(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """All queries, then keys, then values, of a projection that has them together for each head of keys."""
    width, each = sizes.head_dim, sizes.heads // sizes.kv_heads
    (matrix,) = tensor.matrices
    _fits(tensor, (each + 2) * sizes.kv_heads * width)
    blocks = ((0, each), (each, 1), (each + 1, 1))  # where they begin in a group, and how many heads they have
    parts = tuple(
        matrix.part((group * (each + 2) + first) * width, heads * width)
        for first, heads in blocks
        for group in range(sizes.kv_heads)
    )
    return [replace(tensor, name=names[0], parts=parts)]


@conversion
def latent(tensor: Stored, names: list[str], sizes: Sizes) -> list[Stored]:
    """The keys, transposed, and the values of each head, from the second projection of multi-head latent attention."""
    key, value = count(sizes.config, "qk_nope_head_dim"), count(sizes.config, "v_head_dim")
    _fits(tensor, sizes.heads * (key + value))
    (matrix,), rank = tensor.matrices, tensor.shape[-1]
    starts = [head * (key + value) for head in range(sizes.heads)]
    keys = tuple(matrix.part(start, key).transposed() for start in starts)
    values = tuple(matrix.part(start + key, value) for start in starts)
    return [
        replace(tensor, name=names[0], shape=(sizes.heads, rank, key), parts=keys),
        replace(tensor, name=names[1], shape=(sizes.heads, value, rank), parts=values),
    ]


def _shares(tensor: Stored, names: list[str], cut: Callable[[Rows, int, int], Rows]) -> list[Stored]:
    """One tensor per name, of an equal share of the rows of every matrix, which `cut` takes by index and number."""
    matrices = tensor.matrices
    height = matrices[0].rows
    if height % len(names):
        raise BadSource(f"{tensor.name} has {height} rows, which are not {len(names)} equal parts; download it again")
    rows = height // len(names)
    shape = (rows,) if len(tensor.shape) < 2 else (*tensor.shape[:-2], rows, tensor.shape[-1])
    return [
        replace(tensor, name=name, shape=shape, parts=tuple(cut(part, index, rows) for part in matrices))
        for index, name in enumerate(names)
    ]


def _flat(tensor: Stored) -> list[Rows]:
    return [part.flat() for part in tensor.parts]


def _fits(tensor: Stored, rows: int) -> None:
    height = prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
    if height != rows:
        raise BadSource(
            f"{tensor.name} has {height} rows, and the heads of config.json make {rows}; "
            "the config is of another checkpoint, download both again"
        )
