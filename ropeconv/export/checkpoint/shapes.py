"""The shape that a tensor of the checkpoint had before a conversion, from those of what it became."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Shape = tuple[int, ...]


def shape_before(how: str, made: Sequence[Shape]) -> Shape | None:
    """The shape before a conversion; None where it is not known for one that makes several tensors.

    how: the name of the conversion. made: the shapes of what it made, slowest dimension first, in their order.
    """
    if how in BEFORE:
        return BEFORE[how](made)
    return made[0] if len(made) == 1 else None


def _rows(made: Sequence[Shape]) -> Shape:
    """All rows in one tensor."""
    first, row = made[0], -1 if len(made[0]) < 2 else -2
    return (*first[:row], sum(shape[row] for shape in made), *first[len(first) + row + 1 :])


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


BEFORE: dict[str, Callable[[Sequence[Shape]], Shape]] = {
    "squeeze": lambda made: (*_without_ones(made[0])[:-1], 1, made[0][-1]),
    "transpose": lambda made: (*made[0][:-2], made[0][-1], made[0][-2]),
    "split": _rows,
    "alternate": _rows,
    "alternate_columns": lambda made: (*made[0][:-1], sum(shape[-1] for shape in made)),
    "by_key_head": _rows,
    "latent": lambda made: (made[0][0] * (made[0][2] + made[1][1]), made[0][1]),
}
"""Of keys [heads, rank, width] and values [heads, width, rank] in `latent`."""
