"""Selects how a schedule is written into a GGUF file, and reads the result back before anything is written."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnsupportedBake, UsageError
from ...families.family import by_name
from ...rope.schedule import Schedule
from ...runtimes.llamacpp import find_arch
from ..result import Considered, refuse_approximate, refuse_attention_factor
from ..target import Target
from .carriers import carry
from .encodings.tensor import tensor
from .gguf_encoding import GgufEncoding, all_gguf_encodings
from .gguf_model import GgufModel
from .gguf_result import GgufResult, judge_edit
from .log_n import TO, with_log_n
from .window_norms import take_back

DEFAULT_CARRIERS = {"qwen2": "llama"}
"""Carriers that "auto" uses without being named, by the architecture of the file."""


def select_gguf(schedule: Schedule, model: GgufModel, target: Target) -> GgufResult:
    """The first encoding that llama.cpp reads exactly: keys, then a rope tensor, then qwen2 as llama.

    schedule: what has to be computed. model: the file before. target: its encoding and carrier; other carriers are used
    only where it names them. Raises UnsupportedBake where nothing fits, UsageError for a name that is not known.
    """
    arch = find_arch(model.get("general.architecture"))
    family = by_name().get(arch.family)
    if family and family.weights.norm.endswith("after-rope"):
        refuse_attention_factor(schedule, family)
    encoding, carrier, known = target.encoding, target.gguf.carrier or "", all_gguf_encodings()
    if schedule.log_n is not None:
        wanted = TO if encoding == "carrier" and not carrier else carrier
        result = with_log_n(schedule, model, wanted)
        if not target.allow_approximate:
            refuse_approximate(result, schedule, "take --log-n full")
        return result
    if carrier or encoding == "carrier":
        return _carried(schedule, model, carrier or next(iter(arch.carriers), ""))
    if encoding == "auto":
        return _plainest(schedule, model)
    if encoding not in known:
        raise UsageError(f"--encoding {encoding} is not for GGUF; choose auto, {', '.join(known)} or carrier")
    return _encoded(known[encoding], schedule, model)


def _plainest(schedule: Schedule, model: GgufModel) -> GgufResult:
    arch, refusals = find_arch(model.get("general.architecture")), list[UnsupportedBake]()
    for encoding in all_gguf_encodings().values():
        try:
            return _explained(_encoded(encoding, schedule, model), refusals)
        except UnsupportedBake as refusal:
            refusals.append(refusal)
    if arch.name in DEFAULT_CARRIERS:
        return _explained(_carried(schedule, model, DEFAULT_CARRIERS[arch.name]), refusals)
    named = zip(all_gguf_encodings(), refusals, strict=True)
    reasons = "; ".join(f"by {name}, {refusal.reason}" for name, refusal in named)
    raise UnsupportedBake("this schedule", f"the GGUF architecture {arch.name}", reasons, refusals[-1].alternatives)


def _explained(result: GgufResult, refusals: list[UnsupportedBake]) -> GgufResult:
    named = zip(all_gguf_encodings(), refusals, strict=False)
    passed = [Considered(name, False, refusal.reason) for name, refusal in named]
    return replace(result, considered=(*passed, Considered(result.encoding, True, "llama.cpp reads it exactly")))


def _encoded(encoding: GgufEncoding, schedule: Schedule, model: GgufModel) -> GgufResult:
    edit = take_back(model, encoding.edit(schedule, model))
    return GgufResult(encoding.name, (judge_edit(schedule, model, edit, encoding.name),), edit=edit)


def _carried(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    start = carry(model, carrier)
    edit = start.edit.merged(tensor(schedule, model.after(start.edit)))
    verdict = judge_edit(schedule, model, edit, f"the carrier {carrier}")
    return GgufResult("carrier", (verdict,), edit=edit, notes=start.notes)
