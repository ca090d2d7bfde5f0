"""Ask exllamav3 on a CPU: its own config classes, model constructors and RoPE, without its
compiled extension.

The extension is replaced by one whose `rope` notes what it was given and whose other functions
raise. The model is built from config.json only; each attention module then gets its RoPE as its
`load_local` makes it, and applies it to queries and keys. So frequencies, factor and pairs are
those that the kernel would get. The same frequencies are checked against exllamav3's own
`compute_sincos` at position 1. No forward pass is possible here: its kernels need CUDA.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import types
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import torch
import torch._inductor.utils  # before anything takes the place of triton

if TYPE_CHECKING:
    from . import probe_protocol as protocol
else:  # a program has only this folder on its path
    import probe_protocol as protocol

KERNEL_CALLS: list[dict[str, Any]] = []
ROPE_ARGUMENTS = (
    "q",
    "out_q",
    "k",
    "out_k",
    "inv_freq",
    "position",
    "positions",
    "position_ids",
    "style",
    "attn_factor",
    "q_norm",
    "k_norm",
    "norm_eps",
    "norm_bias",
    "beta",
    "original",
)
"""The first arguments of `ext.rope`, as util/rope.py calls it. The last but one is the number of
axes of positions.
"""
UNUSED_PACKAGES = (
    "triton",
    "triton.language",
    "triton.language.extra",
    "triton.language.extra.libdevice",
    "triton.compiler",
    "triton.runtime",
    "triton.runtime.autotuner",
    "marisa_trie",
    "llguidance",
    "fla",
    "fla.ops",
    "fla.ops.gated_delta_rule",
    "fla.ops.simple_gla",
    "fla.modules",
    "fla.modules.fused_norm_gate",
)
"""Packages of kernels and of constrained sampling, which importing needs and nothing here calls."""


class CompiledExtension(types.ModuleType):
    """Takes the place of the compiled extension."""

    def __getattr__(self, name: str) -> Any:
        """Return a function that replaces one of exllamav3's compiled functions.

        The replacement of `rope`, the kernel that rotates, appends its arguments to a global list,
        from which `probe` takes them, and computes nothing. The other replacements raise an error.
        """
        if name.startswith("__"):  # Python asks for these of every module
            raise AttributeError(name)

        def note_rope(*arguments: Any) -> None:
            # ROPE_ARGUMENTS has the names of the first arguments. Of the others, only the last but
            # one is needed, the number of axes of positions.
            call = dict(zip(ROPE_ARGUMENTS, arguments, strict=False))
            call["rotate_dims"] = arguments[-2]
            KERNEL_CALLS.append(call)

        def refuse_call(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"the compiled function {name}")

        if name == "rope":
            return note_rope
        return refuse_call


def without_extension() -> None:
    """Make exllamav3 importable without its compiled extension.

    Call it before the first import of exllamav3, and after that of torch.
    """
    for name in UNUSED_PACKAGES:
        sys.modules[name] = MagicMock(name=name)
    extension = CompiledExtension("exllamav3_ext")
    holder = types.ModuleType("exllamav3.ext")
    holder.exllamav3_ext = extension  # type: ignore[attr-defined]
    sys.modules["exllamav3.ext"] = holder
    sys.modules["exllamav3_ext"] = extension


without_extension()

from exllamav3.architecture.architectures import get_architectures
from exllamav3.model.config import Config
from exllamav3.model.model import Model
from exllamav3.util import rope as exllamav3_rope

VERSION = metadata.version("exllamav3")
STYLES = {"NEOX": "half", "GPTJ": "interleaved"}
PROCESSOR_BY_ARCHITECTURE = {
    "Gemma3": "Gemma3ImageProcessor",
    "Gemma4": "Gemma4ImageProcessor",
    "Glm4v": "Glm4vImageProcessor",
    "Lfm2Vl": "Lfm2VlImageProcessorFast",
    "Mistral3": "PixtralImageProcessorFast",
    "Qwen": "Qwen2VLImageProcessorFast",
}
"""The image processor that the preprocessor_config.json beside a published model names, by start of
architecture.
"""
PROCESSOR_SETTINGS: dict[str, Any] = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "size": {"shortest_edge": 3136, "longest_edge": 12845056},
    "do_convert_rgb": True,
    "do_rescale": True,
    "do_normalize": False,
    "max_soft_tokens": 280,
    "pooling_kernel_size": 3,
    "encoder_patch_size": 16,
    "downsample_factor": 2,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "min_tiles": 2,
    "max_tiles": 10,
    "tile_size": 512,
}
ARCHITECTURES_NOT_WATCHED = {
    "DeepseekV4ForCausalLM": "untested: its attention rotates in its own kernel",
    "Gemma4UnifiedForConditionalGeneration": (
        "untested: it requires keys that the test config does not have"
    ),
    "NanoChatForCausalLM": "untested: its kernel rotates in the other direction",
    "Step3p7ForConditionalGeneration": (
        "untested: it requires keys that the test config does not have"
    ),
}
"""Architectures whose rotation cannot be watched here."""
ANSWERS_BY_SETTINGS: dict[str, tuple[protocol.Answer, float]] = {}


def add_needed_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Add keys to a config.json without which exllamav3 refuses it, and return these keys.

    The keys do not change the RoPE. For example, the config of a small Qwen2.5 VL gets
    {"vision_config": {"spatial_patch_size": 14}}.

    Args:
        config: The whole config.json, which is changed.
    """
    model_type = config.get("model_type")
    layer_types: list[str] = config.get("layer_types") or []
    changed: dict[str, Any] = {}

    # refused otherwise: False is the default of the class of transformers, and published configs
    # have True
    if model_type == "qwen3_moe" and config.get("norm_topk_prob") is False:
        changed["norm_topk_prob"] = True

    # Exaone 4 writes the pattern of its layers as letters, such as "LLLG"
    pattern = config.get("sliding_window_pattern")
    if model_type == "exaone4" and layer_types and isinstance(pattern, int):
        letters = ["L" if kind == "sliding_attention" else "G" for kind in layer_types]
        changed["sliding_window_pattern"] = "".join(letters)

    # every n-th layer of these attends; the others are linear
    is_hybrid = model_type in ("qwen3_next", "qwen3_5_text")
    has_attention = "full_attention" in layer_types
    if is_hybrid and has_attention and "full_attention_interval" not in config:
        changed["full_attention_interval"] = layer_types.index("full_attention") + 1
    config.update(changed)

    vision = config.get("vision_config")
    if isinstance(vision, dict):
        added: dict[str, Any] = {}
        if model_type == "qwen2_5_vl" and "spatial_patch_size" not in vision:
            added["spatial_patch_size"] = 14
        # transformers 5 writes another model type here than publishers do
        if vision.get("model_type") == f"{model_type}_vision":
            added["model_type"] = model_type
        vision.update(added)
        if added:
            changed["vision_config"] = added
    return changed


def write_processor_configs(folder: Path, config: dict[str, Any]) -> None:
    """Write preprocessor_config.json and processor_config.json beside the config of a vision model.

    exllamav3 does not read such a model without them. A model without vision gets none.

    Args:
        folder: The folder of the config.
        config: The whole config.json.
    """
    vision = config.get("vision_config")
    if not vision:
        return
    architectures = config.get("architectures") or [""]
    # such as "Qwen" and "Qwen2VLImageProcessorFast"; no two of the table fit one architecture
    for start_of_architecture, processor in PROCESSOR_BY_ARCHITECTURE.items():
        if not architectures[0].startswith(start_of_architecture):
            continue
        settings = {
            **PROCESSOR_SETTINGS,
            "image_processor_type": processor,
            "patch_size": vision.get("patch_size", 14),
        }
        preprocessor = json.dumps(settings)
        (folder / "preprocessor_config.json").write_text(preprocessor, encoding="utf-8")
        whole = json.dumps({"image_processor": settings})
        (folder / "processor_config.json").write_text(whole, encoding="utf-8")


def load(config: dict[str, Any]) -> Any:
    """Return the model that exllamav3 makes of a config.json, without weights.

    Raises:
        NoModel: For an architecture that exllamav3 does not have.
        Unseen: For an architecture whose rotation this program cannot read.
        Refused: Where exllamav3 fails, with the stage: "config" for reading the config, "load" for
            making the model.
    """
    # "architectures" has one name in nearly every config, such as "LlamaForCausalLM"
    names = config.get("architectures") or []
    if len(names) == 1 and names[0] not in get_architectures():
        raise protocol.NoModel(f"Unknown architecture {names[0]}")
    if set(names) & ARCHITECTURES_NOT_WATCHED.keys():
        reason = ARCHITECTURES_NOT_WATCHED[names[0]]
        raise protocol.Unseen(reason)

    # exllamav3 reads a folder; a vision model needs the config of an image processor in it too
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_processor_configs(Path(folder), config)
        try:
            settings = Config.from_directory(folder)
        except Exception as error:
            raise protocol.Refused("config", error) from error
        try:
            return Model.from_config(settings)
        except Exception as error:
            raise protocol.Refused("load", error) from error


def read_rope(settings: Any, context: int) -> tuple[protocol.Answer, float]:
    """Return the RoPE of an attention layer, and its factor on the query at the last position.

    exllamav3 rotates in a compiled kernel. Here the kernel is replaced by a function that stores
    its arguments in KERNEL_CALLS, such as the frequencies.

    Args:
        settings: The settings of the RoPE, as exllamav3 has read them from the config.
        context: The length of the input in tokens.

    Raises:
        AssertionError: Where exllamav3's tables of cosines differ from the kernel's arguments.
    """
    # most layers have the same settings
    key = f"{settings} {context}"
    if key in ANSWERS_BY_SETTINGS:
        return ANSWERS_BY_SETTINGS[key]

    # rotate queries and keys of zeros, to get the arguments of the kernel
    try:
        rope = exllamav3_rope.RoPE("cpu", settings)
    except Exception as error:
        raise protocol.Refused("load", error) from error
    KERNEL_CALLS.clear()
    queries = torch.zeros(1, 1, 1, settings.head_dim, dtype=torch.half)
    keys = queries.clone()
    rope.apply(queries, keys, 1, in_place=True)
    kernel_arguments = KERNEL_CALLS.pop()
    inv_freq = kernel_arguments["inv_freq"]
    attention_factor = float(kernel_arguments["attn_factor"])
    pairing = kernel_arguments["style"].name  # NEOX, pairs (i, i + half), or GPTJ, neighbours
    assert kernel_arguments["rotate_dims"] == 1, "rotates more than once"

    # compare with exllamav3's tables of sines and cosines: at position 1, the angle of a pair is
    # its frequency, and both dimensions of a pair have the same angle
    tables = rope.compute_sincos(torch.tensor([1]))
    sin, cos = (table[0].double() for table in tables)
    if pairing == "NEOX":
        angles = torch.cat((inv_freq, inv_freq))
    else:
        angles = inv_freq.repeat_interleave(2)
    assert torch.allclose(sin, angles.sin().double() * attention_factor), "another sine"
    assert torch.allclose(cos, angles.cos().double() * attention_factor), "another cosine"

    # Llama 4: the factor on queries is 1 + beta ln(1 + floor(position / length)). Other models have
    # no beta, or None, and so the factor 1.
    beta = kernel_arguments.get("beta") or 0.0
    length = kernel_arguments.get("original") or 1
    last_position = context - 1
    query_scale = 1 + beta * math.log(1 + last_position // length)

    answer = {**protocol.rope(inv_freq.tolist(), attention_factor), "pairs": STYLES[pairing]}
    ANSWERS_BY_SETTINGS[key] = (answer, query_scale)
    return ANSWERS_BY_SETTINGS[key]


def blocks(model: Any) -> list[Any]:
    """Return the decoder layers of a model in their order; one may be without attention."""
    by_number: dict[int, Any] = {}
    for module in model.modules:
        number = getattr(module, "layer_idx", None)
        if number is not None and hasattr(module, "attn"):
            assert number not in by_number, f"two blocks {number}"
            by_number[number] = module
    numbers = sorted(by_number)
    assert numbers == list(range(len(numbers))), f"blocks {numbers}"
    return [by_number[number] for number in numbers]


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return the RoPE that exllamav3 computes from a config.json, for every layer.

    Args:
        config: The whole config.json, to which missing keys are added.
        question: {"trained": 4096, "context": 16384}, the trained length and the context in tokens.

    Returns:
        The frequencies and factors, under keys that the docstring of `probe_protocol` explains.
    """
    # keys that exllamav3 needs, and that do not change the RoPE
    added_keys = add_needed_keys(config)
    model = load(config)

    # The RoPE of each layer, and the factors on queries and logits. A factor is stored as text with
    # the seven digits of float32, so that equal factors of several layers are one entry of the set.
    ropes: list[protocol.Answer | None] = []
    query_scales: set[str] = set()
    logit_scales: set[str] = set()
    for block in blocks(model):
        attention = block.attn
        if hasattr(attention, "sm_scale"):
            logit_scales.add(f"{attention.sm_scale:.7g}")
        settings = getattr(attention, "rope_settings", None)
        if not settings:  # a layer without RoPE
            ropes.append(None)
            continue
        rope, query_scale_of_layer = read_rope(settings, question["context"])
        ropes.append(rope)
        query_scales.add(f"{query_scale_of_layer:.7g}")

    # All layers must have the same factors. After a failed assertion, the caller reports that this
    # program cannot read the model, which is not a fault of exllamav3.
    assert any(ropes), "no layer rotates"
    assert len(query_scales) == len(logit_scales) == 1, f"scales {query_scales}, {logit_scales}"
    query_scale = float(query_scales.pop())
    logit_scale = float(logit_scales.pop())

    other_keys: dict[str, Any] = {}
    if added_keys:
        other_keys["completed"] = added_keys
    other_keys["scaling"] = logit_scale
    other_keys["class"] = str(model.config.architecture)
    if query_scale != 1:
        other_keys["query_scale"] = query_scale
    return protocol.answer(ropes, **other_keys)
