"""How queries or keys rotate, from their numbers at a few positions.

The experiment gives every token the same query and the same key (`observing.random_numbers`), so
that the numbers after RoPE differ only by the position of the token. RoPE turns a pair of
dimensions (a, b), as the complex number z = a + ib, by an angle proportional to the position p:

    z(p) = grow(p) * z(0) * exp(i * p * inv_freq)

`measure` finds which dimensions change, which of them are a pair, `inv_freq` of each pair, and
`grow`, the length in parts of that at position 0 (Llama 4 and Ministral scale queries so).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ropeconv.rope.errors import RopeconvError

Numbers = np.ndarray[Any, np.dtype[Any]]
"""An array; the function that has it says its shape."""
Pairing = Literal["half", "interleaved"]
"""Which of 2n dimensions are a pair: (i, i + n), or (2i, 2i + 1)."""

HEADS = 8
"""Heads whose rotation is measured; all heads of a layer rotate alike."""
MOVED = 2e-5
"""The change of a number from which on it rotates, in parts of the root mean square."""
EQUAL = 2e-3
"""The relative error of an angle or a length that float32 computes."""
SURE_ANGLE = 2000.0
"""The angle in radians beyond which float32 does not have the digits to improve a frequency."""


@dataclass(frozen=True)
class Rotation:
    """How the queries, or the keys, of a layer rotate."""

    start: int
    """The first dimension of a head that rotates."""

    pairs: Pairing
    """Which dimensions are a pair, where queries and keys are multiplied.

    The rows of the projection may be in another order: see `weight_rows.find_layout`.
    """

    inv_freq: tuple[float, ...]
    """Radians per position for each pair; 0 for pairs that stand still between others.

    Empty where only the length depends on the position.
    """

    grows: tuple[float, ...]
    """The length at each position, in parts of that at the first."""

    @property
    def width(self) -> int:
        """How many dimensions of a head rotate."""
        return 2 * len(self.inv_freq)

    def pair(self, index: int) -> tuple[int, int]:
        """Return the two dimensions of a pair."""
        return pair_dimensions(self.pairs, self.start, len(self.inv_freq))[index]

    def is_like(self, other: Rotation, tolerance: float = 1e-4) -> bool:
        """Whether both rotate the same dimensions by the same angles."""
        if (self.start, self.pairs, self.width) != (other.start, other.pairs, other.width):
            return False
        return bool(np.allclose(self.inv_freq, other.inv_freq, rtol=tolerance, atol=1e-9))


@dataclass(frozen=True)
class Attention:
    """The rotation of queries and keys in one layer."""

    queries: Rotation | None
    """None where queries are the same at every position."""

    keys: Rotation | None
    """Likewise."""

    heads: int
    """The number of heads of queries."""

    width: int
    """The width of a head of queries and keys."""

    @property
    def rotates(self) -> bool:
        """Whether queries rotate with the position; a length that grows does not count."""
        return bool(self.queries and self.queries.inv_freq)


class NotARotation(RopeconvError):
    """Numbers change with the position, and not by a rotation of pairs."""


def measure(numbers: Numbers, positions: Sequence[int]) -> Rotation | None:
    """Return how queries or keys rotate, measured; None where they are the same at every position.

    All tokens had the same query or key before RoPE, so what differs between them is its effect.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width); they differ only by the position
            of the token.
        positions: The positions of the tokens, the first of them 0.

    Raises:
        NotARotation: They change in another way.
    """
    numbers = numbers[:HEADS]  # a few heads are enough, since all rotate alike
    width = numbers.shape[-1]
    first_token = numbers[:, 0]  # [heads, width]
    size = float(np.sqrt((first_token**2).mean())) or 1.0  # the root mean square

    # a number by which queries grow is divided out, so that what remains is a rotation
    growth = _growth(numbers)
    divisors = np.where(growth > 0, growth, 1.0)
    numbers = numbers / divisors[None, :, None]
    grows = tuple(growth.tolist())

    # the dimensions of a head that change from token to token
    largest_change = np.abs(numbers - first_token[:, None]).max((0, 1))  # [width]
    turning = np.flatnonzero(largest_change > MOVED * size)
    if not len(turning):
        is_scaled = np.abs(growth - 1).max() > EQUAL
        return Rotation(0, "half", (), grows) if is_scaled else None

    # the pairs: those whose two dimensions move on a circle by the same angle in all heads
    start = int(turning[0])
    for pairing, count in _possible_pairs(turning):
        if start + 2 * count > width:
            continue
        angles = _angles(numbers, pair_dimensions(pairing, start, count), size)
        if angles is None:  # other dimensions are the pairs
            continue
        inv_freq = _frequencies(angles, positions)
        _refuse_other_angles(angles, inv_freq, positions)
        return Rotation(start, pairing, tuple(_forwards(inv_freq).tolist()), grows)
    raise NotARotation("its queries or keys change with the position, and not in pairs")


def _growth(numbers: Numbers) -> Numbers:
    """Return the length of each token's queries in parts of that of the first, shape (tokens,).

    It is 1 for all in most models. Llama 4 multiplies queries by a number that grows with the
    position.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width).
    """
    lengths = np.sqrt((numbers**2).sum((0, 2)))
    growth: Numbers = lengths / (lengths[0] or 1.0)
    return growth


def _forwards(inv_freq: Numbers) -> Numbers:
    """Return frequencies as positive numbers; NanoChat turns all its pairs the other way.

    Raises:
        NotARotation: Some pairs turn one way and some the other.
    """
    turns_backwards = inv_freq.max() <= 0
    positive = -inv_freq if turns_backwards else inv_freq
    if positive.min() < 0:
        raise NotARotation("some of its pairs rotate backwards")
    return positive


def _possible_pairs(turning: Numbers) -> list[tuple[Pairing, int]]:
    """Return the pairings that the dimensions that rotate allow, the likely one first.

    The dimensions 0 to 7 may be 4 pairs (i, i + 4), or 4 pairs (2i, 2i + 1): the result is
    [("half", 4), ("interleaved", 4)].

    Args:
        turning: The numbers of those dimensions, in order.

    Returns:
        The pairing and the number of pairs, each.
    """
    possible: list[tuple[Pairing, int]] = []
    start = int(turning[0])

    # The slowest pairs may be missing, since their angles are too small to be seen. In halves, they
    # are the last ones of each half. So the two blocks 0 1 2 and 8 9 10 are what is seen of 8 pairs
    # (i, i + 8), and the number of pairs is the distance between the beginnings of the blocks.
    ends_of_blocks = np.flatnonzero(np.diff(turning) > 1)
    blocks = np.split(turning, ends_of_blocks + 1)
    if len(blocks) == 2:
        first_block, second_block = blocks
        if len(first_block) == len(second_block):
            possible.append(("half", int(second_block[0]) - start))

    # all dimensions from the first to the last one
    count = int(turning[-1]) + 1 - start
    if count % 2 == 0:
        possible.append(("half", count // 2))
        possible.append(("interleaved", count // 2))
    return possible


def _refuse_other_angles(angles: Numbers, inv_freq: Numbers, positions: Sequence[int]) -> None:
    """Raise NotARotation unless angle = position * inv_freq, modulo a whole turn.

    Args:
        angles: In radians, of shape (tokens, pairs).
        inv_freq: Radians per position, of shape (pairs,).
        positions: The positions of the tokens.
    """
    expected = np.asarray(positions, float)[:, None] * inv_freq
    # |arg exp(i(expected - angle))| is their distance on the circle
    error = np.abs(np.angle(np.exp(1j * (expected - angles))))
    # the class multiplies in float32, whose relative error of 1e-7 grows with the angle
    tolerance = 0.01 + 3e-7 * np.abs(expected)
    if (error > tolerance).any():
        raise NotARotation("its angles are not proportional to the position")


def pair_dimensions(pairing: Pairing, start: int, count: int) -> list[tuple[int, int]]:
    """Return the two dimensions of each pair.

    Args:
        pairing: Which dimensions are a pair.
        start: The first dimension that rotates.
        count: The number of pairs.
    """
    if pairing == "half":
        return [(start + index, start + count + index) for index in range(count)]
    return [(start + 2 * index, start + 2 * index + 1) for index in range(count)]


def _angles(numbers: Numbers, pairs: Sequence[tuple[int, int]], size: float) -> Numbers | None:
    """Return the angle between each token and the first; None where a pair changes its length.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width).
        pairs: The two dimensions of each pair.
        size: The root mean square of the numbers of the first token.

    Returns:
        Radians, of shape (tokens, pairs).
    """
    real = numbers[:, :, [first for first, _ in pairs]]
    imaginary = numbers[:, :, [second for _, second in pairs]]
    points = real + 1j * imaginary
    lengths = np.abs(points)
    first_lengths = lengths[:, :1]
    if np.abs(lengths - first_lengths).max() > EQUAL * size:
        return None

    # z(p) * conj(z(0)) = |z(0)|^2 * exp(i * angle), summed over heads, which add up only where all
    # heads rotate by the same angle
    products = (points * np.conj(points[:, :1])).sum(0)
    expected = (first_lengths**2).sum(0)
    if np.abs(np.abs(products) - expected).max() > EQUAL * expected.max():
        return None
    angles: Numbers = np.angle(products)
    return angles


def _frequencies(angles: Numbers, positions: Sequence[int]) -> Numbers:
    """Return the frequency of each pair, from its angles at positions ever further apart.

    An angle is known modulo a whole turn. The first position gives a frequency without doubt, and
    each further one gives the same frequency more precisely, since the one before says how many
    whole turns to add: inv_freq = (angle + 2 pi turns) / position.

    Args:
        angles: In radians, of shape (tokens, pairs).
        positions: The positions of the tokens, of which the first is 0 and the second 1.

    Returns:
        Frequencies of shape (pairs,); 0 where the largest angle is too small to be seen.
    """
    inv_freq = angles[1] / positions[1]
    for row, position in zip(angles[2:], positions[2:], strict=True):
        turns = np.rint((inv_freq * position - row) / (2 * np.pi))
        refined = (row + 2 * np.pi * turns) / position
        is_beyond_digits = np.abs(inv_freq) * position > SURE_ANGLE
        inv_freq = np.where(is_beyond_digits, inv_freq, refined)
    moves = np.abs(inv_freq) * positions[-1] > MOVED
    frequencies: Numbers = np.where(moves, inv_freq, 0.0)
    return frequencies
