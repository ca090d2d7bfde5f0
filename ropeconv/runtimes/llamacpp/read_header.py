"""Reads the keys and rope tensors of a GGUF file as llama.cpp does, in the same precedence and with its defaults.

Source: src/llama-model.cpp:1400-1470 (keys), src/llama-context.cpp:178-214 (attention factor), ggml_rope_yarn (ramp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...errors import BadSource, shown
from ...families.registry import by_name
from ...rope.forms import Form, Interpolated, Llama3, LongRope, Plain, Vector, Yarn
from ...rope.log_n import QueryScaling
from ...rope.proportional import recognise as recognise_proportional
from ...rope.spec import ContextSource, RopeSpec
from ...rope.zero_frequencies import LEAST, NO_ROTATION, divided
from .archs import Arch, Window
from .keys import ArchKeys, Keys
from .layers import layer_kinds, layer_windows, window_theta

FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (FREQS, LONG, SHORT)
TYPES = ("none", "linear", "yarn", "longrope")
WINDOW_NORM = "ropeconv.window_norm_scale"


@dataclass(frozen=True)
class Reading:
    """The RoPE that llama.cpp computes from a file.

    local_attention_factor: attention factor of the window layers, times the factor that ropeconv has folded into their
    norms. dead: keys of the file that llama.cpp does not read for this architecture or scaling type.
    """

    arch: Arch
    spec: RopeSpec
    local_attention_factor: float
    dead: tuple[str, ...]


def read(keys: Keys, vectors: Mapping[str, Vector], arch: Arch) -> Reading:
    """The RoPE that llama.cpp computes from keys and rope tensors.

    keys: of the header. vectors: the rope tensors of the file by name, float64 [rotary_dim / 2]. arch: the
    architecture. Raises BadSource where llama.cpp would refuse the file or abort.
    """
    file = ArchKeys(keys, arch)
    head_dim, rotary_dim = _widths(file)
    scaling = file.text("rope.scaling.type", "linear")
    if scaling not in TYPES:
        raise BadSource(
            f"rope.scaling.type is {shown(scaling)}, on which llama.cpp aborts; set one of {', '.join(TYPES)}"
        )
    context = file.whole("context_length")
    original = file.whole("rope.scaling.original_context_length", context)
    theta = file.number("rope.freq_base", 10000.0)
    factor = file.number("rope.scaling.factor", file.number("rope.scale_linear", 0.0)) or 1.0
    if scaling == "none":
        factor = 1.0
    if context < 1 or original < 1:
        raise BadSource(f"the header declares {context} tokens, trained for {original}; download it again")
    if theta <= 1 or factor <= 0:
        raise BadSource(f"the header has rope.freq_base {theta:g} and factor {factor:g}; download it again")
    betas = (file.number("rope.scaling.yarn_beta_fast", 32.0), file.number("rope.scaling.yarn_beta_slow", 1.0))
    closed: Form = Plain(theta) if factor == 1 else Interpolated(theta, factor)
    if scaling == "yarn" and factor != 1:
        closed = Yarn(theta, factor, original, *(betas if arch.betas else (32.0, 1.0)))
    form = _divided(closed, _in_use(vectors, arch, scaling, rotary_dim), original, rotary_dim)
    net, window_attention_factor, softmax = _attention_factor(file, arch, scaling, factor)
    if arch.window is not None and arch.window.scaling == "plain":
        window_attention_factor = 1.0
    layers = layer_kinds(file, arch)
    local = _local_form(file, arch.window, closed) if "local" in layers else None
    notes: tuple[str, ...] = ()
    if isinstance(form, LongRope) and form.short_factor != form.long_factor:
        notes = (f"short factors hold in windows of up to {original} tokens, long ones in larger",)
    trained, known, reference = _trained(file, arch, form, context)
    spec = RopeSpec(
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        form=form,
        original_context=trained,
        original_context_source=known,
        original_context_reference=reference,
        context=context,
        attention_factor=net,
        softmax_scale=softmax,
        layers=layers,
        windows=layer_windows(file, arch),
        local_form=local,
        layout="interleaved" if arch.pairs == "norm" else "half",
        mla=arch.mla,
        query_scaling=_query_scaling(file, arch, original),
        notes=notes,
    )
    return Reading(
        arch, spec, window_attention_factor * file.number(WINDOW_NORM, 1.0, prefix=""), _dead(file, arch, scaling)
    )


def _widths(file: ArchKeys) -> tuple[int, int]:
    heads = file.get("attention.head_count")
    heads = max(heads, default=0) if isinstance(heads, list) else heads
    if not isinstance(heads, int) or heads < 1:
        raise BadSource(f"the header has attention.head_count = {shown(heads)}; without heads there is no RoPE")
    head_dim = file.whole("attention.key_length", file.whole("embedding_length") // heads)
    rotary_dim = file.whole("rope.dimension_count", head_dim) // (2 if file.arch.halved else 1)
    if file.arch.full_rotation and rotary_dim != head_dim:
        raise BadSource(
            f"llama.cpp loads {file.arch.name} only when all {head_dim} dimensions rotate, not {rotary_dim}"
        )
    if rotary_dim < 2 or rotary_dim > head_dim or rotary_dim % 2:
        raise BadSource(f"the header lets {rotary_dim} of {head_dim} dimensions rotate, which cannot be")
    return head_dim, rotary_dim


def _in_use(vectors: Mapping[str, Vector], arch: Arch, scaling: str, rotary_dim: int) -> tuple[Vector, Vector] | None:
    pair = None
    if arch.factors == "always" or (arch.factors == "longrope" and scaling == "longrope"):
        pair = (vectors.get(SHORT), vectors.get(LONG))
    elif arch.freqs == "used":
        pair = (vectors.get(FREQS), vectors.get(FREQS))
    if pair is None or pair[0] is None or pair[1] is None:
        return None
    for vector in pair:
        if vector is not None and len(vector) != rotary_dim // 2:
            raise BadSource(
                f"a rope tensor has {len(vector)} numbers for {rotary_dim // 2} pairs; fetch the file again"
            )
    return pair[0], pair[1]


def _divided(closed: Form, pair: tuple[Vector, Vector] | None, original: int, rotary_dim: int) -> Form:
    """The form whose frequencies are those of `closed`, divided by rope tensors before any interpolation."""
    if pair is None or all(np.all(vector == 1) for vector in pair):
        return closed
    base = Plain(closed.theta).inv_freq(rotary_dim)
    if pair[0] is pair[1] and isinstance(closed, Plain):
        proportional = recognise_proportional(divided(base, pair[1]), closed.theta)
        known = proportional or recognise_llama3(closed, pair[1], rotary_dim)
        if known is not None:
            return known
    ramp = closed.ramp(rotary_dim) if isinstance(closed, Yarn) else np.ones(rotary_dim // 2)
    factor = getattr(closed, "factor", 1.0)
    finite = (np.minimum(vector, NO_ROTATION) for vector in pair)
    lists = (base / (base / vector * (1 - ramp + ramp / factor)) for vector in finite)
    short, long = (tuple(float(value) for value in vector) for vector in lists)
    return LongRope(closed.theta, short, long, original)


def recognise_llama3(closed: Form, divisors: Vector, rotary_dim: int) -> Llama3 | None:
    """Llama 3.1's scaling with these divisors, to within 3e-6; None where no original context of 2^6 to 2^20 fits.

    closed: the form without divisors. divisors: float64 [rotary_dim / 2].
    """
    largest = float(np.max(divisors))
    if not isinstance(closed, Plain) or not 1 < largest < LEAST or not np.isclose(divisors[0], 1):
        return None
    base = closed.inv_freq(rotary_dim)
    for exponent in range(6, 21):
        form = Llama3(closed.theta, round(largest, 4), 1 << exponent)
        if np.allclose(base / form.inv_freq(rotary_dim), divisors, rtol=3e-6):
            return form
    return None


def _attention_factor(file: ArchKeys, arch: Arch, scaling: str, factor: float) -> tuple[float, float, float]:
    """The attention factors of extended layers and of window layers, which read the same key, and the softmax scale.

    src/llama-context.cpp:178-214; the softmax scale is that of deepseek2.cpp:433-443, attention factor included.
    """
    own = file.number("rope.scaling.attn_factor", 1.0)
    log = 0.1 * math.log(factor) if factor > 1 else 0.0
    multiplier = file.number("rope.scaling.yarn_log_multiplier", 0.0) if arch.log_multiplier else 0.0
    if arch.mla:
        multiplier /= 0.1
    everywhere, net = 1 + log * multiplier, own
    if scaling == "yarn":
        first = everywhere if arch.mla and multiplier != 1 else 1 + log
        own *= first / everywhere / (1 + log) if multiplier else 1.0
        net = own * (1 + log)
    softmax = (own * (1 + log) * everywhere) ** 2 if arch.mla else 1.0
    return net, own, softmax


def _query_scaling(file: ArchKeys, arch: Arch, original: int) -> QueryScaling | None:
    """Query scaling by position, None without it: src/models/mistral3.cpp, deepseek2.cpp, llm_graph_input_attn_temp."""
    beta = file.number("attention.temperature_scale", 0.0) if arch.query_length else 0.0
    return QueryScaling(beta, file.whole(arch.query_length, original)) if beta else None


def _local_form(file: ArchKeys, window: Window | None, closed: Form) -> Form:
    assert window is not None
    theta = ((window_theta(file) or window.theta) if window.own_theta else None) or closed.theta
    return replace(closed, theta=theta) if window.scaling == "same" else Plain(theta)


def _trained(file: ArchKeys, arch: Arch, form: Form, context: int) -> tuple[int, ContextSource, str]:
    """The tokens that the unscaled embedding was trained for, how that is known, and where it is stated."""
    stated = file.whole("rope.scaling.original_context_length", 0)
    if isinstance(form, (Yarn, Llama3)):
        return form.original_context, "header" if stated or isinstance(form, Llama3) else "declared", ""
    if form.scaled or file.number("rope.scaling.attn_factor", 1.0) != 1:
        if stated:
            return stated, "header", ""
        if isinstance(form, Interpolated):
            return max(1, round(context / form.factor)), "factor", ""
        return context, "declared", ""
    if 0 < stated < context and not file.number("attention.temperature_scale", 0.0):
        return stated, "header", ""
    family = by_name().get(arch.family)
    for known in family.trained if family else ():
        if known.declared == context and not known.doubt:
            return known.trained, "family", known.source
    return context, "declared", ""


HARMLESS = {"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}


def _dead(file: ArchKeys, arch: Arch, scaling: str) -> tuple[str, ...]:
    """Scaling keys that are not at their defaults and that this architecture, or this scaling type, does not read."""
    unread = ["yarn_ext_factor", "yarn_attn_factor"]
    unread += [] if arch.betas else ["yarn_beta_fast", "yarn_beta_slow"]
    unread += [] if arch.log_multiplier else ["yarn_log_multiplier"]
    unread += ["factor"] if scaling == "none" else []
    return tuple(key for key in unread if file.get(f"rope.scaling.{key}") not in (None, HARMLESS.get(key)))
