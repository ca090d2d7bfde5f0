"""What an encoding of a checkpoint is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...families import Family
from ...families.config import Config
from ...formats.safetensors import Tensor
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...runtimes import Runtime, find
from ..fold.placement import Fold
from ..result import EncodeResult
from ..target import Target

Tensors = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class EncodeRequest:
    """What is to be written, and for whom.

    spec: the checkpoint before. config: its whole config.json, which `family` reads. target: how it is wanted.
    tensors: gives the checkpoint's tensors, or none where only a config is at hand; it may have to fetch their
    headers, so it is called only where weights change.
    """

    schedule: Schedule
    spec: RopeSpec
    family: Family
    config: Config
    target: Target
    tensors: Tensors = dict

    @property
    def versions(self) -> list[tuple[Runtime, ...]]:
        """The current versions of each runtime that must read it exactly, the newest last."""
        return [find(name) for name in self.target.runtimes or ("transformers",)]

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The newest version of each runtime that must read it exactly."""
        return tuple(rows[-1] for rows in self.versions)


@dataclass(frozen=True)
class CheckpointResult(EncodeResult):
    """A chosen encoding of a checkpoint.

    config: the whole config.json, which `family` reads. in_config: the schedule that the config (with stored buffers)
    says, without what is folded into weights. written_as: the encoding of the config itself. context: the length it
    declares. fold: what goes into the weights. texts: files that come along. added: tensors that come along.
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
        """Whether every one of the runtimes reads it with one of the statuses."""
        return all(self.status_of(row) in statuses for row in runtimes)
