"""Plan: everything that will be written, decided before anything is written; `apply` only executes
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from ..convert.encoding import CheckpointResult
from ..convert.gguf_encoding import GgufModel, GgufResult
from ..convert.target import ConsideredEncoding, EncodeResult, Target
from ..environment import Requirement
from ..formats.disk import Advance, FileIdentity, human
from ..formats.gguf.edit import Edit
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import string
from ..formats.jsontext import JsonObject
from ..inspection.document import Document, KvCacheDocument, SourceDocument
from ..inspection.kv_cache import KvCache
from ..inspection.receipts import receipt as records
from ..inspection.receipts.companion import CompanionReceipt
from ..inspection.receipts.receipt import Action, OriginalRecord, Receipt, SourceRecord
from ..inspection.receipts.storage import embedded
from ..inspection.support import support
from ..models.source import RECEIPT, Origin, Source
from ..options import copied
from ..rope.bound.reach import effective_length, source_reach
from ..rope.errors import counted
from ..rope.ramps import RampApproximation
from ..rope.recipe import Recipe, described_flags
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..rope.summary import Summary, SummaryTable
from ..runtimes.drafts import DraftKind
from ..runtimes.verdict import Verdict, describe, frequencies
from ..version import SCHEMA, __version__


def source_record(source: Origin) -> SourceRecord:
    """Return the record of a source for a receipt, without a path of this machine."""
    reference = source.reference if source.kind == "hub" or source.commit else None
    return SourceRecord(source.name, source.kind, reference, source.commit, source.treat_as)


@dataclass(frozen=True)
class PlannedFile:
    """One file of the output.

    action: "copy" copies it from the source, unchanged; other files are written from `text` or by
    make(target, advance). name: relative to the output. size: in bytes, 0 where the Hub does not
    tell. sha256: None where it is not known without hashing. origin: its name in the source, empty
    where that is the same. estimated: whether `size` is not exact.
    """

    action: Action
    name: str
    size: int
    sha256: str | None = None
    text: str | None = None
    make: Callable[[Path, Advance], None] | None = None
    origin: str = ""
    estimated: bool = False


@dataclass(frozen=True)
class FilePlan(Summary):
    """The files of an output.

    out: a folder, or a GGUF file (of several shards the first). skipped: names of files of the
    source that are left out. identities: files that are read, with their identities at planning.
    """

    source: Origin
    out: Path
    files: tuple[PlannedFile, ...]
    skipped: tuple[str, ...]
    identities: Mapping[Path, FileIdentity | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "identities", self.source.identities(self.unread))

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return True

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of files of the source that do not affect the output and may change meanwhile."""
        return self.skipped

    @property
    def resume_key(self) -> str:
        """A text that differs between plans over the same files: an interrupted run continues only
        with the same.
        """
        return ""

    @property
    def bytes(self) -> int:
        """Size of all files of the output in bytes."""
        return sum(file.size for file in self.files)

    @property
    def sentence(self) -> str:
        """The size and place of the output, in words."""
        files = counted(len(self.files), "file")
        return f"Would write {files}, {human(self.bytes)}, to {self.out}."

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
        return {
            "sentence": self.sentence,
            "source": self.source.reference,
            "out": str(self.out),
            "files": f"{len(self.files):,}",
            "bytes": f"{self.bytes:,}",
        }

    def to_dict(self) -> JsonObject:
        """Return the plan as JSON-ready data."""
        return {
            "source": self.source.to_dict(),
            "out": str(self.out),
            "files": [
                {"name": file.name, "action": file.action, "size": file.size} for file in self.files
            ],
            "skipped": list(self.skipped),
            "bytes": self.bytes,
        }

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The packages without which the files cannot be written."""
        return self.source.requirements if isinstance(self.source, Source) else ()

    def check_packages(self) -> None:
        """Raise RopeconvError for a package that writing needs and that is not installed. Planning
        works without.
        """
        for requirement in self.requirements:
            requirement.check()

    def origin(self, file: PlannedFile) -> Path | None:
        """Return the local path of the file that a planned file is copied from; None where it is
        not copied.
        """
        if file.action != "copy" or not isinstance(self.source, Source):
            return None
        return self.source.path(file.origin or file.name)

    def receipt(self) -> Receipt | None:
        """Return the receipt of the output, without the files and the check; None where it gets
        none.
        """
        return None

    def companion(self) -> CompanionReceipt | None:
        """Return the receipt of an adapter or a graph, without its files; None for others."""
        return None


class FileDocument(Document, frozen=True, kw_only=True):
    """A file of an output. action: how it is made. size: in bytes, 0 where the Hub does not say."""

    name: str
    action: Action
    size: int


class ValidationDocument(Document, frozen=True, kw_only=True):
    """Whether the output is validated after it was written."""

    device: str | None
    """The device, or "llama.cpp"; null where the output is not validated."""

    seconds: float | None
    """About how long it takes."""

    reason: str
    """Why it is not validated, or empty."""


class PlanDocument(Document, frozen=True, kw_only=True):
    """The work of `apply`: `Plan.to_dict`.

    recipe: `method`, `parameters`, and the modifiers that are set. fold, in_config,
    log_n_approximation, ramp_approximation: null where the encoding has none. effective_length: in
    tokens, null where it is the whole context. out: path of the output. considered: the encodings
    that "auto" tried. skipped: names of files that are not copied. bytes: of the output.
    """

    schema: int = SCHEMA
    source: SourceDocument
    family: str
    recipe: JsonObject
    before: records.BeforeRecord
    encoding: str
    fold: records.FoldRecord | None
    in_config: records.ConfigRecord | None
    log_n_approximation: records.LogNRecord | None
    ramp_approximation: RampApproximation | None
    schedule: records.ScheduleRecord
    effective_length: int | None
    runtimes: tuple[records.RuntimeRecord, ...]
    out: str
    considered: tuple[ConsideredEncoding, ...]
    files: tuple[FileDocument, ...]
    skipped: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]
    kv_cache: KvCacheDocument | None
    fine_tuning: records.FineTuningRecord
    notes: tuple[str, ...]
    validating: ValidationDocument | None = None


@dataclass(frozen=True)
class Plan(FilePlan):
    """The work of `apply`, and what each runtime will compute from the output.

    source, out, files, skipped: as in `FilePlan`. family: of the model, or its GGUF architecture.
    source_spec: the RoPE of the source, and before: the one that the recipe starts from. schedule:
    to be computed. result: its encoding, with the verdicts. warnings: sentences for the user.
    notes: how numbers of the plan are derived. kv_cache: of the output, None where the source does
    not give the number of heads. draft: the kind of draft model that it is, None for a whole model.
    fine_tuning: what the recipe needs at its length.
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
    draft: DraftKind | None = field(default=None, kw_only=True)
    fine_tuning: records.FineTuningRecord = field(kw_only=True)

    @cached_property
    def original(self) -> OriginalRecord:
        """The record of the first source in the receipt of the output, for `restore`."""
        raise NotImplementedError

    @property
    def resume_key(self) -> str:
        """The digest of the schedule, the recipe and the target."""
        return f"{self.schedule.digest} {self.recipe} {self.target}"

    def receipt(self) -> Receipt:
        """Return the receipt of the output, without the files and the check, which are known after
        it is written.
        """
        result = self.result
        schedule = self.schedule
        before = self.source_spec
        steps = result.log_n_approximation
        fold = None
        in_config = None
        log_n = None
        if steps is not None:
            log_n = records.LogNRecord(steps.beta, steps.length, steps.gain, result.deviation)
        if isinstance(result, CheckpointResult):
            scales = result.in_config
            in_config = records.ConfigRecord(
                result.written_as, scales.attention_factor, scales.softmax_scale
            )
            if result.fold is not None:
                fold = records.FoldRecord(
                    result.fold.fold_into, result.fold.tensors, result.fold.expected_kl
                )
        return Receipt(
            ropeconv=__version__,
            source=source_record(self.source),
            family=self.family,
            recipe=self.recipe.to_dict(),
            before=records.BeforeRecord(
                describe(before.form),
                frequencies(schedule),
                before.attention_factor,
                before.context,
                before.original_context,
                effective_length(before.current(), before),
                source_reach(schedule, before),
            ),
            encoding=result.encoding,
            fold=fold,
            in_config=in_config,
            log_n_approximation=log_n,
            ramp_approximation=result.ramp,
            schedule=records.ScheduleRecord(**schedule.to_dict()),
            effective_length=effective_length(schedule, before),
            runtimes=tuple(
                records.RuntimeRecord(**verdict.to_dict()) for verdict in result.verdicts
            ),
            fine_tuning=self.fine_tuning,
            original=self.original,
            target=copied(
                records.TargetRecord, self.target, to="safetensors" if self.is_folder else "gguf"
            ),
        )

    @property
    def sentence(self) -> str:
        """The size and place of the output, and its support by runtimes, in words."""
        return f"{super().sentence[:-1]}; {self.result.exact_share}."

    @property
    def context(self) -> int:
        """The context of the output in tokens."""
        return self.schedule.context

    @property
    def encoding(self) -> str:
        """The name of the way in which the schedule is written."""
        return self.result.encoding

    @property
    def runtimes(self) -> tuple[Verdict, ...]:
        """The verdict of each runtime on the output."""
        return self.result.verdicts

    def summary(self) -> dict[str, str]:
        """The values that are shown, by name."""
        spec = self.source_spec
        return super().summary() | {
            "recipe": described_flags(self.recipe, spec.original_context, spec.context),
            "context": f"{spec.context:,} -> {self.context:,} tokens",
            "encoding": self.encoding,
            "warnings": "\n".join(self.warnings),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return the support of the popular runtimes."""
        rows = support(self.runtimes)
        return [SummaryTable("runtimes", ("support", "newest versions"), rows)]

    def to_dict(self) -> JsonObject:
        """Return the plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        receipt = self.receipt()
        cache = self.kv_cache
        names = (
            "family",
            "recipe",
            "before",
            "encoding",
            "fold",
            "in_config",
            "log_n_approximation",
            "ramp_approximation",
            "effective_length",
            "schedule",
            "runtimes",
        )
        fields = {name: getattr(receipt, name) for name in names} | {
            "source": self.source.to_dict(),
            "out": str(self.out),
            "considered": self.result.considered,
            "files": self.files,
            "skipped": self.skipped,
            "bytes": self.bytes,
            "warnings": self.warnings,
            "kv_cache": (
                cache.document(self.schedule.context, self.source_spec.context) if cache else None
            ),
            "fine_tuning": self.fine_tuning,
            "notes": self.notes,
        }
        return msgspec.convert(fields, PlanDocument, from_attributes=True).to_dict()


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other.

    undo: the edit of an output to its first source, with which the plan then begins; None for other
    sources.
    """

    result: GgufResult
    undo: Edit | None = field(default=None, kw_only=True)

    @property
    def is_folder(self) -> bool:
        return False

    @property
    def unedited(self) -> GgufFile | GgufModel:
        """The model that `edit` is for: the source, or its conversion without scaling."""
        raise NotImplementedError

    @property
    def file_type(self) -> int | None:
        """The `general.file_type` of the output, which its name on the Hub shows; None without
        one.
        """
        value = self.unedited.get("general.file_type")
        return value if isinstance(value, int) else None

    @cached_property
    def edit(self) -> Edit:
        """The edit from the source, or its conversion without scaling, to the output, with the
        receipt as a key.
        """
        edit = self.result.edit.merge(Edit({RECEIPT: string(embedded(self.receipt()))}))
        return edit if self.undo is None else self.undo.then(edit)
