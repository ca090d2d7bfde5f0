"""Encoding, one way to write a schedule into a checkpoint, and the registry of all encodings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..formats.safetensors import Tensor
from ..models.config import text_parts
from ..models.family import Family
from ..models.schema import DUAL_CHUNK, Config
from ..rope.registry import Registry
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.grouping import ALL, find
from ..runtimes.runtime import Runtime, runtimes
from ..runtimes.verdict import without_config
from .fold import Fold
from .target import EncodeResult, Target

Tensors = Callable[[], Mapping[str, Tensor]]


def without_dual_chunk(config: Config, family: Family) -> Config:
    """A copy of a config without dual_chunk_attention_config."""
    changed = copy.deepcopy(config)
    for part in text_parts(changed, family):
        part.pop(DUAL_CHUNK, None)
    return changed


@dataclass(frozen=True)
class EncodeRequest:
    """What is to be written, and for which runtimes.

    schedule: what has to be computed. spec: the RoPE of the source. family: of its model. config: its whole
    config.json, without dual_chunk_attention_config where the target drops that. target: the options of the output.
    tensors: returns the tensors of the source by name, empty for a config.json alone; it may have to fetch headers, so
    it is called only by encodings that change weights.
    """

    schedule: Schedule
    spec: RopeSpec
    family: Family
    config: Config
    target: Target
    tensors: Tensors = dict

    def __post_init__(self) -> None:
        if self.target.dual_chunk == "drop":
            object.__setattr__(self, "config", without_dual_chunk(self.config, self.family))

    @property
    def versions(self) -> list[tuple[Runtime, ...]]:
        """Per runtime that has to read the output exactly, its current versions, the newest last.

        "all" stands for the runtimes that have the family and were looked at.
        """
        names = list(self.target.runtimes or ("transformers",))
        if ALL in names:
            at = names.index(ALL)
            names[at : at + 1] = [row.name for row in runtimes() if without_config(row, self.family) is None]
        return [find(name) for name in dict.fromkeys(names)]

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The newest version of each runtime that has to read the output exactly."""
        return tuple(rows[-1] for rows in self.versions)


@dataclass(frozen=True)
class CheckpointResult(EncodeResult):
    """A schedule as an encoding writes it into a checkpoint.

    config: the whole new config.json. family: that reads it. in_config: the schedule that the config (with stored
    buffers) gives, without factors that are folded into weights. written_as: the encoding of the config itself.
    context: the tokens that it declares. fold: factors in weights, None without. texts: text files to add, by name.
    added: tensors to add, by name.
    """

    config: Config = field(kw_only=True)
    family: Family = field(kw_only=True)
    in_config: Schedule = field(kw_only=True)
    written_as: str = field(kw_only=True)
    context: int = field(kw_only=True)
    fold: Fold | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def suits(self, runtimes: tuple[Runtime, ...], statuses: tuple[str, ...] = ("exact",)) -> bool:
        """Whether the verdict of every one of `runtimes` has one of the statuses."""
        return all(self.status_of(row) in statuses for row in runtimes)


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


ENCODINGS: Registry[Encoding] = Registry("encoding", "ropeconv.convert.encodings", lambda encoding: encoding.order)
"""The encodings of checkpoints, in the order in which "auto" tries them."""


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
        ENCODINGS.add(name, Encoding(name, order, encode, max_ulp, config_only, folds, model_type), encode.__module__)
        return encode

    return register
