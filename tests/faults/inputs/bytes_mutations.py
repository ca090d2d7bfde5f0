"""Damage to bytes, whatever they mean."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def _truncated(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwritten(random: Random, data: bytes) -> bytes:
    at, length = random.randrange(len(data) + 1), random.choice((1, 4, 8, 64))
    fill = random.choice((b"\0", b"\xff", b"\x80", random.randbytes(1)))
    return data[:at] + fill * length + data[at + length :]


def _inserted(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 8, 100))) + data[at:]


def _cut(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 8, 100)) :]


def _doubled(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at : at + 200] + data[at:]


def _extended(random: Random, data: bytes) -> bytes:
    return data + random.choice((b"\0", b"}", b"\n{}", b"\0" * 1000, random.randbytes(64)))


def _empty(random: Random, data: bytes) -> bytes:
    return random.choice((b"", b"\0", b"\n", b"\xef\xbb\xbf", b"\0" * 4096))


DAMAGE: tuple[Callable[[Random, bytes], bytes], ...] = (
    _truncated, _flipped, _flipped, _overwritten, _inserted, _cut, _doubled, _extended, _empty,
)  # fmt: skip


def damaged(random: Random, data: bytes) -> bytes:
    """The bytes with one kind of damage."""
    return random.choice(DAMAGE)(random, data)
