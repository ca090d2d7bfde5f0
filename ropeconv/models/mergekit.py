"""The models of a mergekit file: `models`, `slices`, `modules` or experts, each with a base and with LoRA adapters.

A reference is `PATH[@REVISION][+LORA[@REVISION]]`, or an object of these (mergekit 0.1.5, mergekit/common.py:37-205,
config.py:76-142, moe/config.py:12-46).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BadSource
from ..formats.files import expanded, read_text
from ..rope.errors import shown

SUFFIXES = (".yaml", ".yml")
NAMES = ("base_model", "model", "source_model")
LISTS = ("models", "slices", "sources", "experts", "shared_experts")


@dataclass(frozen=True)
class Merge:
    """A mergekit file.

    models: paths or Hub ids, the base first. adapters: pairs of a model and an adapter on it. base: that of
    `base_model`, empty without it. sliced: whether it takes ranges of layers. aligned: whether it matches tokens.
    """

    models: tuple[str, ...]
    adapters: tuple[tuple[str, str], ...]
    base: str
    sliced: bool
    aligned: bool


def is_merge(reference: str) -> bool:
    """Whether a reference is the path of a YAML file."""
    return reference.endswith(SUFFIXES) and expanded(reference).is_file()


def read_merge(path: Path) -> Merge:
    """Read a mergekit file. Raises BadSource for a file that is not YAML, or names no models."""
    try:
        data = msgspec.yaml.decode(read_text(path, path.name))
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:  # ValueError: of a date or number
        raise BadSource(f"{path} is not one YAML document ({str(problem).splitlines()[0]}); correct it") from None
    data = data if isinstance(data, dict) else {}
    pairs = list(dict.fromkeys(_named(value, path) for value in _references(data, set())))
    if not pairs:
        raise BadSource(f"{path} names no models, so it is not a file of mergekit; give its models, slices or experts")
    first = [_named(data["base_model"], path)] if data.get("base_model") else []
    return Merge(
        models=tuple(dict.fromkeys(model for model, _ in [*first, *pairs])),
        adapters=tuple((model, lora) for model, lora in pairs if lora),
        base=first[0][0] if first else "",
        sliced=bool(data.get("slices") or data.get("modules")),
        aligned=bool(data.get("tokenizer") or data.get("tokenizer_source")),
    )


def _references(node: object, visited: set[int]) -> Iterator[object]:
    """Yields what stands for a model in a part of a file. visited: parts, which an alias of YAML can repeat."""
    if not isinstance(node, dict) or id(node) in visited:
        return
    visited.add(id(node))
    yield from (node[name] for name in NAMES if node.get(name))
    modules = node.get("modules")
    parts = [part for name in LISTS if isinstance(node.get(name), list) for part in node[name]]
    for part in (*parts, *(modules.values() if isinstance(modules, dict) else ())):
        yield from _references(part, visited)


def _named(value: object, path: Path) -> tuple[str, str]:
    """The model and the adapter of a reference, empty without one. Raises BadSource for anything else."""
    parts = value if isinstance(value, dict) else {}
    places = [_place(parts.get(key)) for key in ("model", "lora") if key == "model" or parts.get(key)]
    names = value.split("+") if isinstance(value, str) else places
    if len(names) > 2 or not all(names):
        raise BadSource(f"{path} names the model {shown(value)}; write it as PATH, or as PATH+ADAPTER")
    return names[0], names[1] if len(names) > 1 else ""


def _place(value: object) -> str:
    """The path with the revision of a ModelPath; empty for anything else."""
    if isinstance(value, dict) and value.get("path"):
        return f"{value['path']}{f'@{revision}' if (revision := value.get('revision')) else ''}"
    return value if isinstance(value, str) else ""
