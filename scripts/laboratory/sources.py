"""The models whose configs the lab gives to runtimes: every family tiny, and every published config
of the tests.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropeconv.errors import BadSource
from ropeconv.models.config import detect
from ropeconv.models.family import Family
from tests.support.models import COMMON, FAMILIES, PARTS, TINY, of_extended, part_at, whole

DATA = Path(__file__).parents[2] / "tests" / "data"
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "embed_dim": 32,
    "num_heads": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 128,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
    "num_hidden_layers": 1,
}
MROPE: dict[str, Any] = {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}
UNSCALED = {"rope_type": "default", "type": "default"}
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt_neox": {"rotary_emb_base": 10000},
    "apertus": {"rope_theta": 10000.0, "rope_parameters": None, "rope_scaling": UNSCALED},
    "gpt_oss": {"rope_theta": 10000.0, "rope_parameters": None, "rope_scaling": UNSCALED},
    "gemma3_text": {
        "num_hidden_layers": 6,
        "sliding_window_pattern": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "afmoe": {"score_func": "sigmoid"},
    "bailing_hybrid": {"group_norm_size": 2},
    "deepseek_v32": {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "dots1": {"norm_topk_prob": True},
    "exaone_moe": {"is_moe_layer": [False, True, True]},
    "glm_moe_dsa": {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "hunyuan_v1_moe": {"use_mixed_mlp_moe": True},
    "hy_v3": {"first_k_dense_replace": 1, "route_norm": True},
    "laguna": {"gating": "per-head"},
    "lfm2": {
        "block_dim": 128,
        "block_ff_dim": 96,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "conv_dim": 128,
        "conv_dim_out": 128,
    },
    "longcat_flash": {
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    },
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": 32,
        "swa_head_dim": 64,
        "swa_v_head_dim": 32,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 1,
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "layernorm_epsilon": 1e-6,
    },
    "minimax": {"shared_intermediate_size": 0, "rotary_dim": 64},
    "qwen3_5_moe_text": {"full_attention_interval": 2},
    "qwen4_exp_text": {"output_gate_type": "silu"},
    "solar_open": {"first_k_dense_replace": 0, "partial_rotary_factor": 1.0},
}
"""Keys that published configs of these families have, and older versions and other runtimes
read.
"""
MAPPINGS = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
"""Where transformers has the names of classes, by the class that makes a model."""
NESTED: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"rope_scaling": MROPE, "head_dim": None},
    "qwen2_5_vl": {"rope_scaling": MROPE, "head_dim": None},
    "qwen3_vl": {
        "rope_scaling": {
            "rope_type": "default",
            "mrope_section": [8, 12, 12],
            "mrope_interleaved": True,
        }
    },
    "qwen3_vl_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_section": [8, 12, 12],
            "mrope_interleaved": True,
        },
    },
}
"""Families that transformers knows only around a vision model; for the first two its keys lie at
the top level.
"""
SECTION = {
    "rope_type": "default",
    "mrope_interleaved": True,
    "mrope_section": [6, 5, 5],
    "partial_rotary_factor": 0.5,
}
GLM_SECTION = {"rope_type": "default", "mrope_section": [4, 6, 6]}
WRAPPERS: dict[tuple[str, str], dict[str, Any]] = {
    ("aya_vision", "cohere2"): {},
    ("cohere2_vision", "cohere2"): {},
    ("exaone4_5", "exaone4"): {},
    ("gemma3n", "gemma3n_text"): {},
    ("gemma4", "gemma4_text"): {},
    ("gemma4_unified", "gemma4_unified_text"): {
        "rope_parameters": FAMILIES["gemma4_text"]["rope_parameters"]
    },
    ("glm4v", "glm4v_text"): {"rope_scaling": GLM_SECTION, "partial_rotary_factor": 0.5},
    ("glm4v_moe", "glm4v_moe_text"): {
        **PARTS["experts"],
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": GLM_SECTION,
        "partial_rotary_factor": 0.5,
    },
    ("idefics3", "llama"): {},
    ("internvl", "gpt_oss"): {},
    ("internvl", "qwen2"): {},
    ("internvl", "qwen3"): {},
    ("internvl", "qwen3_moe"): {},
    ("lfm2_vl", "lfm2"): {},
    ("llava", "llama"): {},
    ("llava", "mistral"): {},
    ("llava_next", "llama"): {},
    ("llava_next", "mistral"): {},
    ("llava_onevision", "qwen2"): {},
    ("mistral3", "ministral3"): {},
    ("mistral3", "mistral"): {},
    ("mistral3", "mistral4"): {},
    ("mllama", "mllama_text_model"): {
        "num_hidden_layers": 3,
        "cross_attention_layers": [1],
        "rope_theta": 500000.0,
    },
    ("ovis2", "qwen2"): {},
    ("paligemma", "gemma2"): {},
    ("qwen2_5_omni", "qwen2_5_omni_text"): {"rope_scaling": MROPE, "head_dim": None},
    ("qwen3_5_moe", "qwen3_5_moe_text"): {"rope_parameters": {**SECTION, "rope_theta": 10000.0}},
    ("qwen3_omni_moe", "qwen3_omni_moe_text"): {
        **PARTS["experts"],
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12], "interleaved": True},
    },
    ("qwen4_exp", "qwen4_exp_text"): {
        "output_gate_type": "silu",
        "rope_parameters": {**SECTION, "rope_theta": 10000.0},
    },
    ("smolvlm", "llama"): {},
    ("voxtral", "llama"): {},
}
"""Model types around a text model, and keys that are published in its config beside those of the
tiny one.
"""


def tiny_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of a family and a small config of it, as publishers write one.

    It needs transformers.
    """
    import transformers

    for model_type, changes in FAMILIES.items():
        settings = _without_null({**COMMON, **changes, **AS_PUBLISHED.get(model_type, {})})
        made = transformers.AutoConfig.for_model(model_type, **whole(model_type, settings))
        config = made.to_dict()
        config["architectures"] = [_class_name(model_type)]
        for path in TINY[model_type].inner or ("",):
            # the config of the text model is changed in its place
            part = part_at(config, path)
            published = _published(dict(part), settings)
            part.clear()
            part.update(published)
        yield _name(config), config

    classes = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    for model_type, changes in NESTED.items():
        settings = _without_null({**COMMON, **changes})
        made = transformers.AutoConfig.for_model(model_type, vision_config=dict(VISION))
        wrapper = made.to_dict()
        wrapper["architectures"] = [classes[model_type]]
        if "2" in model_type:  # Qwen 2 VL has the keys of the text model at the top
            inner = wrapper.pop("text_config")
            inner.pop("layer_types", None)  # of the default number of layers
            wrapper = {**inner, **wrapper, "model_type": model_type}
            yield _name(wrapper), _published(wrapper, settings)
        else:
            wrapper["text_config"] = _published(wrapper["text_config"], settings)
            yield _name(wrapper), wrapper


def wrapper_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield small configs in other shapes of publication, each with a name.

    These are "WRAPPER around TEXT_MODEL", such as "llava around llama", and GLM-5.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    classes = (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        | modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    )
    for (wrapper, text), changes in WRAPPERS.items():
        settings = _without_null(
            {**COMMON, **FAMILIES.get(text, {}), **AS_PUBLISHED.get(text, {}), **changes}
        )
        # transformers completes the config of the text model
        parts: dict[str, Any] = {"text_config": copy.deepcopy({**settings, "model_type": text})}
        if wrapper.startswith(("qwen", "glm")):
            parts["vision_config"] = dict(VISION)
        if "omni" in wrapper:
            parts = {"thinker_config": parts}
        config = transformers.AutoConfig.for_model(wrapper, **parts).to_dict()
        config["architectures"] = [classes[wrapper]]
        holder = config.get("thinker_config", config)
        holder["text_config"] = _published(holder["text_config"], settings)
        yield f"{wrapper} around {text}", config

    config = dict(tiny_configs())["glm_moe_dsa"]
    del config["indexer_types"]  # GLM-5 is published without it
    yield "glm_moe_dsa without indexer_types", config


def _class_name(model_type: str) -> str:
    """The class of transformers that makes models of a family."""
    from transformers.models.auto import modeling_auto

    made_by = TINY[model_type].auto
    if made_by not in MAPPINGS:  # the class itself
        return made_by
    classes: dict[str, str] = getattr(modeling_auto, MAPPINGS[made_by])
    return classes[model_type]


def published_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and the content of every config in the tests whose family can be changed."""
    for path in sorted(DATA.glob("*configs/*.json"), key=lambda path: path.name):
        config = json.loads(path.read_text("utf-8"))
        try:
            family: Family = detect(config)
        except BadSource:
            continue
        if not family.refuse:
            config.pop("quantization_config", None)  # the lab asks about RoPE, not about weights
            yield path.stem, config


def _name(config: dict[str, Any]) -> str:
    return detect(config).name


def _without_null(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in settings.items()
        if value is not None or key == "sliding_window"
    }


def _published(config: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return a config as publishers write it: with rope_theta at the top level.

    It has no rope_parameters, unless the settings have.

    Args:
        config: The config as transformers writes it.
        settings: Keys that are published, and their values.
    """
    rope = config.pop("rope_parameters", None) or {}
    published = dict(config)
    for key, value in settings.items():
        if value is not None:
            published[key] = value
    published["model_type"] = config["model_type"]
    if "rope_scaling" in settings:
        published["rope_scaling"] = dict(settings["rope_scaling"])
    published.pop("_name_or_path", None)
    published["torch_dtype"] = "float32"
    published["dtype"] = "float32"
    if "rope_parameters" not in settings and "rope_theta" not in settings:
        published["rope_theta"] = of_extended(rope).get("rope_theta", 10000.0)
    return published
