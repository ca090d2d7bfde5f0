"""Encoding `keys`: theta, linear and yarn in the metadata, with any attention factor.

rope.scaling.attn_factor multiplies cos and sin under every type (src/llama-context.cpp:214), and
yarn's own attention factor 1 + 0.1 ln s comes on top of it.
"""

import math

from ...errors import UnsupportedBake
from ...formats.gguf.edit import Edit
from ...formats.gguf.header import GgufValue, boolean, f32, string, u32
from ...rope.forms import Form, InterpolatedForm, Plain, Yarn
from ...rope.schedule import Schedule
from ...runtimes.llamacpp.archs import ASSUMED_KEY, Arch, arch_of_header
from ..gguf_encoding import (
    LOG_MULTIPLIER_KEY,
    SAME_FACTOR,
    GgufModel,
    gguf_encoding,
    pinned_original,
    start,
    with_attention_factor,
)

ADVICE_OF_KEYS = "use --encoding tensor where the architecture has it, or another method"


@gguf_encoding("keys", order=1)
def keys(schedule: Schedule, model: GgufModel) -> Edit:
    """Write the schedule in metadata keys of GGUF: the base, and a scaling of type linear or yarn.

    For YaRN by 4 over 8192 tokens in a Llama, for example, it sets `llama.rope.freq_base`,
    `llama.rope.scaling.type` = "yarn", `.scaling.factor` = 4 and
    `.scaling.original_context_length` = 8192.

    Args:
        schedule: The frequencies and the attention factor. Its `form` is the formula that they
            follow, None for frequencies without one.
        model: The GGUF file before.

    Returns:
        The keys to set and to remove.

    Raises:
        UnsupportedBake: For forms that no keys describe, and for keys that llama.cpp does not use.
    """
    arch = arch_of_header(model)
    schedule = schedule.simplify_crossed()
    form = schedule.form
    prefix = f"{arch.name}.rope."
    if not isinstance(form, (Plain, InterpolatedForm, Yarn)):
        kind = form.kind if form else "an arbitrary frequency vector"
        raise UnsupportedBake(kind, "GGUF metadata", f"nothing names {kind}", ADVICE_OF_KEYS)

    # the base; layers with a sliding window may have a key of their own that follows it
    values: dict[str, GgufValue] = {f"{arch.name}.{arch.theta_key}": f32(form.theta)}
    if _window_base_follows(model):
        values[f"{prefix}freq_base_swa"] = f32(form.theta)

    # Ministral 3: its original context is also the unit of its query scaling and must not change;
    # 0 for other models
    pinned_context = pinned_original(model)
    if isinstance(form, Yarn):
        _check_yarn(form, 2 * len(schedule.inv_freq), pinned_context, arch)
    if pinned_context:
        original = pinned_context
    elif isinstance(form, Yarn):
        original = form.original_context
    else:
        original = schedule.original_context

    # the scaling
    if not isinstance(form, Plain):
        values[f"{prefix}scaling.type"] = string(form.kind)
        values[f"{prefix}scaling.factor"] = f32(form.factor)
        values[f"{prefix}scaling.original_context_length"] = u32(original)
    if isinstance(form, Yarn) and not _has_usual_betas(form, arch):
        values[f"{prefix}scaling.yarn_beta_fast"] = f32(form.beta_fast)
        values[f"{prefix}scaling.yarn_beta_slow"] = f32(form.beta_slow)

    # the user let ropeconv assume the keys of an architecture that it does not know
    if arch.assumed:
        values[ASSUMED_KEY] = boolean(True)

    # In latent attention (`arch.softmax`), llama.cpp multiplies the logits by the attention factor
    # too. Some architectures have a key that takes this back.
    edit = start(model, schedule).merge(Edit(values))
    if arch.softmax and arch.log_multiplier:
        edit = _with_log_multiplier(model, schedule, edit, form)
    elif arch.softmax:
        _check_logit_scale(model, schedule, edit, form)

    # last, since it depends on what the keys so far give already
    return with_attention_factor(model, schedule, edit)


def _has_usual_betas(form: Yarn, arch: Arch) -> bool:
    """Whether a ramp has the betas that llama.cpp computes without keys."""
    return (form.beta_fast, form.beta_slow) == (arch.beta_fast, 1.0)


def _check_yarn(form: Yarn, rotary_dim: int, pinned_context: int | None, arch: Arch) -> None:
    """Raise UnsupportedBake for settings of YaRN that llama.cpp has no metadata keys for.

    Args:
        form: YaRN with its settings.
        rotary_dim: The dimensions that rotate.
        pinned_context: An original context in tokens that must not change, as in files of
            Ministral 3; 0 or None for other files.
        arch: The architecture of the GGUF file, with the keys that llama.cpp reads for it.
    """
    target = f"the keys of {arch.name}"

    # Ministral 3: one key is both the original context of YaRN and the unit of its query scaling
    if pinned_context and pinned_context != form.original_context:
        why = f"its original context, {pinned_context}, also gives the scale of queries"
        change = f"yarn over {form.original_context} tokens"
        raise UnsupportedBake(change, target, why, ADVICE_OF_KEYS)

    # YaRN without truncation: the ends of its ramp are fractions of a dimension
    if not form.truncate:
        why = "llama.cpp always rounds the ends of the ramp"
        raise UnsupportedBake("yarn without truncation", "GGUF metadata", why, ADVICE_OF_KEYS)

    # a config with beta_fast below beta_slow, for which transformers has a ramp that falls
    low, high = form.ends(rotary_dim)
    if low > high:
        why = "its ramp ends before it begins, which llama.cpp computes as a step"
        raise UnsupportedBake("this yarn", "GGUF metadata", why, ADVICE_OF_KEYS)

    # other betas than 32 and 1, for which only some architectures have keys
    has_keys_for_betas = bool(arch.betas)
    if not has_keys_for_betas and not _has_usual_betas(form, arch):
        betas = f"beta_fast {form.beta_fast:g} and beta_slow {form.beta_slow:g}"
        why = "llama.cpp reads them for other architectures only and computes 32 and 1"
        raise UnsupportedBake(betas, target, why, ADVICE_OF_KEYS)


def _check_logit_scale(model: GgufModel, schedule: Schedule, edit: Edit, form: Form) -> None:
    """Raise UnsupportedBake where llama.cpp would scale the logits by another factor than wanted.

    It is for architectures with latent attention (MLA) and without a key such as
    yarn_log_multiplier. There llama.cpp multiplies all logits by the attention factor too, and no
    key can undo that.

    Args:
        model: The GGUF file before.
        schedule: The attention factor and the softmax scale that are wanted.
        edit: The new keys so far. The key of the attention factor is still missing.
        form: The formula of the frequencies.
    """
    # add that key, and read the file as llama.cpp would
    finished_edit = with_attention_factor(model, schedule, edit)
    scale = model.after(finished_edit).reading().spec.softmax_scale
    if abs(scale / schedule.softmax_scale - 1) < SAME_FACTOR:
        return

    if isinstance(form, Yarn):
        repair = "pass --attention-factor 1"
    else:
        repair = "use --yarn with --attention-factor 1"
    why = (
        f"llama.cpp then multiplies all logits by {scale:.4f}, not by {schedule.softmax_scale:.4f}"
    )
    change = f"{form.kind} with attention factor {schedule.attention_factor:g}"
    raise UnsupportedBake(change, f"the keys of {arch_of_header(model).name}", why, repair)


def _window_base_follows(model: GgufModel) -> bool:
    """Whether layers with a window have the base of the others, by their own key or default."""
    window = arch_of_header(model).window
    if window is None:
        return False
    if window.scaling != "same" and window.rotates != "window":
        return False

    # without a key or default of their own, these layers have the base of the others anyway;
    # "local" layers are those that keep an unscaled RoPE
    has_key = model.get(f"{model.get('general.architecture')}.rope.freq_base_swa") is not None
    has_default = window.own_theta and window.theta is not None
    return (has_key or has_default) and "local" not in model.reading().spec.layers


def _with_log_multiplier(model: GgufModel, schedule: Schedule, edit: Edit, form: Form) -> Edit:
    """Return an edit with rope.scaling.yarn_log_multiplier added where a softmax scale needs it.

    The softmax scale multiplies all logits. In latent attention (MLA) llama.cpp computes

        S = S0 (1 + m ln s)^2

    with m the key, s the factor of the scaling, and S0 what follows from the other keys, such as
    the attention factor. So m = (sqrt(S / S0) - 1) / ln s.

    Args:
        model: The GGUF file before.
        schedule: The attention factor and the softmax scale that are wanted.
        edit: The keys that are set, without the attention factor.
        form: The formula of the frequencies.
    """
    if not isinstance(form, (InterpolatedForm, Yarn)):
        return edit
    if form.factor <= 1:  # ln s would be 0
        return edit

    # S0 is read from the file as it would be without the key
    without_key = model.after(with_attention_factor(model, schedule, edit))
    scale_without_key = without_key.reading().spec.softmax_scale

    wanted_scale = schedule.softmax_scale  # S
    multiplier = (math.sqrt(wanted_scale / scale_without_key) - 1) / math.log(form.factor)
    if abs(multiplier) < SAME_FACTOR:
        return edit

    # A multiplier such as 0.1 comes out as 0.10000000149, since the attention factor was rounded to
    # 32 bits. Six digits are written where they mean the same.
    short = float(f"{multiplier:.6g}")
    if abs(short - multiplier) < SAME_FACTOR:
        multiplier = short
    key = f"{arch_of_header(model).name}.rope.scaling.{LOG_MULTIPLIER_KEY}"
    return edit.merge(Edit({key: f32(multiplier)}))
