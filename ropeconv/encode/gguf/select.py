"""Chooses how a schedule is written into a GGUF file, and reads the result back before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedBake, UsageError
from ...families.family import by_name
from ...formats.gguf import Edit
from ...rope.schedule import Schedule
from ...runtimes.llamacpp import find_arch
from ..result import Considered, refuse_amplitude, refuse_approximate
from .carriers import CARRIERS, carry
from .gguf_model import Model
from .keys import keys
from .log_n import with_log_n
from .result import GgufChoice, judge_edit
from .tensor import tensor
from .window_norms import take_back

GGUF_ENCODINGS: dict[str, Callable[[Schedule, Model], Edit]] = {"keys": keys, "tensor": tensor}
UNASKED = {"qwen2": "llama"}


def choose_gguf(
    schedule: Schedule, model: Model, encoding: str = "auto", carrier: str = "", allow_approximate: bool = False
) -> GgufChoice:
    """The plainest encoding that llama.cpp reads exactly: keys, then a rope tensor, then qwen2 as llama.

    Other carriers only by name, as --carrier NAME or --encoding NAME. allow_approximate: take log-n in steps.
    Raises UnsupportedBake when nothing fits.
    """
    arch = find_arch(model.get("general.architecture"))
    _refuse(schedule, arch.family)
    if encoding in {to for _, to in CARRIERS} and not carrier:
        encoding, carrier = "carrier", encoding
    if carrier and encoding not in ("auto", "carrier"):
        raise UsageError(f"--carrier is an encoding of its own, so --encoding {encoding} has no place beside it")
    if schedule.log_n is not None:
        if encoding == "keys":
            raise UsageError("log-n goes with a rope tensor, so --encoding keys has no place beside it")
        stepped = with_log_n(schedule, model, carrier)
        if not allow_approximate:
            refuse_approximate(stepped, schedule, "take --log-n full")
        return stepped
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
    return GgufChoice(name, (judge_edit(schedule, model, edit, name),), edit=edit)


def _carried(schedule: Schedule, model: Model, carrier: str) -> GgufChoice:
    start = carry(model, carrier)
    edit = start.edit.merged(tensor(schedule, model.after(start.edit)))
    verdict = judge_edit(schedule, model, edit, f"the carrier {carrier}")
    return GgufChoice("carrier", (verdict,), edit=edit, notes=start.notes)


def _refuse(schedule: Schedule, family_name: str) -> None:
    family = by_name().get(family_name)
    if family and family.weights.norm.endswith("after-rope"):
        refuse_amplitude(schedule, family)
