"""Receipt: how an output was made, with the same fields for folders and GGUF files.

OriginalRecord: the parts of the first source that the output changes, for `restore`. Every further
bake keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import msgspec

from ...formats.jsontext import JsonObject
from ...options import CompanionNames, Format, TargetOptions
from ...rope.errors import counted
from ...rope.lengths import format_factor
from ...rope.ramps import RampApproximation
from ...rope.summary import Summary
from ...version import SCHEMA


class BeforeRecord(msgspec.Struct, frozen=True):
    """The RoPE of the source."""

    rope: str
    """Its form."""

    after: str
    """The form of the output."""

    attention_factor: float
    """Its attention factor."""

    context: int
    """Its declared context in tokens."""

    original_context: int
    """Its trained context in tokens."""

    effective_length: int | None
    """Its effective length in tokens; None if it is the whole context."""

    reach: int | None
    """The same, up to the context of the output."""


@dataclass(frozen=True)
class TargetRecord(CompanionNames, TargetOptions):
    """The target of an output, which makes its plan again, together with the recipe and the source.

    The options are those of the user: an encoding may be "auto".
    """

    to: Format = field()
    """The format of the output."""

    def __post_init__(self) -> None:
        """Set options that an earlier version did not record."""
        # msgspec leaves defaults to the class, and out of JSON
        vars(self).update({option.name: getattr(self, option.name) for option in fields(self)})


class StepRecord(msgspec.Struct, frozen=True):
    """A bake."""

    recipe: JsonObject
    """The recipe, as in its receipt."""

    target: TargetRecord
    """The target, as in its receipt."""

    before: BeforeRecord
    """The RoPE of its source, as in its receipt."""

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A number of an evaluation, with its standard error."""

    measure: str
    """The name of the measure."""

    metric: str
    """The name of the number, of which a measure may have several."""

    column: int
    """The length in tokens, or another number that heads a column."""

    value: float
    """The mean over windows."""

    error: float | None = None
    """Its standard error; None for a single window."""

    low: float | None = None
    """The lower end of Wilson's interval of 95 %, for shares only."""

    high: float | None = None
    """The upper end of that interval."""

    difference: float | None = None
    """The value minus the row that others are compared with, paired by window; None in that row."""

    difference_error: float | None = None
    """The standard error of the difference."""

    margin: float | None = None
    """How far from 0 the difference must be to be significant; None where that is not testable."""

    clusters: int = 0
    """How many windows or texts are taken as independent."""

    questions: int = 0
    """How many answers a share is of; 0 for other numbers, and in older evaluations."""

    @property
    def place(self) -> tuple[str, str, int]:
        """The measure, the metric and the length, of which an evaluation has one number."""
        return self.measure, self.metric, self.column

    @property
    def decided(self) -> bool | None:
        """Whether the difference is significant; None where there is none."""
        if self.difference is None:
            return None
        return self.margin is not None and abs(self.difference) > self.margin


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of an output."""

    against: str = ""
    """The name of the row that differences are to; empty for none."""

    runtime: str
    """The runtime that computed it."""

    device: str
    """The device on which it was computed."""

    dtype: str
    """The precision in which it was computed."""

    trained: int
    """The trained context in tokens."""

    texts: tuple[str, ...]
    """The names of the files with text, without their folders."""

    tokens_sha256: str
    """The sha256 over the tokens of all texts."""

    price: float | None = None
    """The loss at the trained length minus the first row's, in nats per token."""

    price_error: float | None = None
    """The standard error of the price."""

    holds_to: int | None = None
    """The longest length in tokens at which the loss is not significantly above the best one."""

    measured: tuple[MeasuredRecord, ...]
    """The numbers over all depths."""

    ropeconv: str = ""
    """The version of ropeconv that measured it."""

    @property
    def described_texts(self) -> str:
        """The texts in a few words."""
        if len(self.texts) > 3:
            return f"{len(self.texts)} texts"
        return ", ".join(self.texts)


class SourceRecord(msgspec.Struct, frozen=True):
    """The source of an output."""

    name: str
    """The first part of the default name of outputs."""

    kind: str
    """Its kind: "folder", "hub", "meta", "config" or "gguf"."""

    reference: str | None = None
    """Its name as the user gave it; None for local ones."""

    commit: str | None = None
    """Its commit on the Hub; None for local ones."""

    family: str = ""
    """The family that the user gave; empty for that of its model_type."""

    derived: str = ""
    """The class that was run to derive its family; empty for a family that was described."""

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
        if self.reference:
            return self.reference
        noun = "file" if self.kind == "gguf" else "folder"
        return f"the local {noun} {self.name!r}"


class TextRecord(msgspec.Struct, frozen=True):
    """A text file of the source that an output has with other contents."""

    name: str
    """The name of the file."""

    sha256: str
    """The sha256 of its contents in the source."""

    text: str
    """Its contents in the source, without the bytes at both ends that the output has too."""

    prefix: int = 0
    """The number of bytes at the beginning that are the same."""

    suffix: int = 0
    """The number of bytes at the end that are the same."""

    def restore(self, content: bytes) -> bytes:
        """Return the contents in the source, from those in the output."""
        stop = max(self.prefix, len(content) - self.suffix)
        return content[: self.prefix] + self.text.encode() + content[stop:]


class FoldedFactors(msgspec.Struct, frozen=True):
    """The factors that all runs of ropeconv together have folded into the weights of an output.

    Those of its config.json are multiplied by them.
    """

    attention_factor: float = 1.0
    softmax_scale: float = 1.0

    gain: float = 1.0
    """That of a log-n approximation, as in `LogNRecord`."""

    def times(self, other: FoldedFactors) -> FoldedFactors:
        """Return the product of both."""
        return FoldedFactors(
            attention_factor=self.attention_factor * other.attention_factor,
            softmax_scale=self.softmax_scale * other.softmax_scale,
            gain=self.gain * other.gain,
        )


class FolderRecord(msgspec.Struct, frozen=True):
    """The parts of a checkpoint folder that an output changes."""

    texts: tuple[TextRecord, ...] = ()
    """Its files with other contents."""

    added: tuple[str, ...] = ()
    """The names of files of the output only."""

    renamed: dict[str, str] = {}
    """The names of its files, by those in the output."""

    skipped: tuple[str, ...] = ()
    """The names of its files that the output lacks."""

    multiplied: tuple[str, ...] = ()
    """The names of tensors that were multiplied by a factor, which cannot be undone."""

    folded: FoldedFactors = FoldedFactors()
    """The factors for which they were multiplied."""


class ValueRecord(msgspec.Struct, frozen=True):
    """A value of a GGUF header."""

    kind: int
    """The number of its type."""

    raw: str = ""
    """Its bytes in base64; empty for a text of spaces."""

    spaces: int = 0
    """The number of these spaces."""


class GgufRecord(msgspec.Struct, frozen=True):
    """The parts of a GGUF file that an output changes."""

    keys: tuple[str, ...]
    """The names of its keys, in their order."""

    values: dict[str, ValueRecord] = {}
    """Its values that the output lacks, or has otherwise."""

    written: dict[str, ValueRecord] = {}
    """The values of the output that ropeconv has written and the source did not have.

    Where the file has others, they were edited by hand. Receipts that were written before this
    field existed have none.
    """

    added: tuple[str, ...] = ()
    """The names of tensors of the output only."""

    contents: dict[str, str] = {}
    """The contents of small tensors that changed, in base64."""

    interleaved: tuple[str, ...] = ()
    """The names of tensors whose rows were reordered, head_dim rows at a time."""

    head_dim: int = 0
    """The rows of a head of these tensors."""

    changed: tuple[str, ...] = ()
    """The names of other tensors that changed."""

    version: int = 3
    """The version of GGUF, as in `Layout`."""

    data_start: int = 0
    """The byte where data begins, as in `Layout`; 0 where no such file was written."""

    tail: int = 0
    """The bytes after the last tensor, as in `Layout`."""

    sha256: str = ""
    """The sha256 of its header up to data_start.

    It is empty if no such file was written, or its header cannot be laid out again byte for byte.
    """


class OriginalRecord(msgspec.Struct, frozen=True):
    """The first source of an output."""

    source: SourceRecord
    """The first source."""

    folder: FolderRecord | None = None
    """The changed parts of a folder; None for a GGUF file."""

    gguf: GgufRecord | None = None
    """The changed parts of a GGUF file; None for a folder."""

    steps: tuple[StepRecord, ...] = ()
    """The bakes from it to the source of the output; empty if that is the first source."""


Action = Literal["write", "copy", "convert", "patch"]


class FoldRecord(msgspec.Struct, frozen=True):
    """A fold of factors into weights."""

    fold_into: Literal["q", "k", "qk"]
    """The rows that are multiplied: of queries, of keys, or both."""

    tensors: tuple[str, ...]
    """The names of the tensors that changed."""

    expected_kl: float
    """The KL in nats of rounding them."""


class ConfigRecord(msgspec.Struct, frozen=True):
    """The factors in config.json, without those folded into weights."""

    written_as: str
    """The encoding of the config."""

    attention_factor: float
    """Its attention factor."""

    softmax_scale: float = 1.0
    """Its factor of the softmax."""


class LogNRecord(msgspec.Struct, frozen=True):
    """The log-n approximation `gain (1 + beta ln(1 + floor(p / length)))`."""

    beta: float
    """Its slope."""

    length: int
    """The tokens of one step of it."""

    gain: float
    """Its factor."""

    deviation: float
    """Its largest deviation from log-n."""


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule, as `Schedule.to_dict` has it; keys that it does not need are absent."""

    digest: str
    """The sha256 over everything that changes a logit."""

    inv_freq: tuple[float, ...]
    """The frequencies in radians per token, one per pair of dimensions."""

    attention_factor: float
    """The attention factor."""

    context: int
    """The declared context in tokens."""

    original_context: int
    """The trained context in tokens."""

    short_inv_freq: tuple[float, ...] | None = None
    """The frequencies of short sequences, if they differ."""

    softmax_scale: float = 1.0
    """The factor of the softmax."""

    log_n: JsonObject | None = None
    """The log-n scaling, if there is one."""

    query_scaling: JsonObject | None = None
    """The scaling of queries by their position, if there is one."""


class RuntimeRecord(msgspec.Struct, frozen=True):
    """The support of a range of versions of a runtime, as `Verdict.to_dict` has it."""

    runtime: str
    """The first of these versions as `name@version`."""

    status: str
    """The behaviour, as in `Verdict`."""

    reason: str = ""
    """The reason, or a remark; may be empty where the status is "exact"."""

    source: str = ""
    """The place where the rule is stated."""

    display_name: str = ""
    """The runtime and its versions for display."""

    evidence: str | None = None
    """The kind of evidence, "run" or "read"; None if it was not tested."""

    evidence_detail: str | None = None
    """The version and date of a run."""

    options: str = ""
    """The options with which it must be started; empty for none."""

    @property
    def grade(self) -> str:
        """The kind of evidence, as in `Verdict`."""
        return self.evidence or ""


class FileRecord(msgspec.Struct, frozen=True):
    """A file of the output."""

    name: str
    """Its name in the output."""

    action: Action
    """How it was made."""

    size: int
    """Its size in bytes."""

    sha256: str | None = None
    """Its sha256; None if unknown."""

    origin: str | None = None
    """Its name in the source where that is another one."""


class LayerRecord(msgspec.Struct, frozen=True):
    """The attention of one layer of an output, compared with that of the patched source.

    Errors are relative, |output - reference| / |reference|, at the 95th percentile of the tokens.
    """

    layer: str
    """Its number, and what distinguishes its kind."""

    last: int
    """The last position of the run."""

    error: float
    """The error of the output."""

    allowed: float
    """The error that rounding explains."""

    control: float
    """The error of the source without the method; 0 for a layer that the method does not change."""

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the error of the output."""
        return self.error <= self.allowed

    @property
    def is_changed(self) -> bool:
        """Whether the method changes the layer in this run."""
        return self.control > 0


DISTINCT = 3.0
"""How many times as far as allowed the source without the method is at least, if a run shows it."""


class LayersRecord(msgspec.Struct, frozen=True):
    """The attention of the first layer of each kind, run with the weights of the output."""

    tokens: int = 0
    """The number of tokens of a run."""

    reached: int = 0
    """The last position."""

    ends_early: str = ""
    """Why that is not the last one of the context, as a clause; empty where it is."""

    layers: tuple[LayerRecord, ...] = ()
    """The result of each layer and run."""

    left_out: tuple[str, ...] = ()
    """Layers of other kinds, which do not run on their own."""

    unchanged: bool = False
    """Whether the source computes the schedule already, so that there is no control."""

    reason: str = ""
    """Why no layer was run, as a clause; empty where some were."""

    @property
    def differing(self) -> LayerRecord | None:
        """The layer that differs most; None where all agree."""
        if not self.layers:
            return None
        worst = max(self.layers, key=lambda layer: layer.error / layer.allowed)
        if worst.agrees:
            return None
        return worst

    @property
    def is_distinguished(self) -> bool:
        """Whether the source without the method would have been noticed."""
        return any(layer.control > DISTINCT * layer.allowed for layer in self.layers)

    @property
    def sentence(self) -> str:
        """The end of a sentence: which layers were compared, or why no layer was compared.

        An example: ", and the attention of layers 0 and 5 is that of the method up to position
        8,191 (REASON)". The reason is why the positions end before the context does.
        """
        if self.reason:
            return f"; no layer was run, since {self.reason}"

        # the layers, each once; a record has "0" or "0 (full_attention)" as its `layer`
        numbers: list[str] = []
        for record in self.layers:
            number, _, _ = record.layer.partition(" ")
            if number not in numbers:
                numbers.append(number)
        noun = "layers" if len(numbers) > 1 else "layer"
        names = f"{noun} {' and '.join(numbers)}"

        last = f"position {self.reached:,}"
        reason_for_early_end = self.ends_early  # a text, or ""
        if reason_for_early_end:
            last += f" ({reason_for_early_end})"

        # The source without the method was run too, as a control, which must differ
        # (`is_distinguished`). A source that has the method already is no control (`unchanged`).
        shows_method = self.unchanged or self.is_distinguished
        if shows_method:
            return f", and the attention of {names} is that of the method up to {last}"
        return f"; the attention of {names} up to {last} does not show the method"


class CheckRecord(msgspec.Struct, frozen=True):
    """The check of an output by the installed transformers, when it was written."""

    transformers: str
    """The version of transformers."""

    max_ulp: int
    """The largest distance of a frequency from the schedule, in ulp of float32."""

    attention_factor: float
    """The attention factor that transformers computed."""

    read_as: str = ""
    """The model type that replaced one that transformers does not have; empty for others.

    Without that it does not load the output.
    """

    layers: LayersRecord | None = None
    """The attention of its first layers; None in receipts from before this was compared."""

    @property
    def result(self) -> str:
        """The result in words, which several outputs may share."""
        loading = f", loading it as {self.read_as}," if self.read_as else ""
        return f"transformers {self.transformers}{loading} computes these frequencies"

    @property
    def sentence(self) -> str:
        """The result with its distance, and what else was compared."""
        of_layers = "" if self.layers is None else self.layers.sentence
        return f"{self.result} within {self.max_ulp} ulp of float32{of_layers}."


class GgufCheckRecord(msgspec.Struct, frozen=True):
    """The check of a GGUF output, which was read back before it got its name."""

    max_ulp: int
    """The largest distance of a frequency from the schedule, in ulp of float32.

    It is the frequency that llama.cpp's rules give for the written header.
    """

    attention_factor: float
    """The attention factor by the same rules."""

    tensors: int
    """The number of tensors."""

    compared: int = 0
    """How many of them were compared with the source, at both ends."""

    decoded: int = 0
    """The number of tokens that llama.cpp decoded."""

    llama_cpp: str = ""
    """The version that decoded them, or ran the first layers; empty where none did."""

    layers: LayersRecord | None = None
    """The first layers, run by llama.cpp; None where llama.cpp is not installed."""

    @property
    def result(self) -> str:
        """The result in words, which several outputs may share."""
        return "by llama.cpp's rules the written header gives these frequencies"

    @property
    def sentence(self) -> str:
        """The result with its distance, and what else was compared."""
        header = f"{self.result} within {self.max_ulp} ulp of float32"
        if self.compared:
            begin = counted(self.compared, "tensor begins", "tensors begin")
            tensors = f"{begin} and end as in the source"
        else:
            tensors = f"{counted(self.tensors, 'tensor is', 'tensors are')} there as planned"
        runs = self._what_llamacpp_did()
        if not runs:
            return f"{header}; {tensors}."
        return f"{header}; {tensors}; {self.llama_cpp} {runs}."

    def _what_llamacpp_did(self) -> str:
        """The runs of llama.cpp in words, such as "decoded 8 tokens"; "" if it ran nothing."""
        runs = []
        if self.decoded:
            runs.append(f"decoded {self.decoded} tokens")

        # the comparison of the attention of the first layers
        comparison = self.layers
        if comparison is not None and comparison.layers:
            # llama.cpp runs these layers together, so all records have the same `layer`: "0" or
            # "0-3"
            numbers = comparison.layers[0].layer
            noun = "layers" if "-" in numbers else "layer"
            names = f"{noun} {numbers}"
            last = f"position {comparison.reached:,}"
            # The source without the method was run too, as a control, which must differ
            # (`is_distinguished`). A source that has the method already is no control
            # (`unchanged`).
            shows_method = comparison.unchanged or comparison.is_distinguished
            if shows_method:
                runs.append(f"computes the method in {names} up to {last}")
            else:
                runs.append(f"runs {names} up to {last}, which do not show the method")
        return " and ".join(runs)


FineTuningLevel = Literal["none", "undecided", "recommended", "needed"]
"""The need of a method.

Without training it works as well, may do so (too few questions were asked to decide that), works
with a loss that is known, or does not work.
"""


class FineTuningRecord(msgspec.Struct, frozen=True):
    """The training that a method needs at the length of an output, by `bake.fine_tuning`."""

    level: FineTuningLevel
    """The need of the method."""

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
    def may_work_untuned(self) -> bool:
        """Whether it is not known to need training."""
        return self.level in ("none", "undecided")

    @property
    def times(self) -> str:
        """The factor in words: `64 times the trained 8,192 tokens`."""
        return f"{format_factor(self.factor)} times the trained {self.trained:,} tokens"

    @property
    def need(self) -> str:
        """The need as a verb, after the name of a method: `needs fine-tuning`; empty without it."""
        words = {
            "none": "",
            "undecided": "may need fine-tuning",
            "recommended": "should be fine-tuned",
            "needed": "needs fine-tuning",
        }
        return words[self.level]

    @property
    def sentence(self) -> str:
        """The need in a sentence; empty where no training is needed."""
        if self.level == "needed":
            return f"Fine-tune it at this length ({self.times}): {self.reason}."
        if self.level == "recommended":
            return f"Fine-tuning is recommended at this length ({self.times}): {self.reason}."
        if self.level == "undecided":
            return (
                f"Whether it works at this length ({self.times}) without training is not decided:"
                f" {self.reason}."
            )
        return ""


class ConverterRecord(msgspec.Struct, frozen=True):
    """llama.cpp's own converter, where it made a GGUF file of the source, before the method."""

    version: str
    """The commit of its checkout, or the name and version of its package; empty if not known."""

    sha256: str
    """The digest of its code."""


class ImatrixRecord(msgspec.Struct, frozen=True):
    """The importance matrix by which llama.cpp quantised a conversion."""

    name: str
    """The name of the file, without its folder."""

    sha256: str
    """The digest of the file."""


class Receipt(Summary, msgspec.Struct, frozen=True, kw_only=True):
    """How an output was made."""

    schema: int = SCHEMA
    """The version of these fields."""

    ropeconv: str
    """The version of ropeconv."""

    source: SourceRecord
    """The source of the output."""

    family: str = ""
    """The family of the model, or its GGUF architecture."""

    recipe: JsonObject
    """The recipe, as `Recipe.to_dict` has it."""

    before: BeforeRecord
    """The RoPE of the source."""

    encoding: str
    """How the schedule is written."""

    fold: FoldRecord | None = None
    """The fold of factors into weights; None if the encoding has none."""

    in_config: ConfigRecord | None = None
    """The factors in config.json; None if the encoding has none."""

    log_n_approximation: LogNRecord | None = None
    """The approximation of log-n scaling; None if the encoding has none."""

    ramp_approximation: RampApproximation | None = None
    """The ramp that approximates the frequencies; None if the encoding has none."""

    schedule: ScheduleRecord
    """The schedule of the output."""

    asked_context: int | None = None
    """The context that was asked for, in tokens; None where the output declares just that."""

    effective_length: int | None = None
    """The effective length in tokens; None if it is the whole context."""

    runtimes: tuple[RuntimeRecord, ...] = ()
    """The verdicts on runtimes."""

    files: tuple[FileRecord, ...] = ()
    """The files of a folder; empty for a GGUF file."""

    check: CheckRecord | None = None
    """The check of the output; None if it was not run."""

    validation: JsonObject | None = None
    """The result of `ropeconv validate`, as `Validation.to_dict` has it."""

    servers: dict[str, JsonObject] = {}
    """The results of `ropeconv validate` on servers, by runtime."""

    evaluations: tuple[EvaluationRecord, ...] = ()
    """The headlines of `ropeconv eval`."""

    fine_tuning: FineTuningRecord | None = None
    """The training that the method needs at this length."""

    original: OriginalRecord | None = None
    """The first source, for `restore`."""

    converter: ConverterRecord | None = None
    """The converter of llama.cpp that made a GGUF file of the source; None for ropeconv's."""

    imatrix: ImatrixRecord | None = None
    """The importance matrix by which llama.cpp quantised the output; None without one."""

    target: TargetRecord
    """The target of the output, which makes its plan again."""

    @property
    def method(self) -> str:
        """Name of the recipe's method."""
        return str(self.recipe.get("method", ""))

    @property
    def context(self) -> int:
        """The context that was asked for, in tokens; some outputs declare a longer one."""
        return self.asked_context or self.schedule.context

    @property
    def sentence(self) -> str:
        """The method, the contexts and the source, in words."""
        return (
            f"{self.method} from {self.before.context:,} to {self.context:,} tokens, made from"
            f" {self.first.described} by ropeconv {self.ropeconv}."
        )

    def summary(self) -> dict[str, str]:
        """Return the facts of the receipt that a command shows, as text by name."""
        values = {
            "sentence": self.sentence,
            "family": self.family,
            "method": self.method,
            "context": f"{self.before.context:,} -> {self.context:,} tokens",
            "encoding": self.encoding,
            "check": "",
            "validation": "",
            "servers": ", ".join(self.servers),
            "evaluations": "",
        }
        if self.check is not None:
            values["check"] = self.check.sentence
        if self.validation is not None:
            values["validation"] = str(self.validation.get("sentence", ""))
        if self.evaluations:
            values["evaluations"] = f"{len(self.evaluations)}"
        return values

    @property
    def computed_inv_freq(self) -> tuple[float, ...]:
        """The frequencies that a runtime computes: of the schedule, or of the ramp written."""
        if self.ramp_approximation is None:
            return tuple(self.schedule.inv_freq)
        return self.ramp_approximation.inv_freq

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
        for step in reversed(self.steps):
            if step.method != "as-is":
                return step
        return self.steps[-1]

    def to_dict(self) -> JsonObject:
        """Return the receipt as JSON-ready data, with every key."""
        return dict(msgspec.to_builtins(self))
