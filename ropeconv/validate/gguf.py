"""Compare logits of a GGUF file in llama.cpp with those of its source, which computes the schedule in another way.

A source in GGUF runs in llama.cpp, with metadata keys given at loading, or with other divisors over another base: both
use the same kernels on the same weights. Schedules that neither can express, and checkpoints, run in transformers,
patched from the schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..convert.from_gguf.source import GgufCheckpoint
from ..engines.engine import Progress
from ..engines.llamacpp import LlamaCppEngine, overrides
from ..engines.llamacpp_program import Override
from ..engines.transformers.engine import TransformersEngine
from ..engines.transformers.load import DeviceSpec, folder_of, placed
from ..errors import BadSource
from ..formats.disk import human
from ..formats.files import scratch
from ..formats.gguf.edit import AddedTensor, Edit, write_new
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, TYPES
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.forms import Plain
from ..rope.schedule import QueryScaling, Schedule
from ..runtimes.llamacpp.read_header import FREQS, WINDOW_NORM, arch_of, rope_tensors
from .comparison import Comparison, Settings
from .sampling import Bucket, tail_buckets, usual_length
from .validation import (
    KL_FLOOR,
    POWER,
    SAME_KERNELS,
    SEPARATION,
    BucketResult,
    Measures,
    Validation,
    bucket_result,
    conclusion,
    measure,
    otherwise,
    rule,
    spread_of,
    tolerance,
    with_rounded_weights,
)

if TYPE_CHECKING:
    from torch import Tensor

EACH = 128
"""Positions at the end of each range that are compared."""
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

    floor: the KL that is always allowed. remark: for the report. rule: what else is allowed, for the report. runs: how
    often the whole sequence is run, with the run of the output. separation: as in `with_rounded_weights`; None where
    the two sides compute with the same weights in float32.
    """

    comparison: Comparison
    settings: Settings
    floor: ClassVar[float] = SAME_KERNELS
    remark: ClassVar[str] = ""
    rule: ClassVar[str] = ""

    @property
    def runs(self) -> int:
        return 3

    @property
    def separation(self) -> float | None:
        return None

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

    @property
    def separation(self) -> float | None:
        return POWER if weights_type(self.source.file) else None

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

    @property
    def separation(self) -> float | None:
        return SEPARATION if weights_type(GgufSource(self.comparison.baked).file) else None

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
    runs: ClassVar[int] = 4
    separation: ClassVar[float] = math.inf

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


def weights_type(file: GgufFile) -> str:
    """Return the name of the most frequent type of matrices in a file; empty for F32."""
    return "" if file.usual_type == F32 else TYPES[file.usual_type].name


def validate_gguf(
    comparison: Comparison, settings: Settings | None = None, progress: Progress | None = None
) -> Validation:
    """Compare the logits of a GGUF file in llama.cpp with those of the reference, and of the unscaled source.

    Args:
        comparison: The output and its source.
        settings: `tokens` is the length of the sequence, by default four times the trained context, up to 8192.
        progress: Callbacks.

    Raises:
        BadSource: If nothing makes the source compute the schedule.
    """
    import torch

    settings, progress = settings or Settings(), progress or Progress()
    schedule, file = comparison.schedule, GgufSource(comparison.baked).file
    reference, rounded = check_gguf(comparison, settings), _rounded(comparison)
    usual = usual_length(schedule.original_context, schedule.context)
    length = min(schedule.context, settings.tokens or usual)
    if length <= schedule.original_context:
        progress.note(f"{length} tokens are within the trained context of {schedule.original_context}; raise --tokens")
    runs = tail_buckets(schedule.original_context, length, EACH)
    kept = [position for run in runs for position in run.positions]
    width, generator = file.tensors["token_embd.weight"].shape[1], torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(width, (length,), generator=generator).tolist()
    progress.note(f"Running {length} tokens {reference.runs} times: control, reference and output.")
    progress.total(reference.runs * length)
    logits = reference.logits(ids, kept, progress)
    engine = LlamaCppEngine(comparison.baked)
    stock = torch.as_tensor(engine.logits(ids, kept, progress))
    results, temperature = _judged(runs, logits, stock, reference), 1.0
    if not rounded and _power(results) < POWER:
        spread = spread_of(logits.reference)
        over_spread = _judged(runs, logits, stock, reference, spread)
        if _power(over_spread) > _power(results):
            results, temperature = over_spread, spread
    same = not rounded and bool((logits.reference == stock).all())
    agrees, sentence = conclusion(results, comparison.unchanged)
    if agrees and same:
        sentence = f"Equal to the last bit. {sentence}"
    elif agrees and rounded:
        sentence += f" The weights are {rounded}: a tenth of the control is allowed."
    sentence += reference.remark
    sentence += otherwise([f"logits divided by their spread of {temperature:.2g}"] if temperature != 1 else [])
    if isinstance(comparison.scale, QueryScaling):
        sentence += " The output and the reference scale queries in steps, in place of log-n."
    return Validation(
        "", "cpu", schedule.digest, length, settings.seed, tuple(results), agrees, sentence, runtime=engine.runtime,
        temperature=temperature, rule=rule(reference.floor) + reference.rule, **comparison.described(),
    )  # fmt: skip


def check_gguf(comparison: Comparison, settings: Settings) -> GgufReference:
    """Return the sharpest reference of a GGUF file. Raises BadSource if it cannot be compared with its source."""
    rounded = _rounded(comparison)
    if rounded and comparison.unchanged:
        raise BadSource(
            f"{comparison.baked} differs from its source only in the type of the weights ({rounded}), so there is no "
            "control; compare a --outtype f32 export"
        )
    source, schedule = comparison.source, comparison.schedule
    if not isinstance(source, GgufSource):
        return PatchedReference(comparison, settings)
    arch, spec, baked = arch_of(source.file), comparison.spec, GgufSource(comparison.baked).file
    scales = bool(schedule.log_n) or baked.get(WINDOW_NORM) is not None  # queries or norms
    if not (settings.dequantised or scales or source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier")):
        keys = None if rope_tensors(source.file) else overrides(schedule, arch.name)
        if keys is not None and comparison.receipt.encoding == "keys":
            return ByKeys(comparison, settings, source, keys)
        two_lists = schedule.short_inv_freq is not None or spec.current().short_inv_freq is not None
        if arch.freqs == "used" and "local" not in spec.layers and not two_lists:
            return ByDivisors(comparison, settings, source)
        if keys is not None:
            return ByKeys(comparison, settings, source, keys)
    comparison.checkpoint_or_dequantised("cannot be given this schedule at loading, and cannot be dequantised either")
    return DequantisedReference(comparison, settings)


def _rounded(comparison: Comparison) -> str:
    """Return the type of the weights if the source has another one, else an empty string."""
    same = isinstance(comparison.source, GgufSource)
    return "" if same else weights_type(GgufSource(comparison.baked).file)


def _judged(
    runs: list[Bucket], logits: ReferenceLogits, stock: Tensor, reference: GgufReference, temperature: float = 1.0
) -> list[BucketResult]:
    """Return the result of each bucket of positions."""

    def between(left: Tensor, right: Tensor, rows: slice) -> Measures:
        return measure(left[rows], right[rows, : left.shape[1]], temperature=temperature)

    edges = [0, *accumulate(len(run.positions) for run in runs)]
    parts = [slice(first, last) for first, last in pairwise(edges)]
    noise = 0.0
    if logits.other_control is not None:
        noise = max(between(logits.control, logits.other_control, rows).kl.mean().item() for rows in parts)
    results = []
    for run, rows in zip(runs, parts, strict=True):
        control_kl = between(logits.reference, logits.control, rows).kl.mean().item()
        allowed = tolerance(run.positions[-1], 0.0, reference.floor)
        result = bucket_result(run, between(logits.reference, stock, rows), control_kl, allowed=allowed)
        rounded = reference.separation
        results.append(result if rounded is None else with_rounded_weights(result, noise, rounded))
    return results


def _power(results: list[BucketResult]) -> float:
    """Return the smallest ratio of the KL of the control to the allowed KL, beyond the trained context."""
    return min(result.control_kl / result.tolerance for result in results[1:] or results)
