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
from .encodings.keys import ADVICE_OF_KEYS
from .encodings.tensor import tensor
from .gguf_encoding import (
    ADVICE_TO_CHANGE_METHOD,
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
    add_untested_note,
    attempts,
    refuse_attention_factor,
)

LOG_N_ARCH = "mistral3"
"""The architecture that multiplies queries by position, as log-n needs."""
LOG_N_EXPONENT = 20
"""The power of two by which beta is large for "full" log-n; the gain is applied in float32."""


def with_log_n(schedule: Schedule, model: GgufModel, carrier: str) -> GgufResult:
    """Write a schedule with log-n as the architecture mistral3, and judge the result.

    Log-n multiplies queries by a logarithm of the position p, and mistral3 by
    `1 + beta ln(1 + floor(p / O))`, which is near it for some beta and O.

    Args:
        schedule: The schedule.
        model: The GGUF file before.
        carrier: "mistral3" where a file of another architecture may become this one, else empty.

    Raises:
        UnsupportedBake: For architectures that cannot be written as mistral3, and files that scale
            queries already.
    """
    assert schedule.log_n is not None
    name = model.get("general.architecture")
    is_other_arch = name != LOG_N_ARCH
    if is_other_arch and carrier != LOG_N_ARCH:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            f"the GGUF architecture {name}",
            "it does not scale queries by position",
            f"take --carrier {LOG_N_ARCH}, which llama and qwen2 can become, or leave --log-n out",
        )
    if model.reading().spec.query_scaling is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            "this file",
            "it scales queries by position already",
            "leave --log-n out",
        )

    # The edit has three parts. The first makes the file one of mistral3 (a carrier).
    encoding = "tensor"
    notes: tuple[str, ...] = ()
    edit = Edit()
    if is_other_arch:
        encoding = "carrier"
        notes = (NOTE.format(to=LOG_N_ARCH),)
        edit = carry(model, LOG_N_ARCH)

    # The second is the query scaling: keys for beta and O, and a factor for all queries.
    approximation = approximate_log_n(schedule.log_n, LOG_N_EXPONENT)
    keys = {
        f"{LOG_N_ARCH}.attention.temperature_scale": f32(approximation.beta),
        f"{LOG_N_ARCH}.rope.scaling.original_context_length": u32(approximation.length),
    }
    gain_edit = _multiply_queries(approximation.gain, model, edit)
    edit = edit.merge(Edit(keys)).merge(gain_edit)

    # The third is the frequencies, for the file after the first two.
    in_keys = QueryScaling(approximation.beta, approximation.length)
    with_query_scaling = replace(schedule, log_n=None, query_scaling=in_keys)
    edit = edit.merge(tensor(with_query_scaling, model.after(edit)))

    # how far the file is from the formula, for the verdicts and the user
    off = deviation(schedule.log_n, approximation, schedule.context)
    return judge_result(
        encoding,
        with_query_scaling,
        model,
        edit,
        title=f"the architecture {LOG_N_ARCH}",
        deviation=off,
        notes=(*notes, _note(approximation, off, schedule.context)),
        log_n_approximation=approximation,
    )


def _multiply_queries(gain: float, model: GgufModel, edit: Edit) -> Edit:
    """Return an edit of a GGUF file that multiplies all queries of the model by a number.

    It adds a tensor such as blk.0.attn_q.scale for each layer, since quantised weights cannot be
    multiplied, and it multiplies biases of queries.

    Args:
        gain: The number by which queries are multiplied.
        model: The GGUF file before all edits.
        edit: An earlier edit, into which the caller merges the new edit. A bias that both edits
            change gets both changes in the new edit.
    """
    if gain == 1:
        return Edit()

    added = {}  # new tensors, as bytes by name
    changes = {}  # functions that change the bytes of a tensor, by its name
    layer_count = len(model.reading().spec.layers)
    for layer in range(layer_count):
        name = f"blk.{layer}.attn_q"
        bias = model.tensors.get(f"{name}.bias")
        is_fused = f"{name}.weight" not in model.tensors
        has_scale = f"{name}.scale" in model.tensors
        if is_fused or has_scale:
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
            earlier_change = edit.changes[bias.name]
            change = earlier_change.then(change)
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
Encoders = dict[str, Callable[[], GgufResult]]
"""Functions that write a schedule, by the name of their encoding, or raise UnsupportedBake."""


def select_gguf(schedule: Schedule, model: GgufModel, target: Target) -> GgufResult:
    """Return the edit of a GGUF file that writes RoPE frequencies, by the best encoding for a user.

    The user names an encoding, or "auto", which takes the first of these that all named readers
    (programs that read GGUF files, such as Ollama) compute exactly:

    1. Metadata keys ("keys") or a tensor of divisors ("tensor"). If both are exact, the encoding
       that most programs compute exactly.
    2. The architecture llama, for a file of qwen2 ("carrier"). llama.cpp computes more for some
       architectures than for others. Other carriers are used only where the user names them.
    3. With `target.allow_untested`, an encoding that a named reader was not tested with.

    Args:
        schedule: The frequencies, the attention factor, and log-n, a scaling of queries by
            position.
        model: The GGUF file before the edit.
        target: The options of the output, with the encoding and the named readers.

    Raises:
        UnsupportedBake: Where no encoding suits all readers.
        UsageError: For an unknown encoding.
    """
    # the newest version of each reader that the user named
    newest = []
    for name in target.runtimes:
        versions = find_readers(name)
        if versions:
            newest.append(versions[-1])
    readers = tuple(newest)

    result = _select(schedule, model, target, readers)
    verdicts = [result.verdict_by(reader) for reader in readers]
    return add_untested_note(result, target, verdicts)


def _select(
    schedule: Schedule, model: GgufModel, target: Target, readers: tuple[Reader, ...]
) -> GgufResult:
    """Write a schedule by the encoding that the user named, or by the best one for "auto".

    An encoding is a way to write the frequencies: by metadata keys ("keys"), by a tensor of
    divisors ("tensor"), or by writing the model as another architecture that llama.cpp computes so
    ("carrier").

    Args:
        schedule: The frequencies, the attention factor, and log-n.
        model: The GGUF file before.
        target: The options of the output.
        readers: The programs that must compute the schedule from the file, such as Ollama.
    """
    encoding = target.encoding  # "auto", or the one that the user named
    carrier = target.carrier or ""  # the other architecture that the user named with --carrier
    allow_untested = target.allow_untested

    # some architectures read no scaling, or can have no attention factor, whatever the encoding is
    arch = arch_of_header(model)
    present_factor = model.reading().spec.attention_factor
    if arch.fixed:
        return _keep_fixed(schedule, model)
    if arch.norm_after_rope:
        refuse_attention_factor(schedule, present_factor, arch.name, CANCELLED)
    if arch.no_attention_factor:
        reason = "llama.cpp computes it without one"
        refuse_attention_factor(schedule, present_factor, arch.name, reason)

    # log-n needs the architecture mistral3, whichever encoding was named
    if schedule.log_n is not None:
        if encoding == "carrier" and not carrier:
            carrier = LOG_N_ARCH
        result = with_log_n(schedule, model, carrier)
        result.refuse_approximate(schedule, target, "take --log-n full")
        return _check_suits(result, {}, readers, allow_untested)

    # With "auto" or "keys", a YaRN schedule that no encoding can hold exactly may be written with
    # the ramp that llama.cpp computes, since keys can describe that.
    encoders = _encoders_by_name(schedule, model, carrier)
    may_use_keys = encoding in ("auto", "keys") and not carrier
    if may_use_keys:
        try:
            return _exact(encoding, encoders, arch.name, readers, allow_untested)
        except UnsupportedBake as refusal:
            return _with_llamacpp_ramp(schedule, model, target, refusal)

    # else the encoding that the user named, by --encoding or by --carrier
    name = "carrier" if carrier else encoding
    if name == "carrier" and name not in encoders:
        # --encoding carrier, for an architecture without a usual carrier: this raises the error
        # that says so
        return _encode_carrier(schedule, model, "")
    if name not in encoders:
        known = ", ".join(GGUF_ENCODINGS)
        raise UsageError(f"--encoding {encoding} is not for GGUF; choose auto, {known} or carrier")

    # the others are only tried for advice, where a reader does not compute this one
    others = {other: encode for other, encode in encoders.items() if other != name}
    return _check_suits(encoders[name](), others, readers, allow_untested)


def _exact(
    encoding: str, encoders: Encoders, arch: str, readers: tuple[Reader, ...], untested: bool
) -> GgufResult:
    """The result of "auto", or of "keys", that holds a schedule exactly."""
    if encoding == "auto":
        return _select_automatically(encoders, arch, readers, untested)
    others = {name: encode for name, encode in encoders.items() if name != encoding}
    return _check_suits(encoders[encoding](), others, readers, untested)


def _with_llamacpp_ramp(
    schedule: Schedule, model: GgufModel, target: Target, refusal: UnsupportedBake
) -> GgufResult:
    """Write YaRN into a GGUF file with the ramp of llama.cpp, as an approximation.

    YaRN's ramp blends interpolated and original frequencies between two dimensions, which follow
    from beta_fast and beta_slow. llama.cpp rounds these dimensions to integers, and for some
    architectures it always uses beta_fast 32 and beta_slow 1.

    Args:
        schedule: The frequencies of YaRN with the ramp that the user wants.
        model: The GGUF file before the edit.
        target: The options of the output; `target.allow_approximate` is needed.
        refusal: The error that the exact encodings have raised.

    Raises:
        UnsupportedBake: For a schedule that differs in more than the ramp (`refusal`), and for an
            approximation that the user has not allowed.
    """
    # the same schedule with the ramp of llama.cpp; None if that is the ramp already, or not YaRN
    arch = arch_of_header(model)
    ramp = llamacpp_ramp(schedule, arch)
    if ramp is None:
        raise refusal
    try:
        result = _encode("keys", ramp.apply_to(schedule), model)
    except UnsupportedBake:
        raise refusal from None

    # the reason for the message, such as "llama.cpp always rounds the ends of the ramp"
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


def _encoders_by_name(schedule: Schedule, model: GgufModel, carrier: str) -> Encoders:
    """Return for each encoding a function that writes a schedule into a GGUF file with it.

    The functions are by the name of the encoding, {"keys": ..., "tensor": ..., "carrier": ...}. The
    encoding "carrier" writes the model as another architecture. It is left out for a model that
    llama.cpp can load as no other architecture.

    Args:
        schedule: The schedule to write.
        model: The GGUF file before the edit.
        carrier: The architecture that the user named with --carrier, such as "llama"; empty for
            the usual architecture.
    """
    encoders: Encoders = {}
    for name in GGUF_ENCODINGS:
        encoders[name] = partial(_encode, name, schedule, model)

    # the usual other architecture: llama for qwen2, else the first that the table lists
    arch = arch_of_header(model)
    other_arch = carrier
    if not other_arch:
        other_arch = DEFAULT_CARRIERS.get(arch.name, "")
    if not other_arch and arch.carriers:
        other_arch = arch.carriers[0]
    if other_arch:
        encoders["carrier"] = partial(_encode_carrier, schedule, model, other_arch)
    return encoders


def _select_automatically(
    encoders: Encoders, arch: str, readers: tuple[Reader, ...], untested: bool
) -> GgufResult:
    """Write a schedule by the encoding that "auto" selects, as `select_gguf` describes.

    Args:
        encoders: For each encoding by name, a function that writes the schedule with it.
        arch: The architecture of the file.
        readers: The programs that must compute the schedule, such as Ollama.
        untested: Whether a reader may be one that was not tested with an encoding.
    """
    # A result fits if all readers compute it. First the encodings that keep the architecture are
    # tried.
    keeping_arch = {name: encode for name, encode in encoders.items() if name != "carrier"}
    results, refusals = attempts(keeping_arch)
    fitting = [result for result in results if result.suits(readers)]

    # Then another architecture (a carrier), for those that have a usual one. It comes second, since
    # tools show its name, and queries and keys change.
    if not fitting and arch in DEFAULT_CARRIERS:
        carrier_results, carrier_refusals = attempts({"carrier": encoders["carrier"]})
        results += carrier_results
        refusals |= carrier_refusals
        fitting = [result for result in carrier_results if result.suits(readers)]

    # at last any of these that was not tested with a reader, where the user allows it
    if not fitting:
        fitting = [result for result in results if result.suits(readers, untested=untested)]
    if not fitting:
        raise _no_encoding_error(results, refusals, arch, readers)

    # of those that fit, the one that most readers compute exactly
    selected = max(fitting, key=GgufResult.exact_count)

    # the reason for and against each encoding that was tried, for --explain
    reasons = _explain_selection(selected, results, refusals, readers)
    considered = []
    for name in encoders:
        if name in reasons:
            is_selected = name == selected.encoding
            considered.append(ConsideredEncoding(name, is_selected, reasons[name]))
    return replace(selected, considered=tuple(considered))


def _no_encoding_error(
    results: list[GgufResult], refusals: Refusals, arch: str, readers: tuple[Reader, ...]
) -> UnsupportedBake:
    """Return the error where "auto" finds no encoding that all readers compute, with advice.

    An encoding is a way to write the frequencies: "keys", "tensor", or "carrier", which writes the
    model as another architecture that llama.cpp computes alike.

    Args:
        results: The encodings that llama.cpp computes exactly, and some other reader does not.
        refusals: By name, the errors of the encodings that cannot hold the schedule.
        arch: The architecture of the file.
        readers: The readers that must compute the schedule.
    """
    # the user may leave out the reader that does not compute it
    if results:
        return nothing_suits(results, refusals, readers)
    # the carrier was tried last, as it changes most, so its reason is the one that counts
    if "carrier" in refusals:
        return refusals["carrier"]

    # The error has the reasons of all encodings, but only one advice: the first that is specific.
    # General advice is "use --encoding tensor ..." and "choose another method or encoding".
    why = "; ".join(f"by {name}, {refusal.reason}" for name, refusal in refusals.items())
    all_advice = [refusal.alternatives for refusal in refusals.values()]
    general_advice = (ADVICE_OF_KEYS, ADVICE_TO_CHANGE_METHOD)
    selected_advice = all_advice[-1]
    for advice in all_advice:
        if advice not in general_advice:
            selected_advice = advice
            break
    target = f"the GGUF architecture {arch}"
    return UnsupportedBake("this schedule", target, why, selected_advice)


def _explain_selection(
    selected: GgufResult, results: list[GgufResult], refusals: Refusals, readers: tuple[Reader, ...]
) -> dict[str, str]:
    """Return for each encoding a sentence on why --encoding auto selected it, or did not select it.

    For example, {"keys": "llama.cpp reads it exactly; ...", "tensor": "Ollama: it ignores ..."}.

    Args:
        selected: The selected result, one of `results`.
        results: The results of the encodings that llama.cpp computes exactly.
        refusals: The errors of the encodings that cannot hold the schedule, by encoding.
        readers: The programs that must compute the schedule from the file, such as Ollama.
    """
    # encodings that cannot hold the schedule
    reasons = {encoding: refusal.reason for encoding, refusal in refusals.items()}

    for result in results:
        # `exact_share` is such as "exact in 9 of 12 runtime versions"
        verdicts = [result.verdict_by(reader) for reader in readers]
        wrong_verdicts = [verdict for verdict in verdicts if verdict.status not in GOOD]
        if result is selected:
            reason = f"llama.cpp reads it exactly; {result.exact_share}"
        elif wrong_verdicts:
            first_wrong = wrong_verdicts[0]
            reason = f"{first_wrong.display_name}: {first_wrong.reason}"
        else:
            # all wanted programs compute this encoding, but it is exact in no more programs of the
            # whole table than the selected encoding, which "auto" tries first
            reason = f"no more readers read it exactly; {result.exact_share}"
        reasons[result.encoding] = reason
    return reasons


def _check_suits(
    result: GgufResult, others: Encoders, readers: tuple[Reader, ...], untested: bool
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
