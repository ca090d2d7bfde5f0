"""Plan: everything that will be written, decided before anything is written; `apply` only executes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..encode import EncodeResult, Target
from ..encode.gguf import GgufResult
from ..inspection.document import schedule_document, source_document, verdict_document
from ..inspection.kv_cache import KvCache
from ..receipts import Receipt
from ..receipts.original import OriginalRecord
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .document import FileDocument, PlanDocument
from .planned import FilePlan
from .planned import PlannedFile as PlannedFile
from .record import receipt_of


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

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data, as `--json` prints it; keys stay within a schema."""
        return self.document().to_dict()


@dataclass(frozen=True)
class GgufOutput(Plan):
    """A plan whose output is a GGUF file, or several shards beside each other."""

    result: GgufResult

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder with `files` in it, and not files beside each other."""
        return False
