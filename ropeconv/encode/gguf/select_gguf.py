"""Selects how a schedule is written into a GGUF file, and reads the result back before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedBake, UsageError
from ...rope.schedule import Schedule
from ...runtimes.gguf_readers import Reader, find_readers
from ...runtimes.llamacpp import arch_of_header
from ...runtimes.llamacpp.read_header import ASSUMED
from ...runtimes.rules import GOOD
from ..result import Considered, refuse_approximate, refuse_attention_factor
from ..target import Target
from .carriers import NOTE, carry
from .encodings.tensor import tensor
from .gguf_encoding import all_gguf_encodings
from .gguf_model import GgufModel
from .gguf_result import GgufResult, judged
from .log_n import TO, with_log_n
from .reader_refusal import nothing_suits
from .window_norms import take_back

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
    encoding, carrier, known = target.encoding, target.gguf.carrier or "", all_gguf_encodings()
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
        name: partial(_encoded, name, schedule, model) for name in all_gguf_encodings()
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
) -> tuple[Considered, ...]:
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
    order = [name for name in (*all_gguf_encodings(), "carrier") if name in reasons]
    return tuple(Considered(name, name == selected.encoding, reasons[name]) for name in order)


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
    edit = take_back(model, all_gguf_encodings()[name].edit(schedule, model))
    return judged(name, schedule, model, edit, notes=ASSUMED[: arch_of_header(model).assumed])


def _carried(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    start = carry(model, carrier)
    edit = start.merged(tensor(schedule, model.after(start)))
    return judged("carrier", schedule, model, edit, f"the carrier {carrier}", notes=(NOTE.format(to=carrier),))
