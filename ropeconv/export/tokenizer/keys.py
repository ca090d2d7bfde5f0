"""The tokenizer.ggml.* keys from the files of a tokenizer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadSource, shown
from ...formats.gguf import Value, boolean, f32_array, string
from ...formats.gguf.values import i32_array, strings
from ..writer import values_of
from .files import Added, TokenizerConfig, TokenizerJson, read
from .normalizer import COMPOSED, check_normalizer, composes
from .pre import check_name, recognise
from .sentencepiece import from_json, from_model
from .tokens import Kind, Tokens


def tokenizer_keys(folder: Path, vocabulary: int, names: dict[str, str], pre: str = "") -> dict[str, Value]:
    """The keys of the tokenizer in a folder.

    folder: with tokenizer.json or tokenizer.model. vocabulary: rows of the embeddings. names: of pre-tokenizers that
    the family calls otherwise. pre: tokenizer.ggml.pre from the user, or empty. Raises BadSource where there is no
    tokenizer, or one that llama.cpp does not have, and UsageError for a `pre` that llama.cpp does not take.
    """
    if pre:
        check_name(pre)
    model, data = folder / "tokenizer.model", read(folder / "tokenizer.json", TokenizerJson)
    pieces = from_model(model, vocabulary) if model.is_file() else None
    if pieces is None and data is not None and data.kind.byte_fallback:
        pieces = from_json(data, vocabulary)
    if pieces is not None:
        tokens, prefix_space = pieces
        tokens.add(_added(folder, data))
        found = {"tokenizer.ggml.model": string("llama"), "tokenizer.ggml.pre": string(pre or "default")}
        found |= _lists(tokens, scores=True)
        found["tokenizer.ggml.add_space_prefix"] = boolean(prefix_space)
        return found | _special(folder, vocabulary, merges=False)
    if data is None:
        raise BadSource(
            "there is neither tokenizer.json nor a SentencePiece tokenizer.model here; fetch the tokenizer too"
        )
    if data.kind.type != "BPE":
        raise BadSource(f"tokenizer.json holds a {data.kind.type} model, and only BPE is converted to GGUF")
    check_normalizer(data.normalizer, COMPOSED)
    name = pre or recognise(data, names)
    tokens = Tokens.unused(vocabulary)
    for text, index in data.bpe.vocab.items():
        tokens.put(index, text, Kind.NORMAL)
    tokens.add(_added(folder, data))
    found = {"tokenizer.ggml.model": string("gpt2"), "tokenizer.ggml.pre": string(name)}
    found |= _lists(tokens, scores=False)
    return found | _special(folder, vocabulary, merges=True)


def composes_characters(folder: Path, keys: dict[str, Value]) -> bool:
    """Whether the byte-level tokenizer in a folder composes characters (NFC), which llama.cpp does not do.

    keys: of the same tokenizer, from `tokenizer_keys`.
    """
    data = read(folder / "tokenizer.json", TokenizerJson)
    return data is not None and keys["tokenizer.ggml.model"].decode() == "gpt2" and composes(data.normalizer)


def _added(folder: Path, data: TokenizerJson | None) -> list[Added]:
    if data is not None:
        return list(data.added_tokens or ())
    found = read(folder / "tokenizer_config.json", TokenizerConfig)
    known = (found.added_tokens_decoder if found else None) or {}
    return [msgspec.structs.replace(entry, id=index) for index, entry in known.items()]


def _lists(tokens: Tokens, scores: bool) -> dict[str, Value]:
    found = {"tokenizer.ggml.tokens": strings(tokens.texts)}
    if scores:
        found["tokenizer.ggml.scores"] = f32_array(tokens.scores)
    return found | {"tokenizer.ggml.token_type": i32_array(tokens.kinds)}


def _special(folder: Path, vocabulary: int, merges: bool) -> dict[str, Value]:
    """The keys that gguf-py makes: merges, ids of special tokens, whether bos and eos are added, the chat template."""
    import gguf

    logging.getLogger("gguf").setLevel(logging.CRITICAL)

    def fill(writer: Any) -> None:
        try:
            gguf.SpecialVocab(folder, merges, n_vocab=vocabulary).add_to_gguf(writer, quiet=True)
        except Exception as problem:  # of gguf-py, which does not check the types of what it reads
            raise BadSource(
                f"gguf-py cannot read the special tokens ({type(problem).__name__}: {shown(str(problem))}); correct "
                "tokenizer_config.json, tokenizer.json or config.json"
            ) from None

    return values_of(fill)
