"""SentencePiece vocabularies, from tokenizer.model or from the BPE model in tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import BadSource
from .tokens import Kind, Tokens, is_byte

SPACE = "▁"


def from_model(path: Path, vocabulary: int) -> tuple[Tokens, bool] | None:
    """The tokens of a tokenizer.model, and whether it puts a space before the text; None where it is not SentencePiece.

    vocabulary: rows of the embeddings. Raises BadSource where it has more tokens than these.
    """
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    try:
        processor.LoadFromFile(str(path))
    except (RuntimeError, OSError):
        return None  # Llama 3 has a table of tiktoken under this name
    tokens = Tokens.unused(vocabulary)
    for index in range(processor.vocab_size()):
        kind = Kind.NORMAL
        if processor.IsUnknown(index):
            kind = Kind.UNKNOWN
        elif processor.IsControl(index):
            kind = Kind.CONTROL
        elif processor.IsUnused(index):
            kind = Kind.UNUSED
        elif processor.IsByte(index):
            kind = Kind.BYTE
        tokens.put(index, processor.IdToPiece(index), kind, processor.GetScore(index))
    return tokens, processor.EncodeAsPieces("a")[:1] != ["a"]


def from_json(data: dict[str, Any], vocabulary: int) -> tuple[Tokens, bool]:
    """The tokens of a tokenizer.json with byte fallback, and whether it puts a space before the text.

    data: the content of the file. vocabulary: rows of the embeddings. llama.cpp joins the pair whose result has the
    highest score, so a token's score is minus the rank of its first merge. Raises BadSource where spaces are not
    written as SentencePiece writes them.
    """
    model, unknown = data["model"], data["model"].get("unk_token")
    if not any(SPACE in text for text in model["vocab"]):
        raise BadSource(
            "tokenizer.json has byte fallback without SentencePiece's spaces; this mixture is not converted"
        )
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model.get("merges", [])):
        left, right = merge if isinstance(merge, list) else merge.split(" ", 1)
        ranks.setdefault(left + right, rank)
    tokens = Tokens.unused(vocabulary)
    for text, index in model["vocab"].items():
        kind = Kind.UNKNOWN if text == unknown else Kind.BYTE if is_byte(text) else Kind.NORMAL
        tokens.put(index, text, kind, -float(ranks[text]) if text in ranks else -float(len(ranks)))
    return tokens, _prefix_space(data)


def _prefix_space(data: dict[str, Any]) -> bool:
    """Whether a space is put before the text, by the normalizer or by the pre-tokenizer."""
    normalizer = data.get("normalizer") or {}
    parts = [normalizer, *normalizer.get("normalizers", [])]
    if any(part.get("type") == "Prepend" for part in parts):
        return True
    cutter = data.get("pre_tokenizer") or {}
    return cutter.get("type") == "Metaspace" and cutter.get("prepend_scheme", "always") != "never"
