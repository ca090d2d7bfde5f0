"""SentencePiece vocabularies, from tokenizer.model or from the BPE model in tokenizer.json."""

from __future__ import annotations

from pathlib import Path

from ...errors import BadSource
from ...formats.regular import read_bytes
from .files import TokenizerJson
from .tokens import Kind, Tokens, is_byte

SPACE = "▁"


def from_model(path: Path, vocabulary: int) -> tuple[Tokens, bool] | None:
    """The tokens of a tokenizer.model, and whether it puts a space before the text; None where it is not SentencePiece.

    vocabulary: rows of the embeddings. Raises BadSource where it has more tokens than these, or is too long.
    """
    from sentencepiece import SentencePieceProcessor

    content, processor = read_bytes(path, path.name), SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
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


def from_json(data: TokenizerJson, vocabulary: int) -> tuple[Tokens, bool]:
    """The tokens of a tokenizer.json with byte fallback, and whether it puts a space before the text.

    data: the content of the file. vocabulary: rows of the embeddings. llama.cpp joins the pair whose result has the
    highest score, so a token's score is minus the rank of its first merge. Raises BadSource where spaces are not
    written as SentencePiece writes them.
    """
    model = data.bpe
    if not any(SPACE in text for text in model.vocab):
        raise BadSource(
            "tokenizer.json has byte fallback without SentencePiece's spaces; this mixture is not converted"
        )
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model.merges):
        joined = merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
        ranks.setdefault(joined, rank)
    tokens = Tokens.unused(vocabulary)
    for text, index in model.vocab.items():
        kind = Kind.UNKNOWN if text == model.unk_token else Kind.BYTE if is_byte(text) else Kind.NORMAL
        tokens.put(index, text, kind, -float(ranks[text]) if text in ranks else -float(len(ranks)))
    return tokens, _prefix_space(data)


def _prefix_space(data: TokenizerJson) -> bool:
    """Whether a space is put before the text, by the normalizer or by the pre-tokenizer."""
    parts = (data.normalizer, *data.normalizer.normalizers) if data.normalizer else ()
    if any(part.type == "Prepend" for part in parts):
        return True
    cutter = data.pre_tokenizer
    return cutter is not None and cutter.type == "Metaspace" and cutter.prepend_scheme != "never"
