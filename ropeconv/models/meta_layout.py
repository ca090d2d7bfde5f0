"""Llama in the HF layout, from Meta's params.json and tokenizer.model.

Config, tensors and tokenizer files follow. The version of Llama and its context follow from other
settings in params.json. Tokenizers are SentencePiece up to Llama 2, a tiktoken vocabulary from
Llama 3 on.
"""

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from ..environment import Requirement
from ..errors import BadSource
from ..formats.jsontext import JsonObject
from .folder import ConvertedTensor
from .schema import Config

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Number = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


TRAINED = {1: 2048, 2: 4096, 2.5: 16384, 3: 8192, 3.1: 8192}
"""Tokens that each version of Llama was trained for, before RoPE scaling."""


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
        if self.norm_eps == 1e-6:
            return 1
        return 2

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layers: 8/3 dim, times ffn_dim_multiplier, rounded up."""
        hidden = int(8 * self.dim / 3)
        if self.ffn_dim_multiplier:
            hidden = int(self.ffn_dim_multiplier * hidden)
        return self.multiple_of * -(-hidden // self.multiple_of)


def hf_config(params: Params, vocab_size: int, dtype: str) -> Config:
    """Return the config.json of a `LlamaForCausalLM`, from Meta's params.json.

    Args:
        params: params.json.
        vocab_size: Number of tokens of the tokenizer, since params.json of Llama 2 has -1.
        dtype: The dtype of the weights, as torch names it.

    Raises:
        BadSource: For sizes that do not divide.
    """
    kv_heads = params.n_kv_heads or params.n_heads
    if params.dim % params.n_heads or params.n_heads % kv_heads:
        raise BadSource(
            f"params.json has dim {params.dim}, n_heads {params.n_heads} and n_kv_heads {kv_heads},"
            " which do not divide; download it again"
        )

    version = params.version
    bos_token = 1
    eos_token = 2
    if version >= 3:  # special_tokens: <|begin_of_text|> and <|end_of_text|>
        bos_token = 128000
        eos_token = 128001
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": bos_token,
        "eos_token_id": eos_token,
        "head_dim": params.dim // params.n_heads,
        "hidden_act": "silu",
        "hidden_size": params.dim,
        "initializer_range": 0.02,
        "intermediate_size": params.intermediate_size,
        "max_position_embeddings": TRAINED[version],
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

    # constants in Meta's code (apply_scaling in model.py), which params.json does not have
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


DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class TensorTarget(ConvertedTensor):
    """One tensor of the output, in the HF layout."""

    origin: str
    """Its name in Meta's files."""

    join: int | None
    """Axis along which the parts are concatenated, None where every part has the whole tensor."""

    head: int = 0
    """Rows of a head of q and k, whose pairs (2i, 2i + 1) become (i, i + d/2); 0 for others."""


def targets(config: Config) -> Iterator[TensorTarget]:
    """Yield every tensor of a Llama in the HF layout, in the order in which transformers has them.

    Meta divides each tensor between several files. `join` is the axis along which the parts are
    joined again: 0 for rows, 1 for columns, None for a norm, which each file has as a whole. `head`
    is the number of rows of a head of queries or keys, whose rows are reordered, and 0 for others.
    """
    dim = config["hidden_size"]
    inner = config["intermediate_size"]
    vocab = config["vocab_size"]
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    width = config["head_dim"]
    dtype = DTYPES[config["torch_dtype"]]

    yield TensorTarget(
        name="model.embed_tokens.weight",
        dtype=dtype,
        shape=(vocab, dim),
        origin="tok_embeddings.weight",
        join=1,  # as in Llama 2; Llama 3 has rows in each file, which shows in the shapes
    )
    for index in range(config["num_hidden_layers"]):
        new = f"model.layers.{index}."
        old = f"layers.{index}."
        # name in transformers, name in Meta's files, shape, `join`, `head`
        for name, origin, shape, join, head in (
            ("self_attn.q_proj", "attention.wq", (heads * width, dim), 0, width),
            ("self_attn.k_proj", "attention.wk", (kv_heads * width, dim), 0, width),
            ("self_attn.v_proj", "attention.wv", (kv_heads * width, dim), 0, 0),
            ("self_attn.o_proj", "attention.wo", (dim, heads * width), 1, 0),
            ("mlp.gate_proj", "feed_forward.w1", (inner, dim), 0, 0),
            ("mlp.up_proj", "feed_forward.w3", (inner, dim), 0, 0),
            ("mlp.down_proj", "feed_forward.w2", (dim, inner), 1, 0),
            ("input_layernorm", "attention_norm", (dim,), None, 0),
            ("post_attention_layernorm", "ffn_norm", (dim,), None, 0),
        ):
            yield TensorTarget(
                name=f"{new}{name}.weight",
                dtype=dtype,
                shape=shape,
                origin=f"{old}{origin}.weight",
                join=join,
                head=head,
            )

    yield TensorTarget(
        name="model.norm.weight", dtype=dtype, shape=(dim,), origin="norm.weight", join=None
    )
    yield TensorTarget(
        name="lm_head.weight", dtype=dtype, shape=(vocab, dim), origin="output.weight", join=0
    )


SPECIALS = 256
MOST_LETTERS = 2048  # of base64, for one token; conversion takes the square of the length
MOST_BYTES = 1 << 24
"""The most bytes of a tokenizer.model; Llama 3's has 2 million."""
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def is_tiktoken(path: Path) -> bool:
    """Whether the file is a tiktoken vocabulary: lines of base64 and rank."""
    with path.open("rb") as file:
        first = file.readline(4096).split()
    return len(first) == 2 and first[1].isdigit() and _is_base64(first[0])


def vocabulary_size(path: Path) -> int:
    """Return the number of tokens in a tokenizer.model, special ones included.

    The name is that of two formats: SentencePiece up to Llama 2, and tiktoken from Llama 3 on.

    Raises:
        BadSource: For a file that is neither SentencePiece nor tiktoken, or without sentencepiece
            for the former.
    """
    if path.stat().st_size > MOST_BYTES:
        raise BadSource(
            f"{path.name} has more than {MOST_BYTES:,} bytes, too many for a tokenizer; download it"
            " again"
        )
    if is_tiktoken(path):
        return _tiktoken_size(path)
    import sentencepiece

    try:
        return int(sentencepiece.SentencePieceProcessor(model_file=str(path)).vocab_size())
    except (RuntimeError, OSError, UnicodeError):
        # UnicodeError where the message of an error is not UTF-8
        raise BadSource(
            f"{path.name} is neither SentencePiece nor tiktoken; download it again"
        ) from None


def _tiktoken_size(path: Path) -> int:
    """Number of tokens of a tiktoken vocabulary, whose lines are in the order of the ranks."""
    lines = [line.split() for line in path.read_bytes().splitlines() if line.strip()]
    for rank, line in enumerate(lines):
        is_entry = len(line) == 2 and line[1] == str(rank).encode()
        if not is_entry or len(line[0]) > MOST_LETTERS or not _is_base64(line[0]):
            raise BadSource(
                f"{path.name} is not a tiktoken vocabulary (line {rank + 1}); download it again"
            )
    return len(lines) + SPECIALS


def _is_base64(text: bytes) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def special_tokens(version: float) -> list[str]:
    """Return the 256 special tokens of Llama 3 or 3.1, in the order of their ids.

    Source: Meta llama3/tokenizer.py.
    """

    def reserved(start: int, stop: int) -> list[str]:
        return [f"<|reserved_special_token_{number}|>" for number in range(start, stop)]

    if version >= 3.1:
        names = [
            "<|begin_of_text|>",
            "<|end_of_text|>",
            *reserved(0, 2),
            "<|finetune_right_pad_id|>",
            *reserved(2, 3),
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ]
        return names + reserved(3, 3 + SPECIALS - len(names))

    names = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        *reserved(0, 4),
        "<|start_header_id|>",
        "<|end_header_id|>",
        *reserved(4, 5),
        "<|eot_id|>",
    ]
    return names + reserved(5, 5 + SPECIALS - len(names))


def tokenizer_config(version: float, context: int) -> JsonObject:
    """Return tokenizer_config.json as in the HF checkpoints, without a chat template.

    Args:
        version: The version of Llama.
        context: In tokens.
    """
    if version >= 3:
        return {
            "bos_token": "<|begin_of_text|>",
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|end_of_text|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "legacy": False,
        "model_max_length": context,
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": "<unk>",
    }


def tokenizer_requirements(model: Path) -> tuple[Requirement, ...]:
    """Return what making tokenizer.json needs; nothing for SentencePiece, which stays."""
    if not is_tiktoken(model):
        return ()
    packages = ("tokenizers", "transformers", "tiktoken")
    return tuple(Requirement(package, "converting a Llama 3 tokenizer") for package in packages)


def write_tokenizer_json(model: Path, target: Path, version: float) -> None:
    """Write tokenizer.json for a tiktoken vocabulary with the converter of transformers.

    The tokenizer puts the beginning-of-text token first, as in the HF checkpoints.

    Args:
        model: The vocabulary.
        target: The file to write.
        version: The version of Llama.

    Raises:
        BadSource: Where transformers is not installed.
    """
    for requirement in tokenizer_requirements(model):
        requirement.check()
    from tokenizers import processors
    from transformers.convert_slow_tokenizer import TikTokenConverter

    names = special_tokens(version)
    # transformers 5 renamed the argument; either version ignores the other's
    specials = {"extra_special_tokens": names, "additional_special_tokens": names}
    try:
        tokenizer = TikTokenConverter(
            vocab_file=str(model), pattern=PATTERN, **specials
        ).converted()
    except Exception as problem:  # of transformers, for tokens that are there twice and the like
        raise BadSource(
            f"{model.name} cannot be converted ({type(problem).__name__}); download it again"
        ) from None

    begin = tokenizer.token_to_id(names[0])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{names[0]} $A",
                pair=f"{names[0]}:0 $A:0 {names[0]}:1 $B:1",
                special_tokens=[(names[0], begin)],
            ),
        ]
    )
    tokenizer.save(str(target))
