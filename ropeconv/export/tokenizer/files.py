"""tokenizer.json and tokenizer_config.json, decoded to the types that the conversion reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from ...errors import TOO_MANY, BadSource
from ...formats.regular import read_bytes

T = TypeVar("T")
MOST_OBJECTS = 300_000_000
"""Bytes, roughly, that its strings and lists take in memory. That of Gemma 3 takes 160 million."""

Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Merge = str | tuple[str, str]


class Added(msgspec.Struct, frozen=True):
    """A token that was added to a vocabulary. id: None where its place says it."""

    content: str
    id: Id | None = None
    special: bool = False


class Pattern(msgspec.Struct, frozen=True):
    """What a pre-tokenizer splits at, or a normalizer replaces: one of both."""

    Regex: str | None = None
    String: str | None = None


class PreTokenizer(msgspec.Struct, frozen=True):
    """A pre-tokenizer of any type, with the settings of those that are known here."""

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
    """A normalizer of any type, with the settings of those that are known here."""

    type: str = ""
    normalizers: tuple[Normalizer, ...] = ()
    prepend: str = ""
    pattern: Pattern | None = None
    content: str = ""

    @property
    def steps(self) -> tuple[Normalizer, ...]:
        """The normalizers that it is made of, in order; itself where it is no sequence."""
        if self.type != "Sequence":
            return (self,)
        return tuple(step for inner in self.normalizers for step in inner.steps)


class ModelKind(msgspec.Struct, frozen=True):
    """What every model of a tokenizer.json says."""

    type: str | None = None
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None


class Bpe(msgspec.Struct, frozen=True):
    """A model of the type BPE. vocab: ids by text. merges: pairs, the first ones first."""

    vocab: dict[str, Id] = {}
    merges: tuple[Merge, ...] = ()
    unk_token: str | None = None


class TokenizerJson(msgspec.Struct, frozen=True):
    """tokenizer.json. model: not decoded, since it differs by type."""

    model: msgspec.Raw
    added_tokens: tuple[Added, ...] | None = None
    normalizer: Normalizer | None = None
    pre_tokenizer: PreTokenizer | None = None

    @property
    def kind(self) -> ModelKind:
        """What the model says of itself. Raises BadSource where it is no model."""
        return decoded(bytes(self.model), ModelKind, "the model of tokenizer.json")

    @property
    def bpe(self) -> Bpe:
        """The model as BPE. Raises BadSource where it is none."""
        return decoded(bytes(self.model), Bpe, "the model of tokenizer.json")


class TokenizerConfig(msgspec.Struct, frozen=True):
    """tokenizer_config.json. added_tokens_decoder: by id."""

    added_tokens_decoder: dict[Id, Added] | None = None


def read(path: Path, kind: type[T]) -> T | None:
    """A file as a typed value; None where it is absent. Raises BadSource where it is too large or of other types."""
    if not path.is_file():
        return None
    return decoded(read_bytes(path, path.name), kind, path.name)


def decoded(data: bytes, kind: type[T], name: str) -> T:
    """JSON as a typed value. name: of the file, for the message. Raises BadSource where it is none of this type."""
    objects = 40 * data.count(b'"') + 64 * (data.count(b"[") + data.count(b"{")) + 16 * data.count(b",")
    if objects > MOST_OBJECTS:
        raise BadSource(f"{name} has more entries than any tokenizer; {TOO_MANY}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise BadSource(f"{name} is not as tokenizers writes it ({problem}); download it again") from None
