"""SentencePiece vocabularies, from tokenizer.model or from the BPE model in tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import BadSource, shown
from ...formats.regular import read_bytes
from .files import TokenizerJson
from .normalizer import SPACES, check_normalizer
from .tokens import SPACE, Kind, Tokens, is_byte


def from_model(path: Path, vocabulary: int) -> tuple[Tokens, bool] | None:
    """The tokens of a tokenizer.model, and whether it puts a space before the text; None where it is not SentencePiece.

    vocabulary: rows of the embeddings. Raises BadSource where it has more tokens than these, is too long, or cuts text
    in a way that llama.cpp does not.
    """
    from sentencepiece import SentencePieceProcessor

    content, processor = read_bytes(path, path.name), SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
    except (RuntimeError, OSError, UnicodeError):  # the last where the message of an error is not UTF-8
        return None  # Llama 3 has a table of tiktoken under this name
    _check_model(content)
    tokens = Tokens.unused(vocabulary)
    try:
        _put_all(tokens, processor)
    except UnicodeError:
        raise BadSource(f"{path.name} has a piece that is not UTF-8; download it again") from None
    return tokens, processor.EncodeAsPieces("a")[:1] != ["a"]


def _put_all(tokens: Tokens, processor: Any) -> None:
    """Puts the pieces of a SentencePiece processor into the tokens. Raises UnicodeError for one that is not UTF-8."""
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


def _check_model(content: bytes) -> None:
    """llama.cpp joins pieces by their scores, as BPE does, and normalizes nothing but spaces."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

    model = ModelProto.FromString(content)
    if model.trainer_spec.model_type != TrainerSpec.BPE:
        kind = TrainerSpec.ModelType.Name(model.trainer_spec.model_type).lower()
        raise BadSource(f"tokenizer.model is a SentencePiece {kind} model, and only BPE is converted to GGUF")
    rules = model.normalizer_spec
    if rules.precompiled_charsmap or rules.remove_extra_whitespaces:
        what = "removes extra spaces" if not rules.precompiled_charsmap else f"normalizes text by {shown(rules.name)}"
        raise BadSource(f"tokenizer.model {what}, which llama.cpp does not do, so its tokens would differ")


def from_json(data: TokenizerJson, vocabulary: int) -> tuple[Tokens, bool]:
    """The tokens of a tokenizer.json with byte fallback, and whether it puts a space before the text.

    data: the content of the file. vocabulary: rows of the embeddings. llama.cpp joins the pair whose result has the
    highest score, so a token's score is minus the rank of its first merge. Raises BadSource where spaces are not
    written as SentencePiece writes them, and for normalizers that llama.cpp does not have.
    """
    check_normalizer(data.normalizer, SPACES)
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
    if data.normalizer and any(step.type == "Prepend" for step in data.normalizer.steps):
        return True
    cutter = data.pre_tokenizer
    return cutter is not None and cutter.type == "Metaspace" and cutter.prepend_scheme != "never"
