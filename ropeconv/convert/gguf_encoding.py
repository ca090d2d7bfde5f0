"""GGUF encodings: the ways to write a schedule into a GGUF file, and their verdicts.

In Gemma 3's graph rope.scaling.attn_factor also applies to the layers with a sliding window. Logits
scale by a^2, a the attention factor, and linearly by the query norm before the rotation, so
`keep_window_layers` multiplies that norm by `1 / a^2`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..errors import UnsupportedBake
from ..formats.gguf.edit import Change, Edit, interleave, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import F32, GgufHeader, TensorInfo, f32, u32
from ..inspection.problems import refused_tensors
from ..rope.forms import Vector
from ..rope.ramps import RampApproximation
from ..rope.registry import Registry
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.evidence import Evidence, records
from ..runtimes.gguf_readers import Feature, Reader, judge_reader, judge_readers
from ..runtimes.llamacpp.archs import Arch, arch_of_header, arch_table
from ..runtimes.llamacpp.layers import window_theta
from ..runtimes.llamacpp.read_header import (
    FREQS,
    LONG,
    ROPE_TENSORS,
    SHORT,
    WINDOW_NORM,
    Reading,
    read,
    rope_tensors,
)
from ..runtimes.llamacpp.scaling import ArchKeys
from ..runtimes.runtime import GOOD, RUNS, UNTESTED, Status
from ..runtimes.verdict import TOLERANCE, Verdict, difference
from .target import EncodeResult, Refusals, with_deviation, with_ramp


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model on disk or planned."""

    header: GgufHeader
    """The header of the first shard, with the keys."""

    tensors: Mapping[str, TensorInfo]
    """The tensors of all shards."""

    vectors: Mapping[str, Vector]
    """The rope tensors, float64 [rotary_dim / 2]."""

    kept: Reading | None = None
    """The RoPE as `before` has it; None for that of the model itself."""

    def get(self, key: str, default: object = None) -> Any:
        """Return the decoded value of a key; `default` where it is absent."""
        return self.header.get(key, default)

    def reading(self) -> Reading:
        """Return the RoPE that llama.cpp computes from the model.

        Raises:
            BadSource: Where it would refuse it.
        """
        return read(self, self.vectors, arch_of_header(self))

    @property
    def before(self) -> Reading:
        """The RoPE from which a method starts, and whose window layers no edit may change.

        It is that of the model, or for methods that start from the unscaled RoPE, that of the model
        without its scaling (`from_unscaled`).
        """
        return self.kept or self.reading()

    def from_unscaled(self) -> GgufModel:
        """Return the model for methods that start from its unscaled RoPE.

        Its window layers then have no attention factor.
        """
        unscaled = self.after(without_scaling(self)).reading()
        return replace(self, kept=replace(unscaled, local_attention_factor=1.0))

    def after(self, edit: Edit) -> GgufModel:
        """Return the model as it would be after an edit, without writing anything.

        It can be read as any model, so that the RoPE after an edit is known before the edit is
        made.
        """
        # the header with the new keys, in the present version of GGUF
        edited = rewrite(self.header, edit)
        header = GgufHeader(
            version=3,
            values=edited.values,
            tensors=edited.tensors,
            alignment=edited.alignment,
            data_start=0,  # in bytes; there is no file yet
            size=0,
        )

        # the numbers of the rope tensors, as they are removed, changed and added
        vectors = {}
        for name, vector in self.vectors.items():
            if name not in edit.removed:
                vectors[name] = vector
        for name in ROPE_TENSORS:
            if name in edit.changes and name in vectors:
                old_bytes = vectors[name].astype("<f4").tobytes()
                new_bytes = edit.changes[name].apply(old_bytes)
                vectors[name] = _floats(new_bytes)
            if name in edit.added:
                vectors[name] = _floats(edit.added[name])

        # The tensors of all shards. An edit changes the first shard only, whose tensors get new
        # places from the new header.
        tensors = {name: info for name, info in self.tensors.items() if name not in edit.removed}
        tensors |= edited.tensors
        return GgufModel(header=header, tensors=tensors, vectors=vectors, kept=self.kept)


def _floats(data: bytes) -> Vector:
    """32-bit floats as a vector."""
    return np.frombuffer(data, "<f4").astype(np.float64)


MakeEdit = Callable[[Schedule, GgufModel], Edit]
"""Writes a schedule into a model; raises UnsupportedBake for schedules that it cannot hold."""
GGUF_ENCODINGS: Registry[MakeEdit] = Registry("encoding", "ropeconv.convert.encodings")
"""The encodings of GGUF files, in the order in which "auto" tries them."""


def gguf_encoding(name: str, *, order: int) -> Callable[[MakeEdit], MakeEdit]:
    """Return a decorator that registers a function as an encoding."""

    def register(edit: MakeEdit) -> MakeEdit:
        return GGUF_ENCODINGS.add(name, edit, edit.__module__, order)

    return register


ADVICE_TO_CHANGE_METHOD = "choose another method or encoding"
USUAL_BASES = (10000.0, 500000.0)
LONG_CONTEXT = 131072
LAYERS_OF_LARGER_GEMMA3 = (34, 48, 62)
SAME_NUMBER = 1e-6


def gguf_features(model: GgufModel) -> frozenset[Feature]:
    """Return which features of RoPE a GGUF file uses, such as {"theta", "yarn", "rope_freqs"}.

    Programs that read GGUF are judged by them: one that lacks a feature computes another RoPE.

    Raises:
        BadSource: Where llama.cpp would refuse it.
    """
    reading = model.reading()
    file = ArchKeys(model, reading.arch)
    uses: dict[Feature, bool] = {
        "theta": True,
        **_scaling_features(file, reading),
        **_rope_tensor_features(file, model),
        **_window_features(file),
        **_logit_scale_features(file),
    }
    return frozenset(feature for feature, is_used in uses.items() if is_used)


def _scaling_features(file: ArchKeys, reading: Reading) -> dict[Feature, bool]:
    """Return which features of RoPE scaling a GGUF file uses, such as {"yarn": True, ...}.

    Programs that read GGUF files are judged by these features, since a program may lack a feature
    or compute it in another way than llama.cpp.

    Args:
        file: The metadata keys of the file.
        reading: The RoPE that llama.cpp computes from these keys.
    """
    features: dict[Feature, bool] = {}

    # the type and the factor; llama.cpp takes a missing type for linear, and a factor of 0 for 1
    # (src/llama-model.cpp)
    kind = file.text("rope.scaling.type", "linear")
    factor = 1.0
    if kind != "none":
        factor = file.number("rope.scaling.factor", 1.0) or 1.0
    is_linear = factor != 1 and kind == "linear"
    is_yarn = factor != 1 and kind == "yarn"
    features["linear"] = is_linear
    features["yarn"] = is_yarn

    # The attention factor. The key attn_factor multiplies the attention factor that llama.cpp
    # computes for YaRN; the result may be 1.
    has_attn_factor = abs(file.number("rope.scaling.attn_factor", 1.0) - 1) > SAME_NUMBER
    result_is_1 = abs(reading.spec.attention_factor - 1) < SAME_NUMBER
    cancels_yarn = is_yarn and has_attn_factor and result_is_1
    features["yarn_attention_factor"] = is_yarn and not has_attn_factor
    features["attention_factor_1"] = cancels_yarn
    features["attn_factor"] = has_attn_factor and not cancels_yarn

    # other ends of YaRN's ramp than llama.cpp's defaults, in architectures with keys for them
    beta_fast = file.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = file.number("rope.scaling.yarn_beta_slow", 1.0)
    has_usual_betas = beta_fast == 32.0 and beta_slow == 1.0
    features["betas"] = file.arch.betas and not has_usual_betas

    # koboldcpp: it computes a new base for files with a usual base and without scaling
    theta = file.number("rope.freq_base", 10000.0)
    is_scaled = is_linear or is_yarn
    features["stock_theta"] = theta in USUAL_BASES and not is_scaled

    # Ollama: it adds linear scaling by 8 to some files of Gemma 3 with a long context (131072) and
    # without scaling keys (llama/compat/llama-ollama-compat.cpp)
    has_type = file.get("rope.scaling.type") is not None
    has_factor = file.get("rope.scaling.factor") is not None
    is_long = file.whole("context_length") >= LONG_CONTEXT
    features["no_scaling_keys"] = is_long and not has_type and not has_factor

    # Ollama: it sets the factor of Gemma 3 4b, 12b and 27b to 8, the factor of the published models
    # (model/models/gemma3/model_text.go)
    is_gemma3 = file.arch.name == "gemma3"
    is_larger_gemma3 = is_gemma3 and file.whole("block_count") in LAYERS_OF_LARGER_GEMMA3
    is_linear_8 = is_linear and factor == 8
    features["gemma3_not_8"] = is_larger_gemma3 and not is_linear_8
    return features


def _rope_tensor_features(file: ArchKeys, model: GgufModel) -> dict[Feature, bool]:
    """Return for each feature of rope tensors whether a file uses it: {"rope_freqs": True, ...}.

    A rope tensor has a divisor for the frequency of each pair. llama.cpp reads rope_freqs, and in
    some architectures one tensor for short texts and one for long ones (LongRoPE).

    Args:
        file: The keys of the file.
        model: The file, with the numbers of its rope tensors.
    """
    # a divisor of 1 changes nothing
    in_use = set()
    for name, divisors in model.vectors.items():
        if np.any(divisors != 1):
            in_use.add(name)

    rope_freqs = model.vectors.get(FREQS)
    has_unexpected_size = rope_freqs is not None and not _fills_heads(rope_freqs, file)
    return {
        "rope_freqs": FREQS in in_use,
        "factors": LONG in in_use or SHORT in in_use,
        "rope_freqs_shape": has_unexpected_size,
    }


def _fills_heads(rope_freqs: Vector, file: ArchKeys) -> bool:
    """Return whether rope_freqs has a divisor for every pair of dimensions of a head.

    ik_llama.cpp refuses any other size. It takes a head to have embedding_length / head_count
    dimensions: 4096 / 32 = 128, which are 64 pairs.
    """
    head_count = file.get("attention.head_count")
    if not isinstance(head_count, int):  # a list: its layers differ in their heads
        return False
    dimensions_of_head = 2 * len(rope_freqs)
    return head_count * dimensions_of_head == file.whole("embedding_length")


def _window_features(file: ArchKeys) -> dict[Feature, bool]:
    """Return which features a GGUF file uses in layers with a sliding window.

    For example, {"window_theta": True, "window_norms": False}.
    """
    # window_theta: a key changes the base of these layers. Without the key, the base is a constant
    # of the architecture (`window.theta`), or the base of the global layers.
    window = file.arch.window
    key_changes_base = False
    if window is not None:
        global_base = file.number("rope.freq_base", 10000.0)
        base_without_key = window.theta or global_base
        base_with_key = window_theta(file, window, global_base)
        key_changes_base = base_with_key != base_without_key

    # window_norms: ropeconv has scaled the query norms of these layers. It writes the scale under
    # ropeconv.window_norm_scale, without the architecture as a prefix.
    norm_scale = file.number(WINDOW_NORM, 1.0, prefix="")
    return {
        "window_theta": key_changes_base,
        "window_norms": abs(norm_scale - 1) > SAME_NUMBER,
    }


def _logit_scale_features(file: ArchKeys) -> dict[Feature, bool]:
    """Return for each key that scales attention logits whether a file uses it.

    A key counts only in architectures for which llama.cpp reads it.
    """
    arch = file.arch
    # a part of YaRN's attention factor: mscale_all_dim of DeepSeek and Mistral
    log_multiplier = 0.0
    if arch.log_multiplier:
        log_multiplier = file.number("rope.scaling.yarn_log_multiplier", 0.0)
    # queries grow with their position, as in Ministral 3 and Mistral 4
    temperature_scale = 0.0
    reads_query_scaling = arch.query_length != ""
    if reads_query_scaling:
        temperature_scale = file.number("attention.temperature_scale", 0.0)
    return {
        "log_multiplier": log_multiplier != 0,
        "temperature_scale": temperature_scale != 0,
    }


@dataclass(frozen=True)
class GgufResult(EncodeResult):
    """A schedule as an encoding writes it into a GGUF file."""

    edit: Edit = field(kw_only=True)
    arch: str = field(kw_only=True)
    """general.architecture after the edit."""

    features: frozenset[Feature] = field(kw_only=True)
    """Features of RoPE that the file then uses."""

    kept: RopeSpec | None = None
    """The RoPE whose window layers the edit does not change."""

    def verdict_by(self, reader: Reader) -> Verdict:
        """Return a verdict: whether a program such as Ollama computes the schedule from the file.

        Args:
            reader: A range of versions of the program, such as Ollama 0.18 to 0.20, or a single
                version that the user named.
        """
        # a range of versions: its verdict is in `verdicts`
        for verdict in self.verdicts:
            has_same_last_version = verdict.through == reader.last
            if verdict.runtime == reader.key and has_same_last_version:
                return verdict

        # a single version inside a range: its verdict is made once, then kept
        if reader.key not in self._verdicts_by_version:
            verdict_on_llamacpp = self.verdicts[0]
            verdict = judge_reader(reader, self.features, self.arch, verdict_on_llamacpp)
            # "exact" becomes "approximate" where the file approximates log-n, or the ramp of YaRN
            verdict = with_deviation(verdict, self.deviation)
            verdict = with_ramp(verdict, self.ramp)
            self._verdicts_by_version[reader.key] = verdict
        return self._verdicts_by_version[reader.key]

    @cached_property
    def _verdicts_by_version(self) -> dict[str, Verdict]:
        """The verdicts of versions inside a range, by their keys."""
        return {}

    def as_approximation(self, ramp: RampApproximation) -> GgufResult:
        """Return the result of the schedule of `ramp` for the one that it approximates."""
        verdicts = tuple(with_ramp(verdict, ramp) for verdict in self.verdicts)
        return replace(self, verdicts=verdicts, ramp=ramp)

    def suits(self, readers: Sequence[Reader], untested: bool = False) -> bool:
        """Return whether every reader computes the schedule, or its ramp where that is written.

        Args:
            readers: The readers.
            untested: Whether those that were not tested with it count too.
        """
        statuses = GOOD if self.ramp is None else RUNS
        if untested:
            statuses = (*statuses, UNTESTED)
        return all(self.verdict_by(reader).status in statuses for reader in readers)


def judge_result(
    encoding: str,
    schedule: Schedule,
    model: GgufModel,
    edit: Edit,
    title: str = "",
    deviation: float = 0.0,
    **more: Any,
) -> GgufResult:
    """Return an edit of a GGUF file, with a verdict on each program that reads GGUF files.

    A verdict says whether the program computes the schedule from the edited file.

    Args:
        encoding: How the edit writes the schedule, such as "keys" for metadata keys.
        schedule: The frequencies and factors that the edit writes.
        model: The model before the edit.
        edit: The changes of keys and tensors.
        title: The encoding as messages call it, such as "the carrier mistral3". Empty for the name
            of the encoding.
        deviation: The relative error of an approximation of log-n, the scaling of queries by
            position; 0 for an exact edit.
        more: Further fields of `GgufResult`, such as `notes`.

    Raises:
        UnsupportedBake: Where llama.cpp would not load the file, or not compute the schedule.
    """
    # Layers with a sliding window must keep their RoPE. An attention factor would change it, so
    # their query norms are scaled to undo that.
    edit = keep_window_layers(model, edit)

    # llama.cpp: `judge_edit` raises an error unless it computes the schedule
    llamacpp = judge_edit(schedule, model, edit, title or encoding, encoding)

    # other programs, such as Ollama: judged by the features of RoPE that the edited file uses,
    # which a program may ignore or compute in another way than llama.cpp
    edited_model = model.after(edit)
    arch = str(edited_model.get("general.architecture"))
    features = gguf_features(edited_model)
    verdicts = [llamacpp, *judge_readers(features, arch, llamacpp)]

    # "exact" becomes "approximate" for an approximation of log-n
    verdicts = [with_deviation(verdict, deviation) for verdict in verdicts]
    return GgufResult(
        encoding=encoding,
        verdicts=tuple(verdicts),
        edit=edit,
        arch=arch,
        features=features,
        kept=model.before.spec,  # the RoPE before the edit, which window layers must keep
        deviation=deviation,
        **more,
    )


def judge_file(file: GgufFile) -> tuple[Verdict, ...]:
    """Return a verdict on each program that reads GGUF files, such as Ollama, for one file.

    A verdict says whether the program computes the RoPE that the file describes. The verdict on
    llama.cpp is the first.

    Raises:
        BadSource: Where llama.cpp refuses the file.
    """
    rope_factors = rope_tensors(file)  # the contents of rope_freqs and similar tensors
    model = GgufModel(file.header, file.tensors, rope_factors)
    reading = model.reading()  # the RoPE that llama.cpp computes from the file
    arch = reading.arch

    # llama.cpp is "exact" by definition, since a file describes what llama.cpp computes from it
    status: Status = "exact"
    scaling = file.get(f"{arch.name}.rope.scaling.type")
    if refused_tensors(reading, model.vectors, scaling):
        status = "refused"
    # an architecture that is missing in ropeconv's table of llama.cpp's architectures
    elif arch.assumed:
        status = "unknown"

    table = arch_table()
    llamacpp = Verdict(
        runtime=table.key,
        display_name=table.display_name,
        status=status,
        reason="",
        source=table.source,
        through=table.version,  # the last version for which the verdict is known
        evidence=Evidence(grade="read"),  # known from the source of llama.cpp, not from a run
    )

    # other programs are judged by how they differ from llama.cpp
    others = judge_readers(gguf_features(model), arch.name, llamacpp)
    return (llamacpp, *others)


def judge_edit(
    schedule: Schedule, model: GgufModel, edit: Edit, name: str, encoding: str = ""
) -> Verdict:
    """Check that llama.cpp computes a schedule from an edited GGUF file, and return the verdict.

    The edited header is read by the rules of llama.cpp, and the RoPE that it describes is compared
    with the schedule.

    Args:
        schedule: The frequencies and factors that the edit writes.
        model: The model before the edit.
        edit: The changes of keys and tensors.
        name: How the error message calls the encoding, such as "the carrier mistral3".
        encoding: The encoding, such as "keys". By this name, records of runs of llama.cpp are
            looked up as evidence. Empty for no evidence.

    Returns:
        The verdict "exact", or "unknown" for an architecture that is missing in ropeconv's table of
        llama.cpp's architectures.

    Raises:
        UnsupportedBake: Where llama.cpp would not load the file, or not compute the schedule.
    """
    before = model.before  # the RoPE that llama.cpp computes from the file before the edit
    edited_model = model.after(edit)
    table = arch_table()
    why_wrong = _why_wrong(schedule, before, edited_model.reading(), edited_model)
    if why_wrong:
        target = f"{table.display_name} with {name}"
        raise UnsupportedBake("this schedule", target, why_wrong, ADVICE_TO_CHANGE_METHOD)

    make_verdict = partial(
        Verdict,
        runtime=table.key,
        display_name=table.display_name,
        source=table.source,
        through=table.version,
    )
    # --assume-arch-keys: for an architecture that the table lacks, it is only an assumption that
    # llama.cpp reads these keys
    if before.arch.assumed:
        reason = (
            f"{before.arch.name} is not in the table; llama.cpp reads these keys alike for those"
            " that are"
        )
        return make_verdict(status="unknown", reason=reason)
    evidence = _evidence(before.arch.family, encoding)
    return make_verdict(status="exact", reason="", evidence=evidence)


def _why_wrong(schedule: Schedule, before: Reading, after: Reading, planned: GgufModel) -> str:
    """Return the reason why llama.cpp does not compute a schedule from an edited file.

    Args:
        schedule: The frequencies and factors that llama.cpp should compute.
        before: The RoPE that llama.cpp computes from the file before the edit.
        after: The RoPE that llama.cpp computes from the file after the edit.
        planned: The file after the edit.

    Returns:
        The reason; empty where llama.cpp computes the schedule.
    """
    # whether llama.cpp loads the file with these rope tensors
    scaling = planned.get(f"{after.arch.name}.rope.scaling.type")
    refused = refused_tensors(after, planned.vectors, scaling)
    if refused:
        return f"it does not load {after.arch.name} with {refused[0]}"

    # the layers that are extended: their frequencies and factors, and which layers they are
    reason = difference(schedule, before.spec, after.spec)
    if reason:
        return reason
    if after.spec.layers != before.spec.layers:
        return "other layers would rotate"

    # the layers with a window, which must stay as they were
    if "local" not in after.spec.layers:
        return ""
    new = after.local_attention_factor
    old = before.local_attention_factor
    if math.isclose(new, old, rel_tol=TOLERANCE):
        return ""
    return f"it scales the window layers by {new:.4f}, not {old:.4f}"


def _evidence(family: str, encoding: str) -> Evidence:
    """The evidence for llama.cpp and an encoding in a family.

    Its record names encodings as `rope_types`.
    """
    name, _, version = arch_table().key.partition("@")
    for record in records():
        if (record.runtime, record.version) != (name, version):
            continue
        cell = record.models.get(family)
        if cell is not None and encoding in cell.rope_types and cell.most == "exact":
            return Evidence("run", f"{record.version}, {record.date}")
    return Evidence("read")


def nothing_suits(
    results: list[GgufResult], refusals: Refusals, readers: tuple[Reader, ...]
) -> UnsupportedBake:
    """Return the error for a schedule that no encoding of GGUF writes for all wanted programs.

    Its message has the reason for each encoding, then advice.

    Args:
        results: The results of the encodings that llama.cpp computes exactly, first the result of
            the encoding that the user named.
        refusals: The errors of the encodings that cannot hold the schedule, by encoding.
        readers: The programs that must compute the schedule from the file, such as Ollama.
    """
    reasons = []
    for result in results:
        reasons.append(f"with {result.encoding}: {_outcome(result, readers)}")
    for name, refusal in refusals.items():
        reasons.append(f"with {name}: {refusal.reason}")

    # Advice to allow an untested encoding: the first encoding that some program was not tested
    # with, and that all other programs compute exactly.
    advice = []
    exact_or_untested = [result for result in results if result.suits(readers, untested=True)]
    if exact_or_untested:
        first_result = exact_or_untested[0]
        is_exact_in_all = first_result.suits(readers)
        if not is_exact_in_all:
            advice.append(
                f"pass --allow-untested, which writes it with {first_result.encoding} all the same"
            )

    # other advice, such as "take --encoding tensor"
    advice.append(_advise(results, readers))
    names = " and ".join(reader.display_name for reader in readers)
    return UnsupportedBake("this schedule", names, "; ".join(reasons), ", or ".join(advice))


def _outcome(result: GgufResult, readers: tuple[Reader, ...]) -> str:
    """Return what readers compute with an encoding: "exact", or what each wrong one does."""
    has_several_readers = len(readers) > 1
    wrong = []
    for reader in readers:
        verdict = result.verdict_by(reader)
        if verdict.status not in GOOD:
            wrong.append(_words(verdict, named=has_several_readers))
    return " and ".join(wrong) or "exact"


def _words(verdict: Verdict, named: bool) -> str:
    """The status and reason of a verdict, with the name of the reader or without."""
    words = verdict.reason if verdict.status == "unknown" else f"{verdict.status}, {verdict.reason}"
    if named:
        return f"{verdict.display_name} {words}"
    return words


def _advise(results: list[GgufResult], readers: tuple[Reader, ...]) -> str:
    """Return advice for a GGUF file that some program does not compute, as the end of a message.

    For example, "take --encoding tensor".

    Args:
        results: The results of the encodings that llama.cpp computes exactly, first the result of
            the encoding that the user named. A program does not compute that result.
        readers: The programs that must compute the schedule from the file, such as Ollama.
    """
    # an encoding that all programs compute; "carrier" writes the model as another architecture
    for result in results:
        if result.suits(readers):
            if result.encoding == "carrier":
                return f"take --carrier {result.arch}"
            return f"take --encoding {result.encoding}"

    # a program that was not tested with the encoding that the user named
    first_result = results[0]
    for reader in readers:
        if first_result.verdict_by(reader).status == "unknown":
            measure = "measure what it computes with `ropeconv validate FILE --server URL`"
            return f"leave --runtime {reader.name} out, and {measure}"

    # a program that does not compute it; GOOD are the statuses "exact" and "rounded"
    wrong_readers = [
        reader for reader in readers if first_result.verdict_by(reader).status not in GOOD
    ]
    return f"leave --runtime {wrong_readers[0].name} out, or choose another method"


SCALING_KEYS = (
    "type",
    "factor",
    "attn_factor",
    "original_context_length",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "alpha",
)
LOG_MULTIPLIER_KEY = "yarn_log_multiplier"
SAME_FACTOR = 1e-7


def fitting_keys(arch: Arch) -> str:
    """A sentence on the methods that the keys of an architecture can hold, for a refusal."""
    window = arch.window
    if window is not None and window.rotates == "window" and window.scaling == "base":
        return "only another base fits into its keys, such as --theta or --ntk give"
    return "theta, linear and yarn fit into its keys"


def start(model: GgufModel, schedule: Schedule) -> Edit:
    """Return an edit of a GGUF file that removes its scaling and writes the new context length.

    Every encoding begins with this edit, and then adds the keys of the new scaling.
    """
    prefix = model.get("general.architecture")  # such as "llama"
    new_keys = {f"{prefix}.context_length": u32(schedule.context)}

    # The trained context, where the new context differs. llama.cpp reads the key under every
    # scaling type, but uses it only for yarn, for two factor lists, and for query scaling
    # (src/llama-model.cpp:1410, ggml_rope_yarn).
    is_extended = schedule.context != schedule.original_context
    # Ministral 3: the key is also the unit of its query scaling, and keeps its value
    key_keeps_value = pinned_original(model) != 0
    if is_extended and not key_keeps_value:
        original_context = u32(schedule.original_context)
        new_keys[f"{prefix}.rope.scaling.original_context_length"] = original_context

    # the new keys count where both edits have a key
    removal_of_old_scaling = without_scaling(model)
    return removal_of_old_scaling.merge(Edit(new_keys))


def without_scaling(model: GgufModel) -> Edit:
    """Return the edit that removes a scaling: its keys, and divisors other than 1.

    For a Llama it removes llama.rope.scaling.type, llama.rope.scaling.factor and the like.
    """
    prefix = model.get("general.architecture")
    dropped = {f"{prefix}.rope.scaling.{key}" for key in SCALING_KEYS}
    dropped.add(f"{prefix}.rope.scale_linear")  # the factor in files from before rope.scaling.*

    # Ministral 3 scales queries in units of this length, which must stay
    if pinned_original(model):
        dropped.remove(f"{prefix}.rope.scaling.original_context_length")

    # In some architectures with latent attention (MLA), the multiplier scales all logits. Elsewhere
    # it stays: it only takes part in the attention factor of a scaling, and has no effect without
    # one.
    if arch_of_header(model).softmax:
        dropped.add(f"{prefix}.rope.scaling.{LOG_MULTIPLIER_KEY}")

    # Rope tensors are kept, with divisors of 1, which change nothing: without the tensor, all data
    # behind it would move.
    ones = {}
    for name, vector in model.vectors.items():
        if name in ROPE_TENSORS:
            ones[name] = overwrite(np.ones(len(vector)))
    return Edit(dropped=frozenset(dropped), changes=ones)


def pinned_original(model: GgufModel) -> int:
    """Return the original context in tokens where query scaling uses its key too; else 0.

    Ministral 3 is such an architecture.
    """
    prefix = model.get("general.architecture")
    arch = arch_of_header(model)
    shared = arch.query_length == "rope.scaling.original_context_length"
    if not shared or not model.get(f"{prefix}.attention.temperature_scale"):
        return 0
    return int(model.get(f"{prefix}.rope.scaling.original_context_length", 0))


def with_attention_factor(model: GgufModel, schedule: Schedule, edit: Edit) -> Edit:
    """Return the edit with rope.scaling.attn_factor, which multiplies the factor of other keys."""
    present = model.after(edit).reading().spec.attention_factor
    missing = schedule.attention_factor / present
    if abs(missing - 1) < SAME_FACTOR:
        return edit
    key = f"{edit.arch or model.get('general.architecture')}.rope.scaling.attn_factor"
    return edit.merge(Edit({key: f32(missing)}))


def overwrite(vector: Vector) -> Change:
    """Return the change that replaces a tensor of 32-bit floats by a vector of the same length."""
    data = np.asarray(vector, "<f4").tobytes()
    return Change(len(data), lambda old: data)


def put_vector(model: GgufModel, name: str, vector: Vector) -> Edit:
    """Return the edit that sets a rope tensor: overwritten where it exists, else appended."""
    if name in model.vectors:
        return Edit(changes={name: overwrite(vector)})
    return Edit(added={name: np.asarray(vector, "<f4").tobytes()})


def keep_window_layers(model: GgufModel, edit: Edit) -> Edit:
    """Return the edit with scaled query norms, so that layers with a window compute as before.

    In llama.cpp, rope.scaling.attn_factor also applies to layers with a sliding window, which a
    method must not change. If it multiplies their attention factor by a, queries and keys grow by
    a, and logits, their products, by a^2. Logits are proportional to the weights of the query
    norms, so these are multiplied by 1 / a^2 in the layers with a window.

    A key of ropeconv (`WINDOW_NORM`) records that in the file, as the attention factor 1 / a that
    these layers have been given.

    Args:
        model: The GGUF file before.
        edit: The changes so far.

    Raises:
        UnsupportedBake: Where window layers have no F32 query norm.
    """
    after = model.after(edit).reading()
    before = model.before
    has_window_layers = "local" in after.spec.layers
    excess = after.local_attention_factor / before.local_attention_factor  # a
    if not has_window_layers or abs(excess - 1) < SAME_FACTOR:
        return edit

    # The norm multiplies all dimensions of a head, and the attention factor only those that rotate,
    # so all must rotate. A `halved` architecture declares twice the width that its heads have.
    all_rotate = after.spec.rotary_dim == after.spec.head_dim or after.arch.halved
    changes = {}
    for index, kind in enumerate(after.spec.layers):
        if kind != "local":
            continue
        name = f"blk.{index}.attn_q_norm.weight"
        info = model.tensors.get(name)
        has_f32_norm = info is not None and info.type == F32
        if info is None or not has_f32_norm or not all_rotate:
            raise UnsupportedBake(
                "this attention factor",
                f"the GGUF architecture {after.arch.name}",
                "its key would change the window layers too, and they have no F32 query norm that"
                " could undo that",
                "choose an --attention-factor that does not change the key (for yarn its default)",
            )
        changes[name] = scaled_floats(info.size, excess**-2)

    # an earlier edit may have scaled the norms too, and then the file has the key
    recorded_before = model.get(WINDOW_NORM, 1.0)
    recorded = {WINDOW_NORM: f32(recorded_before / excess)}
    return edit.merge(Edit(recorded, changes=changes))


def scaled_floats(size: int, factor: float) -> Change:
    """Return the change that multiplies 32-bit floats."""

    def multiply(old: bytes) -> bytes:
        return (np.frombuffer(old, "<f4") * np.float32(factor)).astype("<f4").tobytes()

    return Change(size, multiply)


NOTE = (
    "the file becomes the GGUF architecture {to}: tools show that name, and a later llama.cpp may"
    " treat it differently"
)


def carry(model: GgufModel, to: str) -> Edit:
    """Return the edit of a GGUF file that writes the model as another architecture.

    Args:
        model: The GGUF file.
        to: The name of the other architecture, such as "llama".

    Raises:
        UnsupportedBake: Where the table of llama.cpp's architectures does not name this carrier.
    """
    # `carriers` are the architectures that compute the same layers, such as llama for qwen2
    arch = arch_of_header(model)
    if to not in arch.carriers:
        known = ", ".join(f"--carrier {name}" for name in arch.carriers)
        raise UnsupportedBake(
            "this schedule",
            f"{arch.name} as {to or 'another architecture'}",
            "this carrier is not known",
            f"take {known}" if known else fitting_keys(arch),
        )

    # llama rotates neighbouring dimensions (2i, 2i + 1), and qwen2 those half a head apart
    changes = {}
    if arch.pairs != arch_table().arch[to].pairs:
        changes = _interleave_queries_and_keys(model)
    rotary_dim = u32(model.reading().spec.rotary_dim)
    return Edit({f"{to}.rope.dimension_count": rotary_dim}, arch=to, changes=changes)


def _interleave_queries_and_keys(model: GgufModel) -> dict[str, Change]:
    """Reorder the rows of queries and keys, from pairs (i, i + d/2) to pairs (2i, 2i + 1).

    A "carrier", another architecture as which a file is written, may rotate the latter pairs. In a
    head of 4 dimensions, rows 0 1 2 3 become 0 2 1 3: first the pair (0, 2), then (1, 3).

    Returns:
        The changes by the name of the tensor.

    Raises:
        UnsupportedBake: For layers with different numbers of heads, and for fused projections.
    """
    # where layers have different numbers of heads, the value is a list with the number of each
    prefix = model.get("general.architecture")
    heads = model.get(f"{prefix}.attention.head_count")
    kv_heads = model.get(f"{prefix}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        raise UnsupportedBake(
            "this schedule", "a carrier", "its layers have different heads", "choose another method"
        )
    if any(".attn_qkv." in name for name in model.tensors):
        raise UnsupportedBake(
            "this schedule", "a carrier", "its projections are fused", "choose another method"
        )

    # whole rows move within each head, so quantised blocks keep their bytes
    head_dim = model.reading().spec.head_dim
    changes = {}
    for name, info in model.tensors.items():
        if re.search(r"\.attn_[qk]\.(weight|bias)$", name):
            changes[name] = interleave(info, head_dim)
    return changes
