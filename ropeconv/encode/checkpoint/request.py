"""EncodeRequest, the input of an encoding of a checkpoint, and CheckpointResult, its output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...families import Family
from ...families.config import Config, text_parts
from ...families.schema import DUAL_CHUNK
from ...formats.safetensors import Tensor
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...runtimes import Runtime, find, runtimes
from ...runtimes.find import ALL
from ...runtimes.verdict import without_config
from ..fold.placement import Fold
from ..result import EncodeResult
from ..target import Target

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
