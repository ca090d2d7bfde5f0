"""The encodings of a checkpoint: what each is, and the function that writes it."""

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

    order: its place where "auto" looks for the plainest, lowest first. encode: raises UnsupportedBake for what it
    cannot hold. max_ulp: by how many steps of float32 the frequencies of a right runtime may miss the schedule.
    config_only: whether it is a config.json and nothing else. folds: whether the attention factor goes into weights,
    which validation then computes again. model_type: from the `model_type` of a checkpoint to the one it is given.
    """

    name: str
    order: int
    encode: Encode
    max_ulp: int
    config_only: bool = False
    folds: bool = False
    model_type: Callable[[str], str] = _same


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
    """Registers a function as an encoding; the parameters are those of `Encoding`."""

    def register(encode: Encode) -> Encode:
        REGISTRY[name] = Encoding(name, order, encode, max_ulp, config_only, folds, model_type)
        return encode

    return register


def all_encodings() -> dict[str, Encoding]:
    """Every registered encoding by name, plainest first."""
    return {found.name: found for found in sorted(REGISTRY.values(), key=lambda found: found.order)}
