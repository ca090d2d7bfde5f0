"""Encoding, one way to write a schedule into a checkpoint, and the choice among those of config.json alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedBake
from ..formats.safetensors import Tensor
from ..models.config import text_part, text_parts
from ..models.family import Family
from ..models.schema import DUAL_CHUNK, Config
from ..rope.forms import Plain
from ..rope.methods.interpolation import Ntk
from ..rope.registry import Registry
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.grouping import ALL, find, newest
from ..runtimes.runtime import LLAMA_CPP, Runtime, runtimes
from ..runtimes.verdict import judge_all, without_config
from .config_edit import RopeSetting, bake_config
from .fold import Fold
from .target import EncodeResult, Target

Tensors = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class EncodeRequest:
    """What is to be written, and for which runtimes.

    schedule: what has to be computed. spec: the RoPE of the source. family: of its model. config: its whole
    config.json, without dual_chunk_attention_config where the target drops that. target: the options of the output.
    tensors: returns the tensors of the source by name, empty for a config.json alone; it may have to fetch headers, so
    it is called only by encodings that change weights.
    """

    schedule: Schedule
    spec: RopeSpec
    family: Family
    config: Config
    target: Target
    tensors: Tensors = dict

    def __post_init__(self) -> None:
        if self.target.dual_chunk == "drop":
            object.__setattr__(self, "config", copy.deepcopy(self.config))
            for part in text_parts(self.config, self.family):
                part.pop(DUAL_CHUNK, None)

    @property
    def versions(self) -> list[tuple[Runtime, ...]]:
        """Per runtime that has to read the output exactly, its current versions, the newest last.

        "all" stands for the runtimes that have the family and were looked at.
        """
        names = list(self.target.runtimes or ("transformers",))
        if ALL in names:
            at = names.index(ALL)
            names[at : at + 1] = [row.name for row in runtimes() if without_config(row, self.family) is None]
        return [find(name) for name in dict.fromkeys(names)]

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The newest version of each runtime that has to read the output exactly."""
        return tuple(rows[-1] for rows in self.versions)


@dataclass(frozen=True)
class CheckpointResult(EncodeResult):
    """A schedule as an encoding writes it into a checkpoint.

    config: the whole new config.json. family: that reads it. in_config: the schedule that the config (with stored
    buffers) gives, without factors that are folded into weights. written_as: the encoding of the config itself.
    context: the tokens that it declares. fold: factors in weights, None without. texts: text files to add, by name.
    added: tensors to add, by name.
    """

    config: Config = field(kw_only=True)
    family: Family = field(kw_only=True)
    in_config: Schedule = field(kw_only=True)
    written_as: str = field(kw_only=True)
    context: int = field(kw_only=True)
    fold: Fold | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def suits(self, runtimes: tuple[Runtime, ...], statuses: tuple[str, ...] = ("exact",)) -> bool:
        """Whether the verdict of every one of `runtimes` has one of the statuses."""
        return all(self.status_of(row) in statuses for row in runtimes)


Encode = Callable[[EncodeRequest], CheckpointResult]


@dataclass(frozen=True)
class Encoding:
    """A way to write a schedule into a checkpoint.

    name: as `--encoding` takes it. order: the order in which "auto" tries encodings, lowest first. encode: from a
    request to a result; raises UnsupportedBake for schedules that it cannot hold. max_ulp: by how many ulp of float32
    the frequencies of a correct runtime may differ from the schedule. config_only: whether it changes config.json
    alone. folds: whether it folds the attention factor into weights, which validation then checks. model_type: from the
    `model_type` of a source to that of its output.
    """

    name: str
    order: int
    encode: Encode
    max_ulp: int
    config_only: bool
    folds: bool
    model_type: Callable[[str], str]


ENCODINGS: Registry[Encoding] = Registry("encoding", "ropeconv.convert.encodings", lambda encoding: encoding.order)
"""The encodings of checkpoints, in the order in which "auto" tries them."""


def encoding(
    name: str,
    *,
    order: int,
    max_ulp: int,
    config_only: bool = False,
    folds: bool = False,
    model_type: Callable[[str], str] = lambda name: name,
) -> Callable[[Encode], Encode]:
    """Decorator: registers a function as an encoding.

    name, order, max_ulp, config_only, folds, model_type: as in `Encoding`.
    """

    def register(encode: Encode) -> Encode:
        ENCODINGS.add(name, Encoding(name, order, encode, max_ulp, config_only, folds, model_type), encode.__module__)
        return encode

    return register


Setting = Callable[[Schedule, RopeSpec, Family], RopeSetting]


def config_encoding(name: str, *, order: int, max_ulp: int) -> Callable[[Setting], Setting]:
    """Decorator: registers a function from a schedule to a RopeSetting as an encoding of config.json alone.

    name, order, max_ulp: as in `Encoding`.
    """

    def register(setting: Setting) -> Setting:
        @encoding(name, order=order, max_ulp=max_ulp, config_only=True)
        def encode(request: EncodeRequest) -> CheckpointResult:
            refuse_log_n(request)
            schedule, spec, family = request.schedule, request.spec, request.family
            written = setting(schedule, spec, family)
            baked = bake_config(request.config, family, spec, written)
            verdicts = judge_all(baked, family, schedule, spec)
            return CheckpointResult(
                name, verdicts, config=baked, family=family, in_config=schedule, written_as=name,
                context=written.context, notes=written.notes,
            )  # fmt: skip

        return setting

    return register


def refuse_log_n(request: EncodeRequest) -> None:
    """Raises UnsupportedBake for a schedule with log-n, for which the stock classes have no config key."""
    if request.schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {request.schedule.log_n.kind}", f"the keys of {request.family.name}",
            "its stock class does not scale queries by position",
            "use --encoding buffers or --encoding ministral3, where the family has them, or leave --log-n out",
        )  # fmt: skip


def tried(request: EncodeRequest) -> tuple[list[CheckpointResult], dict[str, UnsupportedBake]]:
    """Tries every encoding of config.json alone.

    Returns the results of those that can hold the schedule, in their order, and the errors of the others by name.
    """
    found: list[CheckpointResult] = []
    refusals: dict[str, UnsupportedBake] = {}
    for known in ENCODINGS.values():
        if not known.config_only:
            continue
        try:
            found.append(known.encode(request))
        except UnsupportedBake as refusal:
            refusals[known.name] = refusal
    return found, refusals


def furthest(request: EncodeRequest) -> CheckpointResult:
    """Of the encodings of config.json alone that all named runtimes read exactly, the one with most exact verdicts.

    request: what to write, and `runtimes` that have to read it. Raises UnsupportedBake where there is none.
    """
    found, refusals = tried(request)
    fitting = [result for result in found if result.suits(request.runtimes)]
    if not fitting:
        raise nothing_fits(found, refusals, request)
    return max(fitting, key=CheckpointResult.exact_count)


def nothing_fits(
    found: list[CheckpointResult], refusals: dict[str, UnsupportedBake], request: EncodeRequest
) -> UnsupportedBake:
    """The error where no encoding fits, with the reason for each encoding.

    found: results that the named runtimes do not read exactly. refusals: errors of encodings that cannot hold the
    schedule, by name. request: what was to be written.
    """
    rows = request.runtimes
    reasons = [
        f"{verdict.display_name if len(rows) > 1 else ''} with {result.encoding}: {verdict.reason or verdict.status}"
        for result in found
        for verdict in map(result.verdict_of, rows)
        if verdict.status != "exact"
    ]
    reasons = [reason.strip() for reason in reasons]
    reasons = reasons or [f"with {name}: {refusal.reason}" for name, refusal in refusals.items()]
    native = refusals.get("native")  # the only encoding with two factor lists
    one_list = native.alternatives if native is not None and request.schedule.short_inv_freq is not None else ""
    return UnsupportedBake(
        "this schedule",
        " and ".join(row.display_name for row in rows),
        "; ".join(dict.fromkeys([*_conflict(found, rows), *reasons])),
        one_list or _dropped_key(request) or _way_out(found, request),
    )


def _conflict(found: list[CheckpointResult], rows: tuple[Runtime, ...]) -> list[str]:
    """A sentence on what each runtime alone would get, where it is only together that nothing fits."""
    alone = {row.display_name: [result.encoding for result in found if result.suits((row,))] for row in rows}
    if len(rows) < 2 or not all(alone.values()):
        return []
    named = (f"{name} alone would get {' or '.join(encodings)}" for name, encodings in alone.items())
    return [f"they conflict: {', '.join(named)}"]


def _dropped_key(request: EncodeRequest) -> str:
    """The option without which dual_chunk_attention_config hinders the named runtimes; empty where it is not that."""
    target = request.target
    if target.dual_chunk == "drop" or not text_part(request.config, request.family).get(DUAL_CHUNK):
        return ""
    found, _ = tried(replace(request, target=replace(target, dual_chunk="drop")))
    helps = any(result.suits(request.runtimes) for result in found)
    return f"pass --dual-chunk drop, which removes {DUAL_CHUNK}" if helps else ""


def _way_out(found: list[CheckpointResult], request: EncodeRequest) -> str:
    if any(row.name == LLAMA_CPP for row in request.runtimes):
        return "convert it here, which llama.cpp then reads exactly: --to gguf"
    unknown = [row for row in request.runtimes if any(one.status_of(row) == "unknown" for one in found)]
    if unknown:
        return (
            f"leave {unknown[0].name} out, and measure what it computes with `ropeconv validate OUTPUT --server URL` "
            "or record it with scripts/lab"
        )
    base = _base_instead(request)
    best = newest("transformers")
    if len(request.runtimes) > 1:
        return f"{base}name one of them, and bake a second output for the others"
    if any(result.status_of(best) == "exact" for result in found):
        return f"{base}name a runtime that reads it (--runtime {best.name} does)"
    return f"{base}choose another method"


def _base_instead(request: EncodeRequest) -> str:
    """The flag of a base for the same context, where the named runtimes read a base exactly; else empty."""
    schedule, spec = request.schedule, request.spec
    factor = schedule.context / schedule.original_context
    if factor <= 1 or spec.scaled or isinstance(schedule.form, Plain):
        return ""
    made = replace(Ntk(factor).schedule(spec), context=schedule.context, query_scaling=schedule.query_scaling)
    try:
        result = ENCODINGS["native"].encode(replace(request, schedule=made))
    except UnsupportedBake:
        return ""
    return f"take a base, which is read exactly (--ntk {factor:.6g}), or " if result.suits(request.runtimes) else ""


def bare(request: EncodeRequest) -> EncodeRequest:
    """The request with attention factor and softmax scale 1, since both are folded into weights."""
    return replace(request, schedule=replace(request.schedule, attention_factor=1.0, softmax_scale=1.0))


TOLERANCE = 1e-7
REACH = 4096


def original_for(context: int, attention_factor: float) -> tuple[int, int]:
    """Lengths (M, O), M a little above `context`, with `sqrt(1 + ln(M/O) / ln O) = attention_factor`.

    context: in tokens. attention_factor: A. The equation is `ln M / ln O = A^2`; O alone is too coarse, so M grows by
    up to 4096 tokens until the formula gives A within 1e-7, and 1e-6 is accepted. Raises UnsupportedBake for A < 1, and
    where no such pair exists.
    """
    if abs(attention_factor - 1) < TOLERANCE:
        return context, context
    if attention_factor > 1:
        best = min(_pairs(context, attention_factor), key=lambda pair: pair[0])
        if best[0] < 1e-6:
            return best[1], best[2]
    raise UnsupportedBake(
        f"attention_factor {attention_factor:g}",
        "a class that derives it from two lengths",
        "no pair of lengths gives it",
        "choose --attention-factor 1",
    )


def lengths_note(wanted: int, context: int, original: int) -> str:
    """The note about a declared context and original length that were chosen for an attention factor. All in tokens."""
    return (
        f"declares {context} tokens (for {wanted}) and an original length of {original}, from which this architecture "
        "derives its attention factor; servers that take that length for their default window need the window as an "
        "option"
    )


def _pairs(context: int, attention_factor: float) -> list[tuple[float, int, int]]:
    found = []
    for longer in range(context, context + REACH):
        original = round(longer ** (1 / attention_factor**2))
        if original < 2:
            continue
        error = abs(math.sqrt(math.log(longer) / math.log(original)) - attention_factor)
        found.append((error, longer, original))
        if error < TOLERANCE:
            break
    return found or [(math.inf, context, context)]
