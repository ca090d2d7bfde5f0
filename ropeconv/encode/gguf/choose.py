"""Chooses how a schedule is written into a GGUF file, and reads the result back before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...errors import UnsupportedBake, UsageError
from ...families.model import by_name
from ...formats.gguf import Edit
from ...rope.schedule import Schedule
from ...runtimes.llamacpp import arch_table, find_arch
from ...runtimes.verdict import TOLERANCE, Verdict, difference
from ..choice import Choice, Considered, refuse_amplitude
from .carriers import carry
from .keys import keys
from .model import Model
from .tensor import tensor
from .window import take_back

GGUF_ENCODINGS: dict[str, Callable[[Schedule, Model], Edit]] = {"keys": keys, "tensor": tensor}
UNASKED = {"qwen2": "llama"}


@dataclass(frozen=True)
class GgufChoice(Choice):
    """A chosen encoding for GGUF. edit: what it changes. notes: what to tell people."""

    edit: Edit = field(kw_only=True)
    notes: tuple[str, ...] = ()


def choose_gguf(schedule: Schedule, model: Model, encoding: str = "auto", carrier: str = "") -> GgufChoice:
    """The plainest encoding that llama.cpp reads exactly: keys, then a rope tensor, then qwen2 as llama.

    Other carriers only by name. Raises UnsupportedBake when nothing fits.
    """
    arch = find_arch(model.get("general.architecture"))
    _refuse(schedule, arch.family)
    if carrier and encoding not in ("auto", "carrier"):
        raise UsageError(f"--carrier is an encoding of its own, so --encoding {encoding} has no place beside it")
    if carrier or encoding == "carrier":
        return _carried(schedule, model, carrier or next(iter(arch.carriers), ""))
    if encoding != "auto":
        if encoding not in GGUF_ENCODINGS:
            raise UsageError(
                f"--encoding {encoding} is not for GGUF; choose auto, {', '.join(GGUF_ENCODINGS)} or carrier"
            )
        return _try(encoding, schedule, model)
    refusals: list[UnsupportedBake] = []
    for name in GGUF_ENCODINGS:
        try:
            return _explained(_try(name, schedule, model), refusals)
        except UnsupportedBake as refusal:
            refusals.append(refusal)
    if arch.name in UNASKED:
        return _explained(_carried(schedule, model, UNASKED[arch.name]), refusals)
    reasons = "; ".join(f"by {name}, {refusal.because}" for name, refusal in zip(GGUF_ENCODINGS, refusals, strict=True))
    raise UnsupportedBake("this schedule", f"the GGUF architecture {arch.name}", reasons, refusals[-1].alternatives)


def _explained(choice: GgufChoice, refusals: list[UnsupportedBake]) -> GgufChoice:
    passed = [Considered(name, False, refusal.because) for name, refusal in zip(GGUF_ENCODINGS, refusals, strict=False)]
    return replace(choice, considered=(*passed, Considered(choice.encoding, True, "llama.cpp reads it exactly")))


def _try(name: str, schedule: Schedule, model: Model) -> GgufChoice:
    edit = take_back(model, GGUF_ENCODINGS[name](schedule, model))
    return GgufChoice(name, (_judge(schedule, model, edit, name),), edit=edit)


def _carried(schedule: Schedule, model: Model, carrier: str) -> GgufChoice:
    start = carry(model, carrier)
    edit = start.edit.merged(tensor(schedule, model.after(start.edit)))
    verdict = _judge(schedule, model, edit, f"the carrier {carrier}")
    return GgufChoice("carrier", (verdict,), edit=edit, notes=start.notes)


def _judge(schedule: Schedule, model: Model, edit: Edit, name: str) -> Verdict:
    """The verdict on an edit, from what llama.cpp's rules make of the edited header. Raises UnsupportedBake."""
    table, before, after = arch_table(), model.reading(), model.after(edit).reading()
    found = difference(schedule, before.spec, after.spec)
    if not found and after.spec.layers != before.spec.layers:
        found = "other layers would rotate"
    if not found and "local" in after.spec.layers and abs(after.local_attention_factor - 1) > TOLERANCE:
        found = f"it scales the window layers by {after.local_attention_factor:.4f} as well"
    if found:
        raise UnsupportedBake("this schedule", f"{table.title} with {name}", found, "choose another method or encoding")
    return Verdict("llama-cpp-gguf@" + table.version, table.title, "exact", "", table.source)


def _refuse(schedule: Schedule, family_name: str) -> None:
    if schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}", "GGUF", "no key scales queries by position here", "leave --log-n out"
        )
    family = by_name().get(family_name)
    if family and family.weights.norm.endswith("after-rope"):
        refuse_amplitude(schedule, family)
