"""Tokenizer files of Meta's releases: SentencePiece up to Llama 2, a tiktoken vocabulary from Llama 3 on."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from ...environment import require
from ...errors import BadSource
from ...formats.jsontext import JsonObject

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
    return len(first) == 2 and first[1].isdigit() and _base64(first[0])


def vocabulary_size(path: Path) -> int:
    """Number of tokens in a tokenizer.model, special ones included.

    Raises BadSource for a file that is neither SentencePiece nor tiktoken, or without sentencepiece for the former.
    """
    if path.stat().st_size > MOST_BYTES:
        raise BadSource(f"{path.name} has more than {MOST_BYTES:,} bytes, too many for a tokenizer; download it again")
    if is_tiktoken(path):
        return _ranks(path) + SPECIALS
    import sentencepiece

    try:
        return int(sentencepiece.SentencePieceProcessor(model_file=str(path)).vocab_size())
    except (RuntimeError, OSError, UnicodeError):  # the last where the message of an error is not UTF-8
        raise BadSource(f"{path.name} is neither SentencePiece nor tiktoken; download it again") from None


def _ranks(path: Path) -> int:
    """Number of tokens of a tiktoken vocabulary. Raises BadSource for lines that are not base64 and rank in order."""
    with path.open("rb") as file:
        lines = [line.split() for line in file if line.strip()]
    for rank, line in enumerate(lines):
        if len(line) != 2 or len(line[0]) > MOST_LETTERS or line[1] != str(rank).encode() or not _base64(line[0]):
            raise BadSource(f"{path.name} is not a tiktoken vocabulary (line {rank + 1}); download it again")
    return len(lines)


def _base64(text: bytes) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def special_tokens(version: float) -> list[str]:
    """The 256 special tokens of Llama 3 or 3.1, in the order of their ids. Source: Meta llama3/tokenizer.py."""

    def reserved(start: int, stop: int) -> list[str]:
        return [f"<|reserved_special_token_{number}|>" for number in range(start, stop)]

    if version >= 3.1:
        names = ["<|begin_of_text|>", "<|end_of_text|>", *reserved(0, 2), "<|finetune_right_pad_id|>", *reserved(2, 3)]
        names += ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
        return names + reserved(3, 3 + SPECIALS - len(names))
    names = ["<|begin_of_text|>", "<|end_of_text|>", *reserved(0, 4), "<|start_header_id|>", "<|end_header_id|>"]
    names += [*reserved(4, 5), "<|eot_id|>"]
    return names + reserved(5, 5 + SPECIALS - len(names))


def tokenizer_config(version: float, context: int) -> JsonObject:
    """tokenizer_config.json of the HF checkpoints of a Llama version, without a chat template. context: in tokens."""
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


def write_tokenizer_json(model: Path, target: Path, version: float) -> None:
    """Writes tokenizer.json for a tiktoken vocabulary with the converter of transformers.

    model: the vocabulary. target: the file to write. version: of Llama. The tokenizer puts the beginning-of-text token
    first, as in the HF checkpoints. Raises BadSource where transformers is not installed.
    """
    for package in ("tokenizers", "transformers", "tiktoken"):
        require(package, "converting a Llama 3 tokenizer", "meta")
    from tokenizers import processors
    from transformers.convert_slow_tokenizer import TikTokenConverter

    names = special_tokens(version)
    # transformers 5 renamed the argument; either version ignores the other's
    specials = {"extra_special_tokens": names, "additional_special_tokens": names}
    try:
        tokenizer = TikTokenConverter(vocab_file=str(model), pattern=PATTERN, **specials).converted()
    except Exception as problem:  # of transformers, for tokens that are there twice and the like
        raise BadSource(f"{model.name} cannot be converted ({type(problem).__name__}); download it again") from None
    begin = tokenizer.token_to_id(names[0])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{names[0]} $A", pair=f"{names[0]}:0 $A:0 {names[0]}:1 $B:1", special_tokens=[(names[0], begin)]
            ),
        ]
    )
    tokenizer.save(str(target))
