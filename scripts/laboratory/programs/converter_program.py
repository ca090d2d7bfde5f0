"""Answers for llama.cpp after its own converter: what `convert_hf_to_gguf.py` writes, and what the
library computes.

The first half runs the converter's class for the architecture, without weights or a tokenizer, and
takes the keys and rope tensors from its writer. The second half does with them what the library
does at commit 0c1e570; the line numbers below are those of that tree. Answers also have the "arch"
and the rope "keys" and "tensors" of the file.

A converter that fails is an error of the stage "config", a file that the library refuses one of the
stage "load". The window is as long as "context"; llama.cpp takes a file's long factors for every
position of a longer window than the trained one, so short sequences get nothing of their own.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conversion
import gguf
import numpy as np
import probe_protocol as protocol
from conversion.base import ModelBase, get_model_architecture
from numpy.typing import NDArray

Vectors = dict[str, NDArray[np.float32]]
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
YARN, LONGROPE = "yarn", "longrope"


class LoadError(Exception):
    """A message with which the library refuses a file."""


def convert(config: dict[str, Any]) -> tuple[str, dict[str, Any], Vectors]:
    """Return the architecture, the keys and the rope tensors that the converter writes.

    Args:
        config: The whole config.json.

    Raises NoModel where the converter has no class for it, and Refused where it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        hparams = ModelBase.load_hparams(folder, False)
        architecture = get_model_architecture(hparams, conversion.ModelType.TEXT)
        try:
            model_class = conversion.get_model_class(architecture)
        except NotImplementedError:
            raise protocol.NoModel(
                f"convert_hf_to_gguf.py: Model {architecture} is not supported"
            ) from None

        # the number of layers that predict further tokens is looked for in the weights, which are
        # not here, where the config has none
        declared = {**hparams, **hparams.get("text_config", {})}
        names = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
        if not any(declared.get(name) for name in names):
            model_class.no_mtp = model_class.supports_mtp_export
        try:
            model = model_class(
                folder, gguf.LlamaFileType.ALL_F32, folder / "out.gguf", dry_run=True
            )
            model = getattr(model, "impl", model)  # mistral3 writes through another object
            tensors = dict(model.generate_extra_tensors())
            model.set_gguf_parameters()
            arch = gguf.MODEL_ARCH_NAMES[model.model_arch]
            vectors = {}
            for key, value in tensors.items():
                if "rope" in key:
                    vectors[key] = value.float().numpy()
            return arch, _written(model.gguf_writer), vectors
        except Exception as error:
            raise protocol.Refused("config", error) from error


def _written(writer: Any) -> dict[str, Any]:
    """Return the keys with the values that a reader gets; floats lose their second half.

    Args:
        writer: The GGUFWriter of a model.
    """
    kinds = gguf.GGUFValueType
    formats = {kinds.UINT32: "<I", kinds.INT32: "<i"}
    values = {}
    for key, held in writer.kv_data[0].items():
        values[key] = held.value
        if held.type == kinds.FLOAT32:
            values[key] = float(np.float32(held.value))
        elif held.type in formats:
            struct.pack(formats[held.type], held.value)  # fails as writing would
    return values


@dataclass(frozen=True)
class Arch:
    """How the library reads the files of one architecture, src/models/*.cpp."""

    freqs: bool = False
    """Whether rope_freqs.weight is loaded and used."""

    factors: str = ""
    """When the long and short factors are: "always", or with the scaling type "longrope"."""

    full: bool = False
    """Whether it refuses partial rotation."""

    yarn_keys: bool = False
    """Whether it reads yarn_log_multiplier."""

    sections: bool = False
    """Whether it refuses a file without rope.dimension_sections."""

    window: str = ""
    """When layers with a window exist, such as "always"; see `Model.windows`."""

    interval: int = 0
    """Every how many layers one has no window."""

    local: str = "same"
    """The RoPE of layers with a window.

    "same" as elsewhere, "base" (own theta, no interpolation), "plain", or "global" (its own base
    key is not read).
    """

    rotates: str = "all"
    """The layers that rotate, such as "three of four"; see `Model.rotating`."""

    softmax: bool = False
    """Whether the attention factor and a tenth of the multiplier scale all logits."""


ARCHS = {
    "llama": Arch(freqs=True, factors=LONGROPE, full=True),
    "mistral3": Arch(freqs=True, factors=LONGROPE, yarn_keys=True),
    **dict.fromkeys(("granite", "granitemoe", "apertus"), Arch(freqs=True, factors=LONGROPE)),
    "arcee": Arch(freqs=True),
    "phi3": Arch(factors="always"),
    "falcon": Arch(full=True),
    **dict.fromkeys(("deepseek2", "deepseek32", "mistral4"), Arch(yarn_keys=True, softmax=True)),
    "glm-dsa": Arch(softmax=True),
    "minicpm3": Arch(factors="always"),
    "qwen2vl": Arch(sections=True),
    "qwen3vl": Arch(sections=True),
    "qwen3vlmoe": Arch(sections=True),
    **dict.fromkeys(("qwen35", "qwen35moe"), Arch(sections=True, rotates="attention")),
    "qwen3next": Arch(rotates="attention"),
    "smollm3": Arch(rotates="three of four"),
    "llama4": Arch(freqs=True, window="unless 0", interval=4, rotates="llama4"),
    **dict.fromkeys(("lfm2", "lfm2moe"), Arch(rotates="key-value heads")),
    "exaone4": Arch(freqs=True, window="64 layers", interval=4, local="global", rotates="window"),
    "exaone-moe": Arch(freqs=True, window="always", interval=4, local="global", rotates="window"),
    "gemma3n": Arch(window="always", interval=5, local="base"),
    "gemma4": Arch(freqs=True, window="always", local="base"),
    "cohere2": Arch(window="always", interval=4, local="global", rotates="window"),
    "gemma2": Arch(window="always", interval=2),
    "gpt-oss": Arch(window="always", interval=2),
    "gemma3": Arch(window="key", interval=6, local="base"),
    "olmo2": Arch(window="key", interval=4, local="plain"),
    **dict.fromkeys(
        (
            "qwen2",
            "qwen2moe",
            "qwen3",
            "qwen3moe",
            "gemma",
            "phi2",
            "stablelm",
            "gptneox",
            "olmo",
            "olmoe",
            "command-r",
            "glm4",
            "chatglm",
            "starcoder2",
            "minimax-m2",
            "glm4moe",
            "nemotron",
            "ernie4_5",
            "ernie4_5-moe",
            "seed_oss",
            "hunyuan-dense",
            "bitnet",
            "dots1",
            "hy_v3",
            "jais2",
        ),
        Arch(),
    ),
}

UNSEEN = (
    "deepseek_v4",
    "dots3_note_text",
    "eurobert",
    "gemma4_unified",
    "hunyuan_v1_moe",
    "mimo_v2_flash",
    "nomic_bert",
    "qwen4_exp_text",
    "step3p7",
)
"""Model types whose small configs lack keys that the converter requires and published ones have."""


class Model:
    """The hyperparameters of a loaded file, src/llama-model.cpp:1321-1470. Raises LoadError where
    that fails.
    """

    def __init__(self, arch: str, keys: dict[str, Any], vectors: Vectors) -> None:
        """Load the hyperparameters, as llama.cpp does.

        Args:
            arch: The architecture.
            keys: The metadata keys of the file, whose names begin with it.
            vectors: Its rope tensors.
        """
        self.name = arch
        self.arch = ARCHS[arch]
        self.keys = keys
        required = ["context_length", "block_count"]
        if self.arch.sections:
            required.append("rope.dimension_sections")
        for key in required:
            if f"{arch}.{key}" not in keys:
                raise LoadError(f"key not found in model: {arch}.{key}")

        # layers and lengths; an original length of 0 counts as none
        self.n_layer = int(self.get("block_count")) - int(self.get("nextn_predict_layers", 0))
        self.n_ctx_train = int(self.get("context_length"))
        original = int(self.get("rope.scaling.original_context_length", self.n_ctx_train))
        self.n_ctx_orig = original or self.n_ctx_train

        # the base, and the type and factor of the scaling
        self.base = self.get("rope.freq_base", 10000.0)
        self.type = self.get("rope.scaling.type", "linear")
        factor = self.get("rope.scaling.factor", 0.0)
        self.scale = 1.0 if factor == 0.0 or self.type == "none" else 1.0 / factor

        # the dimensions of a head, and those that rotate
        heads = self.get("attention.head_count")
        if isinstance(heads, list):  # of each layer
            heads = heads[0]
        self.head_dim = int(self.get("attention.key_length", self.get("embedding_length") // heads))
        self.n_rot = int(self.get("rope.dimension_count", self.head_dim))
        if self.arch.full and self.n_rot != self.head_dim:
            raise LoadError(f"invalid n_rot: {self.n_rot}, expected {self.head_dim}")

        # YaRN; where the multiplier scales all logits, the key has a tenth of it
        self.log_mul = 0.0
        if self.arch.yarn_keys:
            self.log_mul = float(self.get("rope.scaling.yarn_log_multiplier", 0.0))
        if self.arch.softmax:
            self.log_mul /= 0.1
        self.beta_fast = 32.0
        self.beta_slow = 1.0
        if arch == "mistral3":
            self.beta_fast = self.get("rope.scaling.yarn_beta_fast", 32.0)
            self.beta_slow = self.get("rope.scaling.yarn_beta_slow", 1.0)
        self.vectors = self._load(vectors)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture."""
        return self.keys.get(f"{self.name}.{key}", default)

    def _load(self, vectors: Vectors) -> Vectors:
        """Return the rope tensors of the file, if they are those that the architecture creates.

        Raises LoadError for others, as llama-model-loader.cpp:1398 does.
        """
        is_longrope = self.arch.factors == LONGROPE and self.type == LONGROPE
        known = set()
        if is_longrope or self.arch.factors == "always":
            known = {LONG, SHORT}
        elif self.arch.freqs:
            known = {FREQS}
        for key, value in vectors.items():
            if key not in known:
                raise LoadError(
                    f"done_getting_tensors: wrong number of tensors; the file has {key}"
                )
            if len(value) != self.n_rot // 2:
                raise LoadError(
                    f"tensor '{key}' has wrong shape; expected {self.n_rot // 2}, got {len(value)}"
                )
        return vectors

    def divisors(self, context: int) -> NDArray[np.float32] | None:
        """The factors of a window, llama-model.cpp:2337."""
        return self.vectors.get(
            FREQS, self.vectors.get(LONG if context > self.n_ctx_orig else SHORT)
        )

    def windows(self) -> list[bool]:
        """Return which layers have a window, as load_swa_pattern sets them."""
        size = self.get("attention.sliding_window")
        conditions = {
            "always": True,
            "key": bool(size),
            "unless 0": size != 0,
            "64 layers": self.n_layer == 64,
        }
        has_windows = conditions.get(self.arch.window, False)
        if not has_windows:
            return [False] * self.n_layer

        # a flag for each layer, or an interval n: every n-th layer has none
        pattern = self.get("attention.sliding_window_pattern", self.arch.interval)
        if isinstance(pattern, list):
            return [bool(value) for value in pattern[: self.n_layer]]
        return [pattern == 0 or i % pattern < pattern - 1 for i in range(self.n_layer)]

    def rotating(self, windows: list[bool]) -> list[bool]:
        """Return which layers rotate.

        Args:
            windows: Which layers have a window.
        """
        layers = range(self.n_layer)
        if self.arch.rotates == "attention":  # and not those with linear attention
            interval = int(self.get("full_attention_interval", 4))
            by_default = [(i + 1) % interval != 0 for i in layers]
            recurrent = self.get("attention.recurrent_layers", by_default)
            return [not recurrent[i] for i in layers]
        if self.arch.rotates == "key-value heads":  # layers without any are convolutions
            heads = self.get("attention.head_count_kv")
            if not isinstance(heads, list):
                heads = [heads] * self.n_layer
            return [bool(heads[i]) for i in layers]
        if self.arch.rotates == "window":
            if any(windows) or self.name == "cohere2":
                return windows
            return [True] * self.n_layer
        if self.arch.rotates in ("three of four", "llama4"):
            step = 4
            if self.name == "llama4" and self.get("attention.sliding_window") == 0:
                step = self.n_layer
            return [(i + 1) % step != 0 for i in layers]
        return [True] * self.n_layer

    def attn_factor(self) -> float:
        """The attention factor that the graph gets, src/llama-context.cpp:168-214."""
        scaling = 1.0
        if self.type == YARN:
            factor = 1.0 / self.scale
            mscale = self.log_mul if self.arch.softmax and self.log_mul not in (0.0, 1.0) else 1.0
            scaling = _mscale(factor, mscale) / (
                _mscale(factor, self.log_mul) if self.log_mul else 1.0
            )
            scaling /= 1.0 + 0.1 * math.log(factor)
        return scaling * float(self.get("rope.scaling.attn_factor", 1.0))

    def rope(
        self, base: float, scale: float, ext: float, attn: float, context: int, window: bool = False
    ) -> protocol.Answer:
        """Return the frequencies and attention factor of ggml_rope_ext.

        ggml/src/ggml-cpu/ops.cpp:6187 and ggml.c:4478.

        Args:
            base: freq_base.
            scale: freq_scale, 1 over the factor of the scaling.
            ext: ext_factor, 1 for YaRN and else 0.
            attn: attn_factor.
            context: The length in tokens, by which LongRoPE chooses its list.
            window: Whether it is for layers with a window.
        """
        n_rot = self.n_rot
        if window:
            n_rot = int(self.get("rope.dimension_count_swa", self.n_rot))
        index = np.arange(n_rot // 2, dtype=np.float64)
        free = base ** (-2.0 * index / n_rot)
        divisors = None if window and self.name == "gemma4" else self.divisors(context)
        if divisors is not None:  # those of 1e30 let a pair stand still
            free = np.where(divisors < 1e30, free / divisors.astype(np.float64), 0.0)
        if ext == 0:
            return protocol.rope((free * scale).tolist(), attn)

        # YaRN's ramp, between the pairs that turn beta_fast and beta_slow times in the trained
        # length
        def dimension(turns: float) -> float:
            return n_rot * math.log(self.n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(0.0, math.floor(dimension(self.beta_fast)))
        high = min(n_rot - 1.0, math.ceil(dimension(self.beta_slow)))
        ramp = np.clip((index - low) / max(0.001, high - low), 0, 1)
        mix = ext * (1 - ramp)  # the share of a frequency that is not interpolated
        inv_freq = free * scale * (1 - mix) + free * mix
        attention_factor = attn * (1.0 + 0.1 * math.log(1.0 / scale))
        return protocol.rope(inv_freq.tolist(), attention_factor)

    def answer(self, context: int) -> protocol.Answer:
        """Return the answer for a context of some tokens: the rope of each layer, and factors."""
        ext = 1.0 if self.type == YARN else 0.0
        attn = self.attn_factor()
        full = self.rope(self.base, self.scale, ext, attn, context)

        # layers with a window: freq_base, freq_scale, ext_factor and attn_factor
        windows = self.windows()
        window = full
        if any(windows):
            default_base = 10000.0 if self.arch.local == "base" else self.base
            own_base = self.get("rope.freq_base_swa", default_base)
            local = {
                "same": (own_base, self.scale, ext, attn),
                "base": (own_base, 1.0, ext, attn),
                "plain": (self.base, 1.0, 0.0, 1.0),
                "global": (self.base, self.scale, ext, attn),
            }[self.arch.local]
            window = self.rope(*local, context, window=True)

        layers: list[protocol.Answer | None] = []
        for rotates, has_window in zip(self.rotating(windows), windows, strict=True):
            if not rotates:
                layers.append(None)
            else:
                layers.append(window if has_window else full)
        return protocol.answer(layers, scaling=self.softmax(attn), **self.query_scale(context))

    def softmax(self, attn: float) -> float:
        """Return the factor on the logits of attention, which is usually 1 / sqrt(head_dim).

        Args:
            attn: The attention factor of the keys, as `attn_factor` returns it.
        """
        if self.arch.softmax:  # deepseek2.cpp:437-443
            log = math.log(1.0 / self.scale)
            head = int(self.get("attention.key_length_mla", self.head_dim))
            mscale = attn * (1 + 0.1 * log) * (1 + 0.1 * self.log_mul * log)
            return mscale**2 / math.sqrt(head)
        # the largest Gemma 2 and 3
        if {"gemma2": 46, "gemma3": 62}.get(self.name) == self.n_layer:
            return 1 / math.sqrt(self.get("embedding_length") // self.get("attention.head_count"))
        if self.name in ("granite", "granitemoe"):
            scale = float(self.get("attention.scale", 0.0))
            if scale:
                return scale
        width = self.n_rot if self.name == "gpt-oss" else self.head_dim
        return 1 / math.sqrt(width)

    def query_scale(self, context: int) -> dict[str, float]:
        """Return the factor on queries at the last position as {"query_scale": 1.1}, or {}.

        It is 1 + beta ln(1 + floor((position + offset) / length)), llama-graph.cpp:168. In Llama 4
        it is for layers that do not rotate.

        Args:
            context: The length in tokens.
        """
        if self.name not in ("mistral3", "llama4", "deepseek2", "mistral4"):
            return {}
        beta = float(self.get("attention.temperature_scale", 0.0))
        offset = 0.0
        length = self.n_ctx_orig
        if self.name == "llama4" and self.get("attention.sliding_window") != 0:
            beta = 0.1
            offset = 1.0
            length = 8192
        if not beta:
            return {}
        if self.arch.softmax:
            length = int(self.get("attention.temperature_length", 0))
        blocks = math.floor((context - 1 + offset) / length)
        return {"query_scale": 1.0 + beta * math.log(blocks + 1.0)}


def _mscale(scale: float, multiplier: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * multiplier * math.log(scale) + 1.0


def _names_a_class(model_type: str) -> bool:
    """Whether the converter has a class of a text model, as `Qwen2_5OmniModel` is one of
    `qwen2_5_omni_text`.
    """
    stem = model_type.removesuffix("_text").replace("_", "")
    return any(name.replace("_", "").lower().startswith(stem) for name in conversion.TEXT_MODEL_MAP)


def ask(config: dict[str, Any], question: dict[str, Any]) -> protocol.Answer:
    """Return what llama.cpp computes from the file that its converter writes for a config.

    The docstring of `probe_protocol` explains the keys of a question and of an answer.

    Args:
        config: The whole config.json.
        question: The context in tokens.
    """
    part = config.get("text_config", config)
    kinds = part.get("layer_types")
    if config["model_type"] in UNSEEN:
        raise protocol.Unseen(
            "untested: its converter requires keys that the test config does not have"
        )
    if part["model_type"] == "exaone4" and kinds and "sliding_attention" in kinds:
        # as every one with windows has
        part |= {"layer_types": (kinds * 64)[:64], "num_hidden_layers": 64}
    try:
        arch, keys, vectors = convert(config)
    except protocol.NoModel:
        # published configs of a vision model name the class of their text model
        text = config.get("thinker_config", config).get("text_config")
        if text is None or text.get("architectures") or not _names_a_class(text["model_type"]):
            raise
        raise protocol.Unseen(
            "untested: the test config does not name the class of its text model"
        ) from None
    if arch not in ARCHS:
        raise protocol.Unseen(
            f"it converts to {arch}, of which nobody has read here what the library does with it"
        )

    # the keys about RoPE, for people who look at an answer
    about_rope = ("rope.", "attention.sliding", "attention.temperature", "context_length")
    shown = {}
    for key, value in keys.items():
        name = key.removeprefix(f"{arch}.")
        if name.startswith(about_rope):
            shown[name] = value
    try:
        answer = Model(arch, keys, vectors).answer(question["context"])
    except LoadError as error:
        raise protocol.Refused("load", error) from None
    return {**answer, "arch": arch, "keys": shown, "tensors": sorted(vectors)}
