"""The tokenizer of a tiny model: bytes, and merges of letters up to the size of its vocabulary.

Packets are compared by token ids; engines and the converter to GGUF only want a tokenizer.
"""

from __future__ import annotations

import json
from string import ascii_lowercase

from ropeconv.convert.from_gguf.tokenizer import bpe_model

SPECIAL = ("<unk>", "<s>", "</s>", "<|endoftext|>")
"""The first tokens."""
LETTER = len(SPECIAL) + ord("a")
"""A token whose text is a letter: the bytes follow the special tokens."""


def tokenizer_files(vocabulary: int) -> dict[str, str]:
    """Return the files of a small byte-level BPE tokenizer, by name.

    It has a token for each byte, and for as many pairs of letters ("aa", "ab", ...) as fit.

    Args:
        vocabulary: How many tokens it has, at least 260.
    """
    tokens = [*SPECIAL, *_byte_letters()]
    pairs = []
    for first in ascii_lowercase:
        for second in ascii_lowercase:
            pairs.append((first, second))
    merges = pairs[: vocabulary - len(tokens)]
    tokens += [first + second for first, second in merges]

    # tokenizer.json, in the format of the tokenizers library
    added = []
    for index, text in enumerate(SPECIAL):
        entry = {"id": index, "content": text, "special": True}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({**entry, **flags})
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": bpe_model(
            {token: index for index, token in enumerate(tokens)}, [list(pair) for pair in merges]
        ),
    }
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<unk>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": json.dumps(document, indent=1) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def _byte_letters() -> list[str]:
    """Return the letters that stand for the 256 bytes in byte-level BPE, by byte.

    Printable bytes stand for themselves, others for letters from U+0100 on (encoder.py of GPT-2).
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters = []
    others = 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + others))
            others += 1
    return letters
