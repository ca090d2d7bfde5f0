"""Log-n in GGUF as mistral3, which multiplies queries by `1 + beta ln(1 + floor(p / O))`, O its original context.

This is the log-n approximation: with O the length of log-n it follows the clamped formula roughly; with O = 1 and a
large beta it is the full formula but for the 1 in front. `attn_q.scale`, which llama.cpp applies to every type of
weights, undoes beta.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from ...errors import UnsupportedBake
from ...formats.gguf import Added, Change, Edit, f32, u32
from ...formats.gguf.types import F32
from ...rope.log_n import QueryScaling, approximate_log_n, deviation
from ...rope.schedule import Schedule
from .carriers import NOTE, carry
from .encodings.tensor import tensor
from .gguf_model import GgufModel
from .gguf_result import GgufResult, judged

TO = "mistral3"
EXPONENT = 20  # the factor is applied in float32


def with_log_n(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    """A schedule with log-n, written as the architecture mistral3.

    model: the file before. carrier: "mistral3" for files of another architecture, else empty. Raises UnsupportedBake
    for architectures that cannot be written as mistral3, and files that scale queries already.
    """
    assert schedule.log_n is not None
    name = model.get("general.architecture")
    if name != TO and carrier != TO:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}", f"the GGUF architecture {name}", "it does not scale queries by position",
            f"take --carrier {TO}, which llama and qwen2 can become, or leave --log-n out",
        )  # fmt: skip
    if model.reading().spec.query_scaling is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}", "this file", "it scales queries by position already", "leave --log-n out"
        )
    steps = approximate_log_n(schedule.log_n, EXPONENT)
    edit = carry(model, TO) if name != TO else Edit()
    edit = edit.merged(_keys(steps)).merged(_gain(steps.gain, model, edit))
    scaled = replace(schedule, log_n=None, query_scaling=QueryScaling(steps.beta, steps.length))
    edit = edit.merged(tensor(scaled, model.after(edit)))
    off = deviation(schedule.log_n, steps, schedule.context)
    notes: tuple[str, ...] = (_note(steps, off, schedule.context),)
    if name != TO:
        notes = (NOTE.format(to=TO), *notes)
    encoding = "carrier" if name != TO else "tensor"
    return judged(encoding, scaled, model, edit, f"the architecture {TO}", off, notes=notes, log_n_approximation=steps)


def _keys(steps: QueryScaling) -> Edit:
    return Edit(
        {
            f"{TO}.attention.temperature_scale": f32(steps.beta),
            f"{TO}.rope.scaling.original_context_length": u32(steps.length),
        }
    )


def _gain(gain: float, model: GgufModel, edit: Edit) -> Edit:
    """The edit that multiplies all queries by `gain`: a scale tensor per projection, and the biases themselves."""
    if gain == 1:
        return Edit()
    added, changes = [], {}
    for layer in range(len(model.reading().spec.layers)):
        name = f"blk.{layer}.attn_q"
        bias = model.tensors.get(f"{name}.bias")
        if f"{name}.weight" not in model.tensors or f"{name}.scale" in model.tensors:
            raise UnsupportedBake(
                "full log-n", "this file", f"{name} is fused, or has a scale of its own", "choose --log-n clamped"
            )
        added.append(Added(f"{name}.scale", struct.pack("<f", gain)))
        if bias is not None:
            if bias.type != F32:
                raise UnsupportedBake("full log-n", f"{bias.name}", "it is not F32", "choose --log-n clamped")
            changes[bias.name] = _times(gain, edit.changes.get(bias.name, Change(bias.size, lambda old: old)))
    return Edit(changes=changes, added=tuple(added))


def _times(gain: float, change: Change) -> Change:
    def apply(old: bytes) -> bytes:
        return (np.frombuffer(change.apply(old), "<f4") * np.float32(gain)).astype("<f4").tobytes()

    return Change(change.unit, apply)


def _note(steps: QueryScaling, off: float, context: int) -> str:
    if steps.gain == 1:
        return f"log-n comes in steps of {steps.length} tokens, up to {off:.1%} above the formula over {context} tokens"
    return f"log-n is within {off:.0e} of the formula; llama.cpp from 2026 on reads the attn_q.scale that this needs"
