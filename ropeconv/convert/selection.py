"""Selects how a schedule is written: a named encoding, or the first that the named runtimes read exactly.

Log-n in GGUF as mistral3, which multiplies queries by `1 + beta ln(1 + floor(p / O))`, O its original context.

This is the log-n approximation: with O the length of log-n it follows the clamped formula roughly; with O = 1 and a
large beta it is the full formula but for the 1 in front. `attn_q.scale`, which llama.cpp applies to every type of
weights, undoes beta.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from ..errors import UnsupportedBake, UsageError
from ..formats.gguf.edit import AddedTensor, Change, Edit
from ..formats.gguf.values import F32, f32, u32
from ..models.config import text_part
from ..rope.schedule import QueryScaling, Schedule, approximate_log_n, deviation
from ..runtimes.gguf_readers import Reader, find_readers
from ..runtimes.llamacpp.archs import arch_of_header
from ..runtimes.llamacpp.read_header import ASSUMED
from ..runtimes.runtime import GOOD, RUNS, SILENT
from .encoding import ENCODINGS, CheckpointResult, EncodeRequest, nothing_fits, tried
from .encodings.tensor import tensor
from .gguf_encoding import GGUF_ENCODINGS, NOTE, GgufModel, GgufResult, carry, judged, nothing_suits, take_back
from .target import ConsideredEncoding, Target, refuse_approximate, refuse_attention_factor


def select(request: EncodeRequest) -> CheckpointResult:
    """The result of the encoding that the target names.

    "auto" takes, of the encodings that are a config alone and that every named runtime reads exactly in its newest
    version, the one that most of its other current versions read exactly too; where there is none, the first of the
    others that fits. Raises UnsupportedBake when nothing fits, UsageError for a name that is not known.
    """
    part, family, target = text_part(request.config, request.family), request.family, request.target
    cancelled = family.weights.norm.endswith("after-rope") and part.get("use_qk_norm", True)
    if cancelled or family.hooks.no_attention_factor:
        refuse_attention_factor(request.schedule, family.name, family.hooks.no_attention_factor)
    if target.encoding == "auto":
        return _first_fitting(request)
    known = ENCODINGS
    if target.encoding not in known:
        if target.encoding in {*GGUF_ENCODINGS, "carrier"}:
            raise UsageError(f"--encoding {target.encoding} goes with GGUF; add --to gguf, or leave it out")
        *names, last = known
        raise UsageError(f"--encoding {target.encoding} is not known; choose auto, {', '.join(names)} or {last}")
    result = known[target.encoding].encode(request)
    if not target.allow_approximate:
        refuse_approximate(result, request.schedule, "use --encoding buffers")
    silent = any(result.status_of(row) in SILENT for row in request.runtimes)
    if silent or (target.runtimes and not result.suits(request.runtimes, RUNS)):
        raise nothing_fits([result], {}, request)
    return result


def _first_fitting(request: EncodeRequest) -> CheckpointResult:
    """The result of the encoding that "auto" selects, with the reason for every encoding."""
    results, refusals = tried(request)
    fitting = [result for result in results if result.suits(request.runtimes)]
    if fitting:
        rows = [row for versions in request.versions for row in versions]
        selected = max(fitting, key=lambda result: sum(result.status_of(row) == "exact" for row in rows))
        return _with_reasons(selected, results, refusals, request)
    for name, encoding in ENCODINGS.items():
        if encoding.config_only:
            continue
        try:
            results.append(encoding.encode(request))
        except UnsupportedBake as refusal:
            refusals[name] = refusal
            continue
        if results[-1].suits(request.runtimes, GOOD):
            return _with_reasons(results[-1], results, refusals, request)
    near = [result for result in results if result.suits(request.runtimes, RUNS)]
    if not near:
        raise nothing_fits(results, refusals, request)
    if not request.target.allow_approximate:
        refuse_approximate(near[0], request.schedule, "name a runtime that takes --encoding buffers")
    return _with_reasons(near[0], results, refusals, request)


def _with_reasons(
    selected: CheckpointResult,
    results: list[CheckpointResult],
    refusals: dict[str, UnsupportedBake],
    request: EncodeRequest,
) -> CheckpointResult:
    """A result with the reason why each encoding was selected or passed over."""
    asked = " and ".join(row.display_name for row in request.runtimes)
    enough = ENCODINGS[selected.encoding].config_only
    reasons = dict.fromkeys(ENCODINGS, "not needed, a config says it all" if enough else "not needed")
    reasons |= {name: refusal.reason for name, refusal in refusals.items()}
    for result in results:
        verdicts = [result.verdict_of(row) for row in request.runtimes]
        wrong = next((verdict for verdict in verdicts if verdict.status != "exact"), None)
        reason = f"not plainer, and no better in the versions of {asked}; {result.exact_share}"
        if result is selected:
            statuses = dict.fromkeys(verdict.status for verdict in verdicts)
            reason = f"{' and '.join(statuses)} in {asked}; {result.exact_share}"
        elif wrong is not None:
            reason = f"{wrong.display_name}: {wrong.reason or wrong.status}"
        reasons[result.encoding] = reason
    considered = (ConsideredEncoding(name, name == selected.encoding, reasons[name]) for name in ENCODINGS)
    return replace(selected, considered=tuple(considered))


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
    keys = {
        f"{TO}.attention.temperature_scale": f32(steps.beta),
        f"{TO}.rope.scaling.original_context_length": u32(steps.length),
    }
    edit = edit.merged(Edit(keys)).merged(_gain(steps.gain, model, edit))
    scaled = replace(schedule, log_n=None, query_scaling=QueryScaling(steps.beta, steps.length))
    edit = edit.merged(tensor(scaled, model.after(edit)))
    off = deviation(schedule.log_n, steps, schedule.context)
    notes: tuple[str, ...] = (_note(steps, off, schedule.context),)
    if name != TO:
        notes = (NOTE.format(to=TO), *notes)
    encoding = "carrier" if name != TO else "tensor"
    return judged(encoding, scaled, model, edit, f"the architecture {TO}", off, notes=notes, log_n_approximation=steps)


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
        added.append(AddedTensor(f"{name}.scale", struct.pack("<f", gain)))
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


DEFAULT_CARRIERS = {"qwen2": "llama"}
"""Carriers that "auto" uses without being named, by the architecture of the file."""


def select_gguf(schedule: Schedule, model: GgufModel, target: Target) -> GgufResult:
    """The result of the encoding that the target names.

    "auto" takes, of keys and a rope tensor where llama.cpp and the named readers read them exactly, the one that most
    readers read exactly; where there is none, qwen2 as llama.

    schedule: what has to be computed. model: the file before. target: its encoding, carrier and readers; other carriers
    are used only where it names them. Raises UnsupportedBake where nothing fits, UsageError for an unknown name.
    """
    arch = arch_of_header(model)
    if arch.fixed:
        why = "llama.cpp rotates it with the base 10000 whatever the file says"
        raise UnsupportedBake("a schedule", f"the GGUF architecture {arch.name}", why, "extend the checkpoint instead")
    if arch.norm_after_rope:
        refuse_attention_factor(schedule, arch.name)
    encoding, carrier, known = target.encoding, target.carrier or "", GGUF_ENCODINGS
    readers = tuple(rows[-1] for rows in map(find_readers, target.runtimes) if rows)
    if schedule.log_n is not None:
        wanted = TO if encoding == "carrier" and not carrier else carrier
        result = with_log_n(schedule, model, wanted)
        if not target.allow_approximate:
            refuse_approximate(result, schedule, "take --log-n full")
        return _suited(result, {}, readers)
    tries = _tries(schedule, model, carrier)
    if encoding == "auto" and not carrier:
        return _plainest(tries, arch.name, readers)
    name = "carrier" if carrier else encoding
    if name not in tries:
        if name == "carrier":
            return _carried(schedule, model, "")
        raise UsageError(f"--encoding {encoding} is not for GGUF; choose auto, {', '.join(known)} or carrier")
    return _suited(tries[name](), {other: make for other, make in tries.items() if other != name}, readers)


def _tries(schedule: Schedule, model: GgufModel, carrier: str) -> dict[str, Callable[[], GgufResult]]:
    """Functions that write the schedule by each encoding, by its name. carrier: to take, empty for the first."""
    arch = arch_of_header(model)
    tries: dict[str, Callable[[], GgufResult]] = {
        name: partial(_encoded, name, schedule, model) for name in GGUF_ENCODINGS
    }
    host = carrier or DEFAULT_CARRIERS.get(arch.name) or next(iter(arch.carriers), "")
    if host:
        tries["carrier"] = partial(_carried, schedule, model, host)
    return tries


def _plainest(tries: dict[str, Callable[[], GgufResult]], arch: str, readers: tuple[Reader, ...]) -> GgufResult:
    found, refusals = dict[str, GgufResult](), dict[str, UnsupportedBake]()
    selected: GgufResult | None = None
    for name, make in tries.items():
        if name == "carrier" and (selected is not None or arch not in DEFAULT_CARRIERS):
            continue
        try:
            found[name] = make()
        except UnsupportedBake as refusal:
            refusals[name] = refusal
            continue
        more = selected is None or found[name].exact_count() > selected.exact_count()
        if more and found[name].suits(readers):
            selected = found[name]
    if selected is not None:
        return replace(selected, considered=_considered(selected, found, refusals, readers))
    if found:
        raise nothing_suits(tuple(found.values()), refusals, readers)
    if "carrier" in refusals:
        raise refusals["carrier"]
    reasons = "; ".join(f"by {name}, {refusal.reason}" for name, refusal in refusals.items())
    last = list(refusals.values())[-1]
    raise UnsupportedBake("this schedule", f"the GGUF architecture {arch}", reasons, last.alternatives)


def _considered(
    selected: GgufResult,
    found: dict[str, GgufResult],
    refusals: dict[str, UnsupportedBake],
    readers: tuple[Reader, ...],
) -> tuple[ConsideredEncoding, ...]:
    """The encodings that were tried, each with the reason why it was selected or not."""
    reasons = {name: refusal.reason for name, refusal in refusals.items()}
    for name, result in found.items():
        wrong = next((one for one in map(result.judged_by, readers) if one.status not in GOOD), None)
        if result is selected:
            reasons[name] = f"llama.cpp reads it exactly; {result.exact_share}"
        elif wrong is not None:
            reasons[name] = f"{wrong.display_name}: {wrong.reason}"
        else:
            reasons[name] = f"no more readers read it exactly; {result.exact_share}"
    order = [name for name in (*GGUF_ENCODINGS, "carrier") if name in reasons]
    return tuple(ConsideredEncoding(name, name == selected.encoding, reasons[name]) for name in order)


def _suited(result: GgufResult, others: dict[str, Callable[[], GgufResult]], readers: tuple[Reader, ...]) -> GgufResult:
    """The result of an encoding that was named. others: functions that write by other encodings, for the error."""
    if result.suits(readers):
        return result
    found, refusals = [result], dict[str, UnsupportedBake]()
    for name, make in others.items():
        try:
            found.append(make())
        except UnsupportedBake as refusal:
            refusals[name] = refusal
    raise nothing_suits(tuple(found), refusals, readers)


def _encoded(name: str, schedule: Schedule, model: GgufModel) -> GgufResult:
    edit = take_back(model, GGUF_ENCODINGS[name].edit(schedule, model))
    return judged(name, schedule, model, edit, notes=ASSUMED[: arch_of_header(model).assumed])


def _carried(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    start = carry(model, carrier)
    edit = start.merged(tensor(schedule, model.after(start)))
    return judged("carrier", schedule, model, edit, f"the carrier {carrier}", notes=(NOTE.format(to=carrier),))
