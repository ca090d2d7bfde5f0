"""FilePlan: the files of an output, decided before anything is written, whatever they are made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..formats.identity import FileIdentity
from ..formats.splice import Splice
from ..receipts import Receipt
from ..receipts.receipt import Action
from ..sources import Origin


@dataclass(frozen=True)
class PlannedFile:
    """One file of the output.

    action: "copy" takes it from the source, unchanged; other files are written from `text` or by make(target, advance).
    name: relative to the output. size: in bytes, 0 where the Hub does not say. sha256: None where it is not known
    without hashing. text: its content. origin: its name in the source, empty where that is the same. estimated: whether
    `size` is not exact. splice: what `make` changes in the file of that name in the source, where that is all.
    """

    action: Action
    name: str
    size: int
    sha256: str | None = None
    text: str | None = None
    make: Callable[[Path, Callable[[int], None]], None] | None = None
    origin: str = ""
    estimated: bool = False
    splice: Splice | None = None


@dataclass(frozen=True)
class FilePlan:
    """The files of an output.

    source: what it is made from. out: a folder, or a GGUF file (of several shards the first). files: to write. skipped:
    names of files of the source that are left out. seen: files that are read, as they were before anything was.
    """

    source: Origin
    out: Path
    files: tuple[PlannedFile, ...]
    skipped: tuple[str, ...]
    seen: Mapping[Path, FileIdentity | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", self.source.seen(self.unread))

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return True

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of files of the source that nothing of the output is made of, which may change meanwhile."""
        return self.skipped

    @property
    def resume_key(self) -> str:
        """What tells this plan from others over the same files: an interrupted run goes on only with the same."""
        return ""

    @property
    def bytes(self) -> int:
        """Size of all files of the output in bytes."""
        return sum(file.size for file in self.files)

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the file that a planned file is copied from; None where it is not copied."""
        return None

    def receipt(self) -> Receipt | None:
        """The receipt of the output, without the files and the check; None where it gets none."""
        return None
