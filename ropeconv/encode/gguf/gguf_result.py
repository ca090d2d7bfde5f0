"""What choosing an encoding for GGUF yields, and the verdict on it."""

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
    """A chosen encoding for GGUF. edit: what it changes."""

    edit: Edit = field(kw_only=True)


def judge_edit(schedule: Schedule, model: GgufModel, edit: Edit, name: str) -> Verdict:
    """The verdict on an edit, from what llama.cpp's rules make of the edited header.

    Raises UnsupportedBake when that is not the schedule.
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
