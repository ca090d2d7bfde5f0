"""Asks text-generation-inference: the attention of its own model file makes the rotary embedding, which is then read.

PYTHONPATH has the `server` folder of a checkout of TGI (see `runtimes/tgi.py`). Of its package only the model files and
`layers/rotary.py` are real; linear layers, kernels and loaders are stubs, because they need weights and a GPU. A
constructor of attention is run until it has its rotary embedding and its softmax scale.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import protocol
import torch
import transformers
from sglang_stubs import Finder, StubModule

transformers.PreTrainedModel, transformers.AutoModel  # noqa: B018 - before the stubs
PACKAGES = ("loguru", "opentelemetry", "grpc", "kernels", "dropout_layer_norm", "flash_attn_2_cuda")
GEMMA3 = "gemma3.configuration_gemma3"
MODELS = "text_generation_server.models.custom_modeling"
REAL = ("text_generation_server.layers.rotary", MODELS)
# model_type -> (file, class of attention, module and class of the config or None for AutoConfig)
FILES: dict[str, tuple[str, str, tuple[str, str] | None]] = {
    "llama": ("flash_llama_modeling", "FlashLlamaAttention", None),
    "phi3": ("flash_llama_modeling", "FlashLlamaAttention", None),
    "granite": ("flash_llama_modeling", "FlashLlamaAttention", None),
    "gemma": ("flash_gemma_modeling", "FlashGemmaAttention", None),
    "gemma2": ("flash_gemma2_modeling", "FlashGemma2Attention", None),
    "gemma3_text": ("flash_gemma3_modeling", "FlashGemma3Attention", (GEMMA3, "Gemma3TextConfig")),
    "gemma3": ("flash_gemma3_modeling", "FlashGemma3Attention", (GEMMA3, "Gemma3Config")),
    "cohere": ("flash_cohere_modeling", "FlashCohereAttention", None),
    "falcon": ("flash_rw_modeling", "FlashRWAttention", ("flash_rw_modeling", "RWConfig")),
    "mistral": ("flash_mistral_modeling", "MistralAttention", None),
    "mixtral": ("flash_mixtral_modeling", "MixtralAttention", None),
    "starcoder2": ("flash_starcoder2_modeling", "Starcoder2Attention", None),
    "qwen2": ("flash_qwen2_modeling", "Qwen2Attention", None),
    "qwen2_vl": ("flash_qwen2_modeling", "Qwen2Attention", None),
    "qwen2_5_vl": ("flash_qwen2_modeling", "Qwen2Attention", ("qwen2_5_vl", "Qwen2_5_VLConfig")),
    "gpt_neox": ("flash_neox_modeling", "FlashNeoxAttention", ("flash_neox_modeling", "GPTNeoXConfig")),
    "phi": ("flash_phi_modeling", "FlashPhiAttention", None),
    "deepseek_v2": (
        "flash_deepseek_v2_modeling", "DeepseekV2Attention", ("flash_deepseek_v2_modeling", "DeepseekV2Config"),
    ),
    "deepseek_v3": (
        "flash_deepseek_v3_modeling", "DeepseekV3Attention", ("flash_deepseek_v3_modeling", "DeepseekV3Config"),
    ),
}  # fmt: skip
LONGEST = 1 << 17


class Server(Finder):
    """Stubs for the parts of TGI's package that are not REAL, and for its packages below."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name == "text_generation_server" or name.startswith("text_generation_server."):
            if name.startswith(REAL) or any(real.startswith(f"{name}.") for real in REAL):
                return None if name.startswith(REAL) else self.package(name)
        elif name.partition(".")[0] not in PACKAGES:
            return super().find_spec(name, path, target)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def package(self, name: str) -> Any:
        """A stub whose submodules can be real: it has the folder of the package."""
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(Path(base, *name.split("."))) for base in sys.path]
        return spec


def prepare() -> None:
    sys.meta_path.insert(0, Server())
    utils = importlib.import_module("text_generation_server.utils.import_utils")
    utils.SYSTEM = "cuda"  # type: ignore[attr-defined]
    assert isinstance(utils, StubModule)


def parse(config: dict[str, Any]) -> Any:
    """The config as TGI's model loader reads it, with what it sets itself."""
    place = FILES[config["model_type"]][2]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            if place is None:
                parsed: Any = transformers.AutoConfig.from_pretrained(folder)
            else:
                parsed = getattr(importlib.import_module(f"{MODELS}.{place[0]}"), place[1]).from_pretrained(folder)
        except Exception as error:
            raise protocol.Refused("config", error) from error
    parsed.quantize = parsed.speculator = None
    if config["model_type"] in ("qwen2_vl", "qwen2_5_vl"):
        # as Qwen2VLForConditionalGeneration and Qwen2_5VLForConditionalGeneration do first
        scaling = getattr(parsed, "rope_scaling", None)
        if scaling is not None and scaling.get("type", None) == "default":
            scaling.update({"rope_type": "mrope"})
    return getattr(parsed, "text_config", None) or parsed


def attention(parsed: Any, model_type: str, layer: int) -> Any:
    """The attention of one layer, with its rotary embedding. Raises Refused where its constructor fails before."""
    file, name, _ = FILES[model_type]
    module = importlib.import_module(f"{MODELS}.{file}")
    if model_type == "falcon" and getattr(parsed, "new_decoder_architecture", False):
        name = "FlashRWLargeAttention"
    kind = getattr(module, name)
    weights = SimpleNamespace(
        device=torch.device("cpu"), dtype=torch.float32, process_group=SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    )
    values = {
        "index": layer, "layer_id": layer, "prefix": "model", "config": parsed, "weights": weights, "causal": True,
    }  # fmt: skip
    if model_type.startswith("gemma2"):
        values["is_sliding"] = layer % 2 == 0
    if model_type.startswith("gemma3"):
        values["is_sliding"] = bool((layer + 1) % parsed.sliding_window_pattern)
    names = kind.__init__.__code__.co_varnames[1 : kind.__init__.__code__.co_argcount]
    made = kind.__new__(kind)
    try:
        kind.__init__(made, **{key: values[key] for key in names})
    except Exception as error:
        if "softmax_scale" not in vars(made):
            raise protocol.Refused("load", error) from error
    return made


def read(rotary: Any, question: dict[str, Any], planes: int) -> tuple[protocol.Answer, bool]:
    """The rope, and whether its two lists are mixed by position within one sequence."""
    found = []
    kind = type(rotary).__name__
    for length in (question["trained"], question["context"]):
        if kind not in ("DynamicPositionRotaryEmbedding",):
            length = min(length, LONGEST)
        rotary._seq_len_cached = 0
        place = torch.tensor([0, 1, length - 1])
        if planes:
            place = place.unsqueeze(1).expand(-1, planes).contiguous()
        try:
            cos, sin = rotary.get_cos_sin(place, length, torch.float32)
        except Exception as error:
            raise protocol.Refused("forward", error) from error
        found.append(protocol.from_cos_sin(cos[1].flatten().double().tolist(), sin[1].flatten().double().tolist()))
    if hasattr(rotary, "long_inv_freq"):
        # the long list acts at positions beyond the trained length only, in every sequence; so it is read as a list
        long = rotary.long_inv_freq.double() * float(getattr(rotary, "long_mscale", 1.0))
        past = question["context"] > rotary.original_max_position_embeddings
        rope = protocol.rope(long.tolist() if past else found[1][0], found[1][1], found[0][0], found[0][1])
        return rope, not torch.allclose(long, torch.tensor(found[1][0], dtype=torch.float64), rtol=1e-5)
    return protocol.rope(*found[1], *found[0]), False


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    model_type = config.get("model_type", "")
    if model_type not in FILES:
        known = model_type in transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        rest = "it runs in the transformers backend" if known else f"transformers {transformers.__version__} neither"
        raise protocol.Absent(f"TGI has no model file for {model_type!r}; {rest}")
    parsed = parse(config)
    planes = len((getattr(parsed, "rope_scaling", None) or {}).get("mrope_section", ())) if "_vl" in model_type else 0
    if "_vl" in model_type and not planes:
        # flash_causal_lm.py takes the number of sections from config.rope_scaling["mrope_section"] at warm-up
        raise protocol.Refused("forward", KeyError("mrope_section"))
    layers, mixed, scaling = [], False, None
    made: dict[bool, protocol.Answer] = {}
    for layer in range(parsed.num_hidden_layers):
        kind = bool((layer + 1) % parsed.sliding_window_pattern) if model_type.startswith("gemma3") else True
        if kind not in made:
            head = attention(parsed, model_type, layer)
            scaling = head.softmax_scale
            made[kind], mixes = read(head.rotary_emb, question, planes)
            mixed = mixed or mixes
        layers.append(made[kind])
    more: dict[str, Any] = {"scaling": float(scaling)} if isinstance(scaling, (int, float)) else {}
    return protocol.answer(layers, **more, **({"mixed": True} if mixed else {}))


if __name__ == "__main__":
    prepare()
    protocol.main(ask)
