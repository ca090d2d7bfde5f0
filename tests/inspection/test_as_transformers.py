"""Configs as transformers' own classes resolve them: frequencies, attention factor, and windows."""

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect, text_part
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.read_config import UnknownRopeType, read_spec
from ropeconv.runtimes.runtime import GOOD, newest
from ropeconv.runtimes.verdict import judge
from scripts.families.null_keys import SIZES, YARN

from ..conftest import CONFIGS
from ..support.baking import inspected
from ..support.extent import sample

pytest.importorskip("torch")
MORE = CONFIGS.parent / "more_configs"
PUBLISHED = sorted([*CONFIGS.glob("*.json"), *MORE.glob("*.json")])
MINISTRAL = CONFIGS / "mistralai--Ministral-3-3B-2512.json"
NAMED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
ALL_LAYERS = ("mistral", "mixtral", "phi3", "starcoder2", "ministral3", "qwen3_moe")
"""Families whose model files give one mask to every layer."""


def text_config(path: Path) -> tuple[str, Any] | None:
    """The family and the text config as transformers' class resolves it; None for what transformers
    does not have.
    """
    import transformers

    config = json.loads(path.read_text())
    try:
        family = detect(config)
    except BadSource:
        return None
    part = dict(text_part(config, family))
    model_type = part.pop("model_type", family.model_types[-1])
    if family.refuse or model_type not in transformers.CONFIG_MAPPING:
        return None
    return family.name, transformers.AutoConfig.for_model(model_type, **part).get_text_config()


JUDGED = {
    path.stem: (path, *family_config)
    for path in PUBLISHED
    if (family_config := text_config(path)) is not None
}


def windows(family: str, config: Any) -> list[int | None]:
    """The window of each layer by transformers: layer_types, or the one mask that all layers
    get.
    """
    count = config.num_hidden_layers
    if family in ALL_LAYERS:
        return [getattr(config, "sliding_window", None) or None] * count
    types = getattr(config, "layer_types", None) or ["full_attention"] * count
    return [(getattr(config, NAMED[name]) if name in NAMED else None) or None for name in types]


def computed(config: Any) -> tuple[np.ndarray, float]:
    """inv_freq of the layers that an extension changes, at the declared length, and the attention
    factor.
    """
    modeling = importlib.import_module(
        type(config).__module__.replace(".configuration_", ".modeling_")
    )
    names = [
        name for name in vars(modeling) if name.endswith("RotaryEmbedding") and "Vision" not in name
    ]
    module = getattr(modeling, min(names, key=len))(config)
    if not hasattr(module, "inv_freq"):  # a set per layer type
        return module.full_attention_inv_freq.numpy(), module.full_attention_attention_scaling
    if getattr(module, "rope_type", "") == "longrope":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        length = config.max_position_embeddings
        inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device="cpu", seq_len=length)
        return inv_freq.numpy(), factor
    return module.inv_freq.numpy(), getattr(module, "attention_scaling", 1.0)


@pytest.mark.parametrize("name", sample(list(JUDGED), 12))
def test_what_transformers_computes(name: str) -> None:
    path, family, config = JUDGED[name]
    spec = inspected(path).spec
    assert list(spec.windows) == windows(family, config)
    assert len(spec.layers) == len(spec.windows)
    if path != MINISTRAL:  # which does not load
        inv_freq, factor = computed(config)
        np.testing.assert_allclose(spec.current().inv_freq, inv_freq, rtol=2e-6)
        assert spec.attention_factor == pytest.approx(factor, abs=1e-6)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 32,
    "long_factor": [2.0] * 32,
    "original_max_position_embeddings": 1024,
}
ABSENT = object()
"""The value of a key that a case removes."""
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
TWO_KINDS = ("gemma3_text", "olmo3", "modernbert-decoder")
"""Families that read a dictionary for each layer type."""
LOCAL = {"rope_type": "default", "rope_theta": 1e4}


def scaled(rope: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Settings with a RoPE dictionary in `rope_scaling`, some of whose keys are changed."""
    merged = {**rope, **changes}
    return {"rope_scaling": {key: value for key, value in merged.items() if value is not ABSENT}}


ODD: dict[str, dict[str, Any]] = {
    "plain": {},
    "yarn": scaled(YARN),
    "longrope": scaled(LONGROPE),
    # null
    "head_dim null": {"head_dim": None},
    "head_dim null, yarn": {"head_dim": None, **scaled(YARN)},
    "head_dim null, llama3": {"head_dim": None, **scaled(LLAMA3)},
    "share null": {"partial_rotary_factor": None},
    "share null, yarn": {"partial_rotary_factor": None, **scaled(YARN)},
    "share null inside": scaled(YARN, partial_rotary_factor=None),
    "share null inside, plain": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5e5,
            "partial_rotary_factor": None,
        },
    },
    "context null": {"max_position_embeddings": None},
    "base null": {"rope_theta": None},
    "base null, none inside": {"rope_theta": None, "rope_parameters": {"rope_type": "default"}},
    "base null, one inside": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2e6},
    },
    "base null inside": scaled(YARN, rope_theta=None),
    "both dictionaries null": {"rope_parameters": None, "rope_scaling": None},
    "type null": scaled(YARN, rope_type=None, type="yarn"),
    "type empty": scaled(YARN, rope_type=""),
    "older type null": {"rope_scaling": {"type": None, "factor": 4.0}},
    "original null at the top": {"original_max_position_embeddings": None, **scaled(YARN)},
    "original null, llama3": {"original_max_position_embeddings": None, **scaled(LLAMA3)},
    "original null, linear": {"original_max_position_embeddings": None, **scaled(LINEAR)},
    "original null, plain": {"original_max_position_embeddings": None},
    "original null inside": scaled(YARN, original_max_position_embeddings=None),
    "factor null": scaled(YARN, factor=None),
    "factor null, llama3": scaled(LLAMA3, factor=None),
    "attention_factor null": scaled(YARN, attention_factor=None),
    "betas null": scaled(YARN, beta_fast=None, beta_slow=None),
    "mscale null": scaled(YARN, mscale=None, mscale_all_dim=1.0),
    "truncate null": scaled(YARN, truncate=None),
    # absent or empty
    "no factor": scaled(YARN, factor=ABSENT),
    "no factor, llama3": scaled(LLAMA3, factor=ABSENT),
    "no original": scaled(YARN, original_max_position_embeddings=ABSENT),
    "no type": {"rope_scaling": {"factor": 4.0}},
    "empty dictionary": {"rope_parameters": {}},
    "empty older dictionary": {"rope_scaling": {}},
    "no base": {"rope_theta": ABSENT, "rope_parameters": dict(YARN)},
    "no base, empty": {"rope_theta": ABSENT, "rope_parameters": {}},
    # names and numbers
    "older key of the type": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "su": scaled(LONGROPE, rope_type=ABSENT, type="su"),
    "mrope": {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
    "two types": scaled(YARN, type="linear"),
    "context a float": {"max_position_embeddings": 4096.0},
    "original a float": scaled(YARN, original_max_position_embeddings=1024.0),
    # places
    "one dictionary for each layer type": {
        **LAYERS,
        "rope_parameters": {
            "full_attention": {**YARN, "rope_theta": 2e6},
            "sliding_attention": LOCAL,
        },
    },
    "one in rope_scaling": {
        **LAYERS,
        "rope_scaling": {"full_attention": {**YARN, "rope_theta": 2e6}, "sliding_attention": LOCAL},
    },
    "another object beside the settings": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "notes": {"by": "me"}},
    },
    "one without layer types": {"rope_parameters": {"full_attention": {**YARN, "rope_theta": 2e6}}},
    "scaled local layers": {
        **LAYERS,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {**LINEAR, "rope_theta": 1e4},
        },
    },
    "original at the top": {"original_max_position_embeddings": 2048, **scaled(YARN)},
    "share at the top": {"partial_rotary_factor": 0.5},
    "share at the top, yarn": {"partial_rotary_factor": 0.5, **scaled(YARN)},
    "share at the top, linear": {"partial_rotary_factor": 0.5, **scaled(LINEAR)},
    "share inside": scaled(YARN, partial_rotary_factor=0.5),
    "another key of the base": {"rotary_emb_base": 20000, "rope_theta": ABSENT},
    "another key of the share": {"rotary_pct": 0.5},
    # attention factors
    "attention_factor": scaled(YARN, attention_factor=1.3),
    "longrope with attention_factor": scaled(LONGROPE, attention_factor=1.2),
    "longrope with factor": scaled(LONGROPE, factor=2.0),
    "longrope with original at the top": {
        "original_max_position_embeddings": 2048,
        **scaled(LONGROPE, original_max_position_embeddings=ABSENT),
    },
}
"""Settings that people write and that classes read in their own way, on top of SIZES."""


def small_config(model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The config of a small model with some keys changed."""
    keys = detect({"model_type": model_type, **SIZES}).keys
    sizes: dict[str, Any] = {"model_type": model_type, **SIZES}
    if model_type in TWO_KINDS:
        sizes |= LAYERS
    if not keys.head_dim or model_type == "phi3":  # whose class works it out
        sizes["hidden_size"] = 256
    merged = {**sizes, **changes}
    return copy.deepcopy({key: value for key, value in merged.items() if value is not ABSENT})


def transformers_computes(config: dict[str, Any]) -> dict[str, tuple[np.ndarray, float]] | None:
    """The frequencies and the attention factor of each kind of layers by transformers' classes.

    None where they fail.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    try:
        built = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
        causal = type(built) in AutoModelForCausalLM._model_mapping
        with torch.device("meta"):
            model = (AutoModelForCausalLM if causal else AutoModel).from_config(built)
        found = {}
        for name, module in model.named_modules():
            if "RotaryEmbedding" not in type(module).__name__:
                continue
            layer_type = getattr(module, "layer_type", None)
            given = {"layer_type": layer_type} if isinstance(layer_type, str) else {}
            rotary = type(module)(config=module.config, **given)  # on the CPU, with numbers
            prefixes = {"global": "full_attention_", "local": "sliding_attention_"}
            if hasattr(rotary, "inv_freq"):
                prefixes = {"local" if "local" in name else "global": ""}
            for kind, prefix in prefixes.items():
                if not hasattr(rotary, f"{prefix}inv_freq"):
                    continue
                inv_freq = getattr(rotary, f"{prefix}inv_freq").double().numpy()
                found[kind] = (inv_freq, getattr(rotary, f"{prefix}attention_scaling", 1.0))
    except Exception:  # the classes fail in many ways
        return None
    return found


def ropeconv_reads(config: dict[str, Any]) -> RopeSpec | None:
    """The RoPE that ropeconv reads from a config; None where it says that transformers fails."""
    try:
        family = detect(config)
        spec = read_spec(config, family)
    except (BadSource, UnknownRopeType):
        return None
    verdict = judge(config, family, spec.current(), spec, newest("transformers"))
    return spec if verdict.status in GOOD else None


ODD_FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo3", "phi", "phi3", "stablelm",
    "gpt_neox", "glm", "glm4", "glm4_moe", "qwen3_5_text", "gpt_oss", "apertus", "ministral3",
    "seed_oss", "ernie4_5", "modernbert-decoder", "mixtral", "qwen2_5_vl_text", "minimax_m2",
    "nemotron", "smollm3", "internlm3", "cohere2", "exaone4", "solar_open",
)  # fmt: skip


@pytest.mark.parametrize("model_type", sample(list(ODD_FAMILIES), 4))
def test_odd_settings_are_read_as_transformers_reads_them_or_refused(model_type: str) -> None:
    wrong = {}
    for name, changes in ODD.items():
        config = small_config(model_type, changes)
        expected = transformers_computes(config)
        spec = ropeconv_reads(config)
        scales_all_layers = model_type in SCALES_ALL_LAYERS and "rope_scaling" in changes
        is_refused_besides = name in REFUSED_BESIDES or scales_all_layers
        difference = differs(spec, expected, is_refused_besides=is_refused_besides)
        if difference:
            wrong[name] = difference
    assert wrong == {}


REFUSED_BESIDES = (
    "one dictionary for each layer type",  # ignored by classes without layer types
    "one in rope_scaling",
    "one without layer types",
    "scaled local layers",  # which no method extends
    "share at the top",  # with the scaling of the class
    "share at the top, yarn",  # the model is built, and its first forward pass fails
    "share at the top, linear",
    "share inside",
)
"""Settings that ropeconv may refuse where a class computes something."""
SCALES_ALL_LAYERS = ("modernbert-decoder",)
"""Families whose class scales layers with a window by rope_scaling, which no method extends."""


def differs(
    spec: RopeSpec | None,
    expected: dict[str, tuple[np.ndarray, float]] | None,
    *,
    is_refused_besides: bool,
) -> str:
    """How a RoPE that ropeconv read differs from that of transformers; empty where it does not."""
    if spec is None:
        return "" if expected is None or is_refused_besides else "ropeconv refuses"
    if expected is None:
        return "transformers fails"
    schedule = spec.current()
    inv_freq, factor = expected["global"]
    read = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    if len(read) != len(inv_freq):
        return f"{len(read)} pairs, not {len(inv_freq)}"
    if not np.allclose(read, inv_freq, rtol=3e-6, atol=0):
        return "other frequencies"
    if abs(spec.attention_factor - factor) > 1e-6:
        return f"attention factor {spec.attention_factor}, not {factor}"
    if spec.local_inv_freq is None or "local" not in expected:
        return ""
    local_inv_freq, _ = expected["local"]
    if not np.allclose(spec.local_inv_freq, local_inv_freq, rtol=3e-6, atol=0):
        return "other local frequencies"
    return ""
