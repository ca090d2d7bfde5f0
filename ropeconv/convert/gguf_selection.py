"""Selects how a schedule is written into a GGUF file. Read `select_gguf` first.

Log-n becomes the architecture mistral3, which multiplies queries by
`1 + beta ln(1 + floor(p / O))`, O its original context: the log-n approximation. With O the length
of log-n it follows the clamped formula roughly; with O = 1 and a large beta it is the full formula
but for the 1 in front. `attn_q.scale`, which llama.cpp applies to every type of weights, undoes
beta.
"""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..errors import UnsupportedBake, UsageError
from ..formats.gguf.edit import Edit
from ..formats.gguf.header import F32, f32, u32
from ..rope.forms import Yarn
from ..rope.schedule import QueryScaling, Schedule, approximate_log_n, deviation
from ..runtimes.gguf_readers import Reader, find_readers
from ..runtimes.llamacpp.archs import arch_of_header
from ..runtimes.llamacpp.read_header import ASSUMED
from ..runtimes.llamacpp.scaling import llamacpp_ramp, why_other_ramp
from ..runtimes.runtime import GOOD
from ..runtimes.verdict import difference
from .encodings.keys import OTHERWISE
from .encodings.tensor import tensor
from .gguf_encoding import (
    ANOTHER,
    GGUF_ENCODINGS,
    NOTE,
    GgufModel,
    GgufResult,
    carry,
    judge_result,
    nothing_suits,
    scaled_floats,
)
from .target import (
    CANCELLED,
    ConsideredEncoding,
    Refusals,
    Target,
    attempts,
    refuse_attention_factor,
    say_untested,
)

TO = "mistral3"
EXPONENT = 20  # the factor is applied in float32


def with_log_n(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    """Return a schedule with log-n, written as the architecture mistral3.

    Args:
        schedule: The schedule.
        model: The model before.
        carrier: "mistral3" for files of another architecture, else empty.

    Raises:
        UnsupportedBake: For architectures that cannot be written as mistral3, and files that scale
            queries already.
    """
    assert schedule.log_n is not None
    name = model.get("general.architecture")
    if name != TO and carrier != TO:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            f"the GGUF architecture {name}",
            "it does not scale queries by position",
            f"take --carrier {TO}, which llama and qwen2 can become, or leave --log-n out",
        )
    if model.reading().spec.query_scaling is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            "this file",
            "it scales queries by position already",
            "leave --log-n out",
        )

    # three edits that build on one another: the carrier, the query scaling, the frequencies
    steps = approximate_log_n(schedule.log_n, EXPONENT)
    edit = Edit() if name == TO else carry(model, TO)
    keys = {
        f"{TO}.attention.temperature_scale": f32(steps.beta),
        f"{TO}.rope.scaling.original_context_length": u32(steps.length),
    }
    edit = edit.merge(Edit(keys)).merge(_gain(steps.gain, model, edit))
    scaled = replace(schedule, log_n=None, query_scaling=QueryScaling(steps.beta, steps.length))
    edit = edit.merge(tensor(scaled, model.after(edit)))

    # how far the file is from the formula, for the verdicts and the user
    off = deviation(schedule.log_n, steps, schedule.context)
    notes: tuple[str, ...] = (_note(steps, off, schedule.context),)
    encoding = "tensor"
    if name != TO:
        notes = (NOTE.format(to=TO), *notes)
        encoding = "carrier"
    return judge_result(
        encoding,
        scaled,
        model,
        edit,
        f"the architecture {TO}",
        off,
        notes=notes,
        log_n_approximation=steps,
    )


def _gain(gain: float, model: GgufModel, edit: Edit) -> Edit:
    """The edit that multiplies all queries by `gain`.

    It adds a scale tensor for each projection, and changes biases.
    """
    if gain == 1:
        return Edit()

    added = {}
    changes = {}
    for layer in range(len(model.reading().spec.layers)):
        name = f"blk.{layer}.attn_q"
        bias = model.tensors.get(f"{name}.bias")
        if f"{name}.weight" not in model.tensors or f"{name}.scale" in model.tensors:
            raise UnsupportedBake(
                "full log-n",
                "this file",
                f"{name} is fused, or has a scale of its own",
                "choose --log-n clamped",
            )
        added[f"{name}.scale"] = struct.pack("<f", gain)

        # llama.cpp multiplies W x by the scale and then adds the bias, which is not multiplied
        # (build_lora_mm and build_qkv in src/llama-graph.cpp)
        if bias is None:
            continue
        if bias.type != F32:
            raise UnsupportedBake(
                "full log-n", f"{bias.name}", "it is not F32", "choose --log-n clamped"
            )
        change = scaled_floats(bias.size, gain)
        if bias.name in edit.changes:
            change = edit.changes[bias.name].then(change)
        changes[bias.name] = change

    return Edit(changes=changes, added=added)


def _note(steps: QueryScaling, off: float, context: int) -> str:
    """A sentence on how near the log-n of the output is to its formula."""
    if steps.gain == 1:
        return (
            f"log-n comes in steps of {steps.length} tokens, up to {off:.1%} above the formula over"
            f" {context} tokens"
        )
    return (
        f"log-n is within {off:.0e} of the formula; llama.cpp from 2026 on reads the attn_q.scale"
        " that this needs"
    )


DEFAULT_CARRIERS = {"qwen2": "llama"}
"""Carriers that "auto" uses without --carrier, by the architecture of the file."""
Tries = dict[str, Callable[[], GgufResult]]
"""Functions that write a schedule, by the name of their encoding, or raise UnsupportedBake."""


def select_gguf(schedule: Schedule, model: GgufModel, target: Target) -> GgufResult:
    """Return the result of the encoding that the target names.

    "auto" selects, of keys and a rope tensor where llama.cpp and the named readers compute them
    exactly, the one that most readers compute exactly; where there is none, qwen2 as llama. Other
    carriers are used only where the target names them. With `target.allow_untested`, it is at last
    one that a named reader was not tested with.

    Raises:
        UnsupportedBake: Where nothing fits.
        UsageError: For an unknown name.
    """
    rows = [find_readers(name) for name in target.runtimes]
    readers = tuple(versions[-1] for versions in rows if versions)
    result = _select(schedule, model, target, readers)
    return say_untested(result, target, [result.verdict_by(reader) for reader in readers])


def _select(
    schedule: Schedule, model: GgufModel, target: Target, readers: tuple[Reader, ...]
) -> GgufResult:
    """The result as in `select_gguf`, without the note on untested readers."""
    # what the architecture forbids for every encoding
    arch = arch_of_header(model)
    present = model.reading().spec
    if arch.fixed:
        return _keep_fixed(schedule, model)
    if arch.norm_after_rope:
        refuse_attention_factor(schedule, present.attention_factor, arch.name, CANCELLED)
    if arch.no_attention_factor:
        reason = "llama.cpp computes it without one"
        refuse_attention_factor(schedule, present.attention_factor, arch.name, reason)

    # log-n needs mistral3, whichever encoding was named
    encoding = target.encoding
    carrier = target.carrier or ""
    untested = target.allow_untested
    if schedule.log_n is not None:
        if encoding == "carrier" and not carrier:
            carrier = TO
        result = with_log_n(schedule, model, carrier)
        result.refuse_approximate(schedule, target, "take --log-n full")
        return _check_suits(result, {}, readers, untested)

    # only these two may fall back on another ramp, since only keys can describe one
    tries = _tries(schedule, model, carrier)
    if encoding in ("auto", "keys") and not carrier:
        try:
            return _exact(encoding, tries, arch.name, readers, untested)
        except UnsupportedBake as refusal:
            return _other_ramp(schedule, model, target, refusal)

    # the encoding that the user named
    name = "carrier" if carrier else encoding
    if name not in tries:
        if name == "carrier":
            return _encode_carrier(schedule, model, "")
        known = ", ".join(GGUF_ENCODINGS)
        raise UsageError(f"--encoding {encoding} is not for GGUF; choose auto, {known} or carrier")
    others = {other: make for other, make in tries.items() if other != name}
    return _check_suits(tries[name](), others, readers, untested)


def _exact(
    encoding: str, tries: Tries, arch: str, readers: tuple[Reader, ...], untested: bool
) -> GgufResult:
    """The result of "auto", or of "keys", that holds a schedule exactly."""
    if encoding == "auto":
        return _plainest(tries, arch, readers, untested)
    others = {name: make for name, make in tries.items() if name != encoding}
    return _check_suits(tries[encoding](), others, readers, untested)


def _other_ramp(
    schedule: Schedule, model: GgufModel, target: Target, refusal: UnsupportedBake
) -> GgufResult:
    """The result with the ramp that llama.cpp computes in place of YaRN's own, if that is allowed.

    `refusal` is the error of the exact encodings, raised where the ramp is not the reason for it.
    """
    # whether the ramp is all that keeps the schedule out of the keys
    arch = arch_of_header(model)
    ramp = llamacpp_ramp(schedule, arch)
    if ramp is None:
        raise refusal
    try:
        result = _encode("keys", ramp.apply_to(schedule), model)
    except UnsupportedBake:
        raise refusal from None

    form = schedule.form
    assert isinstance(form, Yarn)
    why = f"llama.cpp {why_other_ramp(form, arch)}"

    if not target.allow_approximate:
        change = "yarn without truncation"
        if form.truncate:
            change = f"yarn with beta_fast {form.beta_fast:g} and beta_slow {form.beta_slow:g}"
        raise UnsupportedBake(
            change,
            f"the keys of {arch.name}",
            f"{why}: {ramp.distance}",
            "pass --allow-approximate to write that, or keep safetensors",
        )
    note = f"an approximation: {why}, so {ramp.distance}"
    return replace(result.as_approximation(ramp), notes=(*result.notes, note))


def _keep_fixed(schedule: Schedule, model: GgufModel) -> GgufResult:
    """The result for an architecture that reads no key: only the context may change."""
    name = arch_of_header(model).name
    edit = Edit({f"{name}.context_length": u32(schedule.context)})
    if difference(schedule, model.reading().spec, model.after(edit).reading().spec):
        why = "llama.cpp rotates it with the base 10000 whatever the file has"
        raise UnsupportedBake(
            "a schedule", f"the GGUF architecture {name}", why, "extend the checkpoint instead"
        )
    return judge_result("keys", schedule, model, edit)


def _tries(schedule: Schedule, model: GgufModel, carrier: str) -> Tries:
    """The encodings to try; without "carrier" for architectures that have none."""
    tries: Tries = {name: partial(_encode, name, schedule, model) for name in GGUF_ENCODINGS}
    arch = arch_of_header(model)
    host = carrier or DEFAULT_CARRIERS.get(arch.name) or next(iter(arch.carriers), "")
    if host:
        tries["carrier"] = partial(_encode_carrier, schedule, model, host)
    return tries


def _plainest(tries: Tries, arch: str, readers: tuple[Reader, ...], untested: bool) -> GgufResult:
    """The result that most readers compute exactly, of those that the named readers compute."""
    # another architecture is the last resort: tools show its name, and queries and keys change
    plain = {name: encode for name, encode in tries.items() if name != "carrier"}
    results, refusals = attempts(plain)
    if arch in DEFAULT_CARRIERS and not any(result.suits(readers) for result in results):
        carried, refused = attempts({"carrier": tries["carrier"]})
        results = [*results, *carried]
        refusals = refusals | refused

    fitting = [result for result in results if result.suits(readers)]
    if not fitting:
        fitting = [result for result in results if result.suits(readers, untested)]
    if not fitting:
        raise _nothing_plain(results, refusals, arch, readers)

    selected = max(fitting, key=GgufResult.exact_count)
    reasons = _reasons(selected, results, refusals, readers)
    considered = [
        ConsideredEncoding(name, name == selected.encoding, reasons[name])
        for name in tries
        if name in reasons
    ]
    return replace(selected, considered=tuple(considered))


def _nothing_plain(
    results: list[GgufResult], refusals: Refusals, arch: str, readers: tuple[Reader, ...]
) -> UnsupportedBake:
    """The error where "auto" finds no encoding that fits."""
    if results:
        return nothing_suits(results, refusals, readers)
    if "carrier" in refusals:
        return refusals["carrier"]
    why = "; ".join(f"by {name}, {refusal.reason}" for name, refusal in refusals.items())
    repairs = [refusal.alternatives for refusal in refusals.values()]
    # "another method" is said where an encoding knows nothing better
    specific = [words for words in repairs if words not in (OTHERWISE, ANOTHER)]
    repair = specific[0] if specific else repairs[-1]
    return UnsupportedBake("this schedule", f"the GGUF architecture {arch}", why, repair)


def _reasons(
    selected: GgufResult, results: list[GgufResult], refusals: Refusals, readers: tuple[Reader, ...]
) -> dict[str, str]:
    """Why "auto" selected each encoding that it tried, or not."""
    reasons = {name: refusal.reason for name, refusal in refusals.items()}
    for result in results:
        verdicts = [result.verdict_by(reader) for reader in readers]
        wrong = next((verdict for verdict in verdicts if verdict.status not in GOOD), None)
        # one that would do, and was not the best
        reason = f"no more readers read it exactly; {result.exact_share}"
        if result is selected:
            reason = f"llama.cpp reads it exactly; {result.exact_share}"
        elif wrong is not None:
            reason = f"{wrong.display_name}: {wrong.reason}"
        reasons[result.encoding] = reason
    return reasons


def _check_suits(
    result: GgufResult, others: Tries, readers: tuple[Reader, ...], untested: bool
) -> GgufResult:
    """The result of an encoding that was named; `others` are tried for the error."""
    if result.suits(readers, untested):
        return result
    results, refusals = attempts(others)
    raise nothing_suits([result, *results], refusals, readers)


def _encode(name: str, schedule: Schedule, model: GgufModel) -> GgufResult:
    """The result of an encoding."""
    edit = GGUF_ENCODINGS[name](schedule, model)
    notes = ASSUMED if arch_of_header(model).assumed else ()
    return judge_result(name, schedule, model, edit, notes=notes)


def _encode_carrier(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    """The result of writing a schedule as another architecture."""
    start = carry(model, carrier)
    edit = start.merge(tensor(schedule, model.after(start)))
    notes = (NOTE.format(to=carrier),)
    return judge_result("carrier", schedule, model, edit, f"the carrier {carrier}", notes=notes)
