"""GgufEncoding, one way to write a schedule into a GGUF file, and the edits that all of them share.

In Gemma 3's graph rope.scaling.attn_factor also applies to the layers with a sliding window. Logits scale by a^2, a the
attention factor, and linearly by the query norm before the rotation, so `take_back` multiplies that norm by `1 / a^2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import UnsupportedBake
from ..formats.gguf.edit import AddedTensor, Change, Edit, interleave, rewrite
from ..formats.gguf.file import GgufFile
from ..formats.gguf.header import GgufHeader, TensorInfo
from ..formats.gguf.values import F32, f32, u32
from ..inspection.problems import refused_tensors
from ..rope.lazy import Vector
from ..rope.registry import Registry
from ..rope.schedule import Schedule
from ..runtimes.evidence import Evidence, records
from ..runtimes.gguf_readers import Feature, Reader, judge_reader, judge_readers
from ..runtimes.llamacpp.archs import arch_of_header, arch_table
from ..runtimes.llamacpp.layers import window_theta
from ..runtimes.llamacpp.read_header import FREQS, LONG, ROPE_TENSORS, SHORT, WINDOW_NORM, Reading, read, rope_tensors
from ..runtimes.llamacpp.scaling import ArchKeys
from ..runtimes.runtime import GOOD, Status
from ..runtimes.verdict import TOLERANCE, Verdict, difference
from .target import EncodeResult, with_deviation


@dataclass(frozen=True)
class GgufModel:
    """A GGUF model that is on disk or only planned.

    header: of the first shard, with the keys. tensors: of all shards, by name. vectors: the rope tensors, float64
    [rotary_dim / 2], by name.
    """

    header: GgufHeader
    tensors: Mapping[str, TensorInfo]
    vectors: Mapping[str, Vector]

    def get(self, key: str, default: object = None) -> Any:
        """The value of a key by its full name, decoded; `default` where it is absent."""
        return self.header.get(key, default)

    def reading(self) -> Reading:
        """The RoPE that llama.cpp computes from the model. Raises BadSource where it would refuse it."""
        return read(self, self.vectors, arch_of_header(self))

    def after(self, edit: Edit) -> GgufModel:
        """The model after an edit, without writing anything."""
        made = rewrite(self.header, edit)
        header = GgufHeader(3, made.values, made.tensors, made.alignment, 0, 0)
        vectors = {name: vector for name, vector in self.vectors.items() if name not in edit.removed}
        for name in ROPE_TENSORS:
            if name in edit.changes and name in vectors:
                vectors[name] = _floats(edit.changes[name].apply(vectors[name].astype("<f4").tobytes()))
        vectors |= {item.name: _floats(item.data) for item in edit.added if item.name in ROPE_TENSORS}
        kept = {name: info for name, info in self.tensors.items() if name not in edit.removed}
        return GgufModel(header, {**kept, **made.tensors}, vectors)


def _floats(data: bytes) -> Vector:
    return np.frombuffer(data, "<f4").astype(np.float64)


MakeEdit = Callable[[Schedule, GgufModel], Edit]


@dataclass(frozen=True)
class GgufEncoding:
    """A way to write a schedule into a GGUF file.

    name: as `--encoding` takes it. order: the order in which "auto" tries encodings, lowest first. edit: from a
    schedule and a model to the edit of the file; raises UnsupportedBake for schedules that it cannot hold.
    """

    name: str
    order: int
    edit: MakeEdit


GGUF_ENCODINGS: Registry[GgufEncoding] = Registry(
    "encoding", "ropeconv.convert.encodings", lambda encoding: encoding.order
)
"""The encodings of GGUF files, in the order in which "auto" tries them."""


def gguf_encoding(name: str, *, order: int) -> Callable[[MakeEdit], MakeEdit]:
    """Decorator: registers a function as an encoding. name, order: as in `GgufEncoding`."""

    def register(edit: MakeEdit) -> MakeEdit:
        GGUF_ENCODINGS.add(name, GgufEncoding(name, order, edit), edit.__module__)
        return edit

    return register


STOCK = (10000.0, 500000.0)
COMPAT_CONTEXT = 131072
GEMMA3_LAYERS = (34, 48, 62)
CLOSE = 1e-6


def gguf_features(model: GgufModel) -> frozenset[Feature]:
    """What a model uses of RoPE. Raises BadSource where llama.cpp would refuse it.

    model: as planned, after all edits.
    """
    reading = model.reading()
    file = ArchKeys(model, reading.arch)
    found: set[Feature] = {"theta"}
    scaling = file.text("rope.scaling.type", "linear")
    factor = 1.0 if scaling == "none" else file.number("rope.scaling.factor", 1.0) or 1.0
    if factor != 1 and scaling in ("linear", "yarn"):
        found.add("yarn" if scaling == "yarn" else "linear")
    found |= _attention(file, reading, "yarn" in found)
    found |= _keys(file)
    found |= _tensors(file, model)
    theta = file.number("rope.freq_base", 10000.0)
    if _own_window_theta(file, theta):
        found.add("window_theta")
    if not found & {"linear", "yarn"} and theta in STOCK:
        found.add("stock_theta")
    if file.get("rope.scaling.type") is None and file.get("rope.scaling.factor") is None:
        found |= {"no_scaling_keys"} if file.whole("context_length") >= COMPAT_CONTEXT else set()
    if reading.arch.name == "gemma3" and file.whole("block_count") in GEMMA3_LAYERS:
        found |= set() if "linear" in found and factor == 8 else {"gemma3_not_8"}
    return frozenset(found)


def _attention(file: ArchKeys, reading: Reading, yarn: bool) -> set[Feature]:
    """How the file says the attention factor."""
    given = abs(file.number("rope.scaling.attn_factor", 1.0) - 1) > CLOSE
    if not yarn:
        return {"attn_factor"} if given else set()
    if not given:
        return {"yarn_attention_factor"}
    return {"attention_factor_1"} if abs(reading.spec.attention_factor - 1) < CLOSE else {"attn_factor"}


def _keys(file: ArchKeys) -> set[Feature]:
    found: set[Feature] = set()
    betas = (file.number("rope.scaling.yarn_beta_fast", 32.0), file.number("rope.scaling.yarn_beta_slow", 1.0))
    if file.arch.betas and betas != (32.0, 1.0):
        found.add("betas")
    if file.arch.log_multiplier and file.number("rope.scaling.yarn_log_multiplier", 0.0):
        found.add("log_multiplier")
    if file.arch.query_length and file.number("attention.temperature_scale", 0.0):
        found.add("temperature_scale")
    if abs(file.number(WINDOW_NORM, 1.0, prefix="") - 1) > CLOSE:
        found.add("window_norms")
    return found


def _tensors(file: ArchKeys, model: GgufModel) -> set[Feature]:
    """The rope tensors whose divisors are not all 1, and whether their shape is unusual."""
    found: set[Feature] = set()
    freqs = model.vectors.get(FREQS)
    if freqs is not None and not np.all(freqs == 1):
        found.add("rope_freqs")
    if any(name in model.vectors and not np.all(model.vectors[name] == 1) for name in (LONG, SHORT)):
        found.add("factors")
    heads = file.get("attention.head_count")
    if freqs is not None and (not isinstance(heads, int) or 2 * len(freqs) * heads != file.whole("embedding_length")):
        found.add("rope_freqs_shape")
    return found


def _own_window_theta(file: ArchKeys, theta: float) -> bool:
    """Whether rope.freq_base_swa says something else than what holds without it."""
    window = file.arch.window
    return window is not None and window_theta(file, window, theta) != (window.theta or theta)


@dataclass(frozen=True)
class GgufResult(EncodeResult):
    """A schedule as an encoding writes it into a GGUF file.

    edit: what changes in the file. arch: general.architecture after it. features: what the file then uses of RoPE.
    """

    edit: Edit = field(kw_only=True)
    arch: str = field(kw_only=True)
    features: frozenset[Feature] = field(kw_only=True)

    def judged_by(self, reader: Reader) -> Verdict:
        """The verdict of a reader, which may be cut to one version."""
        return with_deviation(judge_reader(reader, self.features, self.arch), self.deviation)

    def suits(self, readers: Sequence[Reader]) -> bool:
        """Whether every one of `readers` computes the schedule."""
        return all(self.judged_by(reader).status in GOOD for reader in readers)


def judged(
    encoding: str,
    schedule: Schedule,
    model: GgufModel,
    edit: Edit,
    title: str = "",
    deviation: float = 0.0,
    **more: Any,
) -> GgufResult:
    """The result of an encoding, with the verdict of llama.cpp first and those of the other readers after it.

    encoding: its name. schedule, model, edit: as in `judge_edit`. title: of the encoding for messages, by default its
    name. deviation: of a log-n approximation. more: other fields of the result. Raises as `judge_edit`.
    """
    own = judge_edit(schedule, model, edit, title or encoding, encoding)
    after = model.after(edit)
    arch, features = str(after.get("general.architecture")), gguf_features(after)
    verdicts = tuple(with_deviation(one, deviation) for one in (own, *judge_readers(features, arch)))
    return GgufResult(encoding, verdicts, edit=edit, arch=arch, features=features, deviation=deviation, **more)


def judge_file(file: GgufFile) -> tuple[Verdict, ...]:
    """Return the verdicts of llama.cpp and the other readers on a GGUF file. Raises BadSource where they refuse it."""
    model, table = GgufModel(file.header, file.tensors, rope_tensors(file)), arch_table()
    arch = model.reading().arch
    fails = refused_tensors(model.reading(), model.vectors, file.get(f"{arch.name}.rope.scaling.type"))
    status: Status = "refused" if fails else "unknown" if arch.assumed else "exact"
    own = Verdict(table.key, table.display_name, status, "", table.source, table.version, Evidence("read"))
    return (own, *judge_readers(gguf_features(model), arch.name))


def judge_edit(schedule: Schedule, model: GgufModel, edit: Edit, name: str, encoding: str = "") -> Verdict:
    """The verdict of llama.cpp on an edit, from reading the edited header by its rules.

    schedule: what has to be computed. model: before the edit. edit: to judge. name: of the encoding or carrier, for the
    message. encoding: its name, by which records of executed files are looked up. Raises UnsupportedBake where
    llama.cpp would not load the file, or not compute the schedule.
    """
    table, before, planned = arch_table(), model.reading(), model.after(edit)
    after = planned.reading()
    refused = refused_tensors(after, planned.vectors, planned.get(f"{after.arch.name}.rope.scaling.type"))
    found = f"it does not load {after.arch.name} with {refused[0]}" if refused else ""
    found = found or difference(schedule, before.spec, after.spec)
    if not found and after.spec.layers != before.spec.layers:
        found = "other layers would rotate"
    if not found and "local" in after.spec.layers and abs(after.local_attention_factor - 1) > TOLERANCE:
        found = f"it scales the window layers by {after.local_attention_factor:.4f} as well"
    if found:
        raise UnsupportedBake(
            "this schedule", f"{table.display_name} with {name}", found, "choose another method or encoding"
        )
    if before.arch.assumed:
        reason = f"{before.arch.name} is not in the table; llama.cpp reads these keys alike for those that are"
        return Verdict(table.key, table.display_name, "unknown", reason, table.source, table.version)
    known = _evidence(before.arch.family, encoding)
    return Verdict(table.key, table.display_name, "exact", "", table.source, table.version, known)


def _evidence(family: str, encoding: str) -> Evidence:
    """How it is known what llama.cpp does with an encoding in a family: its record names encodings as `rope_types`."""
    name, _, version = arch_table().key.partition("@")
    for record in records():
        seen = record.models.get(family) if (record.runtime, record.version) == (name, version) else None
        if seen is not None and encoding in seen.rope_types and seen.most == "exact":
            return Evidence("run", f"{record.version}, {record.date}")
    return Evidence("read")


def nothing_suits(
    found: tuple[GgufResult, ...], refusals: Mapping[str, UnsupportedBake], readers: tuple[Reader, ...]
) -> UnsupportedBake:
    """The error, with what every encoding would give in every reader, and the way out.

    found: the results that llama.cpp reads exactly, the wanted one first. refusals: errors of the other encodings, by
    name. readers: the named ones.
    """
    reasons = []
    for result in found:
        verdicts = [result.judged_by(reader) for reader in readers]
        wrong = [_words(verdict, len(readers) > 1) for verdict in verdicts if verdict.status not in GOOD]
        reasons.append(f"with {result.encoding}: {' and '.join(wrong) or 'exact'}")
    reasons += [f"with {name}: {refusal.reason}" for name, refusal in refusals.items()]
    names = " and ".join(reader.display_name for reader in readers)
    return UnsupportedBake("this schedule", names, "; ".join(reasons), _way_out(found, readers))


def _words(verdict: Verdict, named: bool) -> str:
    words = verdict.reason if verdict.status == "unknown" else f"{verdict.status}, {verdict.reason}"
    return f"{verdict.display_name} {words}" if named else words


def _way_out(found: tuple[GgufResult, ...], readers: tuple[Reader, ...]) -> str:
    fitting = next((result for result in found if result.suits(readers)), None)
    if fitting is not None:
        carrier = f" --carrier {fitting.arch}" if fitting.encoding == "carrier" else ""
        return f"take{carrier or f' --encoding {fitting.encoding}'}"
    unknown = [reader for reader in readers if found[0].judged_by(reader).status == "unknown"]
    if unknown:
        repair = "measure what it computes with `ropeconv validate FILE --server URL`"
        return f"leave --runtime {unknown[0].name} out, and {repair}"
    wrong = next(reader for reader in readers if found[0].judged_by(reader).status not in GOOD)
    return f"leave --runtime {wrong.name} out, or choose another method"


SCALING = (
    "type", "factor", "attn_factor", "original_context_length", "yarn_ext_factor", "yarn_attn_factor",
    "yarn_beta_fast", "yarn_beta_slow", "alpha",
)  # fmt: skip
NEGLIGIBLE = 1e-7


def start(model: GgufModel, schedule: Schedule) -> Edit:
    """The edit that declares the context and removes an earlier scaling: its keys, and divisors other than 1.

    Where the context is not the trained one, that is kept under rope.scaling.original_context_length. llama.cpp reads
    the key under every type and uses it for yarn, for two factor lists, and for query scaling (`pinned_original`) alone
    (src/llama-model.cpp:1410, ggml_rope_yarn).
    """
    prefix = model.get("general.architecture")
    stale = {f"{prefix}.rope.scale_linear", *(f"{prefix}.rope.scaling.{key}" for key in SCALING)}
    if pinned_original(model):
        stale.remove(f"{prefix}.rope.scaling.original_context_length")
    ones = {name: overwrite(np.ones(len(vector))) for name, vector in model.vectors.items() if name in ROPE_TENSORS}
    values = {f"{prefix}.context_length": u32(schedule.context)}
    if schedule.context != schedule.original_context and not pinned_original(model):
        values[f"{prefix}.rope.scaling.original_context_length"] = u32(schedule.original_context)
    return Edit(values, frozenset(stale - values.keys()), changes=ones)


def pinned_original(model: GgufModel) -> int:
    """The original context in tokens, where query scaling reads the same key (Ministral 3); else 0."""
    prefix = model.get("general.architecture")
    if not model.get(f"{prefix}.attention.temperature_scale"):
        return 0
    return int(model.get(f"{prefix}.rope.scaling.original_context_length", 0))


def with_attention_factor(model: GgufModel, schedule: Schedule, edit: Edit) -> Edit:
    """The edit with rope.scaling.attn_factor, which multiplies the attention factor that the other keys give.

    edit: all other changes of the encoding.
    """
    given = model.after(edit).reading().spec.attention_factor
    wanted = schedule.attention_factor / given
    if abs(wanted - 1) < NEGLIGIBLE:
        return edit
    key = f"{edit.arch or model.get('general.architecture')}.rope.scaling.attn_factor"
    return edit.merged(Edit({key: f32(wanted)}))


def overwrite(vector: Vector) -> Change:
    """The change that replaces a whole tensor of 32-bit floats by a vector of the same length."""
    data = np.asarray(vector, "<f4").tobytes()
    return Change(len(data), lambda old: data)


def put_vector(model: GgufModel, name: str, vector: Vector) -> Edit:
    """The edit that sets a rope tensor: overwritten where the model has it, else appended."""
    if name in model.vectors:
        return Edit(changes={name: overwrite(vector)})
    return Edit(added=(AddedTensor(name, np.asarray(vector, "<f4").tobytes()),))


def take_back(model: GgufModel, edit: Edit) -> Edit:
    """The edit with changed norms, so that the window layers compute as with the attention factor 1.

    model: before the edit. edit: all other changes. Raises UnsupportedBake where window layers have no F32 query norm.
    """
    seen = model.after(edit).reading()
    attention_factor = seen.local_attention_factor
    if "local" not in seen.spec.layers or abs(attention_factor - 1) < NEGLIGIBLE:
        return edit
    before, whole = model.get(WINDOW_NORM, 1.0), seen.spec.rotary_dim == seen.spec.head_dim or seen.arch.halved
    changes = {}
    for index, kind in enumerate(seen.spec.layers):
        name = f"blk.{index}.attn_q_norm.weight"
        info = model.tensors.get(name)
        if kind != "local":
            continue
        if info is None or info.type != F32 or not whole:
            raise UnsupportedBake(
                "this attention factor",
                f"the GGUF architecture {seen.arch.name}",
                "its key would change the window layers too, and they have no F32 norm of what rotates to take it back",
                "choose an --attention-factor that leaves the key at 1 (for yarn its default)",
            )
        changes[name] = _scaled(info.size, attention_factor**-2)
    return edit.merged(Edit({WINDOW_NORM: f32(before / attention_factor)}, changes=changes))


def _scaled(size: int, factor: float) -> Change:
    return Change(size, lambda old: (np.frombuffer(old, "<f4") * np.float32(factor)).astype("<f4").tobytes())


NOTE = "the file becomes the GGUF architecture {to}: people see that name, and a later llama.cpp may treat it otherwise"


def carry(model: GgufModel, to: str) -> Edit:
    """Return the edit that turns a model into the architecture `to`, with its RoPE unchanged.

    Raises UnsupportedBake where the table of llama.cpp's architectures names no such carrier.
    """
    arch = arch_of_header(model)
    if to not in arch.carriers:
        known = ", ".join(f"--carrier {name}" for name in arch.carriers)
        raise UnsupportedBake(
            "this schedule",
            f"{arch.name} as {to or 'another architecture'}",
            "no such carrier is known",
            f"take {known}" if known else "theta, linear and yarn fit into its keys",
        )
    changes = {} if arch.pairs == arch_table().arch[to].pairs else _interleaved(model)
    return Edit({f"{to}.rope.dimension_count": u32(model.reading().spec.rotary_dim)}, arch=to, changes=changes)


def _interleaved(model: GgufModel) -> dict[str, Change]:
    """The changes that reorder whole rows of queries and keys from pairs (i, i + d/2) to (2i, 2i + 1), by tensor."""
    prefix = model.get("general.architecture")
    heads = model.get(f"{prefix}.attention.head_count")
    kv = model.get(f"{prefix}.attention.head_count_kv", heads)
    if not isinstance(heads, int) or not isinstance(kv, int):
        raise UnsupportedBake("this schedule", "a carrier", "its layers have different heads", "choose another method")
    if any(".attn_qkv." in name for name in model.tensors):
        raise UnsupportedBake("this schedule", "a carrier", "its projections are fused", "choose another method")
    head_dim = model.reading().spec.head_dim
    return {
        name: interleave(info, head_dim)
        for name, info in model.tensors.items()
        if re.search(r"\.attn_[qk]\.(weight|bias)$", name)
    }
