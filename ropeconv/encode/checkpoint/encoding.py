"""Encoding, one way to write a schedule into a checkpoint, and the registry of all encodings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .request import CheckpointResult, EncodeRequest

Encode = Callable[[EncodeRequest], CheckpointResult]


def _same(model_type: str) -> str:
    return model_type


@dataclass(frozen=True)
class Encoding:
    """A way to write a schedule into a checkpoint.

    name: as `--encoding` takes it. order: the order in which "auto" tries encodings, lowest first. encode: from a
    request to a result; raises UnsupportedBake for schedules that it cannot hold. max_ulp: by how many ulp of float32
    the frequencies of a correct runtime may differ from the schedule. config_only: whether it changes config.json
    alone. folds: whether it folds the attention factor into weights, which validation then checks. model_type: from the
    `model_type` of a source to that of its output.
    """

    name: str
    order: int
    encode: Encode
    max_ulp: int
    config_only: bool
    folds: bool
    model_type: Callable[[str], str]


REGISTRY: dict[str, Encoding] = {}


def encoding(
    name: str,
    *,
    order: int,
    max_ulp: int,
    config_only: bool = False,
    folds: bool = False,
    model_type: Callable[[str], str] = _same,
) -> Callable[[Encode], Encode]:
    """Decorator: registers a function as an encoding.

    name, order, max_ulp, config_only, folds, model_type: as in `Encoding`.
    """

    def register(encode: Encode) -> Encode:
        REGISTRY[name] = Encoding(name, order, encode, max_ulp, config_only, folds, model_type)
        return encode

    return register


def all_encodings() -> dict[str, Encoding]:
    """All registered encodings by name, in their order."""
    return {found.name: found for found in sorted(REGISTRY.values(), key=lambda found: found.order)}
