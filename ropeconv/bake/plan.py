"""Plan: everything that will be written, decided before anything is written; `apply` only executes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..convert.gguf_encoding import GgufResult
from ..convert.target import ConsideredEncoding, EncodeResult, Target
from ..formats.disk import FileIdentity, Splice
from ..formats.gguf.edit import Edit
from ..formats.jsontext import JsonObject
from ..inspection.document import (
    Document,
    KvCacheDocument,
    ScheduleDocument,
    SourceDocument,
    VerdictDocument,
    schedule_document,
    source_document,
    verdict_document,
)
from ..inspection.kv_cache import KvCache
from ..inspection.receipts.receipt import (
    Action,
    BeforeRecord,
    ConfigRecord,
    FoldRecord,
    LogNRecord,
    OriginalRecord,
    Receipt,
)
from ..models.source import Origin
from ..rope.errors import counted
from ..rope.recipe import Recipe, flags
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..summary import Summary
from ..version import SCHEMA
from .record import receipt_of


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
class FilePlan(Summary):
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

    def summary(self) -> dict[str, str]:
        """What is shown, by name."""
        size = f"{counted(len(self.files), 'file')}, {self.bytes:,} bytes"
        return {"source": self.source.reference, "out": str(self.out), "size": size}

    def origin(self, file: PlannedFile) -> Path | None:
        """The local path of the file that a planned file is copied from; None where it is not copied."""
        return None

    def receipt(self) -> Receipt | None:
        """The receipt of the output, without the files and the check; None where it gets none."""
        return None


class FileDocument(Document, frozen=True, kw_only=True):
    """A file of an output. action: how it is made. size: in bytes, 0 where the Hub does not say."""

    name: str
    action: Action
    size: int


class PlanDocument(Document, frozen=True, kw_only=True):
    """What `apply` will do: `Plan.to_dict`.

    recipe: `method`, `parameters`, and the modifiers that are set. fold, in_config, log_n_approximation: null where the
    encoding has none. effective_length: in tokens, null where it is the whole context. out: path of the output.
    considered: the encodings that "auto" looked at. skipped: names of files that are not copied. bytes: of the output.
    """

    schema: int = SCHEMA
    source: SourceDocument
    family: str
    recipe: JsonObject
    before: BeforeRecord
    encoding: str
    fold: FoldRecord | None
    in_config: ConfigRecord | None
    log_n_approximation: LogNRecord | None
    schedule: ScheduleDocument
    effective_length: int | None
    runtimes: tuple[VerdictDocument, ...]
    out: str
    considered: tuple[ConsideredEncoding, ...]
    files: tuple[FileDocument, ...]
    skipped: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]
    kv_cache: KvCacheDocument | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan(FilePlan):
    """What `apply` will do, and what each runtime will compute from the output.

    source, out, files, skipped: as in `FilePlan`. target, recipe: what the plan was made from. family: of the model, or
    its GGUF architecture. source_spec: the RoPE of the source as it is, and before: the one that the recipe starts
    from. schedule: what has to be computed. result: how that is encoded, with the verdicts. warnings: sentences for the
    user. notes: how numbers of the plan follow from each other. kv_cache: the key-value cache of the output, None
    where the source does not state the number of heads. original: for the receipt, as there.
    """

    target: Target
    recipe: Recipe
    family: str
    source_spec: RopeSpec
    before: RopeSpec
    schedule: Schedule
    result: EncodeResult
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    kv_cache: KvCache | None
    original: OriginalRecord | None = field(default=None, kw_only=True)

    @property
    def resume_key(self) -> str:
        """The digest of the schedule, the recipe and the target."""
        return f"{self.schedule.digest} {self.recipe} {self.target}"

    def receipt(self) -> Receipt:
        """The receipt of the output, without the files and the check, which are known after it is written."""
        return receipt_of(
            self.source, self.target, self.family, self.recipe, self.source_spec, self.schedule, self.result,
            self.original,
        )  # fmt: skip

    def summary(self) -> dict[str, str]:
        """What is shown, by name."""
        return super().summary() | {
            "method": " ".join(flags(self.recipe) or [self.recipe.method.flag()]),
            "context": f"{self.source_spec.context:,} -> {self.schedule.context:,} tokens",
            "encoding": self.result.encoding,
            "runtimes": self.result.exact_share,
            "warnings": " ".join(self.warnings),
        }

    def document(self) -> PlanDocument:
        """The plan as a JSON document."""
        done, cache = self.receipt(), self.kv_cache
        return PlanDocument(
            source=source_document(self.source),
            family=done.family,
            recipe=done.recipe,
            before=done.before,
            encoding=done.encoding,
            fold=done.fold,
            in_config=done.in_config,
            log_n_approximation=done.log_n_approximation,
            schedule=schedule_document(self.schedule),
            effective_length=done.effective_length,
            runtimes=tuple(map(verdict_document, self.result.verdicts)),
            out=str(self.out),
            considered=self.result.considered,
            files=tuple(FileDocument(name=file.name, action=file.action, size=file.size) for file in self.files),
            skipped=self.skipped,
            bytes=self.bytes,
            warnings=self.warnings,
            kv_cache=cache.document(self.schedule.context, self.source_spec.context) if cache else None,
            notes=self.notes,
        )

    def to_dict(self) -> JsonObject:
        """The plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        return self.document().to_dict()


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other.

    edit: from the header and the tensors of the source, or of its conversion without scaling, to those of the output.
    """

    result: GgufResult
    edit: Edit = field(kw_only=True)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return False
