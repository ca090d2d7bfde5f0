"""Damage to bytes, and changes to JSON: wrong types, odd numbers, missing and doubled keys,
nesting, encodings.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

DAMAGE = ("truncated", "flipped", "overwritten", "inserted", "doubled", "empty")


def damaged(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    match random.choice(DAMAGE):
        case "truncated":
            return data[:at]
        case "flipped" if data:
            changed = bytearray(data)
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
            return bytes(changed)
        case "overwritten":
            length = random.choice((1, 8, 64))
            fill = random.choice((b"\0", b"\xff", random.randbytes(1)))
            return data[:at] + fill * length + data[at + length :]
        case "inserted":
            return data[:at] + random.randbytes(random.choice((1, 8, 100))) + data[at:]
        case "doubled":
            return data[:at] + data[at : at + 200] + data[at:]
        case _:
            return random.choice((b"", b"\0", b"\n", b"\xef\xbb\xbf", b"\0" * 4096))


@dataclass
class Raw:
    """JSON text that `json.dumps` would not write. text: as it goes into the file."""

    text: str


VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    -0.0,
    0.5,
    -0.5,
    1.5,
    5e-324,
    1e308,
    -1e308,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63),
    10**400,
    -(10**400),
    3 * 10**8,
    400_000,
    Raw("NaN"),
    Raw("-Infinity"),
    Raw("1e999"),
    Raw("1" * 5000),
    Raw("[" * 300 + "]" * 300),
    Raw("[" * 100_000 + "]" * 100_000),
    Raw('{"a":' * 3000 + "1" + "}" * 3000),
    "",
    "4",
    "4.0",
    "nan",
    "a",
    "null",
    "\ud800",
    "a\udfff",
    "\0",
    "\n",
    "../../../etc/passwd",
    "/etc/passwd",
    "x" * 300,
    "x" * 100_000,
    "\u202e",
    "\N{PILE OF POO}",
    "default",
    "linear",
    "yarn",
    "llama3",
    "longrope",
    "dynamic",
    "llama",
    [],
    {},
    [[]],
    [None],
    [1],
    [1.0, 2.0],
    ["a"],
    ["\ud800"],
    [True],
    [{}],
    [-1],
    [Raw("NaN")],
    [10**400],
    [0] * 10_000,
    {"a": 1},
    {"": None},
    {"factor": 4.0},
    {"rope_type": "yarn"},
    {"rope_type": [], "factor": {}},
    {"\ud800": "\ud800"},
)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    64,
    127,
    2_049,
    0.5,
    1.0000001,
    1e-30,
    1e6,
    1e30,
    1e308,
    5e-324,
    -1,
    2**20,
    2**31,
    2**53,
    10**30,
)
TEXTS = ("", "linear", "yarn", "128k", "1M", "ntk:2", "yarn:1000", "8@4", "999999@1", "full", "F16")


def changed(random: Random, data: Any, keys: Sequence[str] = ()) -> Any:
    """A copy of JSON data with one to three changes. keys: names that a reader looks for, which may
    be added.
    """
    mutant = copy.deepcopy(data)
    change = _nudge if random.random() < 0.4 else _change
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        change(random, mutant, keys)
    return mutant


def _nudge(random: Random, data: Any, keys: Sequence[str]) -> None:
    """Changes a single value into another of its type, which passes the checks of types and reaches
    what is behind.
    """
    places = [(place, key) for place in _containers(data) for key in _spots(place)]
    place, key = random.choice(
        [(place, key) for place, key in places if not isinstance(place[key], (dict, list))]
    )
    old = place[key]
    place[key] = (
        not old
        if isinstance(old, bool)
        else random.choice(TEXTS if isinstance(old, str) else NUMBERS)
    )


def _change(random: Random, data: Any, keys: Sequence[str]) -> None:
    places = _containers(data)
    # the containers near the top are few, and what is read stands there
    place = random.choice(places[: random.choice((1, 3, len(places)))])
    kind = random.random()
    spots = _spots(place)
    if isinstance(place, dict) and keys and (kind < 0.35 or not spots):
        place[random.choice(keys)] = copy.deepcopy(random.choice(VALUES))
    elif spots:
        spot = random.choice(spots)
        if kind < 0.75:
            place[spot] = copy.deepcopy(random.choice(VALUES))
        elif kind < 0.9:
            del place[spot]
        else:
            place[spot] = random.choice(([place[spot]], {"a": place[spot]}, str(place[spot])))


def _spots(place: Any) -> list[Any]:
    return list(place) if isinstance(place, dict) else list(range(len(place)))


def _containers(data: Any) -> list[Any]:
    """All objects and lists, from the top."""
    containers = []
    level = [data]
    while level:
        here = [item for item in level if isinstance(item, (dict, list))]
        containers += here
        level = [
            inner for item in here for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return containers


def text_of(random: Random, data: Any) -> bytes:
    """Data as JSON text: mostly right, sometimes with a doubled key, another encoding or damaged
    bytes.
    """
    raws: list[str] = []

    def plain(item: Any) -> Any:
        if isinstance(item, Raw):
            raws.append(item.text)
            return f"\x01{len(raws) - 1}\x01"
        if isinstance(item, dict):
            return {key: plain(value) for key, value in item.items()}
        return [plain(value) for value in item] if isinstance(item, list) else item

    text = json.dumps(plain(data))
    for number, raw in enumerate(raws):
        text = text.replace(f'"\\u0001{number}\\u0001"', raw)
    chance = random.random()
    if chance < 0.85:
        return text.encode()
    if chance < 0.92:
        return random.choice(
            (b'{"model_type": 3, "method": 0,' + text[1:].encode(), text.encode("utf-16"))
        )
    return damaged(random, text.encode())
