"""How queries or keys rotate, from their numbers at a few positions.

The experiment gives every token the same query and the same key (`observing.random_numbers`), so
that the numbers after RoPE differ only by the position of the token. RoPE turns a pair of
dimensions (a, b), as the complex number z = a + ib, by an angle proportional to the position p:

    z(p) = grow(p) * z(0) * exp(i * p * inv_freq)

`measure` finds which dimensions change, which of them are a pair, `inv_freq` of each pair, and
`grow`, the length divided by that at position 0 (Llama 4 and Ministral scale queries so).
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

MEASURED_HEADS = 8
"""Heads whose rotation is measured; all heads of a layer rotate alike."""
LEAST_ROTATION = 2e-5
"""The change from which on a number rotates, as a share of the root mean square of all numbers."""
TOLERANCE = 2e-3
"""The relative error of an angle or a length that float32 computes."""
LARGEST_EXACT_ANGLE = 2000.0
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

    relative_lengths: tuple[float, ...]
    """The length of a query or key at each position, divided by the length at the first."""

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
    """Return how queries or keys rotate with the position; None where they do not change at all.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width). Before RoPE they were the same
            for every token, so all that differs is the effect of the position.
        positions: The position of each token, 0 for the first token.

    Raises:
        NotARotation: The numbers change with the position in another way.
    """
    numbers = numbers[:MEASURED_HEADS]  # a few heads are enough, since all rotate alike
    width = numbers.shape[-1]
    first_token = numbers[:, 0]  # [heads, width]
    root_mean_square = float(np.sqrt((first_token**2).mean())) or 1.0

    # Llama 4 multiplies queries by a number that grows with the position. Divided by their lengths,
    # queries differ only by a rotation.
    relative_lengths = _relative_lengths(numbers)  # [tokens], 1 for the first
    divisors = np.where(relative_lengths > 0, relative_lengths, 1.0)
    rotated = numbers / divisors[None, :, None]
    stored_lengths = tuple(relative_lengths.tolist())

    # the dimensions of a head that change from token to token
    largest_change = np.abs(rotated - first_token[:, None]).max((0, 1))  # [width]
    rotating_dimensions = np.flatnonzero(largest_change > LEAST_ROTATION * root_mean_square)
    if not len(rotating_dimensions):
        changes_length = np.abs(relative_lengths - 1).max() > TOLERANCE
        if not changes_length:
            return None
        return Rotation(start=0, pairs="half", inv_freq=(), relative_lengths=stored_lengths)

    # find out which two dimensions are a pair: they move on a circle, by one angle in all heads
    start = int(rotating_dimensions[0])
    for pairing, pair_count in _possible_pairs(rotating_dimensions):
        if start + 2 * pair_count > width:
            continue
        dimensions = pair_dimensions(pairing, start, pair_count)
        angles = _angles(rotated, dimensions, root_mean_square)
        if angles is None:  # these dimensions do not move on circles
            continue

        signed_inv_freq = _frequencies(angles, positions)
        _check_angles(angles, signed_inv_freq, positions)
        inv_freq = tuple(_as_positive(signed_inv_freq).tolist())
        return Rotation(start, pairing, inv_freq, stored_lengths)
    raise NotARotation("its queries or keys change with the position, and not in pairs")


def _relative_lengths(numbers: Numbers) -> Numbers:
    """Return the length of the queries of each token, divided by that of the first; [tokens].

    It is 1 for all in most models. Llama 4 multiplies queries by a number that grows with the
    position.

    Args:
        numbers: Queries or keys, of shape (heads, tokens, width).
    """
    lengths = np.sqrt((numbers**2).sum((0, 2)))
    relative: Numbers = lengths / (lengths[0] or 1.0)
    return relative


def _as_positive(inv_freq: Numbers) -> Numbers:
    """Return frequencies as positive numbers; NanoChat rotates all its pairs the other way.

    Raises:
        NotARotation: Some pairs rotate one way and some the other.
    """
    rotates_backwards = inv_freq.max() <= 0
    positive = -inv_freq if rotates_backwards else inv_freq
    if positive.min() < 0:
        raise NotARotation("some of its pairs rotate backwards")
    return positive


def _possible_pairs(rotating_dimensions: Numbers) -> list[tuple[Pairing, int]]:
    """Return the pairings that the dimensions that rotate allow, the likely one first.

    The dimensions 0 to 7 may be 4 pairs (i, i + 4), or 4 pairs (2i, 2i + 1): the result is
    [("half", 4), ("interleaved", 4)].

    Args:
        rotating_dimensions: The numbers of the dimensions that rotate, in order.

    Returns:
        For each possibility the pairing and the number of pairs.
    """
    possible: list[tuple[Pairing, int]] = []
    start = int(rotating_dimensions[0])

    # The slowest pairs may be missing, since their angles are too small to be seen. In halves, they
    # are the last ones of each half. So the two blocks 0 1 2 and 8 9 10 are what is seen of 8 pairs
    # (i, i + 8), and the number of pairs is the distance between the beginnings of the blocks.
    ends_of_blocks = np.flatnonzero(np.diff(rotating_dimensions) > 1)
    blocks = np.split(rotating_dimensions, ends_of_blocks + 1)
    if len(blocks) == 2:
        first_block, second_block = blocks
        if len(first_block) == len(second_block):
            possible.append(("half", int(second_block[0]) - start))

    # all dimensions from the first to the last one
    count = int(rotating_dimensions[-1]) + 1 - start
    if count % 2 == 0:
        possible.append(("half", count // 2))
        possible.append(("interleaved", count // 2))
    return possible


def _check_angles(angles: Numbers, inv_freq: Numbers, positions: Sequence[int]) -> None:
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
    if np.abs(lengths - first_lengths).max() > TOLERANCE * size:
        return None

    # z(p) * conj(z(0)) = |z(0)|^2 * exp(i * angle), summed over heads, which add up only where all
    # heads rotate by the same angle
    products = (points * np.conj(points[:, :1])).sum(0)
    expected = (first_lengths**2).sum(0)
    if np.abs(np.abs(products) - expected).max() > TOLERANCE * expected.max():
        return None
    angles: Numbers = np.angle(products)
    return angles


def _frequencies(angles: Numbers, positions: Sequence[int]) -> Numbers:
    """Return the frequency of each pair, from its angles at positions ever further apart.

    An angle is known modulo a whole turn, 2 pi. At position 1 it is the frequency, which is below a
    whole turn. An angle at a further position gives the same frequency more precisely: inv_freq =
    (angle + 2 pi turns) / position, where the frequency so far says how many whole turns to add.

    Args:
        angles: In radians, of shape (tokens, pairs).
        positions: The positions of the tokens, of which the first is 0 and the second 1.

    Returns:
        Frequencies of shape (pairs,); 0 where the largest angle is too small to be seen.
    """
    inv_freq = angles[1] / positions[1]
    for angles_at_position, position in zip(angles[2:], positions[2:], strict=True):
        whole_turns = np.rint((inv_freq * position - angles_at_position) / (2 * np.pi))
        more_precise = (angles_at_position + 2 * np.pi * whole_turns) / position

        # float32 rounds a large angle, which then gives nothing more precise
        is_rounded = np.abs(inv_freq) * position > LARGEST_EXACT_ANGLE
        inv_freq = np.where(is_rounded, inv_freq, more_precise)

    # the angle at the last position is too small to be seen in pairs that do not rotate
    rotates = np.abs(inv_freq) * positions[-1] > LEAST_ROTATION
    frequencies: Numbers = np.where(rotates, inv_freq, 0.0)
    return frequencies
