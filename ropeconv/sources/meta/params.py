"""From Meta's params.json to config.json. The version of Llama and its context follow from other settings in it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...errors import BadSource
from ...families.config import Config

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Number = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class Params(msgspec.Struct, frozen=True):
    """params.json, with Meta's names and the defaults of Meta's code."""

    dim: Size
    n_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    n_heads: Size
    n_kv_heads: Size | None = None
    multiple_of: Size = 256
    ffn_dim_multiplier: Annotated[float, msgspec.Meta(gt=0, le=1000)] | None = None
    norm_eps: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1e-5
    rope_theta: Number = 10000.0
    use_scaled_rope: bool = False
    rope_scaling_factor: Number = 8.0
    vocab_size: Annotated[int, msgspec.Meta(ge=-1, le=1 << 24)] = -1

    @property
    def version(self) -> float:
        """The version of Llama: 1, 2, 2.5 for Code Llama, 3 or 3.1, by the settings that differ."""
        if self.use_scaled_rope:
            return 3.1
        if self.rope_theta == 500000.0:
            return 3
        if self.rope_theta == 1000000.0:
            return 2.5
        return 1 if self.norm_eps == 1e-6 else 2

    @property
    def trained_context(self) -> int:
        """Tokens that the release was trained for, before RoPE scaling."""
        return {1: 2048, 2: 4096, 2.5: 16384, 3: 8192, 3.1: 8192}[self.version]

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layers: 8/3 dim, times ffn_dim_multiplier, rounded up to a multiple_of."""
        hidden = int(8 * self.dim / 3)
        if self.ffn_dim_multiplier:
            hidden = int(self.ffn_dim_multiplier * hidden)
        return self.multiple_of * -(-hidden // self.multiple_of)


def hf_config(params: Params, vocab_size: int, dtype: str) -> Config:
    """A `LlamaForCausalLM` config for Meta's parameters.

    params: params.json. vocab_size: number of tokens of the tokenizer, since params.json of Llama 2 has -1. dtype: of
    the weights, as torch names it. Raises BadSource for sizes that do not divide.
    """
    kv_heads = params.n_kv_heads or params.n_heads
    if params.dim % params.n_heads or params.n_heads % kv_heads:
        raise BadSource(
            f"params.json has dim {params.dim}, n_heads {params.n_heads} and n_kv_heads {kv_heads}, which do not "
            "divide; download it again"
        )
    version = params.version
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000 if version >= 3 else 1,
        "eos_token_id": 128001 if version >= 3 else 2,
        "head_dim": params.dim // params.n_heads,
        "hidden_act": "silu",
        "hidden_size": params.dim,
        "initializer_range": 0.02,
        "intermediate_size": params.intermediate_size,
        "max_position_embeddings": params.trained_context,
        "model_type": "llama",
        "num_attention_heads": params.n_heads,
        "num_hidden_layers": params.n_layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": params.norm_eps,
        "rope_scaling": None,
        "rope_theta": params.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    if params.use_scaled_rope:
        config["max_position_embeddings"] = 131072
        config["rope_scaling"] = {
            "factor": params.rope_scaling_factor,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        }
    return config
