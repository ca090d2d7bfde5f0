"""Damage to bytes, whatever they mean."""

from __future__ import annotations

from random import Random

DAMAGE = ("truncated", "flipped", "flipped", "overwritten", "inserted", "cut", "doubled", "extended", "empty")


def damaged(random: Random, data: bytes, kind: str = "") -> bytes:
    """The bytes with one kind of damage."""
    at = random.randrange(len(data) + 1)
    match kind or random.choice(DAMAGE):
        case "truncated":
            return data[:at]
        case "flipped":
            changed = bytearray(data)
            for _ in range(random.choice((1, 1, 2, 8)) if data else 0):
                changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            return bytes(changed)
        case "overwritten":
            length, fill = random.choice((1, 4, 8, 64)), random.choice((b"\0", b"\xff", b"\x80", random.randbytes(1)))
            return data[:at] + fill * length + data[at + length :]
        case "inserted":
            return data[:at] + random.randbytes(random.choice((1, 8, 100))) + data[at:]
        case "cut":
            return data[:at] + data[at + random.choice((1, 8, 100)) :]
        case "doubled":
            return data[:at] + data[at : at + 200] + data[at:]
        case "extended":
            return data + random.choice((b"\0", b"}", b"\n{}", b"\0" * 1000, random.randbytes(64)))
        case _:
            return random.choice((b"", b"\0", b"\n", b"\xef\xbb\xbf", b"\0" * 4096))
