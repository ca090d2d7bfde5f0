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

KERNEL: list[dict[str, Any]] = []
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
UNUSED = (
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
        """A function that notes its call, for `rope`; for other names one that raises when it is
        called.
        """
        if name.startswith("__"):
            raise AttributeError(name)

        def rope(*arguments: Any) -> None:
            KERNEL.append(
                {**dict(zip(ROPE_ARGUMENTS, arguments, strict=False)), "rotate_dims": arguments[-2]}
            )

        def compiled(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"the compiled function {name}")

        return rope if name == "rope" else compiled


def without_extension() -> None:
    """Makes exllamav3 importable. To be called before its first import, and after that of torch."""
    sys.modules |= {name: MagicMock(name=name) for name in UNUSED}
    holder = types.ModuleType("exllamav3.ext")
    holder.exllamav3_ext = CompiledExtension("exllamav3_ext")  # type: ignore[attr-defined]
    sys.modules["exllamav3.ext"], sys.modules["exllamav3_ext"] = holder, holder.exllamav3_ext


without_extension()

from exllamav3.architecture.architectures import get_architectures
from exllamav3.model.config import Config
from exllamav3.model.model import Model
from exllamav3.util import rope as exllamav3_rope

VERSION = metadata.version("exllamav3")
STYLES = {"NEOX": "half", "GPTJ": "interleaved"}
PROCESSORS = {
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
PROCESSOR: dict[str, Any] = {
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
UNSEEN = {
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
PROBED: dict[str, tuple[protocol.Answer, float]] = {}


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """Changes a config of the lab where it is unlike published ones, in keys that have nothing to
    do with RoPE.

    Returns what was changed.
    """
    model_type = config.get("model_type")
    kinds = config.get("layer_types")
    vision = config.get("vision_config")
    changed: dict[str, Any] = {}
    if model_type == "qwen3_moe" and config.get("norm_topk_prob") is False:
        changed["norm_topk_prob"] = (
            True  # otherwise refused; the class default of transformers, true in published ones
        )
    if model_type == "exaone4" and kinds and isinstance(config.get("sliding_window_pattern"), int):
        changed["sliding_window_pattern"] = "".join(
            "L" if kind == "sliding_attention" else "G" for kind in kinds
        )
    hybrid = model_type in ("qwen3_next", "qwen3_5_text")
    if hybrid and kinds and "full_attention" in kinds and "full_attention_interval" not in config:
        changed["full_attention_interval"] = kinds.index("full_attention") + 1
    config.update(changed)
    if isinstance(vision, dict):
        added: dict[str, Any] = {}
        if model_type == "qwen2_5_vl" and "spatial_patch_size" not in vision:
            added["spatial_patch_size"] = 14
        if vision.get("model_type") == f"{model_type}_vision":
            added["model_type"] = model_type  # transformers 5 writes another one than publishers do
        vision.update(added)
        changed |= {"vision_config": added} if added else {}
    return changed


def write_beside(folder: Path, config: dict[str, Any]) -> None:
    """Writes the descriptions of the image processor, without which a model with vision is not
    read.
    """
    name = (config.get("architectures") or [""])[0]
    for start, kind in PROCESSORS.items():
        vision = config.get("vision_config")
        if name.startswith(start) and vision:
            settings = {
                **PROCESSOR,
                "image_processor_type": kind,
                "patch_size": vision.get("patch_size", 14),
            }
            (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
            (folder / "processor_config.json").write_text(
                json.dumps({"image_processor": settings}), encoding="utf-8"
            )


def load(config: dict[str, Any]) -> Any:
    """The model that exllamav3 makes of a config. Raises Absent and Refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_beside(Path(folder), config)
        names = config.get("architectures") or []
        if len(names) == 1 and names[0] not in get_architectures():
            raise protocol.NoModel(f"Unknown architecture {names[0]}")
        if set(names) & UNSEEN.keys():
            raise protocol.Unseen(UNSEEN[names[0]])
        try:
            settings = Config.from_directory(folder)
        except Exception as error:
            raise protocol.Refused("config", error) from error
        try:
            return Model.from_config(settings)
        except Exception as error:
            raise protocol.Refused("load", error) from error


def probe(settings: Any, context: int) -> tuple[protocol.Answer, float]:
    """The rope of one attention module, and its factor on queries at the last position of the
    context.
    """
    key = f"{settings} {context}"
    if key in PROBED:
        return PROBED[key]
    try:
        rope = exllamav3_rope.RoPE("cpu", settings)
    except Exception as error:
        raise protocol.Refused("load", error) from error
    KERNEL.clear()
    sample = torch.zeros(1, 1, 1, settings.head_dim, dtype=torch.half)
    rope.apply(sample, sample.clone(), 1, in_place=True)
    call = KERNEL.pop()
    inv_freq = call["inv_freq"]
    attention_factor = float(call["attn_factor"])
    assert call["rotate_dims"] == 1, "rotates more than once"
    sin, cos = (half[0].double() for half in rope.compute_sincos(torch.tensor([1])))
    expected = (
        torch.cat((inv_freq, inv_freq))
        if call["style"].name == "NEOX"
        else inv_freq.repeat_interleave(2)
    )
    assert torch.allclose(sin, expected.sin().double() * attention_factor), "another sine"
    assert torch.allclose(cos, expected.cos().double() * attention_factor), "another cosine"
    beta = call.get("beta") or 0.0
    original = call.get("original") or 1
    scale = 1 + beta * math.log(1 + (context - 1) // original)
    answer = {
        **protocol.rope(inv_freq.tolist(), attention_factor),
        "pairs": STYLES[call["style"].name],
    }
    PROBED[key] = answer, scale
    return PROBED[key]


def blocks(model: Any) -> list[Any]:
    """The decoder layers in their order; one may be without attention."""
    by_layer: dict[int, Any] = {}
    for module in model.modules:
        number = getattr(module, "layer_idx", None)
        if number is not None and hasattr(module, "attn"):
            assert number not in by_layer, f"two blocks {number}"
            by_layer[number] = module
    assert sorted(by_layer) == list(range(len(by_layer))), f"blocks {sorted(by_layer)}"
    return [by_layer[number] for number in sorted(by_layer)]


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return what exllamav3 does with one config."""
    ropes: list[protocol.Answer | None] = []
    scales = set()
    scalings = set()
    changed = complete(config)
    model = load(config)
    for block in blocks(model):
        attention = block.attn
        settings = getattr(attention, "rope_settings", None)
        if hasattr(attention, "sm_scale"):
            scalings.add(f"{attention.sm_scale:.7g}")
        if not settings:
            ropes.append(None)
            continue
        answer, scale = probe(settings, question["context"])
        ropes.append(answer)
        scales.add(f"{scale:.7g}")
    assert any(ropes), "no layer rotates"
    assert len(scales) == len(scalings) == 1, f"scales {scales}, {scalings}"
    more: dict[str, Any] = {"completed": changed} if changed else {}
    more["scaling"] = float(scalings.pop())
    more["class"] = str(model.config.architecture)
    if scales != {"1"}:
        more["query_scale"] = float(scales.pop())
    return protocol.answer(ropes, **more)
