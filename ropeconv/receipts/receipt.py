"""Receipt: what was done to a model, in one shape for folders and GGUF files."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..version import SCHEMA

Action = Literal["write", "copy", "convert", "patch"]


class SourceRecord(msgspec.Struct, frozen=True):
    """Where a model is from.

    name: what outputs are called after. kind: "folder", "hub", "meta", "config" or "gguf". reference: how it was named
    on the command line, left out for local ones. commit: revision on the Hub.
    """

    name: str
    kind: str
    reference: str | None = None
    commit: str | None = None

    @property
    def repository(self) -> str:
        """`owner/name` on the Hub; empty for models from elsewhere."""
        if self.kind not in ("hub", "gguf") or not self.commit:
            return ""
        return "/".join((self.reference or "").split("@")[0].split("/")[:2])


class BeforeRecord(msgspec.Struct, frozen=True):
    """The RoPE before and, in words, after. context: tokens that were declared."""

    rope: str
    after: str
    attention_factor: float
    context: int


class FoldRecord(msgspec.Struct, frozen=True):
    """What went into weights: of queries, keys or both, the tensors, and the KL that rounding them costs, in nats."""

    fold_into: Literal["q", "k", "qk"]
    tensors: tuple[str, ...]
    expected_kl: float


class ConfigRecord(msgspec.Struct, frozen=True):
    """What config.json itself says, without what is folded into weights. written_as: the encoding of the config."""

    written_as: str
    attention_factor: float
    softmax_scale: float = 1.0


class LogNRecord(msgspec.Struct, frozen=True):
    """`gain (1 + beta ln(1 + floor(p / length)))`, which stands for log-n, and its largest deviation from it."""

    beta: float
    length: int
    gain: float
    deviation: float


class ScheduleRecord(msgspec.Struct, frozen=True):
    """What has to be computed, as `Schedule.to_dict` has it. Receipts in GGUF files of schema 1 held the digest alone.

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
    """A verdict: `name@version` of a runtime, the status, why, and the source of that statement."""

    runtime: str
    status: str
    reason: str = ""
    source: str = ""


class FileRecord(msgspec.Struct, frozen=True):
    """A file of the output. origin: its name in the source, where that is another. sha256: None where unknown."""

    name: str
    action: Action
    size: int
    sha256: str | None = None
    origin: str | None = None


class CheckRecord(msgspec.Struct, frozen=True):
    """What the installed transformers computed of the output, when it was written.

    transformers: its version. max_ulp: largest distance from the schedule, in steps of float32.
    """

    transformers: str
    max_ulp: int
    attention_factor: float


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a model.

    ropeconv: the version that did it. family: of the model, or its GGUF architecture. recipe: as `Recipe.to_dict` has
    it. effective_length: None where all of the context keeps the bound. files: of a folder; a GGUF file cannot hold its
    own hash. validation, servers: results of `ropeconv validate`, as `Validation.to_dict` has them, the latter by
    runtime.
    """

    schema: int = SCHEMA
    ropeconv: str
    source: SourceRecord
    family: str = ""
    recipe: dict[str, Any]
    before: BeforeRecord | None = None
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, with every key."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
