"""PlanDocument: the type of the JSON document of a plan. In words: docs/json.md."""

from __future__ import annotations

from typing import Any

from ..encode.result import Considered
from ..inspection.document import Document, KvCacheDocument, ScheduleDocument, SourceDocument, VerdictDocument
from ..receipts.receipt import Action, BeforeRecord, ConfigRecord, FoldRecord, LogNRecord
from ..version import SCHEMA


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
    recipe: dict[str, Any]
    before: BeforeRecord
    encoding: str
    fold: FoldRecord | None
    in_config: ConfigRecord | None
    log_n_approximation: LogNRecord | None
    schedule: ScheduleDocument
    effective_length: int | None
    runtimes: tuple[VerdictDocument, ...]
    out: str
    considered: tuple[Considered, ...]
    files: tuple[FileDocument, ...]
    skipped: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]
    kv_cache: KvCacheDocument | None
    notes: tuple[str, ...]
