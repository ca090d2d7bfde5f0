"""Receipt: how an output was made, with the same fields for folders and GGUF files."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..version import SCHEMA
from .evaluation import EvaluationRecord
from .original import OriginalRecord, SourceRecord
from .step import BeforeRecord as BeforeRecord
from .step import StepRecord
from .step import TargetRecord as TargetRecord

Action = Literal["write", "copy", "convert", "patch"]


class FoldRecord(msgspec.Struct, frozen=True):
    """A fold of factors into weights.

    fold_into: rows of queries, of keys, or both. tensors: names of those that changed. expected_kl: KL in nats that
    rounding them costs.
    """

    fold_into: Literal["q", "k", "qk"]
    tensors: tuple[str, ...]
    expected_kl: float


class ConfigRecord(msgspec.Struct, frozen=True):
    """The factors in config.json itself, without those folded into weights. written_as: the encoding of the config."""

    written_as: str
    attention_factor: float
    softmax_scale: float = 1.0


class LogNRecord(msgspec.Struct, frozen=True):
    """The log-n approximation `gain (1 + beta ln(1 + floor(p / length)))`, and its largest deviation from log-n."""

    beta: float
    length: int
    gain: float
    deviation: float


class ScheduleRecord(msgspec.Struct, frozen=True):
    """The schedule, as `Schedule.to_dict` has it.

    inv_freq: radians per token, [rotary_dim / 2]. context, original_context: in tokens; 0 where it is not known.
    """

    digest: str
    inv_freq: tuple[float, ...] = ()
    attention_factor: float = 1.0
    context: int = 0
    original_context: int = 0
    short_inv_freq: tuple[float, ...] | None = None
    softmax_scale: float = 1.0
    log_n: dict[str, Any] | None = None
    query_scaling: dict[str, Any] | None = None


class RuntimeRecord(msgspec.Struct, frozen=True):
    """A verdict.

    runtime: `name@version`. evidence: how it is known, "run" or "read", or empty; evidence_detail: version and date.
    The other fields are those of `Verdict`.
    """

    runtime: str
    status: str
    reason: str = ""
    source: str = ""
    display_name: str = ""
    evidence: str = ""
    evidence_detail: str = ""

    @property
    def grade(self) -> str:
        """How it is known, as in `Verdict`."""
        return self.evidence


class FileRecord(msgspec.Struct, frozen=True):
    """A file of the output.

    action: how it was made. size: in bytes. sha256: None where it is not known. origin: its name in the source, None
    where that is the same.
    """

    name: str
    action: Action
    size: int
    sha256: str | None = None
    origin: str | None = None


class CheckRecord(msgspec.Struct, frozen=True):
    """The check of an output by the installed transformers, when it was written.

    transformers: its version. max_ulp: largest distance of a frequency from the schedule, in ulp of float32.
    attention_factor: that it computed. read_as: the model type that was put in the place of one that it does not have;
    without that, it does not load the output. Empty for others.
    """

    transformers: str
    max_ulp: int
    attention_factor: float
    read_as: str = ""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """How an output was made.

    ropeconv: the version that made it. family: of the model, or its GGUF architecture. recipe: as `Recipe.to_dict` has
    it. before: the RoPE of the source. encoding: how the schedule is written. fold, in_config, log_n_approximation:
    None where the encoding has none. effective_length: in tokens, None where it is the whole context. runtimes: the
    verdicts. files: of a folder; empty for a GGUF file. check: None where it was not run. validation, servers: results
    of `ropeconv validate`, as `Validation.to_dict` has them, the latter by runtime. evaluations: headlines of `ropeconv
    eval`. original: what `restore` brings back, None for nothing. target: what was asked for.
    """

    schema: int = SCHEMA
    ropeconv: str
    source: SourceRecord
    family: str = ""
    recipe: dict[str, Any]
    before: BeforeRecord
    encoding: str
    fold: FoldRecord | None = None
    in_config: ConfigRecord | None = None
    log_n_approximation: LogNRecord | None = None
    schedule: ScheduleRecord
    effective_length: int | None = None
    runtimes: tuple[RuntimeRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    check: CheckRecord | None = None
    validation: dict[str, Any] | None = None
    servers: dict[str, dict[str, Any]] = {}
    evaluations: tuple[EvaluationRecord, ...] = ()
    original: OriginalRecord | None = None
    target: TargetRecord

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))

    @property
    def first(self) -> SourceRecord:
        """The source of the first bake that led to the output."""
        return self.original.source if self.original else self.source

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The bakes that led from the first source to the output, this one last."""
        earlier = self.original.steps if self.original else ()
        return (*earlier, StepRecord(self.recipe, self.target, self.before))

    @property
    def extension(self) -> StepRecord:
        """The last of the steps that changed the RoPE; the last one where none did."""
        return next((step for step in reversed(self.steps) if step.method != "as-is"), self.steps[-1])

    def to_dict(self) -> dict[str, Any]:
        """The receipt as JSON-ready data, with every key."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
