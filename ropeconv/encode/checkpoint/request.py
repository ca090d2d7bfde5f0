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
from ...runtimes import Runtime
from ..fold.placement import Fold, Side
from ..result import Choice

Tensors = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Task:
    """What is to be written, and for whom.

    spec: the checkpoint before. targets: the runtimes that must read it exactly. tensors: gives the checkpoint's
    tensors, or none where only a config is at hand; it may have to fetch their headers, so it is asked when needed.
    """

    schedule: Schedule
    spec: RopeSpec
    family: Family
    config: Config
    targets: tuple[Runtime, ...]
    tensors: Tensors = dict
    side: Side = "k"


@dataclass(frozen=True)
class ConfigChoice(Choice):
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

    def suits(self, targets: tuple[Runtime, ...], words: tuple[str, ...] = ("exact",)) -> bool:
        """Whether every target reads it as one of these words say."""
        return all(self.word(row) in words for row in targets)
