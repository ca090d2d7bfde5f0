"""Reads the keys and rope tensors of a GGUF file as llama.cpp does. Begin with `read`.

It has the same precedence and the same defaults. Source: src/llama-model.cpp:1400-1470 (keys) and
2337-2350 (rope tensors), ggml_rope_yarn (ramp); for the scaling keys see scaling.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...errors import BadSource
from ...formats.gguf.file import GgufFile
from ...formats.gguf.header import F32, TYPES
from ...models.registry import by_name
from ...rope.errors import ImpossibleSize, RecipeError, counted, shown
from ...rope.forms import (
    LEAST_OF_NO_ROTATION,
    NO_ROTATION,
    Form,
    InterpolatedForm,
    Llama3,
    LongRope,
    Plain,
    Vector,
    Yarn,
    divide,
)
from ...rope.schedule import QueryScaling
from ...rope.spec import LayerKind, Layout, RopeSpec, TrainedLength
from ...rope.spec import recognise as recognise_proportional
from .archs import Arch, HeaderKeys, arch_of_header, other_kind
from .layers import layer_kinds, layer_windows, window_theta
from .scaling import (
    ArchKeys,
    ScalingKeys,
    attention_factors,
    dead_keys,
    read_scaling,
    stored_factor,
)

FREQS = "rope_freqs.weight"
LONG = "rope_factors_long.weight"
SHORT = "rope_factors_short.weight"
ROPE_TENSORS = (FREQS, LONG, SHORT)
WINDOW_NORM = "ropeconv.window_norm_scale"
ASSUMED = (
    (
        "the architecture is not in the table: that its layers rotate and read these keys is"
        " assumed and not known"
    ),
)
"""A note on files of an architecture that is only assumed to read the keys of all others."""


@dataclass(frozen=True)
class Reading:
    """The RoPE that llama.cpp computes from a file."""

    arch: Arch
    spec: RopeSpec
    local_attention_factor: float
    """Attention factor of the window layers, times the factor that is folded into their norms."""

    dead: tuple[str, ...]
    """Keys of the file that llama.cpp does not read for this architecture or scaling type."""


def read(keys: HeaderKeys, vectors: Mapping[str, Vector], arch: Arch) -> Reading:
    """Return the RoPE that llama.cpp computes from keys and rope tensors.

    Args:
        keys: The keys of the header.
        vectors: The rope tensors of the file by name, float64 [rotary_dim / 2].
        arch: The architecture.

    Raises:
        BadSource: Where llama.cpp would refuse the file or abort.
    """
    try:
        reading = _read_unchecked(ArchKeys(keys, arch), vectors)
        reading.spec.current()  # raises for frequencies that are not finite
    except ImpossibleSize as problem:
        raise BadSource(f"the header describes {problem}; fetch the file again") from None
    except (ArithmeticError, RecipeError) as problem:
        # messages are "what is wrong; what to do", and the advice here is another one
        reason, _, _ = str(problem).partition(";")
        raise BadSource(
            f"the header has RoPE keys that contradict each other ({reason}); fetch the file again"
        ) from None
    return reading


def _read_unchecked(file: ArchKeys, vectors: Mapping[str, Vector]) -> Reading:
    """Return the RoPE as in `read`, without checking that its frequencies are finite.

    Args:
        file: The keys of the header, for its architecture.
        vectors: The rope tensors of the file by name, float64 [rotary_dim / 2].
    """
    # the sizes of a head, the scaling, and the kinds of the layers
    arch = file.arch
    window = arch.window
    head_dim, rotary_dim = _widths(file)
    scaling = read_scaling(file, head_dim)
    sections = _sections(file)
    factors = attention_factors(file, scaling)
    layers = layer_kinds(file)
    windows = layer_windows(file)
    _refuse_factor_of_windows(file, scaling, layers, windows)

    # the frequencies by the keys: a base and a scaling
    form_of_keys = scaling.form(file)
    attention_factor = factors.extended
    if window is not None and window.rotates == "window" and window.scaling == "base":
        # only layers with a window rotate, by a base alone: the scaling is about the other layers
        form_of_keys = Plain(window_theta(file, window, scaling.theta))
        attention_factor = factors.window

    # they are divided by the numbers of the rope tensors, a short and a long list of divisors
    tensor_length = stored_pairs(file, rotary_dim)
    divisors = _lists_in_use(vectors, arch, scaling.kind, rotary_dim, tensor_length)
    form_of_ramp = form_of_keys
    if isinstance(form_of_keys, Yarn):
        form_of_ramp = form_of_keys.order_ends(rotary_dim)
    form = _divide_form(form_of_ramp, divisors, scaling.original, rotary_dim)
    trained = _trained_context(file, form, scaling.context)

    # layers with a window, which may have frequencies of their own
    local_form = None
    if "local" in layers:
        local_form = _local_form(file, form_of_keys)
        if isinstance(local_form, Yarn):
            local_form = local_form.order_ends(rotary_dim)
    nope_query_scaling = None
    if any(windows):
        nope_query_scaling = arch.nope_query_scaling

    # the pairs: LLAMA_ROPE_TYPE_NORM rotates (2i, 2i + 1); with sections of positions, as models of
    # images have, pairs are (i, i + r/2)
    layout: Layout = "half"
    if arch.pairs == "norm" and not sections:
        layout = "interleaved"

    spec = RopeSpec(
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        form=form,
        original_context=trained.tokens,
        original_context_source=trained.source,
        original_context_reference=trained.reference,
        context=scaling.context,
        attention_factor=attention_factor,
        softmax_scale=factors.softmax_scale,
        softmax_follows=arch.softmax,
        layers=layers,
        windows=windows,
        chunked=window is not None and window.chunked and any(windows),
        local_form=local_form,
        layout=layout,
        mla=arch.mla,
        query_scaling=_query_scaling(file, scaling.original),
        nope_query_scaling=nope_query_scaling,
        mrope_section=sections,
        notes=_notes_for_users(arch, form, scaling.original, sections),
    )
    return Reading(
        arch=arch,
        spec=spec,
        local_attention_factor=_local_attention_factor(file, factors.window),
        dead=dead_keys(file, scaling),
    )


def _refuse_factor_of_windows(
    file: ArchKeys,
    scaling: ScalingKeys,
    layers: tuple[LayerKind, ...],
    windows: tuple[int | None, ...],
) -> None:
    """Raise BadSource for a factor that llama.cpp applies to layers with a window only.

    With rope.scaling.type "none", llama.cpp ignores rope.scaling.factor
    (src/llama-context.cpp:169). In some architectures, layers with a window have a copy of the
    factor (`get_rope_freq_scale` in src/llama-model.cpp), and llama.cpp applies this copy.

    Args:
        file: The keys of the header.
        scaling: Its scaling keys.
        layers: The kind of each layer, "none" for layers that do not rotate.
        windows: The window of each layer in tokens; None without one.
    """
    # only for the type none, and in architectures with such a copy
    arch = file.arch
    windows_have_copy = arch.window is not None and arch.window.own_factor
    if scaling.kind != "none" or not windows_have_copy:
        return
    factor = stored_factor(file)
    if factor == 1:
        return

    for kind, window in zip(layers, windows, strict=True):
        has_window = window is not None
        rotates = kind != "none"
        if has_window and rotates:
            raise BadSource(
                f"the header has rope.scaling.type none and rope.scaling.factor {factor:g}, by"
                f" which llama.cpp still divides positions in layers of {arch.name} with a window;"
                " set the factor to 1, or the type to linear"
            )


def _local_attention_factor(file: ArchKeys, attention_factor: float) -> float:
    """Return the attention factor of layers with a window, times that folded into their norms."""
    arch = file.arch
    if arch.theta_key != "rope.freq_base":  # deepseek4.cpp: layers without compression
        attention_factor = 1.0
    if arch.window is not None and arch.window.scaling == "plain":
        attention_factor = 1.0
    if arch.norm_after_rope:  # the norm cancels it
        attention_factor = 1.0
    return attention_factor * file.number(WINDOW_NORM, 1.0, prefix="")


def _notes_for_users(
    arch: Arch, form: Form, original: int, sections: tuple[int, ...]
) -> tuple[str, ...]:
    """Return sentences on unusual things in the RoPE of a file, which the command line shows.

    Args:
        arch: The architecture.
        form: The formula of the frequencies.
        original: The trained context in tokens.
        sections: The numbers of pairs that rotate by the time, the height, the width and a fourth
            position of a token, e.g. (16, 24, 24, 0) for Qwen2-VL; empty for text models.
    """
    notes = []
    # LongRoPE: llama.cpp chooses the list by the context that it is started with (-c), not by the
    # text
    if isinstance(form, LongRope) and form.short_factor != form.long_factor:
        notes.append(
            f"short factors hold in windows of up to {original} tokens, long ones in larger"
        )

    # models of images
    if len(sections) > 3:
        pairs_by_fourth_position = sections[3]
        notes.append(
            f"{pairs_by_fourth_position} of {sum(sections)} pairs rotate by a fourth position,"
            " which is 0 for text"
        )

    # an architecture that ropeconv does not know
    if arch.assumed:
        notes += ASSUMED
    return tuple(notes)


def _widths(file: ArchKeys) -> tuple[int, int]:
    """Return the dimensions of a head, and how many of them rotate."""
    heads = file.get("attention.head_count")
    if isinstance(heads, list):  # one number per layer, 0 for a layer without attention
        heads = max(heads, default=0)
    if not isinstance(heads, int) or heads < 1:
        raise BadSource(
            f"the header has attention.head_count = {shown(heads)}; without heads there is no RoPE"
        )

    head_dim = file.whole("attention.key_length", file.whole("embedding_length") // heads)
    rotary_dim = file.whole("rope.dimension_count", head_dim)
    if file.arch.halved:  # step35.cpp: layers without a window rotate half of that
        rotary_dim //= 2

    if file.arch.full_rotation and rotary_dim != head_dim:
        raise BadSource(
            f"llama.cpp loads {file.arch.name} only when all {head_dim} dimensions rotate, not"
            f" {rotary_dim}"
        )
    if rotary_dim < 2 or rotary_dim > head_dim or rotary_dim % 2:
        raise BadSource(
            f"the header lets {rotary_dim} of {head_dim} dimensions rotate, which is impossible"
        )
    return head_dim, rotary_dim


def stored_pairs(file: ArchKeys, rotary_dim: int) -> int:
    """Return the number of divisors that a rope tensor must have: one for each pair that rotates.

    Step 3.5 has two kinds of layers, which share one tensor (src/models/step35.cpp). Each layer
    uses the beginning, so the tensor must have the pairs of the wider kind.

    Args:
        file: The keys of the header.
        rotary_dim: Dimensions that rotate in the layers without a window.
    """
    # most architectures
    has_two_widths = file.arch.halved and any(layer_windows(file))
    if not has_two_widths:
        return rotary_dim // 2

    # Step 3.5: layers without a window rotate half of rope.dimension_count. Layers with a window
    # rotate rope.dimension_count_swa, or if it is absent all of rope.dimension_count.
    whole_dim = file.whole("rope.dimension_count", 2 * rotary_dim)
    rotary_dim_with_window = file.whole("rope.dimension_count_swa", whole_dim)
    return max(rotary_dim, rotary_dim_with_window) // 2


def _lists_in_use(
    vectors: Mapping[str, Vector], arch: Arch, scaling: str, rotary_dim: int, tensor_length: int
) -> tuple[Vector, Vector] | None:
    """Return the divisors of frequencies that llama.cpp uses for short and for long contexts.

    Phi 3 and a few others have the two tensors rope_factors_short and rope_factors_long. Most
    architectures read one tensor, rope_freqs: the result is then the same object twice.

    Args:
        vectors: The rope tensors of the file, by name.
        arch: The architecture.
        scaling: rope.scaling.type.
        rotary_dim: Dimensions of a head that rotate.
        tensor_length: How many numbers a tensor must have.

    Returns:
        The short and the long list, each [rotary_dim / 2]; None if llama.cpp uses none.

    Raises:
        BadSource: A tensor has another length.
    """
    # The architecture says how llama.cpp uses the two tensors (`factors`) and the one (`freqs`).
    # With "longrope", it uses the two only if this is the scaling type.
    uses_two_tensors = arch.factors == "always"
    if arch.factors == "longrope":
        uses_two_tensors = scaling == "longrope"
    uses_one_tensor = arch.freqs == "used"

    if uses_two_tensors:
        short = vectors.get(SHORT)
        long = vectors.get(LONG)
    elif uses_one_tensor:
        short = vectors.get(FREQS)
        long = short
    else:
        return None
    if short is None or long is None:
        return None
    for vector in (short, long):
        if len(vector) != tensor_length:
            numbers = counted(len(vector), "number")
            pairs_needed = counted(tensor_length, "pair")
            raise BadSource(f"a rope tensor has {numbers} for {pairs_needed}; fetch the file again")

    # a tensor may be longer than the pairs that rotate, and its beginning counts
    pairs = rotary_dim // 2
    if uses_two_tensors:
        return short[:pairs], long[:pairs]
    one_list = short[:pairs]
    return one_list, one_list


def _divide_form(
    form: Form, lists: tuple[Vector, Vector] | None, original: int, rotary_dim: int
) -> Form:
    """Return the formula of the frequencies of a GGUF file whose rope tensors divide them.

    Args:
        form: The formula that the keys of the header give.
        lists: The divisors for short and for long contexts, each [rotary_dim / 2]; the same object
            twice for the one tensor rope_freqs; None without rope tensors.
        original: The tokens from which on the long list is used.
        rotary_dim: Dimensions of a head that rotate.

    Returns:
        The formula of Llama 3.1 or of proportional RoPE, if it has these divisors; or LongRoPE with
        two lists of factors.
    """
    # no divisors, or all are 1
    if lists is None or all(np.all(divisors == 1) for divisors in lists):
        return form

    # Llama 3.1 and Gemma 4 (proportional RoPE): llama.cpp's converter (convert_hf_to_gguf.py)
    # writes their divisors as the one tensor rope_freqs
    short, long = lists
    base = Plain(form.theta).inv_freq(rotary_dim)
    has_one_tensor = short is long
    if has_one_tensor and isinstance(form, Plain):
        proportional = recognise_proportional(divide(base, long), form.theta)
        if proportional is not None:
            return proportional
        llama3 = recognise_llama3(form, long, rotary_dim)
        if llama3 is not None:
            return llama3

    # Others: ggml divides the frequency theta_i of each pair by its divisor d_i, and multiplies it
    # by the scaling of the keys (ggml_rope_ext in ggml/include/ggml.h):
    #   theta_i / d_i * (1 - r_i + r_i / s)
    # s is the factor of the scaling. r_i is YaRN's ramp from 0 to 1, and 1 for position
    # interpolation.
    ramp = np.ones(rotary_dim // 2)
    if isinstance(form, Yarn):
        ramp = form.ramp(rotary_dim)
    factor = getattr(form, "factor", 1.0)  # a formula without a scaling has no factor
    scaling_of_keys = 1 - ramp + ramp / factor

    # the factors by which LongRoPE divides theta_i to get these frequencies
    factors_of_lists = []
    for divisors in lists:
        # a pair that does not rotate has the divisor 1e30; larger ones mean the same
        finite_divisors = np.minimum(divisors, NO_ROTATION)
        frequencies = base / finite_divisors * scaling_of_keys
        factors = base / frequencies
        factors_of_lists.append(tuple(factors.tolist()))
    short_factor, long_factor = factors_of_lists
    return LongRope(
        theta=form.theta,
        short_factor=short_factor,
        long_factor=long_factor,
        original_context=original,
    )


def recognise_llama3(unscaled: Form, divisors: Vector, rotary_dim: int) -> Llama3 | None:
    """Return the scaling of Llama 3.1 that divides frequencies by these divisors; None without one.

    The divisors may be off by 3e-6. The factor is tried with trained contexts of 2^6 to 2^20
    tokens.

    Args:
        unscaled: The formula of the frequencies that are divided.
        divisors: One for each pair, float64 [rotary_dim / 2].
        rotary_dim: Dimensions of a head that rotate.
    """
    if not isinstance(unscaled, Plain):
        return None
    # The slowest pairs are divided by the whole factor, so the largest divisor is the factor. From
    # 1e29 on, a divisor means that a pair does not rotate.
    factor = float(np.max(divisors))
    if not 1 < factor < LEAST_OF_NO_ROTATION:
        return None

    frequencies = unscaled.inv_freq(rotary_dim)
    for exponent in range(6, 21):
        form = Llama3(theta=unscaled.theta, factor=round(factor, 4), original_context=1 << exponent)
        if np.allclose(frequencies / form.inv_freq(rotary_dim), divisors, rtol=3e-6):
            return form
    return None


def _query_scaling(file: ArchKeys, original: int) -> QueryScaling | None:
    """Query scaling by position, None without it.

    src/models/mistral3.cpp, deepseek2.cpp, llm_graph_input_attn_temp.
    """
    key = file.arch.query_length
    if not key:
        return None
    beta = file.number("attention.temperature_scale", 0.0)
    if not beta:
        return None
    return QueryScaling(beta, file.whole(key, original))


def _local_form(file: ArchKeys, closed: Form) -> Form:
    """Return the form of the layers with a window."""
    window = file.arch.window
    theta = file.number("rope.freq_base", 10000.0)
    if window is None:
        return Plain(theta)
    window_base = window_theta(file, window, closed.theta)
    if window.scaling == "same":
        return replace(closed, theta=window_base)
    return Plain(window_base)


def _sections(file: ArchKeys) -> tuple[int, ...]:
    """Return how many pairs rotate by the time, the height and the width of a token (M-RoPE).

    The header of Qwen2-VL has (16, 24, 24, 0), of which the result is (16, 24, 24). The fourth
    number is for a fourth position that llama.cpp has, and is in the result only if it is not 0.
    The result is empty for a model without sections.
    """
    # arch.sections is "required" or "optional" for an architecture that reads the key, else empty
    arch = file.arch
    counts: tuple[int, ...] = ()
    if arch.sections:
        stored = file.get("rope.dimension_sections")
        if isinstance(stored, list):
            counts = tuple(stored)

    if len(counts) > 4 or not all(_is_count(count) for count in counts):
        raise BadSource(
            f"the header has {arch.name}.rope.dimension_sections that are not counts; fetch the"
            " file again"
        )
    if arch.sections == "required" and not any(counts[:3]):
        raise BadSource(
            f"the header has no {arch.name}.rope.dimension_sections, which llama.cpp requires"
        )

    if arch.sections == "optional":
        # llama_hparams::use_mrope: sections count only where the first two are not 0
        has_two = len(counts) >= 2 and counts[0] > 0 and counts[1] > 0
        if not has_two:
            return ()
    has_fourth_position = any(counts[3:])
    return counts if has_fourth_position else counts[:3]


def _is_count(value: object) -> bool:
    """Whether a value of a header is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _trained_context(file: ArchKeys, form: Form, context: int) -> TrainedLength:
    """Return the tokens that the unscaled model was trained for, and how that is known.

    From certain to uncertain: the scaling has the number ("header"), the factor implies it
    ("factor"), or the family is known to declare more than it was trained for ("family", with the
    place where that is said as the source). The declared context is the last guess ("declared").

    Args:
        file: The keys of the header.
        form: The frequencies.
        context: The declared context.
    """
    # the key of the trained length; 0 in a header without it
    in_header = file.whole("rope.scaling.original_context_length", 0)

    # formulas that have the trained length among their numbers
    if isinstance(form, Llama3):
        return TrainedLength(form.original_context, "header")
    if isinstance(form, Yarn):
        # without the key, YaRN is computed with the declared context
        return TrainedLength(form.original_context, "header" if in_header else "declared")

    # other scalings, also one that is only an attention factor
    is_scaled = form.scaled or file.number("rope.scaling.attn_factor", 1.0) != 1
    if is_scaled:
        if in_header:
            return TrainedLength(in_header, "header")
        if isinstance(form, InterpolatedForm):
            return TrainedLength(max(1, round(context / form.factor)), "factor")
        return TrainedLength(context, "declared")

    # Without a scaling, the key still has the trained length, if that is shorter than the declared
    # one. In models that scale queries by position, it is the length from which on they do that,
    # and says nothing about training.
    is_shorter = 0 < in_header < context
    scales_queries = bool(file.number("attention.temperature_scale", 0.0))
    if is_shorter and not scales_queries:
        return TrainedLength(in_header, "header")
    family = by_name().get(file.arch.family)
    if family is not None:
        for known in family.trained:
            # a doubt is a reason why the trained length may be another one
            if known.declared == context and known.doubt is None:
                return TrainedLength(known.trained, "family", known.source)
    return TrainedLength(context, "declared")


def arch_of(file: GgufFile) -> Arch:
    """Return the architecture of a file.

    Raises:
        BadSource: If it is not a language model with RoPE, or is unknown.
    """
    other = other_kind(file)
    if other:
        raise BadSource(f"{file.name} {other}")
    return arch_of_header(file)


def rope_tensors(file: GgufFile) -> dict[str, Vector]:
    """Return the divisors in a file's rope tensors, float64, by the tensor's name.

    Raises:
        BadSource: For types on which llama.cpp aborts, and for divisors that are not positive.
    """
    tensors = {}
    for name in ROPE_TENSORS:
        info = file.tensors.get(name)
        if info is None:
            continue
        if info.type != F32:
            raise BadSource(
                f"{name} is {TYPES[info.type].name}, on which llama.cpp aborts, and not F32; fetch"
                " the file again"
            )
        if len(info.shape) > 1 or info.size > 1 << 16:
            raise BadSource(f"{name} has the shape {info.shape}, but needs one number per pair")
        tensors[name] = np.frombuffer(file.read(name), "<f4").astype(np.float64)
        if not (tensors[name] > 0).all():
            raise BadSource(f"{name} has divisors that are not positive; fetch the file again")
    return tensors


def read_file(file: GgufFile) -> Reading:
    """Return the RoPE that llama.cpp computes from a file.

    Raises:
        BadSource: Where it would refuse the file or abort.
    """
    return read(file, rope_tensors(file), arch_of(file))
