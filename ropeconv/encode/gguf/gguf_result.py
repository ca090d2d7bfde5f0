"""GgufResult, the output of an encoding of a GGUF file, and the verdict of llama.cpp on an edit."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import UnsupportedBake
from ...formats.gguf import Edit
from ...rope.schedule import Schedule
from ...runtimes.llamacpp import arch_table
from ...runtimes.verdict import TOLERANCE, Verdict, difference
from ..result import EncodeResult
from .gguf_model import GgufModel


@dataclass(frozen=True)
class GgufResult(EncodeResult):
    """A schedule as an encoding writes it into a GGUF file. edit: what changes in the file."""

    edit: Edit = field(kw_only=True)


def judge_edit(schedule: Schedule, model: GgufModel, edit: Edit, name: str) -> Verdict:
    """The verdict of llama.cpp on an edit, from reading the edited header by its rules.

    schedule: what has to be computed. model: before the edit. edit: to judge. name: of the encoding or carrier, for the
    message. Raises UnsupportedBake where llama.cpp would not compute the schedule.
    """
    table, before, after = arch_table(), model.reading(), model.after(edit).reading()
    found = difference(schedule, before.spec, after.spec)
    if not found and after.spec.layers != before.spec.layers:
        found = "other layers would rotate"
    if not found and "local" in after.spec.layers and abs(after.local_attention_factor - 1) > TOLERANCE:
        found = f"it scales the window layers by {after.local_attention_factor:.4f} as well"
    if found:
        raise UnsupportedBake(
            "this schedule", f"{table.display_name} with {name}", found, "choose another method or encoding"
        )
    return Verdict(table.key, table.display_name, "exact", "", table.source)
