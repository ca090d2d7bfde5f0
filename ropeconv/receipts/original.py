"""OriginalRecord: what the first source of an output had where the output has something else, for `restore`.

It is carried along through every bake: the original of a bake over an output is that of the output.
"""

from __future__ import annotations

import msgspec

from ..formats.splice import Splice
from .step import StepRecord


class SourceRecord(msgspec.Struct, frozen=True):
    """The source of an output.

    name: the first part of the default name of outputs. kind: "folder", "hub", "meta", "config" or "gguf". reference:
    how the user named it, None for local ones. commit: on the Hub, None for local ones. family: the name of that which
    it was treated as, by the word of the user; empty where its model_type says it.
    """

    name: str
    kind: str
    reference: str | None = None
    commit: str | None = None
    family: str = ""

    @property
    def repository(self) -> str:
        """`owner/name` on the Hub; empty for models from elsewhere."""
        if self.kind not in ("hub", "gguf", "meta") or not self.commit:
            return ""
        return "/".join((self.reference or "").split("@")[0].split("/")[:2])

    @property
    def described(self) -> str:
        """The source for a sentence: `owner/name at commit 0123456`, or its name where it was a local one."""
        if self.reference and self.commit:
            return f"{self.reference} at commit {self.commit}"
        return self.reference or f"the local {'file' if self.kind == 'gguf' else 'folder'} {self.name!r}"


class TextRecord(msgspec.Struct, frozen=True):
    """A text file of the source that an output has with other contents.

    name: of the file. sha256: of its contents in the source. text: those contents, between the first `prefix` and the
    last `suffix` bytes of the file in the output, which are the same in both.
    """

    name: str
    sha256: str
    text: str
    prefix: int = 0
    suffix: int = 0

    def splice(self, size: int) -> Splice:
        """What turns the file in the output into that of the source. size: of the former, in bytes."""
        return Splice(self.prefix, max(self.prefix, size - self.suffix), self.text.encode())


class ScaledRecord(msgspec.Struct, frozen=True):
    """A tensor with elements multiplied by a power of two. spans: [start, stop) in the flat tensor."""

    tensor: str
    factor: float
    spans: tuple[tuple[int, int], ...]


class FolderRecord(msgspec.Struct, frozen=True):
    """What a checkpoint folder had.

    texts: files with other contents. added: names of files that it did not have. renamed: its names of files, by those
    in the output. skipped: names of its files that the output lacks. scaled: tensors multiplied by powers of two.
    rounded: names of tensors that were multiplied by other factors.
    """

    texts: tuple[TextRecord, ...] = ()
    added: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    skipped: tuple[str, ...] = ()
    scaled: tuple[ScaledRecord, ...] = ()
    rounded: tuple[str, ...] = ()


class ValueRecord(msgspec.Struct, frozen=True):
    """A value of a GGUF header. kind: the number of its type. raw: its bytes in base64; of `spaces` spaces if empty."""

    kind: int
    raw: str = ""
    spaces: int = 0


class GgufRecord(msgspec.Struct, frozen=True):
    """What a GGUF file had.

    keys: names of its keys, in their order. values: those that the output lacks, or has with other values. added: names
    of tensors that it did not have. contents: of small tensors that changed, in base64. interleaved: names of tensors
    whose rows were reordered, head_dim rows at a time. changed: names of other tensors that changed. sha256: of its
    header up to data_start, empty where no such file was written, or its header cannot be laid out again byte for byte.
    version, data_start, tail: as in `Layout`; data_start is 0 where no such file was written.
    """

    keys: tuple[str, ...]
    values: dict[str, ValueRecord] = {}
    added: tuple[str, ...] = ()
    contents: dict[str, str] = {}
    interleaved: tuple[str, ...] = ()
    head_dim: int = 0
    changed: tuple[str, ...] = ()
    version: int = 3
    data_start: int = 0
    tail: int = 0
    sha256: str = ""


class OriginalRecord(msgspec.Struct, frozen=True):
    """The first source of an output. folder, gguf: what it had; None for the other format.

    steps: the bakes that led from it to the source of the output; empty where that is the first source itself.
    """

    source: SourceRecord
    folder: FolderRecord | None = None
    gguf: GgufRecord | None = None
    steps: tuple[StepRecord, ...] = ()
