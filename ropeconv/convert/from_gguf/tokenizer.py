"""tokenizer.json and tokenizer_config.json from the keys of a GGUF file.

Byte-level BPE and SentencePiece are converted.
"""

import json
from collections.abc import Iterator
from typing import Any

from ...errors import BadSource, UnsupportedBake
from ...formats.gguf.file import GgufFile
from ...formats.jsontext import JsonObject
from ...models.family import Family
from ...rope.errors import shown
from ..to_gguf.tokenizer import Pre, pre_table
from ..to_gguf.vocabulary import SPACE, TokenKind

ADDED = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
    "mask": "mask",
}
"""Special tokens of transformers, and their names in GGUF."""
TAKE_TOKENIZER = "take the tokenizer of the checkpoint that the file was made from"
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


def tokenizer_text(file: GgufFile, family: Family) -> str:
    """Return the text of tokenizer.json for the tokenizer that a GGUF file has in its keys.

    Args:
        file: The GGUF file.
        family: The family of the model, which may have other names for pre-tokenizers.

    Raises:
        UnsupportedBake: For a tokenizer that is neither SentencePiece's BPE nor byte-level BPE with
            a known pre-tokenizer.
    """
    # llama.cpp's names of the two kinds are those of the models that had them first
    model = file.get("tokenizer.ggml.model")
    make_parts = {"llama": _sentencepiece, "gpt2": _byte_level}
    if model not in make_parts:
        why = f"only {' and '.join(make_parts)} are converted back"
        raise UnsupportedBake(
            f"a tokenizer of the kind {shown(model)}", "tokenizer.json", why, TAKE_TOKENIZER
        )

    # the tokens, and the kind of each: normal, control, unknown, ...
    texts = _texts(file)
    kinds = file.get("tokenizer.ggml.token_type", [TokenKind.NORMAL] * len(texts))
    if not isinstance(kinds, list) or len(kinds) != len(texts):
        raise BadSource(
            f"{file.name} has {len(texts)} tokens and another number of their kinds; download it"
            " again"
        )
    parts = make_parts[model](file, family, texts, kinds)

    # tokenizer.json lists special tokens apart too (added_tokens), with a space in place of the
    # U+2581 that SentencePiece has for one in all tokens
    texts_with_spaces = texts
    if model == "llama":
        texts_with_spaces = [text.replace(SPACE, " ") for text in texts]
    added = _added_tokens(texts_with_spaces, kinds)
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts}
    return json.dumps(whole, ensure_ascii=False)


def _added_tokens(texts: list[str], kinds: list[int]) -> list[JsonObject]:
    """The tokens that are found in a text before it is split into words, such as <s> and <unk>."""
    added = []
    for index, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if kind not in (*ADDED, TokenKind.UNKNOWN):
            continue
        token: JsonObject = {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TokenKind.CONTROL,
        }
        added.append(token)
    return added


def tokenizer_config(file: GgufFile, context: int) -> JsonObject:
    """Return the content of tokenizer_config.json; `context` is in tokens."""
    # the class that takes everything from tokenizer.json; those of families add rules of their own
    texts = _texts(file)
    config: JsonObject = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "add_bos_token": bool(_adds(file, "bos")),
        "add_eos_token": bool(_adds(file, "eos")),
    }

    for name, role in ROLES.items():
        index = file.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(index, int) and 0 <= index < len(texts):
            config[f"{name}_token"] = texts[index]
    template = file.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template

    return config


def _texts(file: GgufFile) -> list[str]:
    """The text of each token."""
    texts = file.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadSource(
            f"{file.name} has no vocabulary in tokenizer.ggml.tokens; download it again"
        )
    return texts


def _vocabulary(texts: list[str], kinds: list[int]) -> dict[str, int]:
    """The id of each token by its text, without rows of the embeddings that no token uses."""
    # converters fill rows of the embeddings that have no token with [PAD5], [PAD6], ...
    ids = {}
    for index, text in enumerate(texts):
        if kinds[index] != TokenKind.UNUSED or text != f"[PAD{index}]":
            ids[text] = index
    return ids


def _byte_level(file: GgufFile, family: Family, texts: list[str], kinds: list[int]) -> JsonObject:
    """Return the parts of tokenizer.json for byte-level BPE, as GPT-2, Llama 3 and Qwen use it.

    Args:
        file: The GGUF file.
        family: The family of the model.
        texts: The text of each token.
        kinds: The `TokenKind` of each token.
    """
    # The rules by which a text is split into words, by their name, tokenizer.ggml.pre. A family may
    # have another name for the same rules: a file of Command R says "command-r" for the rules that
    # are called "starcoder", and its `family.gguf.pre` is {"starcoder": "command-r"}.
    name_in_file = file.get("tokenizer.ggml.pre")
    name_of_rules = name_in_file
    second_names = {} if family.gguf is None else family.gguf.pre
    for first_name, second_name in second_names.items():
        if second_name == name_in_file:
            name_of_rules = first_name
    rules = _find_pre_tokenizer(name_of_rules)

    # the pairs of tokens that are merged, in the order of their priority
    merges = file.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise BadSource(f"{file.name} has no tokenizer.ggml.merges; download it again")
    model = bpe_model(_vocabulary(texts, kinds), merges)
    model["ignore_merges"] = rules.ignore_merges

    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(_steps_of(rules))},
        "post_processor": _post_processor(file, texts),
        # a decoder ignores these settings; tokenizers writes use_regex = true, its default
        "decoder": BYTE_LEVEL | {"use_regex": True},
        "model": model,
    }


def _find_pre_tokenizer(name: Any) -> Pre:
    """The rules by which llama.cpp splits a text into words, by their name in pre.toml.

    Raises:
        UnsupportedBake: The table does not have the name.
    """
    for pre in pre_table().pre:
        if pre.name == name:
            return pre
    raise UnsupportedBake(
        f"tokenizer.ggml.pre = {shown(name)}",
        "tokenizer.json",
        "it is not in the table",
        TAKE_TOKENIZER,
    )


def bpe_model(vocabulary: dict[str, int], merges: list[Any]) -> JsonObject:
    """Return the "model" of a tokenizer.json for BPE, with defaults for its further settings."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _steps_of(pre: Pre) -> Iterator[JsonObject]:
    """Yield the steps of a pre-tokenizer in the form of tokenizer.json; the last one is ByteLevel.

    An entry of pre.toml has steps such as ("digits", "gpt2"). For this one, the steps are a Digits,
    which makes a word of each digit, and a ByteLevel with GPT-2's regular expression.
    """
    for step in pre.steps:
        kind, _, pattern = step.partition(" ")
        if kind == "split":
            yield {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            }
        elif kind in ("digits", "numbers"):
            yield {"type": "Digits", "individual_digits": kind == "digits"}
        elif kind == "punctuation":
            yield {"type": "Punctuation", "behavior": "Contiguous"}
        elif kind == "gpt2":
            yield BYTE_LEVEL | {"use_regex": True}

    # the text is cut already, and only its bytes become letters of the vocabulary ("Ġ" for a space)
    if "gpt2" not in pre.steps:
        yield BYTE_LEVEL | {"use_regex": False}


def _adds(file: GgufFile, role: str) -> bool:
    """Whether llama.cpp adds a special token to every text: "bos" before it, or "eos" behind."""
    added = file.get(f"tokenizer.ggml.add_{role}_token")
    if added is not None:
        return bool(added)
    # llama-vocab.cpp: add_bos of SPM
    return role == "bos" and file.get("tokenizer.ggml.model") == "llama"


def _post_processor(file: GgufFile, texts: list[str]) -> JsonObject | None:
    """The template that puts special tokens around a text, such as `<s> $A`; None without them."""
    # bos before a text and eos behind it, if llama.cpp adds them to a text
    around: dict[str, list[JsonObject]] = {"bos": [], "eos": []}
    special: JsonObject = {}
    for role in around:
        index = file.get(f"tokenizer.ggml.{role}_token_id")
        is_token = isinstance(index, int) and 0 <= index < len(texts)
        if is_token and _adds(file, role):
            text = texts[index]
            around[role] = [{"SpecialToken": {"id": text, "type_id": 0}}]
            special[text] = {"id": text, "ids": [index], "tokens": [text]}
    if not special:
        return None

    # each text of a pair has them around it
    first_text = {"Sequence": {"id": "A", "type_id": 0}}
    second_text = {"Sequence": {"id": "B", "type_id": 1}}
    first = [*around["bos"], first_text, *around["eos"]]
    second = [*around["bos"], second_text, *around["eos"]]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": special,
    }


def _sentencepiece(
    file: GgufFile, family: Family, texts: list[str], kinds: list[int]
) -> JsonObject:
    """The parts of tokenizer.json for SentencePiece, as transformers converts its models.

    SentencePiece writes a space as the character U+2581. It may put one in front of a text, so that
    the first word is a token like the others, and decoding removes it again.

    Args:
        file: The GGUF file.
        family: The family of the model.
        texts: The text of each token.
        kinds: The `TokenKind` of each token.
    """
    scores = file.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(texts):
        raise BadSource(f"{file.name} has no scores of its {len(texts)} tokens; download it again")
    unknown_ids = _unknown_ids(kinds)
    unknown = texts[unknown_ids[0]] if unknown_ids else None

    # spaces become U+2581 and back
    normalizers: list[JsonObject] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    ]
    decoders: list[JsonObject] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    # llama.cpp puts the space in front where the key is absent
    if file.get("tokenizer.ggml.add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})

    # pieces are merged by their scores
    pieces = {text: index for index, text in enumerate(texts) if kinds[index] == TokenKind.NORMAL}
    model = bpe_model(_vocabulary(texts, kinds), _merges(pieces, scores))
    model |= {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _post_processor(file, texts),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _merges(pieces: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the merges of BPE that follow from a SentencePiece vocabulary with scores.

    llama.cpp joins the pair whose result has the highest score first. With the pieces l, o, w, ow
    (score -1) and low (score -2), the merges are (o, w) and then (l, ow).

    Args:
        pieces: Ids by the text of the piece.
        scores: The score of each token.
    """
    # every way to cut a piece into two pieces is a merge
    ranked = []
    for text, index in pieces.items():
        for cut in range(1, len(text)):
            left = text[:cut]
            right = text[cut:]
            if left in pieces and right in pieces:
                # the highest score first, and of equal scores those of earlier pieces
                rank = (-scores[index], pieces[left], pieces[right])
                ranked.append((rank, (left, right)))
    ranked.sort()
    return [merge for _, merge in ranked]


def _unknown_ids(kinds: list[int]) -> list[int]:
    return [index for index, kind in enumerate(kinds) if kind == TokenKind.UNKNOWN]
