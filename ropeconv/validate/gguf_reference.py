"""References of a GGUF file: its source, which computes the schedule in another way than the file does.

A source in GGUF runs in llama.cpp, with metadata keys given at loading, or with other divisors over another base: both
use the same kernels on the same weights. Schedules that neither can express, and checkpoints, run in transformers,
patched from the schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides
from ..engines.llamacpp_program import Override
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import DeviceSpec, folder_of, placed
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import AddedTensor, Edit, write_new
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.forms import Plain
from ..rope.schedule import Schedule
from ..runtimes.llamacpp.read_header import FREQS, WINDOW_NORM, arch_of, rope_tensors
from .comparison import Comparison, Settings
from .validation import KL_FLOOR, POWER, SAME_KERNELS, BucketResult, with_rounded_weights

if TYPE_CHECKING:
    from torch import Tensor

SPLIT = 8.0
"""The base of a reference with divisors, over that of its source: a runtime that ignores the divisors is far away."""


@dataclass(frozen=True)
class ReferenceLogits:
    """Logits after some tokens, [positions, vocabulary].

    control: of the unscaled source. reference: of the source with the schedule. other_control: of the unscaled source,
    computed as the other of the two was; None if both were computed alike.
    """

    control: Tensor
    reference: Tensor
    other_control: Tensor | None = None


@dataclass(frozen=True)
class GgufReference(ABC):
    """A way to make the source of a GGUF file compute the schedule.

    floor: the KL that is always allowed. remark: for the report. rule: what else is allowed, for the report.
    """

    comparison: Comparison
    settings: Settings
    floor: ClassVar[float] = SAME_KERNELS
    remark: ClassVar[str] = ""
    rule: ClassVar[str] = ""

    @property
    def runs(self) -> int:
        """How often the whole sequence is run, with the run of the output."""
        return 3

    def judged(self, result: BucketResult, noise: float) -> BucketResult:
        """Return the result of a bucket by the rule of this reference.

        result: with the tolerance of float32. noise: the largest mean KL of a bucket between `control` and
        `other_control`, in nats.
        """
        return result

    @abstractmethod
    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> ReferenceLogits:
        """Return the logits after the tokens `kept` of `ids`."""


@dataclass(frozen=True)
class ByKeys(GgufReference):
    """llama.cpp with metadata keys that are given when the source is loaded. source: the file. keys: for it."""

    source: GgufSource
    keys: dict[str, Override]

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> ReferenceLogits:
        import torch

        engines = (LlamaCppEngine(self.source.path, keys) for keys in ({}, self.keys))
        return ReferenceLogits(*(torch.as_tensor(engine.logits(ids, kept, progress)) for engine in engines))


@dataclass(frozen=True)
class ByDivisors(GgufReference):
    """llama.cpp with the frequencies as divisors over another base, in a temporary copy of the source.

    source: the file. The noise is that of the unscaled source, written with divisors too.
    """

    source: GgufSource
    remark: ClassVar[str] = " The reference has the frequencies as divisors over another base."
    rule: ClassVar[str] = (
        "; with weights that are not in float32, whose products round otherwise where a frequency does, the mean KL "
        "may be a thousandth of that of the control, or twice that of the unscaled source between these two ways more"
    )

    @property
    def runs(self) -> int:
        return 4 if weights_type(self.source.file) else 3

    def judged(self, result: BucketResult, noise: float) -> BucketResult:
        return with_rounded_weights(result, noise, POWER) if weights_type(self.source.file) else result

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> ReferenceLogits:
        import torch

        schedules = [self.comparison.schedule, self.comparison.spec.current()][: self.runs - 2]
        control = LlamaCppEngine(self.source.path).logits(ids, kept, progress)
        divided = [self._divided(schedule, ids, kept, progress) for schedule in schedules]
        return ReferenceLogits(*(torch.as_tensor(logits) for logits in (control, *divided)))

    def _divided(self, schedule: Schedule, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> Tensor:
        """Return the logits of a copy of the source that computes a schedule."""
        file, spec, plain = self.source.file, self.comparison.spec, Plain(SPLIT * self.comparison.spec.rope_theta)
        keys = overrides(replace(schedule, form=plain), arch_of(file).name)
        assert keys is not None, "a plain base has keys"
        base = plain.inv_freq(spec.rotary_dim)
        rotates = schedule.inv_freq > 0
        divisors = np.where(rotates, base / np.where(rotates, schedule.inv_freq, 1.0), 1e30).astype("<f4")
        removed = frozenset({FREQS} & file.tensors.keys())
        edit = Edit(added=(AddedTensor(FREQS, divisors.tobytes()),), removed=removed)
        with scratch() as folder:
            for shard, path in enumerate(file.paths):
                write_new(file, shard, edit, folder / path.name)
            return LlamaCppEngine(folder / file.path.name, keys).logits(ids, kept, progress)


@dataclass(frozen=True)
class PatchedReference(GgufReference):
    """A checkpoint in transformers in float32, with rotary modules patched from the schedule."""

    floor: ClassVar[float] = KL_FLOOR

    def judged(self, result: BucketResult, noise: float) -> BucketResult:
        return with_rounded_weights(result) if weights_type(GgufSource(self.comparison.baked).file) else result

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> ReferenceLogits:
        return self._read(self.comparison.checkpoint, "float32", ids, kept, progress)

    def _read(
        self, checkpoint: Source, dtype: str, ids: Sequence[int], kept: Sequence[int], progress: Progress
    ) -> ReferenceLogits:
        """Return the logits of a checkpoint that computes in `dtype`."""
        with folder_of(checkpoint, dtype) as folder:
            at = placed(checkpoint, DeviceSpec("cpu", dtype, stands_for=self.comparison.stands_for))
            engine = TransformersEngine.load(folder, at, chunk=len(ids))
            control = engine.logits(ids, kept, progress)
            scale, comparison = self.comparison.scale, self.comparison
            engine.patch(comparison.schedule, comparison.spec, scale, comparison.queries if scale else "")
            return ReferenceLogits(control, engine.logits(ids, kept, progress))


@dataclass(frozen=True)
class DequantisedReference(PatchedReference):
    """A source in GGUF in transformers, with its weights dequantised; the noise is that of the unscaled source."""

    remark: ClassVar[str] = " The reference has the dequantised weights of the source, in transformers."
    rule: ClassVar[str] = (
        "; the mean KL may be twice that of the unscaled source between llama.cpp and transformers more, and the "
        "control must have ten times that KL"
    )

    @property
    def runs(self) -> int:
        return 4

    def judged(self, result: BucketResult, noise: float) -> BucketResult:
        return with_rounded_weights(result, noise, math.inf)

    def logits(self, ids: Sequence[int], kept: Sequence[int], progress: Progress) -> ReferenceLogits:
        import torch

        dtype = "float32" if self.settings.dtype == "auto" else self.settings.dtype
        dequantised = self.comparison.checkpoint_or_dequantised()
        assert isinstance(dequantised, GgufCheckpoint)
        checkpoint = dequantised.in_dtype(dtype)
        size = human(sum(file.size for file in checkpoint.files()))
        progress.note(f"The weights of {self.comparison.against} take {size} as {dtype}, on the disk and in memory.")
        plain = LlamaCppEngine(checkpoint.inner.path).logits(ids, kept, progress)
        return replace(self._read(checkpoint, dtype, ids, kept, progress), other_control=torch.as_tensor(plain))


def gguf_reference(comparison: Comparison, settings: Settings) -> GgufReference:
    """Return the sharpest reference of a GGUF file. Raises BadSource if there is none.

    comparison: the output and its source. settings: whether weights are to be dequantised.
    """
    source, schedule = comparison.source, comparison.schedule
    if not isinstance(source, GgufSource):
        return PatchedReference(comparison, settings)
    arch, spec, baked = arch_of(source.file), comparison.spec, GgufSource(comparison.baked).file
    scales = bool(schedule.log_n) or baked.get(WINDOW_NORM) is not None  # queries or norms
    if settings.dequantised or scales or source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier"):
        return _dequantised(comparison, settings)
    keys = overrides(schedule, arch.name)
    if keys is not None and not rope_tensors(source.file) and comparison.receipt.encoding == "keys":
        return ByKeys(comparison, settings, source, keys)
    two_lists = schedule.short_inv_freq is not None or spec.current().short_inv_freq is not None
    if arch.freqs == "used" and "local" not in spec.layers and not two_lists:
        return ByDivisors(comparison, settings, source)
    if keys is not None and not rope_tensors(source.file):
        return ByKeys(comparison, settings, source, keys)
    return _dequantised(comparison, settings)


def _dequantised(comparison: Comparison, settings: Settings) -> DequantisedReference:
    comparison.checkpoint_or_dequantised("cannot be given this schedule at loading, and cannot be dequantised either")
    return DequantisedReference(comparison, settings)


def weights_type(file: GgufFile) -> str:
    """Return the name of the most frequent type of matrices in a file; empty for F32."""
    return "" if file.usual_type == F32 else TYPES[file.usual_type].name
