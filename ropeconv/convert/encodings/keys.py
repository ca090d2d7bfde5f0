"""Encoding `keys`: theta, linear and yarn in the metadata, with any attention factor.

rope.scaling.attn_factor multiplies cos and sin under every type (src/llama-context.cpp:214), and yarn's own
attention factor 1 + 0.1 ln s comes on top of it.
"""

import math

from ...errors import UnsupportedBake
from ...formats.gguf.edit import Edit
from ...formats.gguf.header import GgufValue, boolean, f32, string, u32
from ...rope.forms import Form, InterpolatedForm, Plain, Yarn
from ...rope.schedule import Schedule
from ...runtimes.llamacpp.archs import ASSUMED_KEY, arch_of_header
from ..gguf_encoding import GgufModel, gguf_encoding, pinned_original, start, with_attention_factor

OTHERWISE = "use --encoding tensor where the architecture has it, or another method"


@gguf_encoding("keys", order=1)
def keys(schedule: Schedule, model: GgufModel) -> Edit:
    """Write the schedule in metadata keys. Raises UnsupportedBake for forms without keys and unused keys."""
    arch = arch_of_header(model)
    form, prefix = schedule.form, f"{arch.name}.rope."
    if not isinstance(form, (Plain, InterpolatedForm, Yarn)):
        kind = form.kind if form else "an arbitrary frequency vector"
        raise UnsupportedBake(kind, "GGUF metadata", f"nothing names {kind}", OTHERWISE)
    pinned = pinned_original(model)
    assumed: dict[str, GgufValue] = {ASSUMED_KEY: boolean(True)} if arch.assumed else {}
    values: dict[str, GgufValue] = {f"{arch.name}.{arch.theta_key}": f32(form.theta)}
    shared = arch.window is not None and (arch.window.scaling == "same" or arch.window.rotates == "window")
    if shared and "local" not in model.reading().spec.layers and model.get(f"{prefix}freq_base_swa") is not None:
        values[f"{prefix}freq_base_swa"] = f32(form.theta)
    if not isinstance(form, Plain):
        original = form.original_context if isinstance(form, Yarn) else schedule.original_context
        values |= {
            f"{prefix}scaling.type": string(form.kind),
            f"{prefix}scaling.factor": f32(form.factor),
            f"{prefix}scaling.original_context_length": u32(pinned or original),
        }
    if isinstance(form, Yarn):
        target = f"the keys of {arch.name}"
        if pinned and pinned != form.original_context:
            why = f"its original context, {pinned}, also gives the scale of queries"
            raise UnsupportedBake(f"yarn over {form.original_context} tokens", target, why, OTHERWISE)
        if not form.truncate:
            why = "llama.cpp always rounds the ends of the ramp"
            raise UnsupportedBake("yarn without truncation", "GGUF metadata", why, OTHERWISE)
        if (form.beta_fast, form.beta_slow) != (arch.beta_fast, 1.0):
            if not arch.betas:
                betas = f"beta_fast {form.beta_fast:g} and beta_slow {form.beta_slow:g}"
                why = "llama.cpp reads them for other architectures only and computes 32 and 1"
                raise UnsupportedBake(betas, target, why, OTHERWISE)
            values[f"{prefix}scaling.yarn_beta_fast"] = f32(form.beta_fast)
            values[f"{prefix}scaling.yarn_beta_slow"] = f32(form.beta_slow)
    edit = start(model, schedule).merged(Edit(values | assumed))
    if arch.softmax and arch.log_multiplier:
        edit = _with_log_multiplier(model, schedule, edit, form, f"{prefix}scaling.yarn_log_multiplier")
    return with_attention_factor(model, schedule, edit)


def _with_log_multiplier(model: GgufModel, schedule: Schedule, edit: Edit, form: Form, key: str) -> Edit:
    """MLA scales its logits by the attention factor too; the multiplier, a slope over ln s, takes that back."""
    if not isinstance(form, (InterpolatedForm, Yarn)) or form.factor <= 1:
        return edit
    scale = model.after(with_attention_factor(model, schedule, edit)).reading().spec.softmax_scale
    slope = (math.sqrt(schedule.softmax_scale / scale) - 1) / math.log(form.factor)
    return edit.merged(Edit({key: f32(slope)}))
