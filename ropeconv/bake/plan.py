"""Plan: everything that will be written, decided before anything is written.

`apply` only executes it. Read `Plan` first; `CheckpointPlan`, `GgufPlan` and `ExportPlan` are the
three kinds, each beside the function that makes it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..convert.encoding import CheckpointResult
from ..convert.gguf_encoding import GgufModel, GgufResult
from ..convert.target import ConsideredEncoding, EncodeResult, Target
from ..environment import Requirement
from ..formats.disk import Advance, FileIdentity, human
from ..formats.gguf.edit import Edit
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import string
from ..formats.jsontext import JsonObject
from ..inspection.document import Document, FitDocument, KvCacheDocument, SourceDocument
from ..inspection.kv_cache import KvCache
from ..inspection.memory.fit import Fit
from ..inspection.memory.shape import ModelShape
from ..inspection.receipts import receipt as records
from ..inspection.receipts.companion import CompanionReceipt
from ..inspection.receipts.receipt import Action, OriginalRecord, Receipt, SourceRecord
from ..inspection.receipts.storage import embedded
from ..inspection.support import support
from ..models.source import RECEIPT, Origin, Source
from ..options import MachineOptions, copied
from ..rope.bound.reach import effective_length, source_reach
from ..rope.errors import counted
from ..rope.ramps import RampApproximation
from ..rope.recipe import Recipe, described_flags
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..rope.summary import Summary, SummaryTable
from ..runtimes.drafts import DraftKind
from ..runtimes.runtime import canonical
from ..runtimes.verdict import Verdict, describe, frequencies
from ..version import SCHEMA, __version__
from .fits import shown_fit


def source_record(source: Origin) -> SourceRecord:
    """Return the record of a source for a receipt, without a path of this machine."""
    reference = source.reference if source.kind == "hub" or source.commit else None
    return SourceRecord(
        name=source.name,
        kind=source.kind,
        reference=reference,
        commit=source.commit,
        family=source.treat_as,
        derived=source.derived,
    )


@dataclass(frozen=True)
class PlannedFile:
    """One file of the output."""

    action: Action
    """How it is made: "copy" copies it from the source, unchanged."""

    name: str
    """Its name, relative to the output."""

    size: int
    """In bytes; 0 where the Hub does not tell."""

    sha256: str | None = None
    """None where it is not known without hashing."""

    text: str | None = None
    """Its content, for a file that is written from a text."""

    make: Callable[[Path, Advance], None] | None = None
    """Writes the file at a path, and reports the bytes that are done; None for other files."""

    origin: str = ""
    """Its name in the source, empty where that is the same."""

    estimated: bool = False
    """Whether `size` is not exact."""


@dataclass(frozen=True)
class FilePlan(Summary):
    """The files of an output."""

    source: Origin

    out: Path
    """A folder, or a GGUF file (the first shard of several)."""

    files: tuple[PlannedFile, ...]

    skipped: tuple[str, ...]
    """Names of files of the source that are left out."""

    identities: Mapping[Path, FileIdentity | None] = field(init=False, repr=False, compare=False)
    """The files that are read, with their identities at planning."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "identities", self.source.identities(self.ignored_files))

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return True

    @property
    def ignored_files(self) -> tuple[str, ...]:
        """Names of files of the source that do not affect the output and may change meanwhile."""
        return self.skipped

    @property
    def resume_key(self) -> str:
        """A text that differs between plans over the same files.

        An interrupted run continues only with the same text.
        """
        return ""

    @property
    def bytes(self) -> int:
        """Size of all files of the output in bytes."""
        return sum(file.size for file in self.files)

    @property
    def temporary_bytes(self) -> int:
        """The bytes of files that exist only while the output is written."""
        return 0

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
        """Check that the packages are installed that writing needs; planning works without.

        Raises:
            RopeconvError: For one that is not installed.
        """
        for requirement in self.requirements:
            requirement.check()

    def origin(self, file: PlannedFile) -> Path | None:
        """Return the local path from which a planned file is copied; None for other files."""
        if file.action != "copy" or not isinstance(self.source, Source):
            return None
        return self.source.path(file.origin or file.name)

    def receipt(self) -> Receipt | None:
        """Return the receipt of the output, without the files and the check; None without one."""
        return None

    def companion(self) -> CompanionReceipt | None:
        """Return the receipt of an adapter or a graph, without its files; None for others."""
        return None


class FileDocument(Document, frozen=True, kw_only=True):
    """A file of an output."""

    name: str

    action: Action
    """How it is made."""

    size: int
    """In bytes; 0 where the Hub does not say."""


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

    From `family` to `runtimes` the keys are those of the receipt that the output will have, and
    runtimes that were asked here are added.
    """

    schema: int = SCHEMA
    source: SourceDocument
    family: str

    recipe: JsonObject
    """`method`, `parameters`, and the modifiers that are set."""

    before: records.BeforeRecord
    encoding: str

    fold: records.FoldRecord | None
    """Null where the encoding has none, like the next three."""

    in_config: records.ConfigRecord | None
    log_n_approximation: records.LogNRecord | None
    ramp_approximation: RampApproximation | None
    schedule: records.ScheduleRecord

    asked_context: int | None
    """The context that was asked for, in tokens; null where the output declares just that."""

    effective_length: int | None
    """In tokens; null where it is the whole context."""

    runtimes: tuple[records.RuntimeRecord, ...]

    out: str
    """The path of the output."""

    considered: tuple[ConsideredEncoding, ...]
    """The encodings that "auto" tried."""

    files: tuple[FileDocument, ...]

    skipped: tuple[str, ...]
    """Names of files that are not copied."""

    bytes: int
    """The size of the output."""

    warnings: tuple[str, ...]
    kv_cache: KvCacheDocument | None

    memory: FitDocument | None
    """In the runtime whose command is shown; null where its formulas are not known."""

    converter: records.ConverterRecord | None
    """The converter of llama.cpp that converts the source; null for ropeconv's."""

    imatrix: records.ImatrixRecord | None
    """The importance matrix by which llama.cpp quantises the output; null without one."""

    tensor_types: dict[str, str]
    """For a conversion to GGUF, the type of each tensor, such as Q4_K."""

    fine_tuning: records.FineTuningRecord
    notes: tuple[str, ...]
    validating: ValidationDocument | None = None


@dataclass(frozen=True)
class Plan(FilePlan):
    """The work of `apply`, and what each runtime will compute from the output."""

    target: Target
    recipe: Recipe

    family: str
    """The family of the model, or its GGUF architecture."""

    source_spec: RopeSpec
    """The RoPE of the source."""

    before: RopeSpec
    """The RoPE that the recipe starts from."""

    schedule: Schedule
    """The frequencies and factors that runtimes must compute."""

    result: EncodeResult
    """The schedule as its encoding writes it, with the verdicts."""

    warnings: tuple[str, ...]
    """Sentences for the user."""

    notes: tuple[str, ...]
    """How numbers of the plan are derived."""

    kv_cache: KvCache | None
    """The cache of the output; None where the source does not give the number of heads."""

    shape: ModelShape | None = field(default=None, kw_only=True)
    """The sizes that decide its memory; None where the source leaves some of them out."""

    asked_context: int | None = field(default=None, kw_only=True)
    """The context that was asked for, in tokens; None where the output declares just that."""

    asked: MachineOptions = field(default_factory=MachineOptions, kw_only=True)
    """The machine that the output is to fit."""

    with_ollama: bool = field(default=False, kw_only=True)
    """Whether --ollama was given: Ollama runs it, whatever its runtimes are."""

    replaced_from: RopeSpec | None = field(default=None, kw_only=True)
    """The RoPE of the first source of an output that `--replace` starts again from; else None."""

    draft: DraftKind | None = field(default=None, kw_only=True)
    """The kind of draft model that it is; None for a whole model."""

    fine_tuning: records.FineTuningRecord = field(kw_only=True)
    """The training that the recipe needs at its length."""

    @property
    def is_for_ollama(self) -> bool:
        """Whether Ollama runs it: with --ollama, and with --runtime ollama, also of a version."""
        names = [canonical(name).partition("@")[0] for name in self.target.runtimes]
        return self.with_ollama or "ollama" in names

    @cached_property
    def fit(self) -> Fit | None:
        """Whether the output fits the machine; None where its memory is not known.

        Raises:
            UsageError: For a `--memory` or `--cache-type` that the runtime cannot have.
        """
        # a draft runs beside its target, whose memory is not known here
        shape = None if self.draft else self.shape
        return shown_fit(
            shape,
            tokens=self.context,
            verdicts=self.result.verdicts,
            is_folder=self.is_folder,
            options=self.asked,  # --memory and --cache-type
            named=self.target.runtimes,  # --runtime
            in_ollama=self.is_for_ollama,
        )

    @cached_property
    def original(self) -> OriginalRecord:
        """The record of the first source in the receipt of the output, for `restore`."""
        raise NotImplementedError

    @property
    def converter_record(self) -> records.ConverterRecord | None:
        """The converter of llama.cpp that converts the source; None for ropeconv's."""
        return None

    @property
    def imatrix_record(self) -> records.ImatrixRecord | None:
        """The importance matrix by which llama.cpp quantises the output; None without one."""
        return None

    @property
    def tensor_types(self) -> dict[str, str]:
        """The type of each tensor of a conversion to GGUF, in their order; empty for others."""
        return {}

    @property
    def resume_key(self) -> str:
        """The digest of the schedule, the recipe and the target."""
        return f"{self.schedule.digest} {self.recipe} {self.target}"

    def receipt(self) -> Receipt:
        """Return the receipt: the record in an output of what it was made from, and how.

        It is without the files and the check, which are known after the output is written.
        """
        result = self.result
        return Receipt(
            ropeconv=__version__,
            source=source_record(self.source),
            family=self.family,
            recipe=self.recipe.to_dict(),
            before=self._before_record(),
            encoding=result.encoding,
            fold=self._fold_record(),
            in_config=self._config_record(),
            log_n_approximation=self._log_n_record(),
            ramp_approximation=result.ramp,
            schedule=records.ScheduleRecord(**self.schedule.to_dict()),
            asked_context=self.asked_context,
            effective_length=effective_length(self.schedule, self.source_spec),
            # not those that an installed runtime has answered, which another machine would not have
            runtimes=self._runtime_records(with_asked=False),
            fine_tuning=self.fine_tuning,
            original=self.original,
            converter=self.converter_record,
            imatrix=self.imatrix_record,
            target=copied(
                records.TargetRecord, self.target, to="safetensors" if self.is_folder else "gguf"
            ),
        )

    def _runtime_records(self, with_asked: bool) -> tuple[records.RuntimeRecord, ...]:
        """Return the verdicts, with or without those of runtimes that were asked here.

        A receipt has none of these, so that the same command writes the same output on a machine
        with another version, and finds it complete.
        """
        kept = [verdict for verdict in self.result.verdicts if with_asked or not verdict.here]
        return tuple(records.RuntimeRecord(**verdict.to_dict()) for verdict in kept)

    def _before_record(self) -> records.BeforeRecord:
        """The RoPE of the source; with `--replace` of an output, that of its first source."""
        spec = self.replaced_from or self.source_spec
        return records.BeforeRecord(
            rope=describe(spec.form),
            after=frequencies(self.schedule),
            attention_factor=spec.attention_factor,
            context=spec.context,
            original_context=spec.original_context,
            effective_length=effective_length(spec.current(), spec),
            reach=source_reach(self.schedule, spec),
        )

    def _fold_record(self) -> records.FoldRecord | None:
        """The factors in the weights of a checkpoint; None without any."""
        if not isinstance(self.result, CheckpointResult) or self.result.fold is None:
            return None
        fold = self.result.fold
        return records.FoldRecord(fold.fold_into, fold.tensors, fold.expected_kl)

    def _config_record(self) -> records.ConfigRecord | None:
        """The factors in the config of a checkpoint; None for GGUF."""
        if not isinstance(self.result, CheckpointResult):
            return None
        factors = self.result.in_config
        return records.ConfigRecord(
            self.result.written_as, factors.attention_factor, factors.softmax_scale
        )

    def _log_n_record(self) -> records.LogNRecord | None:
        """The approximation of log-n; None without one."""
        steps = self.result.log_n_approximation
        if steps is None:
            return None
        return records.LogNRecord(
            beta=steps.beta, length=steps.length, gain=steps.gain, deviation=self.result.deviation
        )

    @property
    def sentence(self) -> str:
        """The size and place of the output, and its support by runtimes, in words."""
        return f"{super().sentence[:-1]}; {self.result.exact_share}."

    @property
    def context(self) -> int:
        """The context that was asked for, in tokens; some outputs declare a longer one."""
        return self.asked_context or self.schedule.context

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
        return self.document().to_dict()

    def document(self) -> PlanDocument:
        """Return the plan as `--json` prints it: what its receipt will say, and what is written."""
        # the parts that the output will keep in its receipt, then those that only a plan has
        receipt = self.receipt()
        source = SourceDocument(
            reference=self.source.reference, kind=self.source.kind, commit=self.source.commit
        )
        cache = None
        if self.kv_cache is not None:
            cache = self.kv_cache.document(self.context, self.source_spec.context)
        files = [
            FileDocument(name=file.name, action=file.action, size=file.size) for file in self.files
        ]
        return PlanDocument(
            source=source,
            family=receipt.family,
            recipe=receipt.recipe,
            before=receipt.before,
            encoding=receipt.encoding,
            fold=receipt.fold,
            in_config=receipt.in_config,
            log_n_approximation=receipt.log_n_approximation,
            ramp_approximation=receipt.ramp_approximation,
            schedule=receipt.schedule,
            asked_context=receipt.asked_context,
            effective_length=receipt.effective_length,
            runtimes=self._runtime_records(with_asked=True),
            out=str(self.out),
            considered=self.result.considered,
            files=tuple(files),
            skipped=self.skipped,
            bytes=self.bytes,
            warnings=self.warnings,
            kv_cache=cache,
            memory=self.fit.document() if self.fit else None,
            converter=receipt.converter,
            imatrix=receipt.imatrix,
            tensor_types=self.tensor_types,
            fine_tuning=self.fine_tuning,
            notes=self.notes,
        )


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other."""

    result: GgufResult

    undo: Edit | None = field(default=None, kw_only=True)
    """Turns an output of ropeconv into its first source, where the plan begins with that."""

    @property
    def is_folder(self) -> bool:
        return False

    @property
    def start(self) -> GgufFile | GgufModel:
        """The model to which `edit` is applied: the source, or its conversion without scaling."""
        raise NotImplementedError

    @property
    def file_type(self) -> int | None:
        """The `general.file_type` of the output, by which the Hub names it; None without one."""
        value = self.start.get("general.file_type")
        return value if isinstance(value, int) else None

    @cached_property
    def edit(self) -> Edit:
        """The edit from `start` to the output, with the receipt as a key."""
        # the receipt does not name the size of the file, which depends on it
        receipt = Edit({RECEIPT: string(embedded(self.receipt()))})
        edit = self.result.edit.merge(receipt)
        if self.undo is None:
            return edit
        return self.undo.then(edit)
