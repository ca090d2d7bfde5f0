"""The files of a tokenizer, and a vocabulary as in GGUF: text, kind and score of every token.

gguf.SpecialVocab makes the keys of special tokens and merges (tokenizer.py). The classes of
gguf.vocab that list tokens are not used: in gguf 0.19, BpeVocab makes every added token a control
token (Qwen's `<tool_call>` is not one), LlamaHfVocab gives every token the score -1000 and needs
transformers, and none fills the rows of the embeddings. SentencePieceVocab lists a tokenizer.model
with the same bytes as `from_model`, but it reads added_tokens.json without a limit, and does not
know the tokens that tokenizer_config.json adds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from ...errors import TOO_MANY, BadSource
from ...formats.files import read_bytes
from ...rope.errors import counted, shown

T = TypeVar("T")
MOST_BYTES_OF_OBJECTS = 300_000_000
"""Approximate bytes of a tokenizer's strings and lists in memory; Gemma 3 takes 160 million."""

Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""The id of a token."""
Merge = str | tuple[str, str]
"""Two tokens that BPE joins: `"a b"`, or in newer files `["a", "b"]`."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token that was added to a vocabulary."""

    content: str
    """Its text."""

    id: Id | None = None
    """Its id; None where it is the key under which the token is listed."""

    special: bool = False
    """Whether it is a control token, such as the end of the text."""


class Pattern(msgspec.Struct, frozen=True):
    """The text that a pre-tokenizer splits at, or a normalizer replaces: one of both."""

    Regex: str | None = None
    String: str | None = None


class PreTokenizer(msgspec.Struct, frozen=True):
    """A pre-tokenizer of any type, with the settings that are used here."""

    type: str = ""
    pretokenizers: tuple[PreTokenizer, ...] = ()
    add_prefix_space: bool | None = None
    use_regex: bool = True
    individual_digits: bool = False
    pattern: Pattern | None = None
    behavior: str = ""
    invert: bool = False
    prepend_scheme: str = "always"


class Normalizer(msgspec.Struct, frozen=True):
    """A normalizer of any type, with the settings that are used here."""

    type: str = ""
    normalizers: tuple[Normalizer, ...] = ()
    prepend: str = ""
    pattern: Pattern | None = None
    content: str = ""

    @property
    def steps(self) -> tuple[Normalizer, ...]:
        """The normalizers that it consists of, in order."""
        if self.type != "Sequence":
            return (self,)
        steps = list[Normalizer]()
        for inner in self.normalizers:
            steps += inner.steps
        return tuple(steps)


class ModelKind(msgspec.Struct, frozen=True):
    """The settings that every model of a tokenizer.json has."""

    type: str | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None


class Bpe(msgspec.Struct, frozen=True):
    """A model of the type BPE."""

    vocab: dict[str, Id] = {}
    """Ids by text."""

    merges: tuple[Merge, ...] = ()
    """Pairs, the first ones first."""

    unk_token: str | None = None


class TokenizerJson(msgspec.Struct, frozen=True):
    """tokenizer.json."""

    model: msgspec.Raw
    """Not decoded, since it differs by type."""

    added_tokens: tuple[AddedToken, ...] | None = None
    normalizer: Normalizer | None = None
    pre_tokenizer: PreTokenizer | None = None

    @property
    def kind(self) -> ModelKind:
        """The settings of the model.

        Raises:
            BadSource: Where it is not a model.
        """
        return decode_json(bytes(self.model), ModelKind, "the model of tokenizer.json")

    @property
    def bpe(self) -> Bpe:
        """The model as BPE.

        Raises:
            BadSource: Where it is not one.
        """
        return decode_json(bytes(self.model), Bpe, "the model of tokenizer.json")


class TokenizerConfig(msgspec.Struct, frozen=True):
    """tokenizer_config.json."""

    added_tokens_decoder: dict[Id, AddedToken] | None = None
    """By id."""


def read(path: Path, kind: type[T]) -> T | None:
    """Return a file as a typed value; None where it is absent.

    Raises:
        BadSource: Where it is too large or wrong.
    """
    if not path.is_file():
        return None
    return decode_json(read_bytes(path, path.name), kind, path.name)


def decode_json(data: bytes, kind: type[T], name: str) -> T:
    """Parse a JSON file of a tokenizer, such as tokenizer.json.

    Args:
        data: The content of the file.
        kind: The type of the result.
        name: The name of the file, for messages.

    Raises:
        BadSource: For a content that is not of this type, or too large for a tokenizer.
    """
    # Parsed JSON can need fifty times the memory of the text. The memory is estimated first, by the
    # bytes of Python objects: 80 for a string, 64 for a list or dict, and 16 for each entry.
    strings = data.count(b'"') / 2
    containers = data.count(b"[") + data.count(b"{")
    entries = data.count(b",")
    estimated_bytes = 80 * strings + 64 * containers + 16 * entries
    if estimated_bytes > MOST_BYTES_OF_OBJECTS:
        raise BadSource(f"{name} has more entries than any tokenizer; {TOO_MANY}")

    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise BadSource(
            f"{name} is not as tokenizers writes it ({problem}); download it again"
        ) from None


SPACE = "▁"
"""How SentencePiece writes a space."""


class TokenKind(IntEnum):
    """Kinds of tokens, with llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def looks_special(text: str) -> bool:
    """Return whether an added token is a control token, whatever tokenizer.json says of it.

    Publishers do not mark all control tokens. llama.cpp's converter has the same list of texts
    (conversion/base.py, does_token_look_special).
    """
    # DeepSeek Coder, and Gemma 2 and 3
    if text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    if text.startswith("<unused") and text.endswith(">"):
        return True

    # Command R; DeepSeek spells its tokens with U+FF5C, a wide bar
    if text.startswith("<|") and text.endswith("|>"):
        return True
    return text.startswith("<\uff5c") and text.endswith("\uff5c>")


@dataclass
class Vocabulary:
    """A vocabulary, as lists with an entry per token id."""

    texts: list[bytes]
    """The text of each token in UTF-8."""

    kinds: list[TokenKind]
    """The kind of each token."""

    scores: list[float]
    """The score of each token: SentencePiece joins the pair whose result has the highest."""

    @classmethod
    def of_size(cls, count: int) -> Vocabulary:
        """Return a vocabulary of `count` unused tokens, for embeddings with that many rows."""
        texts = [f"[PAD{index}]".encode() for index in range(count)]
        return cls(texts, [TokenKind.UNUSED] * count, [-10000.0] * count)

    def put(self, index: int, text: str, kind: TokenKind, score: float = 0.0) -> None:
        """Set the text, kind and score of a token.

        Raises:
            BadSource: For an id without a row in the embeddings.
        """
        if not 0 <= index < len(self.texts):
            raise BadSource(
                f"the tokenizer has a token {index} ({shown(text)}), and the embeddings have "
                f"{counted(len(self.texts), 'row')}; give the tokenizer of this model"
            )
        self.texts[index] = text.encode("utf-8", "replace")
        self.kinds[index] = kind
        self.scores[index] = score

    def add(self, added: list[AddedToken]) -> None:
        """Set the tokens that tokenizer.json lists apart from its vocabulary (added_tokens).

        Special ones, and ones that look special, become control tokens.

        llama.cpp searches for the others in the original text, so SentencePiece's U+2581 is a space
        in them (https://github.com/ggml-org/llama.cpp/pull/8228).

        Raises:
            BadSource: For one without an id, and as `put`.
        """
        for entry in added:
            text = entry.content
            index = entry.id
            if index is None:
                raise BadSource(
                    f"the added token {shown(text)} has no id; download tokenizer.json again"
                )
            # <unk> and <0x0A> of a SentencePiece model are among the added tokens of
            # tokenizer.json, and keep the kind that the model gives them
            if index < len(self.texts) and self.kinds[index] in (TokenKind.UNKNOWN, TokenKind.BYTE):
                continue

            score = -1000.0  # that of added tokens in llama.cpp's converter, convert_hf_to_gguf.py
            if entry.special or looks_special(text):
                self.put(index, text, TokenKind.CONTROL, score)
            else:
                self.put(index, text.replace(SPACE, " "), TokenKind.USER_DEFINED, score)


COMPOSED = frozenset([Normalizer("NFC")])
"""Composes characters; Qwen 2 and 3 have it.

llama.cpp does not do that, which changes tokens of decomposed text only.
"""
SPACES = frozenset(
    [
        Normalizer("Prepend", prepend=SPACE),
        Normalizer("Replace", pattern=Pattern(String=" "), content=SPACE),
    ]
)
"""Normalizers that llama.cpp's SentencePiece tokenizer applies anyway."""


def composes(normalizer: Normalizer | None) -> bool:
    """Whether a normalizer composes characters, which llama.cpp does not do."""
    return normalizer is not None and not COMPOSED.isdisjoint(normalizer.steps)


def check_normalizer(normalizer: Normalizer | None, known: frozenset[Normalizer]) -> None:
    """Raise BadSource for a normalizer with a step that is not known: its tokens would differ."""
    if normalizer is None:
        return
    for step in normalizer.steps:
        if step not in known:
            raise BadSource(
                f"tokenizer.json normalizes text by {shown(step.type)}, which llama.cpp does not"
                " do, so its tokens would differ; export to safetensors, or remove that normalizer"
                " if the model was trained without it"
            )


def from_model(path: Path, vocabulary: int) -> tuple[Vocabulary, bool] | None:
    """Return the tokens of a tokenizer.model, and whether it puts a space before the text.

    None for other formats.

    Args:
        path: The file.
        vocabulary: Rows of the embeddings.

    Raises:
        BadSource: Where it has more tokens than rows, is too long, or splits text in a way that
            llama.cpp does not.
    """
    from sentencepiece import SentencePieceProcessor

    # Llama 3 has a table of tiktoken under this name
    content = read_bytes(path, path.name)
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
    except (RuntimeError, OSError, UnicodeError):  # the latter where its message is not UTF-8
        return None
    _check_model(content)

    # the text, the kind and the score of each token
    tokens = Vocabulary.of_size(vocabulary)
    kinds = {
        TokenKind.UNKNOWN: processor.IsUnknown,
        TokenKind.CONTROL: processor.IsControl,
        TokenKind.UNUSED: processor.IsUnused,
        TokenKind.BYTE: processor.IsByte,
    }
    try:
        for index in range(processor.vocab_size()):
            kind = TokenKind.NORMAL
            for candidate, applies in kinds.items():
                if applies(index):
                    kind = candidate
                    break
            tokens.put(index, processor.IdToPiece(index), kind, processor.GetScore(index))
    except UnicodeError:
        raise BadSource(f"{path.name} has a piece that is not UTF-8; download it again") from None

    # the setting add_dummy_prefix, by what the tokenizer does: ["▁a"] or ["▁", "a"] with a space,
    # and ["a"] without
    pieces = processor.EncodeAsPieces("a")
    puts_space_before = pieces[:1] != ["a"]
    return tokens, puts_space_before


def _check_model(content: bytes) -> None:
    """Raise BadSource for a tokenizer.model whose tokens llama.cpp would not give.

    llama.cpp joins pieces by their scores, as BPE does, and normalizes nothing but spaces.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

    model = ModelProto.FromString(content)
    if model.trainer_spec.model_type != TrainerSpec.BPE:
        kind = TrainerSpec.ModelType.Name(model.trainer_spec.model_type).lower()
        raise BadSource(
            f"tokenizer.model is a SentencePiece {kind} model, and only BPE is converted to GGUF"
        )
    rules = model.normalizer_spec
    if rules.precompiled_charsmap or rules.remove_extra_whitespaces:
        if rules.precompiled_charsmap:
            step = f"normalizes text by {shown(rules.name)}"
        else:
            step = "removes extra spaces"
        raise BadSource(
            f"tokenizer.model {step}, which llama.cpp does not do, so its tokens would differ"
        )


def from_json(data: TokenizerJson, vocabulary: int) -> tuple[Vocabulary, bool]:
    """Return the tokens of a tokenizer.json with byte fallback, the form of SentencePiece.

    A SentencePiece tokenizer in GGUF has a score for each token: llama.cpp joins the two tokens
    whose result has the highest score. tokenizer.json has a list of merges in place of scores, so
    the result of the first merge gets the score 0, the second -1, the third -2, and so on.

    Args:
        data: The content of tokenizer.json.
        vocabulary: The number of tokens, which is the number of rows of the embeddings.

    Returns:
        The tokens, and whether the tokenizer puts a space in front of a text.

    Raises:
        BadSource: Where spaces are not written as in SentencePiece, and for normalizers that
            llama.cpp does not have.
    """
    model = data.bpe
    no_normalizer = Normalizer("Sequence")  # a sequence without steps
    normalizer = data.normalizer or no_normalizer
    check_normalizer(normalizer, SPACES)
    if not any(SPACE in text for text in model.vocab):
        raise BadSource(
            "tokenizer.json has byte fallback without SentencePiece's spaces; this mixture is not"
            " converted"
        )

    # the rank of the first merge that makes each token
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(model.merges):
        joined = merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
        ranks.setdefault(joined, rank)

    tokens = Vocabulary.of_size(vocabulary)
    for text, index in model.vocab.items():
        kind = TokenKind.NORMAL
        if text == model.unk_token:
            kind = TokenKind.UNKNOWN
        elif re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
            kind = TokenKind.BYTE
        rank = ranks.get(text, len(ranks))  # a token that no merge makes comes last
        tokens.put(index, text, kind, score=-float(rank))

    # the space in front of a text comes from a normalizer (Llama 2), or from a pre-tokenizer
    normalizer_prepends = any(step.type == "Prepend" for step in normalizer.steps)
    pre_tokenizer = data.pre_tokenizer or PreTokenizer()
    is_metaspace = pre_tokenizer.type == "Metaspace"
    pre_tokenizer_prepends = is_metaspace and pre_tokenizer.prepend_scheme != "never"
    return tokens, normalizer_prepends or pre_tokenizer_prepends
