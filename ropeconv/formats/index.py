"""model.safetensors.index.json: which shard holds which tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from ..errors import TOO_MANY, BadSource, shown
from . import jsontext

INDEX = "model.safetensors.index.json"
LONGEST, MOST_TENSORS, LONGEST_REST = 64 << 20, 600_000, 1 << 20
"""Characters of an index, its tensors, and the characters of everything but `weight_map`. A Kimi K2 in GPTQ has 276,480
tensors of experts, in 25 to 30 million characters."""


def shards(text: str) -> tuple[str, ...]:
    """Names of the shards in an index, sorted.

    Raises BadSource when it is not an index, or names a file outside its own folder.
    """
    names = sorted(set(_weight_map(text).values()))
    for name in names:
        if not safe_name(name):
            raise BadSource(
                f"{INDEX} names the shard {shown(name)}, which is not inside the folder; do not trust this checkpoint"
            )
    return tuple(names)


def tensors(text: str) -> tuple[str, ...]:
    """Names of the tensors in an index. Raises BadSource when it is not an index."""
    return tuple(_weight_map(text))


def with_shard(text: str, shard: str, added: Mapping[str, int]) -> str:
    """The text of an index with one more shard.

    text: of the index. shard: the name of the new file. added: its tensors, name to bytes.
    """
    index = _grown(text, sum(added.values()))
    index["weight_map"] |= dict.fromkeys(added, shard)
    return jsontext.dump(index, like=text)


def with_size(text: str, more: int) -> str:
    """The text of an index whose `total_size` is `more` bytes larger."""
    return jsontext.dump(_grown(text, more), like=text)


def _grown(text: str, more: int) -> dict[str, Any]:
    _weight_map(text)
    index = jsontext.parse(text, INDEX, LONGEST)
    known = index.get("metadata")
    if isinstance(known, dict) and isinstance(known.get("total_size"), int):
        known["total_size"] += more
    return index


def index_of(shard: str, sizes: Mapping[str, int]) -> str:
    """The text of an index for a checkpoint in one file.

    shard: the name of the file. sizes: its tensors, name to bytes.
    """
    entries = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict.fromkeys(sizes, shard)}
    return jsontext.dump(entries)


def _weight_map(text: str) -> dict[str, str]:
    if len(text) > LONGEST:
        raise BadSource(f"{INDEX} has {len(text):,} characters, and at most {LONGEST:,} are read; {TOO_MANY}")
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        weight_map = msgspec.json.decode(entries.pop("weight_map", b"null"), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise BadSource(f"{INDEX} has no readable weight_map ({problem}); download it again") from None
    rest = sum(len(bytes(raw)) for raw in entries.values())
    if len(weight_map) > MOST_TENSORS or rest > LONGEST_REST:
        raise BadSource(
            f"{INDEX} names {len(weight_map):,} tensors and has {rest:,} bytes beside them, and at most "
            f"{MOST_TENSORS:,} and {LONGEST_REST:,} are read; {TOO_MANY}"
        )
    return weight_map


def safe_name(name: str) -> bool:
    """Whether a name stays inside its folder: relative, and without `..`, backslashes or drive letters."""
    path = PurePosixPath(name)
    inside = name not in ("", ".") and not path.is_absolute() and ".." not in path.parts
    return inside and "\\" not in name and ":" not in name and "\0" not in name
