"""Hyperparameters of a model: from config.json to the keys of a GGUF architecture.

Read `hparams` first; `sizes_of` reads the sizes that it needs.
"""

from collections.abc import Callable
from math import inf
from statistics import NormalDist
from typing import Any

from ...errors import BadSource, UnsupportedBake
from ...formats.gguf.header import (
    BOOL,
    FLOAT32,
    INT32,
    UINT32,
    GgufValue,
    array,
    boolean,
    f32,
    string,
    u32,
)
from ...models.config import STATES, kv_heads, text_part
from ...models.family import Family, Gguf
from ...models.layers import layer_kinds, layer_names, own_settings
from ...models.schema import Config, positive_int
from ...rope.errors import counted, shown
from ...rope.spec import RopeSpec
from ...runtimes.llamacpp.archs import find_arch
from .conversions import ModelSizes, count, number, value_of, whole


def kv_heads_of_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """The heads of keys and values of each layer, 0 for a layer with a state."""
    return array(UINT32, heads_of_layers(sizes, family))


def heads_of_layers(sizes: ModelSizes, family: Family) -> list[int]:
    """Return how many heads of keys each layer has; 0 for a layer without attention, as in Mamba.

    A hybrid model with a state in its first layer gives [0, 8, 8, 8], for example.

    Args:
        sizes: The sizes of the model, with the text part of its config.json.
        family: The model family.
    """
    part = sizes.config
    by_layer = family.hooks.kv_heads_by_layer(part, sizes.heads)
    if by_layer is not None:  # a list in the config, as that of DeciLM
        return by_layer

    layer_types = layer_names(part, family, sizes.layers)  # e.g. "mamba", "sliding_attention"
    rotations = layer_kinds(part, family, sizes.layers)  # "global", "local" or "none"
    settings_by_layer = own_settings(part)  # where a config has other numbers for some layers
    heads = []
    for layer, (layer_type, rotation) in enumerate(zip(layer_types, rotations, strict=True)):
        if layer_type in STATES:
            heads.append(0)
            continue
        own_settings_of_layer = settings_by_layer.get(layer, {})
        own_heads = positive_int(own_settings_of_layer, family.keys.kv_heads)
        heads.append(own_heads or kv_heads(part, family, sizes.heads, rotation))
    return heads


def adjusted_feed_forward(sizes: ModelSizes, family: Family) -> GgufValue:
    """Return the size of the feed-forward network of LFM 2.

    It is two thirds of the configured size, times a factor, rounded up; or the configured size,
    where block_auto_adjust_ff_dim is false.
    """
    part = sizes.config
    size = count(part, "block_ff_dim | intermediate_size")
    if part.get("block_auto_adjust_ff_dim", True):
        factor = number(part["block_ffn_dim_multiplier"], "block_ffn_dim_multiplier")
        unit = count(part, "block_multiple_of")
        if unit == 0:
            raise BadSource(
                "config.json has block_multiple_of = 0; write 1 for sizes that are not rounded"
            )
        # each product is cut to a whole number, as in transformers (Lfm2MLP)
        two_thirds = int(2 * size / 3)
        adjusted = int(factor * two_thirds)
        # rounded up to a multiple of the unit
        units = (adjusted + unit - 1) // unit
        size = unit * units
    return u32(size)


def feed_forward_of_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """Return the size of the feed-forward network of Gemma 3n and 4: one number, or one per layer.

    Gemma 3n lists a size for each layer. Gemma 4 may double the size in layers that use the keys of
    an earlier layer (use_double_wide_mlp).
    """
    part = sizes.config
    shared = count(part, "num_kv_shared_layers")  # the last layers, which use the keys of others
    listed = part.get("intermediate_size")
    if isinstance(listed, list):
        return array(UINT32, [whole(entry, "intermediate_size") for entry in listed])

    size = count(part, "intermediate_size")
    if not part.get("use_double_wide_mlp"):
        return u32(size)
    sizes_of_layers = []
    for layer in range(sizes.layers):
        has_own_keys = layer < sizes.layers - shared
        sizes_of_layers.append(size if has_own_keys else 2 * size)
    return array(UINT32, sizes_of_layers)


def sparsity_scales(sizes: ModelSizes, family: Family) -> GgufValue:
    """Return the thresholds of Gemma 3n's sparse activations, one number per layer.

    A layer sets a share of its activations to 0. A share of 95 % means all activations that are
    less than 1.645 standard deviations above the mean. llama.cpp does not read the key, and uses a
    constant (src/models/models.h).

    Raises:
        UnsupportedBake: For other shares than llama.cpp computes.
    """
    # the share of each layer: the constant of llama.cpp, and what the config says
    in_llamacpp = [0.95 if layer < 10 else 0.0 for layer in range(sizes.layers)]
    shares = sizes.config.get("activation_sparsity_pattern")
    if not shares:
        # without the setting, transformers makes the first ten layers sparse where there are more
        # (Gemma3nTextConfig)
        shares = in_llamacpp if sizes.layers > 10 else [0.0] * sizes.layers

    if shares != in_llamacpp:
        setting = f"activation_sparsity_pattern = {shown(shares)}"
        raise UnsupportedBake(
            setting, "GGUF as gemma3n", "llama.cpp computes 0.95 in ten layers", "keep safetensors"
        )

    # 95 % of a normal distribution are below 1.645 deviations, and nothing is below -inf
    deviations = []
    for share in shares:
        if share:
            deviations.append(NormalDist().inv_cdf(share))
        else:
            deviations.append(-inf)
    return array(FLOAT32, deviations)


def value_width(sizes: ModelSizes, family: Family) -> GgufValue:
    """MiniCPM 3: the numbers of a value in each head, by default hidden_size / heads."""
    part = sizes.config
    if part.get("v_head_dim") is not None:
        return u32(count(part, "v_head_dim"))
    return u32(count(part, "hidden_size") // sizes.heads)


def embedding_scale(sizes: ModelSizes, family: Family) -> GgufValue:
    """MiniCPM: the factor of embeddings. Without the key, llama.cpp takes 12."""
    return f32(number(sizes.config.get("scale_emb"), "scale_emb"))


def residual_scale(sizes: ModelSizes, family: Family) -> GgufValue:
    """MiniCPM: the factor of what each layer adds, scale_depth / sqrt(layers)."""
    depth = number(sizes.config.get("scale_depth"), "scale_depth")
    return f32(depth / sizes.layers**0.5)


def logit_scale(sizes: ModelSizes, family: Family) -> GgufValue:
    """MiniCPM: the divisor of logits, hidden_size / dim_model_base."""
    base = count(sizes.config, "dim_model_base")
    if base == 0:
        raise BadSource("config.json has dim_model_base = 0; write the width of the model's base")
    return f32(count(sizes.config, "hidden_size") / base)


def query_heads_of_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """Laguna: the heads of queries of each layer."""
    listed = sizes.config.get("num_attention_heads_per_layer")
    if not isinstance(listed, list):
        return array(UINT32, [sizes.heads] * sizes.layers)
    heads = [whole(entry, "num_attention_heads_per_layer") for entry in listed]
    if len(heads) != sizes.layers:
        raise BadSource(
            f"config.json has num_attention_heads_per_layer for {counted(len(heads), 'layer')} of"
            f" {sizes.layers}; name the heads of each"
        )
    return array(UINT32, heads)


def rotating_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """Granite SWA: whether each layer rotates."""
    kinds = layer_kinds(sizes.config, family, sizes.layers)
    return array(BOOL, [kind != "none" for kind in kinds])


def leading_dense_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """The number of layers without experts, which come first.

    A config has it as a number (first_k_dense_replace), or as a list with a type for each layer.

    Raises:
        UnsupportedBake: A later layer has no experts, for which there is no key.
    """
    config = sizes.config
    rules = gguf_rules(family)

    # a number, as Command A MoE has it; without one, the default of the class counts
    layer_types = config.get("mlp_layer_types")
    if not isinstance(layer_types, list):
        class_default = 0
        if rules.arch == "laguna":  # LagunaConfig has 1
            class_default = 1
        number_of_layers = config.get("first_k_dense_replace", class_default)
        return u32(whole(number_of_layers, "first_k_dense_replace"))

    # a list such as ["dense", "sparse", "sparse"], which gives 1
    leading = 0
    for layer_type in layer_types:
        if layer_type != "dense":
            break
        leading += 1
    if "dense" in layer_types[leading:]:
        raise _not_supported(
            f"mlp_layer_types = {shown(layer_types)}",
            rules,
            "only the first layers have no experts",
        )
    return u32(leading)


def gating_of_experts(sizes: ModelSizes, family: Family) -> GgufValue:
    """Command A MoE: how scores of experts become weights.

    Raises:
        UnsupportedBake: For a function that its class does not have.
    """
    function = sizes.config.get("expert_selection_fn")
    if function not in GATING:
        setting = f"expert_selection_fn = {shown(function)}"
        raise _not_supported(setting, gguf_rules(family), "llama.cpp has softmax and sigmoid")
    return u32(GATING[function])


def norm_of_experts(sizes: ModelSizes, family: Family) -> GgufValue:
    """Command A MoE: whether the weights of the chosen experts sum to one.

    Its class computes the softmax of only the chosen scores, so these always do.
    """
    part = sizes.config
    return boolean(part.get("expert_selection_fn") == "softmax" or bool(part["norm_topk_prob"]))


def rotary_sections(sizes: ModelSizes, family: Family) -> GgufValue:
    """Qwen VL: how many pairs rotate by time, height and width, and a zero."""
    part = sizes.config
    settings = part.get("rope_parameters") or part.get("rope_scaling") or {}
    sections = settings.get("mrope_section", part.get("mrope_section"))
    if not isinstance(sections, list) or not 0 < len(sections) <= MOST_SECTIONS:
        raise BadSource(
            f"config.json has mrope_section = {shown(sections)}; write three numbers of pairs"
        )
    pairs = [whole(entry, "mrope_section") for entry in sections]
    return array(INT32, pairs + [0] * (MOST_SECTIONS - len(pairs)))


def deepstack_layers(sizes: ModelSizes, family: Family) -> GgufValue:
    """Qwen 3 VL: how many of the first layers get features of the vision part."""
    vision = sizes.whole.get("vision_config")
    indexes = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return u32(len(indexes) if isinstance(indexes, list) else 0)


def hidden_activation(sizes: ModelSizes, family: Family) -> GgufValue:
    """ModernBERT: the name of its activation."""
    return string(str(sizes.config["hidden_activation"]))


def classifier_pooling(sizes: ModelSizes, family: Family) -> GgufValue:
    """ModernBERT: how a classifier pools the states of tokens.

    Raises:
        BadSource: For a pooling that its class does not have.
    """
    pooling = sizes.config["classifier_pooling"]
    if pooling not in CLASSIFIER_POOLINGS:
        raise BadSource(f"config.json has classifier_pooling = {shown(pooling)}; write cls or mean")
    return u32(CLASSIFIER_POOLINGS[pooling])


def indexer_flags(sizes: ModelSizes, family: Family) -> GgufValue:
    """GLM 5: whether each layer has an indexer of its own; the others use that of a layer before.

    Without the key, llama.cpp takes the layers of GLM 5.2 for any file with a context of 1M.
    """
    types = sizes.config.get("indexer_types") or ["full"] * sizes.layers
    return array(BOOL, [name == "full" for name in types])


MOST_SECTIONS = 4
"""Sections of pairs in `rope.dimension_sections`."""
GATING = {"softmax": 1, "sigmoid": 2}
"""llama.cpp's numbers of gating functions (llama-hparams.h)."""
CLASSIFIER_POOLINGS = {"mean": 1, "cls": 2}
"""llama.cpp's numbers of poolings (llama.h) for classifiers."""
COMPUTED: dict[str, Callable[[ModelSizes, Family], GgufValue]] = {
    function.__name__: function
    for function in (
        kv_heads_of_layers,
        adjusted_feed_forward,
        feed_forward_of_layers,
        sparsity_scales,
        value_width,
        embedding_scale,
        residual_scale,
        logit_scale,
        query_heads_of_layers,
        rotating_layers,
        leading_dense_layers,
        gating_of_experts,
        norm_of_experts,
        rotary_sections,
        deepstack_layers,
        hidden_activation,
        classifier_pooling,
        indexer_flags,
    )
}
"""The functions that `computed` in the family files names."""
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
}
"""Keys that every architecture has; `u32` of a family overrides them."""


def sizes_of(config: Config, family: Family, spec: RopeSpec) -> ModelSizes:
    """Return the sizes of a model with an unscaled RoPE.

    Args:
        config: The whole config.json.
        family: The family of the model.
        spec: The RoPE of the model, without scaling.

    Raises:
        BadSource: For keys that are absent.
        UnsupportedBake: For families whose conversion is not known.
    """
    # the settings, with the defaults of the class for those that the config leaves out
    part = {**gguf_rules(family).defaults, **text_part(config, family)}

    # the number of attention heads, under one of its names, such as num_attention_heads
    names = family.keys.heads
    heads = positive_int(part, names, family.defaults.heads)
    if heads is None:
        raise BadSource(f"config.json has no {names[0]}, which GGUF needs; add it")
    return ModelSizes(
        config=part,
        heads=heads,
        kv_heads=kv_heads(part, family, heads),
        head_dim=spec.head_dim,
        layers=len(spec.layers),
        rotary_dim=spec.rotary_dim,
        whole=config,
    )


def hparams(
    sizes: ModelSizes, family: Family, spec: RopeSpec, vocabulary: int
) -> dict[str, GgufValue]:
    """Return the keys of a GGUF architecture for a model, with its unscaled RoPE.

    Args:
        sizes: The sizes of the model.
        family: The family of the model.
        spec: The RoPE of the model, without scaling.
        vocabulary: Rows of the embeddings.

    Raises:
        BadSource: For keys that are absent.
        UnsupportedBake: For settings that llama.cpp has no key for.
    """
    part = sizes.config
    rules = gguf_rules(family)
    _check_fixed_settings(part, rules, spec)

    # keys of all architectures, from the sizes that ropeconv knows for every family
    keys: dict[str, GgufValue] = {
        "context_length": u32(spec.original_context),
        "attention.head_count": u32(sizes.heads),
        "attention.head_count_kv": u32(sizes.kv_heads),
        "attention.key_length": u32(spec.head_dim),
        "attention.value_length": u32(spec.head_dim),
        "rope.dimension_count": u32(spec.rotary_dim),
        "rope.freq_base": f32(spec.rope_theta),
        "vocab_size": u32(vocabulary),
    }

    for key, name in SIZES.items():
        if key not in rules.u32 and key not in rules.computed:
            keys[key] = u32(count(part, name))

    # The keys of this architecture, by the tables of the family. A key may be one of those above,
    # and then its value replaces the usual one. First come keys from one setting of the config
    # each.
    keys |= _settings(part, rules)

    # layers that predict further tokens count among the layers of GGUF
    if sizes.prediction:
        keys["block_count"] = u32(sizes.layers + sizes.prediction)
        keys["nextn_predict_layers"] = u32(sizes.prediction)

    # architectures differ in how a file says which layers have a window: by a flag for each layer,
    # by an interval, or not at all
    if rules.window == "pattern":
        keys |= _window(part, family, spec)
    elif rules.window == "interval":
        keys |= _window_interval(part, family, spec)
    elif rules.window == "size":
        keys["attention.sliding_window"] = u32(positive_int(part, ("sliding_window",)) or 0)

    # a list with a flag for each layer, also for those that predict further tokens
    if rules.layer_flags:
        names = [*layer_names(part, family, len(spec.layers))]
        names += [""] * sizes.prediction
        for key, kind in rules.layer_flags.items():
            keys[key] = array(BOOL, [name == kind for name in names])

    # keys with a function of their own, such as `leading_dense_layers`
    for key, rule in rules.computed.items():
        compute = COMPUTED[rule]
        keys[key] = compute(sizes, family)
    # keys that are the same for every model of the family
    for key, value in rules.fixed.items():
        keys[key] = _value(value)

    arch = rules.arch
    named = {f"{arch}.{key}": value for key, value in keys.items()}
    return {"general.architecture": string(arch)} | named | _temperature(part, arch, spec)


def _settings(part: Config, rules: Gguf) -> dict[str, GgufValue]:
    """Return the metadata keys of GGUF that are settings of a config.json under another name.

    For example, {"num_experts": 8, "rms_norm_eps": 1e-6} in the config gives
    {"expert_count": 8, "attention.layer_norm_rms_epsilon": 1e-6}.

    Args:
        part: The text part of the config. Settings that config.json leaves out have the default of
            the class here.
        rules: How checkpoints of the family become GGUF. `u32`, `f32` and `flag` have the config
            key, or an expression over config keys, for each metadata key.

    Raises:
        BadSource: Where the epsilon of a norm is missing.
        UnsupportedBake: For a setting that is switched off with null, and that llama.cpp always
            computes.
    """
    keys = {}

    # integers (u32), such as {"expert_count": "num_experts"}
    for key, name in rules.u32.items():
        value = value_of(part, name)
        # Hunyuan MoE: a list with a number for each layer, where GGUF has one number
        if isinstance(value, list) and value:
            first = value[0]
            all_are_equal = value.count(first) == len(value)
            if all_are_equal:
                value = first
        if value is not None:
            keys[key] = u32(whole(value, name))

    # floats (f32), such as {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    for key, name in rules.f32.items():
        value = value_of(part, name)
        if value is not None:
            keys[key] = f32(float(number(value, name)))
            continue
        # llama.cpp loads no model without the epsilon of its norms
        if key.startswith("attention.layer_norm"):
            raise BadSource(f"config.json has no {name}, which GGUF needs; add it")
        # a setting with a default has no value only where config.json has null
        class_has_default = rules.defaults.get(name) is not None
        if class_has_default:
            raise _not_supported(f"{name} = null", rules, "llama.cpp cannot switch it off")

    # booleans (flag), such as {"expert_weights_norm": "norm_topk_prob"}
    for key, name in rules.flag.items():
        value = value_of(part, name)
        if value is not None:
            keys[key] = boolean(bool(value))
    return keys


def _value(value: float | bool | str | list[int]) -> GgufValue:
    """A fixed value with the type that GGUF has for it."""
    if isinstance(value, list):
        return array(INT32, value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return boolean(value)
    if isinstance(value, int):
        return u32(value)
    return f32(value)


def _not_supported(setting: str, rules: Gguf, why: str) -> UnsupportedBake:
    return UnsupportedBake(setting, f"GGUF as {rules.arch}", why, "keep safetensors")


def gguf_rules(family: Family) -> Gguf:
    """Return the rules by which checkpoints of a family become GGUF.

    Raises:
        UnsupportedBake: Without any.
    """
    if family.gguf is None:
        repair = "convert it with llama.cpp, then patch that"
        if family.no_gguf:
            repair = "keep safetensors"
        why = family.no_gguf or "its conversion is not known here"
        raise UnsupportedBake("GGUF output", family.display_name, why, repair)
    return family.gguf


def _check_fixed_settings(part: Config, rules: Gguf, spec: RopeSpec) -> None:
    """Raise UnsupportedBake for a setting of config.json that differs from llama.cpp's code.

    For example, llama.cpp always computes the activation of Llama as silu, so hidden_act must be
    "silu".

    Args:
        part: The text part of the config.
        rules: How checkpoints of the family become GGUF.
        spec: The RoPE of the checkpoint, with the kind of each layer.
    """
    # settings that must have one value (rules.need), such as use_qk_norm = false for Command R
    for requirement in rules.need:
        # only for models with fewer layers: Command R with fewer than 64
        is_for_small_models = requirement.below_layers > 0
        if is_for_small_models and len(spec.layers) >= requirement.below_layers:
            continue
        # only where another setting is true
        if requirement.when and not part.get(requirement.when):
            continue

        # transformers 5 writes infinity as a JSON object
        value_in_config = _decode_infinity(part.get(requirement.key))
        value = requirement.default if value_in_config is None else value_in_config
        if value != requirement.value:
            setting = f"{requirement.key} = {shown(value_in_config)}"
            raise _not_supported(setting, rules, f"llama.cpp computes {requirement.value!r}")

    # the activation function; `act` has its names, such as "gelu_new | gelu_pytorch_tanh", and is
    # empty for a family without this check
    activation = part.get(rules.act_key)
    if activation == "swish":  # another name of silu
        activation = "silu"
    if rules.act and activation is not None:
        names_of_computed = rules.act.split(" | ")
        if activation not in names_of_computed:
            setting = f"{rules.act_key} = {shown(activation)}"
            raise _not_supported(setting, rules, f"llama.cpp computes {rules.act}")

    # output weights, where llama.cpp uses the embeddings in place of them (rules.tied)
    if rules.tied and part.get("tie_word_embeddings") is False:
        raise _not_supported("tie_word_embeddings = false", rules, "llama.cpp uses the embeddings")

    # the scale of queries, which depends on the number of layers in some architectures
    if rules.scale_layers:
        _check_query_scale(part, rules, spec)


def _check_query_scale(part: Config, rules: Gguf, spec: RopeSpec) -> None:
    """Raise UnsupportedBake where llama.cpp scales queries by another number than the config says.

    Gemma scales queries by 1 / sqrt(query_pre_attn_scalar). llama.cpp has no key for this number.
    It takes the width of a head. For the 27B models, which it recognises by their number of layers
    (`scale_layers`), it takes hidden_size / heads.
    """
    scalar_in_llamacpp = spec.head_dim
    if len(spec.layers) == rules.scale_layers:
        scalar_in_llamacpp = count(part, "hidden_size") // count(part, "num_attention_heads")

    default_of_class = 256
    scalar = part.get("query_pre_attn_scalar", default_of_class)
    if scalar != scalar_in_llamacpp:
        setting = f"query_pre_attn_scalar = {shown(scalar)}"
        why = f"llama.cpp computes {scalar_in_llamacpp} for this size"
        raise _not_supported(setting, rules, why)


def _decode_infinity(value: Any) -> Any:
    """A value with infinities as numbers: transformers 5 writes {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [_decode_infinity(item) for item in value]
    if value == {"__float__": "Infinity"}:
        return inf
    return value


def _window(part: Config, family: Family, spec: RopeSpec) -> dict[str, GgufValue]:
    """Return the metadata keys of GGUF for sliding windows; empty for a model without a window.

    The keys are the size of the window, a boolean for each layer, and the RoPE of layers with a
    window where it differs, as in Gemma 3.

    Args:
        part: The text part of the config.
        family: The family of the model.
        spec: The RoPE of the model. `spec.local_form` is the RoPE of layers with a window, or None
            if all layers have the same.

    Raises:
        UnsupportedBake: For a RoPE of layers with a window that llama.cpp cannot compute.
    """
    size = family.hooks.window_size(part, positive_int(part, ("sliding_window",)))
    if size is None:
        return {}
    layer_types = layer_names(part, family, len(spec.layers))
    has_window = [layer_type == "sliding_attention" for layer_type in layer_types]

    # Laguna: all layers without a window rotate as many dimensions as layer 0 (hparams.n_rot() in
    # laguna.cpp), so layer 0 must be a layer without a window
    rules = gguf_rules(family)
    first_has_window = bool(has_window) and has_window[0]
    if rules.global_first and first_has_window:
        raise _not_supported(
            "a window in the first layer",
            rules,
            "llama.cpp rotates as many dimensions of the global layers as of the first",
        )

    # Mellum: llama.cpp has one base for all layers (mellum.cpp)
    window = find_arch(rules.arch).window
    llamacpp_has_one_base = window is not None and not window.own_theta
    if llamacpp_has_one_base and spec.local_form is not None:
        local_base = spec.local_form.theta
        if local_base != spec.rope_theta:
            raise _not_supported(
                f"the base {local_base:g} of window layers",
                rules,
                f"llama.cpp rotates them by that of the others, {spec.rope_theta:g}",
            )

    keys = {
        "attention.sliding_window": u32(size),
        "attention.sliding_window_pattern": array(BOOL, has_window),
    }
    if spec.local_form is not None:
        keys["rope.freq_base_swa"] = f32(spec.local_form.theta)
    if spec.local_rotary_dim:  # 0 where these layers rotate as many dimensions as the others
        keys["rope.dimension_count_swa"] = u32(spec.local_rotary_dim)
    return keys


def _window_interval(part: Config, family: Family, spec: RopeSpec) -> dict[str, GgufValue]:
    """Return the metadata keys of GGUF for a model where every n-th layer has no sliding window.

    In ModernBERT, for example, every third layer attends to the whole context.

    Args:
        part: The text part of the config, such as {"local_attention": 128}.
        family: The family of the model, with the names of its config keys.
        spec: The RoPE of the model. `spec.local_form` is the RoPE of layers with a window, or None
            if all layers have the same.
    """
    window_size = count(part, family.window.key)  # in tokens
    keys = {"attention.sliding_window": u32(window_size)}

    # The interval n. Without the key, llama.cpp uses the n of the published models; `check_layers`
    # raises an error where this n does not give the layers of the checkpoint.
    interval = positive_int(part, (family.layers.interval_key,))
    if interval is not None:
        keys["attention.sliding_window_pattern"] = u32(interval)

    # the base of layers with a window
    if spec.local_form is not None:
        keys["rope.freq_base_swa"] = f32(spec.local_form.theta)
    return keys


def _temperature(part: Config, arch: str, spec: RopeSpec) -> dict[str, GgufValue]:
    """Return the metadata keys for Mistral 4's scaling of queries by position, empty without it.

    Args:
        part: The text part of the config.
        arch: The architecture in GGUF.
        spec: The RoPE of the checkpoint.
    """
    length_key = find_arch(arch).query_length  # empty where llama.cpp does not scale queries
    if not length_key:
        return {}
    rope = part.get("rope_parameters") or part.get("rope_scaling")
    if not isinstance(rope, dict) or not rope.get("llama_4_scaling_beta"):
        return {}

    # a query at position p is multiplied by 1 + beta ln(1 + floor(p / original))
    beta = number(rope["llama_4_scaling_beta"], "llama_4_scaling_beta")
    original = positive_int(rope, ("original_max_position_embeddings",))
    if not original:
        original = spec.original_context
    return {
        f"{arch}.attention.temperature_scale": f32(beta),
        f"{arch}.{length_key}": u32(original),
    }
