"""Receipt: how an output was made, with the same fields for folders and GGUF files.

OriginalRecord: the parts of the first source that the output changes, for `restore`. Every further
bake keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import msgspec

from ...formats.jsontext import JsonObject
from ...options import Format, TargetOptions
from ...rope.errors import counted
from ...rope.lengths import format_factor
from ...rope.ramps import RampApproximation
from ...rope.summary import Summary
from ...version import SCHEMA


class BeforeRecord(msgspec.Struct, frozen=True):
    """The RoPE of the source.

    rope: its form. after: the form of the output. context: declared tokens. original_context:
    trained tokens. effective_length: of the source. reach: the same, up to the context of the
    output.
    """

    rope: str
    after: str
    attention_factor: float
    context: int
    original_context: int
    effective_length: int | None
    reach: int | None


@dataclass(frozen=True)
class TargetRecord(TargetOptions):
    """The target of an output, which makes its plan again, together with the recipe and the source.

    The options are those of the user: an encoding may be "auto". to: the format of the output.
    draft, adapter, drafts_for: as in `Target`.
    """

    to: Format = field()
    draft: str = ""
    adapter: str = ""
    drafts_for: str = ""

    def __post_init__(self) -> None:
        """Set options that an earlier version did not record: msgspec leaves defaults to the class,
        and out of JSON.
        """
        vars(self).update({option.name: getattr(self, option.name) for option in fields(self)})


class StepRecord(msgspec.Struct, frozen=True):
    """A bake. recipe, target, before: as in its receipt."""

    recipe: JsonObject
    target: TargetRecord
    before: BeforeRecord

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A number of an evaluation, with its standard error.

    column: the length in tokens, or another number that heads a column. value: the mean over
    windows. error: its standard error; None for a single window. low, high: Wilson's interval of 95
    %, for shares only. difference: minus the row that others are compared with, paired by window;
    None in that row. difference_error: its standard error. margin: how far from 0 the difference
    must be to be significant; None where that cannot be tested. clusters: how many windows or texts
    are taken as independent.
    """

    measure: str
    metric: str
    column: int
    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_error: float | None = None
    margin: float | None = None
    clusters: int = 0

    @property
    def decided(self) -> bool | None:
        """Whether the difference is significant; None where there is none."""
        if self.difference is None:
            return None
        return self.margin is not None and abs(self.difference) > self.margin


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of an output.

    against: name of the row that differences are to; empty for none. runtime, device, dtype: which
    computed it. trained: the trained context in tokens. texts: names of files, without their
    folders. tokens_sha256: over the tokens of all of them. price, price_error, holds_to: as in the
    result. measured: numbers over all depths. ropeconv: the version that measured it.
    """

    against: str = ""
    runtime: str
    device: str
    dtype: str
    trained: int
    texts: tuple[str, ...]
    tokens_sha256: str
    price: float | None = None
    price_error: float | None = None
    holds_to: int | None = None
    measured: tuple[MeasuredRecord, ...]
    ropeconv: str = ""

    def replaces(self, older: EvaluationRecord) -> bool:
        """Whether an older evaluation has a measure of this one, of the same text, runtime and
        precision.
        """
        same = all(
            getattr(self, name) == getattr(older, name)
            for name in ("runtime", "dtype", "tokens_sha256", "against")
        )
        return same and not {cell.measure for cell in self.measured}.isdisjoint(
            cell.measure for cell in older.measured
        )

    @property
    def described_texts(self) -> str:
        """The texts in a few words."""
        return ", ".join(self.texts) if len(self.texts) <= 3 else f"{len(self.texts)} texts"


class SourceRecord(msgspec.Struct, frozen=True):
    """The source of an output.

    name: the first part of the default name of outputs. kind: "folder", "hub", "meta", "config" or
    "gguf". reference: as the user named it, None for local ones. commit: on the Hub, None for local
    ones. family: that the user gave; empty for that of its model_type.
    """

    name: str
    kind: str
    reference: str | None = None
    commit: str | None = None
    family: str = ""

    @property
    def repository(self) -> str:
        """`owner/name` on the Hub; empty for other models."""
        if self.kind not in ("hub", "gguf", "meta") or not self.commit:
            return ""
        return "/".join((self.reference or "").split("@")[0].split("/")[:2])

    @property
    def described(self) -> str:
        """The source for a sentence: `owner/name at commit 0123456`, or the name of a local one."""
        if self.reference and self.commit:
            return f"{self.reference} at commit {self.commit}"
        return (
            self.reference
            or f"the local {'file' if self.kind == 'gguf' else 'folder'} {self.name!r}"
        )


class TextRecord(msgspec.Struct, frozen=True):
    """A text file of the source that an output has with other contents.

    sha256: of its contents in the source. text: those contents, between the first `prefix` and the
    last `suffix` bytes of the file in the output, which are the same in both.
    """

    name: str
    sha256: str
    text: str
    prefix: int = 0
    suffix: int = 0

    def restored(self, content: bytes) -> bytes:
        """Return the contents in the source, from those in the output."""
        stop = max(self.prefix, len(content) - self.suffix)
        return content[: self.prefix] + self.text.encode() + content[stop:]


class FolderRecord(msgspec.Struct, frozen=True):
    """The parts of a checkpoint folder that an output changes.

    texts: files with other contents. added: names of files of the output only. renamed: its names
    of files, by those in the output. skipped: names of files that the output lacks. multiplied:
    names of tensors that were multiplied by a factor, which cannot be undone.
    """

    texts: tuple[TextRecord, ...] = ()
    added: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    skipped: tuple[str, ...] = ()
    multiplied: tuple[str, ...] = ()


class ValueRecord(msgspec.Struct, frozen=True):
    """A value of a GGUF header. kind: the number of its type. raw: its bytes in base64; of `spaces`
    spaces if empty.
    """

    kind: int
    raw: str = ""
    spaces: int = 0


class GgufRecord(msgspec.Struct, frozen=True):
    """The parts of a GGUF file that an output changes.

    keys: names of its keys, in their order. values: those that the output lacks, or has with other
    values. added: names of tensors of the output only. contents: of small tensors that changed, in
    base64. interleaved: names of tensors whose rows were reordered, head_dim rows at a time.
    changed: names of other tensors that changed. sha256: of its header up to data_start, empty if
    no such file was written, or its header cannot be laid out again byte for byte. version,
    data_start, tail: as in `Layout`; data_start is 0 where no such file was written.
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
    """The first source of an output. folder, gguf: its changed parts; None for the other format.

    steps: the bakes from it to the source of the output; empty if that is the first source.
    """

    source: SourceRecord
    folder: FolderRecord | None = None
    gguf: GgufRecord | None = None
    steps: tuple[StepRecord, ...] = ()


Action = Literal["write", "copy", "convert", "patch"]


class FoldRecord(msgspec.Struct, frozen=True):
    """A fold of factors into weights.

    fold_into: rows of queries, of keys, or both. tensors: names of those that changed. expected_kl:
    KL in nats of rounding them.
    """

    fold_into: Literal["q", "k", "qk"]
    tensors: tuple[str, ...]
    expected_kl: float


class ConfigRecord(msgspec.Struct, frozen=True):
    """The factors in config.json, without those folded into weights. written_as: the encoding of
    the config.
    """

    written_as: str
    attention_factor: float
    softmax_scale: float = 1.0


class LogNRecord(msgspec.Struct, frozen=True):
    """The log-n approximation `gain (1 + beta ln(1 + floor(p / length)))`, and its largest
    deviation from log-n.
    """

    beta: float
    length: int
    gain: float
    deviation: float


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule, as `Schedule.to_dict` has it; keys that it does not need are absent.

    inv_freq: radians per token, one per pair of dimensions. short_inv_freq: those of short
    sequences, if they differ. context, original_context: in tokens. digest: sha256 over everything
    that changes a logit.
    """

    digest: str
    inv_freq: tuple[float, ...]
    attention_factor: float
    context: int
    original_context: int
    short_inv_freq: tuple[float, ...] | None = None
    softmax_scale: float = 1.0
    log_n: JsonObject | None = None
    query_scaling: JsonObject | None = None


class RuntimeRecord(msgspec.Struct, frozen=True):
    """The support of a range of versions of a runtime, as `Verdict.to_dict` has it.

    runtime: `name@version`, of its first version. evidence: "run" or "read", evidence_detail:
    version and date of a run; both null if it was not tested. source: where the rule is stated.
    """

    runtime: str
    status: str
    reason: str = ""
    source: str = ""
    display_name: str = ""
    evidence: str | None = None
    evidence_detail: str | None = None

    @property
    def grade(self) -> str:
        """The kind of evidence, as in `Verdict`."""
        return self.evidence or ""


class FileRecord(msgspec.Struct, frozen=True):
    """A file of the output.

    action: how it was made. size: in bytes. sha256: None if unknown. origin: another name in the
    source, or None.
    """

    name: str
    action: Action
    size: int
    sha256: str | None = None
    origin: str | None = None


class CheckRecord(msgspec.Struct, frozen=True):
    """The check of an output by the installed transformers, when it was written.

    transformers: its version. max_ulp: largest distance of a frequency from the schedule, in ulp of
    float32. attention_factor: that it computed. read_as: the model type that replaced one that it
    does not have, and without which it does not load the output; empty for others.
    """

    transformers: str
    max_ulp: int
    attention_factor: float
    read_as: str = ""

    @property
    def result(self) -> str:
        """The result in words, which several outputs may share."""
        loading = f", loading it as {self.read_as}," if self.read_as else ""
        return f"transformers {self.transformers}{loading} computes these frequencies"

    @property
    def sentence(self) -> str:
        """The result with its distance."""
        return f"{self.result} within {self.max_ulp} ulp of float32."


class GgufCheckRecord(msgspec.Struct, frozen=True):
    """The check of a GGUF output, which was read back before it got its name.

    max_ulp: largest distance from the schedule of a frequency that llama.cpp's rules give for the
    written header, in ulp of float32. attention_factor: by the same rules. tensors: their number.
    compared: how many of them were compared with the source, at both ends. llama_cpp: the version
    that decoded `decoded` tokens; empty where none did.
    """

    max_ulp: int
    attention_factor: float
    tensors: int
    compared: int = 0
    decoded: int = 0
    llama_cpp: str = ""

    @property
    def result(self) -> str:
        """The result in words, which several outputs may share."""
        return "by llama.cpp's rules the written header gives these frequencies"

    @property
    def sentence(self) -> str:
        """The result with its distance, and what else was compared."""
        header = f"{self.result} within {self.max_ulp} ulp of float32"
        if self.compared:
            tensors = (
                f"{counted(self.compared, 'tensor begins', 'tensors begin')} and end as in the"
                " source"
            )
        else:
            tensors = f"{counted(self.tensors, 'tensor is', 'tensors are')} there as planned"
        decoded = f"; {self.llama_cpp} decoded {self.decoded} tokens" if self.decoded else ""
        return f"{header}; {tensors}{decoded}."


FineTuningLevel = Literal["none", "recommended", "needed"]
"""The need of a method: no training; training, because quality is known to suffer; training, or it
does not work.
"""


class FineTuningRecord(msgspec.Struct, frozen=True):
    """The training that a method needs at the length of an output, as `bake.fine_tuning` computes
    it.
    """

    level: FineTuningLevel
    factor: float
    """The context of the output over `trained`."""

    trained: int
    """The tokens that the weights were trained for, with the RoPE that the method starts from."""

    reason: str
    """The evidence on the method at this factor; empty within the trained context."""

    @property
    def works_untuned(self) -> bool:
        """Whether the method is known to work at this length without training."""
        return self.level == "none"

    @property
    def times(self) -> str:
        """The factor in words: `64 times the trained 8,192 tokens`."""
        return f"{format_factor(self.factor)} times the trained {self.trained:,} tokens"

    @property
    def need(self) -> str:
        """The need as a verb, after the name of a method: `needs fine-tuning`; empty without
        one.
        """
        words = {"none": "", "recommended": "should be fine-tuned", "needed": "needs fine-tuning"}
        return words[self.level]

    @property
    def sentence(self) -> str:
        """The need in a sentence; empty where no training is needed."""
        if self.level == "needed":
            return f"Fine-tune it at this length ({self.times}): {self.reason}."
        if self.level == "recommended":
            return f"Fine-tuning is recommended at this length ({self.times}): {self.reason}."
        return ""


class Receipt(Summary, msgspec.Struct, frozen=True, kw_only=True):
    """How an output was made.

    ropeconv: its version. family: of the model, or its GGUF architecture. recipe: as
    `Recipe.to_dict` has it. encoding: how the schedule is written. fold, in_config,
    log_n_approximation, ramp_approximation: None if the encoding has none. effective_length: in
    tokens, None if it is the whole context. runtimes: the verdicts. files: of a folder; empty for a
    GGUF file. check: None if it was not run. validation, servers: results of `ropeconv validate`,
    as `Validation.to_dict` has them, the latter by runtime. evaluations: headlines of
    `ropeconv eval`. fine_tuning: what the method needs at this length. original: for `restore`, or
    None.
    """

    schema: int = SCHEMA
    ropeconv: str
    source: SourceRecord
    family: str = ""
    recipe: JsonObject
    before: BeforeRecord
    encoding: str
    fold: FoldRecord | None = None
    in_config: ConfigRecord | None = None
    log_n_approximation: LogNRecord | None = None
    ramp_approximation: RampApproximation | None = None
    schedule: ScheduleRecord
    effective_length: int | None = None
    runtimes: tuple[RuntimeRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    check: CheckRecord | None = None
    validation: JsonObject | None = None
    servers: dict[str, JsonObject] = {}
    evaluations: tuple[EvaluationRecord, ...] = ()
    fine_tuning: FineTuningRecord | None = None
    original: OriginalRecord | None = None
    target: TargetRecord

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))

    @property
    def context(self) -> int:
        """The context of the output in tokens."""
        return self.schedule.context

    @property
    def sentence(self) -> str:
        """The method, the contexts and the source, in words."""
        return (
            f"{self.method} from {self.before.context:,} to {self.context:,} tokens, made from"
            f" {self.first.described} by ropeconv {self.ropeconv}."
        )

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        validation = self.validation or {}
        return {
            "sentence": self.sentence,
            "family": self.family,
            "method": self.method,
            "context": f"{self.before.context:,} -> {self.context:,} tokens",
            "encoding": self.encoding,
            "check": self.check.sentence if self.check else "",
            "validation": str(validation.get("sentence", "")),
            "servers": ", ".join(self.servers),
            "evaluations": f"{len(self.evaluations)}" if self.evaluations else "",
        }

    @property
    def computed_inv_freq(self) -> tuple[float, ...]:
        """The frequencies that a runtime computes from the output: those of the schedule, or of
        another ramp.
        """
        ramp = self.ramp_approximation
        return tuple(self.schedule.inv_freq) if ramp is None else ramp.inv_freq

    @property
    def first(self) -> SourceRecord:
        """The source of the first bake of the output."""
        return self.original.source if self.original else self.source

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The bakes from the first source to the output, this one last."""
        earlier = self.original.steps if self.original else ()
        return (*earlier, StepRecord(self.recipe, self.target, self.before))

    @property
    def extension(self) -> StepRecord:
        """The last step that changed the RoPE, or the last step if none did."""
        return next(
            (step for step in reversed(self.steps) if step.method != "as-is"), self.steps[-1]
        )

    def to_dict(self) -> JsonObject:
        """Return the receipt as JSON-ready data, with every key."""
        return dict(msgspec.to_builtins(self))
