"""The purpose of a GGUF file: text, embeddings, ranking, or masks that are filled in."""

from math import gcd

from ...models.purpose import Purpose
from ...models.schema import Config
from ...rope.spec import RopeSpec
from .archs import Arch, HeaderKeys, arch_table

RANKS = 4
"""`pooling_type` of models that score a document: LLAMA_POOLING_TYPE_RANK of llama.h."""
STEPS = 256
"""Steps of llama-diffusion-cli by default: common/arg.cpp, --diffusion-steps."""
SHORTEST_BLOCK = 32
"""Tokens of a block in examples/diffusion/README.md of llama.cpp."""


def purpose_of(keys: HeaderKeys, arch: Arch) -> Purpose:
    """Return what a GGUF model is run for.

    `attention.causal` and `pooling_type` are read for every architecture (llama.cpp,
    src/llama-model.cpp).

    Args:
        keys: The keys of its header.
        arch: Its architecture.
    """
    if arch.name in arch_table().diffusion:
        return "diffusion"
    # a decoder can be made to embed texts (Qwen3-Embedding), by its pooling or its attention
    pooling = keys.get(f"{arch.name}.pooling_type", 0)
    if pooling == RANKS:
        return "ranking"
    if predicts_no_next_token(keys, arch) or pooling:
        return "embedding"
    return "text"


def predicts_no_next_token(keys: HeaderKeys, arch: Arch) -> bool:
    """Whether a GGUF model reads in both directions: an encoder, or a diffusion model."""
    is_causal = keys.get(f"{arch.name}.attention.causal", True)
    return arch.name in {*arch_table().encoders, *arch_table().diffusion} or not is_causal


def gives_no_logits(keys: HeaderKeys, arch: Arch) -> bool:
    """Whether llama.cpp gives hidden states of a GGUF model and no logits: it is an encoder.

    Diffusion models give logits, of the tokens in the places of their masks.
    """
    return predicts_no_next_token(keys, arch) and arch.name not in arch_table().diffusion


def masks_otherwise(part: Config, arch: str, spec: RopeSpec) -> bool:
    """Whether llama.cpp would hide other tokens than transformers from a layer with a window.

    That is so for a decoder whose config switches its causal mask off. llama.cpp hides the tokens
    before a window only (is_masked_swa in llama-hparams.cpp), and transformers those after it too
    (create_bidirectional_sliding_window_mask). Architectures of encoders, such as EmbeddingGemma,
    have a window in both directions.

    Args:
        part: The part of config.json about the text model.
        arch: The architecture of the model in GGUF.
        spec: Its RoPE.
    """
    is_decoder = arch not in arch_table().encoders
    return is_decoder and part.get("is_causal") is False and any(spec.windows)


def diffusion_schedule(arch: str, tokens: int) -> str:
    """Return the option that llama-diffusion-cli needs to generate text with an architecture.

    Dream needs the smallest time of its schedule, "--diffusion-eps 0.001". LLaDA generates text in
    blocks, and needs their length, such as "--diffusion-block-length 32". The program has two
    conditions (examples/diffusion/diffusion.cpp): all blocks have equal lengths, and each gets an
    equal number of the 256 steps.

    Args:
        arch: The name of the architecture.
        tokens: The tokens of prompt and answer.
    """
    # Dream
    if arch_table().diffusion[arch] == "time":
        return "--diffusion-eps 0.001"

    # LLaDA: as many blocks as divide both the tokens and the steps, a power of 2; and fewer, if
    # they are shorter than 32 tokens
    blocks = gcd(tokens, STEPS)
    while blocks > 1 and tokens // blocks < SHORTEST_BLOCK:
        blocks //= 2
    return f"--diffusion-block-length {tokens // blocks}"
