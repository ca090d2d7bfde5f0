"""Damage to bytes, and changes to JSON: wrong types, odd numbers, missing and doubled keys, nesting, encodings."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

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


@dataclass
class Raw:
    """JSON text that `json.dumps` would not write. text: as it goes into the file."""

    text: str


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 0.0, -0.0, 0.5, -0.5, 1.5, 1e-308, 5e-324, 1e300, 1e308, -1e308,
    2**31, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**18, 10**400, -(10**400), 3 * 10**8, 400_000,
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-1e999"), Raw("1" * 5000),
    Raw("0." + "1" * 5000), Raw("[" * 300 + "]" * 300),
    Raw("[" * 100_000 + "]" * 100_000), Raw('{"a":' * 3000 + "1" + "}" * 3000),
    "", "4", "4.0", "nan", "a", "null", "\ud800", "a\udfff", "\0", "\n", "../../../etc/passwd", "/etc/passwd",
    "x" * 300, "x" * 100_000, "\u202e", "\N{PILE OF POO}", "default", "linear", "yarn", "llama3", "longrope", "dynamic",
    "llama", [], {}, [[]], [None], [1], [1.0, 2.0], ["a"], ["\ud800"], [True], [{}], [-1], [Raw("NaN")], [10**400],
    [0] * 10_000,
    {"a": 1}, {"": None}, {"factor": 4.0}, {"rope_type": "yarn"}, {"rope_type": [], "factor": {}}, {"\ud800": "\ud800"},
)  # fmt: skip


def changed(random: Random, data: Any, keys: Sequence[str] = (), values: Sequence[Any] = ()) -> Any:
    """A copy of JSON data with one to three changes in its structure.

    keys: names that a reader looks for, which may be added anywhere. values: more values for any place.
    """
    made = copy.deepcopy(data)
    if random.random() < 0.4:
        return _nudged(random, made)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        made = _change(random, made, keys, (*VALUES, *values))
    return made


NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 5, 64, 127, 2_048, 2_049, 0.5, 0.999, 1.0000001, 1e-30, 1e-6, 1e6, 1e29, 1e30, 1e38, 1e100, 1e308,
    5e-324, -1, -0.5, 2**20, 2**23, 2**31 - 1, 2**31, 2**53, 10**12, 10**30, 8192, 8193, 10_000, 10_001,
)  # fmt: skip
TEXTS = (
    "", "linear", "yarn", "128k", "1k", "1M", "ntk:2", "ntk:999999", "yarn:1000", "8@4", "1@1", "999999@1", "full",
    "F16",
)  # fmt: skip


def _nudged(random: Random, data: Any) -> Any:
    """Changes single values into others of their own type, which pass the checks of types and reach what is behind."""
    spots = [
        (place, key)
        for place in _containers(data)
        for key in (place if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list))
    ]
    for _ in range(random.choice((1, 1, 2, 3, 6)) if spots else 0):
        place, key = random.choice(spots)
        old = place[key]
        if isinstance(old, bool):
            place[key] = not old
        else:
            place[key] = random.choice(TEXTS if isinstance(old, str) else NUMBERS)
    return data


def _change(random: Random, data: Any, keys: Sequence[str], values: Sequence[Any]) -> Any:
    places = list(_containers(data))
    if not places or random.random() < 0.01:
        return copy.deepcopy(random.choice(values))
    # the containers near the top are few, and what is read stands there
    place = random.choice(places[: random.choice((1, 3, len(places)))])
    kind = random.random()
    if isinstance(place, dict) and keys and kind < 0.35:
        place[random.choice(keys)] = copy.deepcopy(random.choice(values))
        return data
    spots = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not spots:
        return data
    spot = random.choice(spots)
    if kind < 0.75:
        place[spot] = copy.deepcopy(random.choice(values))
    elif kind < 0.85:
        del place[spot]
    elif kind < 0.9:
        place[spot] = random.choice(([place[spot]], {"a": place[spot]}, str(place[spot])))
    elif kind < 0.95:
        other = random.choice(spots)
        place[spot], place[other] = place[other], place[spot]
    elif isinstance(place, dict):
        place[random.choice((f"{spot}x", "", "\ud800", "a" * 1000, "__proto__"))] = place.pop(spot)
    else:
        place[:] = place[: random.randrange(len(place) + 1)] * random.choice((1, 2, 50))
    return data


def _containers(data: Any) -> list[Any]:
    """All objects and lists, from the top."""
    found, level = [], [data]
    while level:
        here = [item for item in level if isinstance(item, (dict, list))]
        found += here
        level = [inner for item in here for inner in (item.values() if isinstance(item, dict) else item)]
    return found


def text_of(random: Random, data: Any) -> bytes:
    """Data as JSON text: mostly right, sometimes with a doubled key, another encoding or damaged bytes."""
    raws: list[str] = []

    def plain(item: Any) -> Any:
        if isinstance(item, Raw):
            raws.append(item.text)
            return f"\x01{len(raws) - 1}\x01"
        if isinstance(item, dict):
            return {key: plain(value) for key, value in item.items()}
        return [plain(value) for value in item] if isinstance(item, list) else item

    text = json.dumps(plain(data), indent=random.choice((None, 2)))
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001{number}\\u0001"', raw)
    chance = random.random()
    if chance < 0.85:
        return text.encode()
    if chance < 0.88 and text.startswith("{") and len(text) > 2:
        return ('{"model_type": 3, "weight_map": [], "method": 0,' + text[1:]).encode()
    if chance < 0.92:
        return random.choice((b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16"), b"\xff\xfe" + text.encode()))
    return damaged(random, text.encode())
