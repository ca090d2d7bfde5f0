"""GgufResult, the output of an encoding of a GGUF file, and the verdicts of llama.cpp and other readers on an edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import UnsupportedBake
from ...formats.gguf import Edit
from ...inspection.gguf_problems import refused_tensors
from ...rope.schedule import Schedule
from ...runtimes.compare import TOLERANCE, difference
from ...runtimes.evidence import Evidence, records
from ...runtimes.gguf_readers import Feature, Reader, judge_reader, judge_readers
from ...runtimes.llamacpp import arch_table
from ...runtimes.rules import GOOD
from ...runtimes.verdict import Verdict
from ..result import EncodeResult, with_deviation
from .gguf_features import gguf_features
from .gguf_model import GgufModel


@dataclass(frozen=True)
class GgufResult(EncodeResult):
    """A schedule as an encoding writes it into a GGUF file.

    edit: what changes in the file. arch: general.architecture after it. features: what the file then uses of RoPE.
    """

    edit: Edit = field(kw_only=True)
    arch: str = field(kw_only=True)
    features: frozenset[Feature] = field(kw_only=True)

    def judged_by(self, reader: Reader) -> Verdict:
        """The verdict of a reader, which may be cut to one version."""
        return with_deviation(judge_reader(reader, self.features, self.arch), self.deviation)

    def suits(self, readers: Sequence[Reader]) -> bool:
        """Whether every one of `readers` computes the schedule."""
        return all(self.judged_by(reader).status in GOOD for reader in readers)


def judged(
    encoding: str,
    schedule: Schedule,
    model: GgufModel,
    edit: Edit,
    title: str = "",
    deviation: float = 0.0,
    **more: Any,
) -> GgufResult:
    """The result of an encoding, with the verdict of llama.cpp first and those of the other readers after it.

    encoding: its name. schedule, model, edit: as in `judge_edit`. title: of the encoding for messages, by default its
    name. deviation: of a log-n approximation. more: other fields of the result. Raises as `judge_edit`.
    """
    own = judge_edit(schedule, model, edit, title or encoding, encoding)
    after = model.after(edit)
    arch, features = str(after.get("general.architecture")), gguf_features(after)
    verdicts = tuple(with_deviation(one, deviation) for one in (own, *judge_readers(features, arch)))
    return GgufResult(encoding, verdicts, edit=edit, arch=arch, features=features, deviation=deviation, **more)


def judge_edit(schedule: Schedule, model: GgufModel, edit: Edit, name: str, encoding: str = "") -> Verdict:
    """The verdict of llama.cpp on an edit, from reading the edited header by its rules.

    schedule: what has to be computed. model: before the edit. edit: to judge. name: of the encoding or carrier, for the
    message. encoding: its name, by which records of executed files are looked up. Raises UnsupportedBake where
    llama.cpp would not load the file, or not compute the schedule.
    """
    table, before, planned = arch_table(), model.reading(), model.after(edit)
    after = planned.reading()
    refused = refused_tensors(after, planned.vectors, planned.get(f"{after.arch.name}.rope.scaling.type"))
    found = f"it does not load {after.arch.name} with {refused[0]}" if refused else ""
    found = found or difference(schedule, before.spec, after.spec)
    if not found and after.spec.layers != before.spec.layers:
        found = "other layers would rotate"
    if not found and "local" in after.spec.layers and abs(after.local_attention_factor - 1) > TOLERANCE:
        found = f"it scales the window layers by {after.local_attention_factor:.4f} as well"
    if found:
        raise UnsupportedBake(
            "this schedule", f"{table.display_name} with {name}", found, "choose another method or encoding"
        )
    if before.arch.assumed:
        reason = f"{before.arch.name} is not in the table; llama.cpp reads these keys alike for those that are"
        return Verdict(table.key, table.display_name, "unknown", reason, table.source, table.version)
    known = _evidence(before.arch.family, encoding)
    return Verdict(table.key, table.display_name, "exact", "", table.source, table.version, known)


def _evidence(family: str, encoding: str) -> Evidence:
    """How it is known what llama.cpp does with an encoding in a family: its record names encodings as `rope_types`."""
    name, _, version = arch_table().key.partition("@")
    for record in records():
        seen = record.models.get(family) if (record.runtime, record.version) == (name, version) else None
        if seen is not None and encoding in seen.rope_types and seen.most == "exact":
            return Evidence("run", f"{record.version}, {record.date}")
    return Evidence("read")
