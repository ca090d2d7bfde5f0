"""Encodings: the ways to write a schedule into a checkpoint, and the selection of one.

Read `select` first.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedBake, UsageError
from ..formats.safetensors import Tensor
from ..models.config import text_part, text_parts
from ..models.family import Family
from ..models.schema import DUAL_CHUNK, Config
from ..models.stored.checkpoint import QuantisedWeights
from ..options import encoding_names
from ..rope.forms import Plain
from ..rope.methods.interpolation import Ntk
from ..rope.registry import Registry
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.runtime import (
    ALL,
    GOOD,
    LLAMA_CPP,
    RUNS,
    SILENT,
    UNTESTED,
    Runtime,
    newest,
    runtimes,
)
from ..runtimes.verdict import Judge, quantised, without_config
from .config_edit import RopeSetting, bake_config
from .fold import Fold
from .target import (
    CANCELLED,
    ConsideredEncoding,
    EncodeResult,
    Refusals,
    Target,
    add_untested_note,
    attempts,
    refuse_attention_factor,
)

Tensors = Callable[[], Mapping[str, Tensor]]
DEFAULT_RUNTIMES = ("transformers", "vllm", "sglang", "mlx-lm")


@dataclass(frozen=True)
class EncodeRequest:
    """A schedule to write, and the runtimes that must support the result."""

    schedule: Schedule
    spec: RopeSpec
    """The RoPE of the source."""

    family: Family
    config: Config
    """The whole config.json, without dual_chunk_attention_config where the target drops that."""

    target: Target
    tensors: Tensors = dict
    """Returns the tensors of the source by name, empty for only a config.json.

    It may have to fetch headers, so only encodings that change weights call it.
    """

    quantised_weights: Callable[[], QuantisedWeights | None] = lambda: None
    """Returns the quantised weights of the source, None without any; as expensive as `tensors`."""

    judge: Judge = field(default_factory=Judge, compare=False, repr=False)
    """Judges what the encodings write; copies of a request share it."""

    def __post_init__(self) -> None:
        if self.target.dual_chunk == "drop":
            object.__setattr__(self, "config", copy.deepcopy(self.config))
            for part in text_parts(self.config, self.family):
                part.pop(DUAL_CHUNK, None)

    @cached_property
    def versions(self) -> list[tuple[Runtime, ...]]:
        """For each runtime that must compute the output, its current versions, the newest last.

        With --runtime vllm it is one tuple, such as (vLLM 0.30-0.32, vLLM 0.33). "all" means every
        runtime that supports the family and was tested.
        """
        names = list(self.target.runtimes) or [self._default_runtime()]

        # "all" becomes the names of all runtimes that can have the family. The table has a row for
        # each range of versions of a runtime, so names repeat.
        wanted = []
        for name in names:
            if name != ALL:
                wanted.append(name)
                continue
            for row in runtimes():
                refusal = without_config(row, self.family)
                if refusal is None:
                    wanted.append(row.name)
        each_once = dict.fromkeys(wanted)  # in the same order
        return [self.judge.find(name) for name in each_once]

    def _default_runtime(self) -> str:
        """Return the runtime that must compute the output where the user names none.

        It is the first usual one that can load the model: vLLM for Kimi K2, whose class
        transformers does not have.
        """
        for name in DEFAULT_RUNTIMES:
            if self._loads(newest(name)):
                return name
        return "transformers"

    def _loads(self, row: Runtime) -> bool:
        """Whether nothing is known that keeps a runtime from loading the model and its weights."""
        verdict = without_config(row, self.family, str(self.config.get("model_type", "")))
        if verdict is not None and verdict.status == "unsupported":
            return False
        return quantised(self.config, row, self.family) is None

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The newest version of each runtime that must compute the output exactly."""
        return tuple(rows[-1] for rows in self.versions)


@dataclass(frozen=True)
class CheckpointResult(EncodeResult):
    """A schedule as an encoding writes it into a checkpoint."""

    config: Config = field(kw_only=True)
    """The whole new config.json."""

    family: Family = field(kw_only=True)
    """The family of the output."""

    in_config: Schedule = field(kw_only=True)
    """The schedule of the config and stored buffers, without factors folded into weights."""

    written_as: str = field(kw_only=True)
    """The encoding of the config itself."""

    context: int = field(kw_only=True)
    """The tokens that it declares."""

    fold: Fold | None = None
    """Factors in weights."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Text files to add, by name."""

    added: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Tensors to add, by name."""

    def suits(self, runtimes: tuple[Runtime, ...], statuses: tuple[str, ...] = ("exact",)) -> bool:
        """Return whether the verdict of each of the runtimes has one of the statuses."""
        return all(self.verdict_of(row).status in statuses for row in runtimes)

    def needs_options(self, runtimes: tuple[Runtime, ...]) -> bool:
        """Return whether one of the runtimes computes it only with an option of the server."""
        return any(self.verdict_of(row).options for row in runtimes)


Encode = Callable[[EncodeRequest], CheckpointResult]


@dataclass(frozen=True)
class Encoding:
    """A way to write a schedule into a checkpoint."""

    encode: Encode
    """Raises UnsupportedBake for schedules that it cannot hold."""

    max_ulp: int
    """How many ulp of float32 the frequencies of a correct runtime may differ from the schedule."""

    config_only: bool
    """Whether it only changes config.json."""

    model_type: Callable[[str], str]
    """Gives the `model_type` of an output for that of its source."""


ENCODINGS: Registry[Encoding] = Registry("encoding", "ropeconv.convert.encodings")
"""The encodings of checkpoints, in the order in which "auto" tries them."""


def encoding(
    name: str,
    *,
    order: int,
    max_ulp: int,
    config_only: bool = False,
    model_type: Callable[[str], str] = lambda name: name,
) -> Callable[[Encode], Encode]:
    """Return a decorator that registers a function as an encoding.

    An encoding is a way to write frequencies into a checkpoint, such as keys of config.json.

    Args:
        name: The name for --encoding, such as "native".
        order: The position among the encodings that --encoding auto tries; 1 is tried first.
        max_ulp: The largest difference between the written frequencies and the frequencies that a
            correct runtime computes, in units in the last place (ulp) of float32.
        config_only: Whether the encoding changes nothing but config.json.
        model_type: Returns the `model_type` of the output, given the `model_type` of the source.
            By default both are equal.
    """

    def register(encode: Encode) -> Encode:
        registered = Encoding(
            encode=encode, max_ulp=max_ulp, config_only=config_only, model_type=model_type
        )
        ENCODINGS.add(name, registered, encode.__module__, order)
        return encode

    return register


Setting = Callable[[Schedule, RopeSpec, Family], RopeSetting]


def config_encoding(name: str, *, order: int, max_ulp: int) -> Callable[[Setting], Setting]:
    """Return a decorator that registers an encoding which only changes config.json.

    The decorated function gives the RopeSetting of a schedule, which is then written into the
    config. The function itself is returned unchanged.

    Args:
        name: The name of the encoding.
        order: The place in which "auto" tries it, lowest first.
        max_ulp: How many ulp of float32 the frequencies of a correct runtime may differ from the
            schedule.
    """

    def register(make_setting: Setting) -> Setting:
        def encode(request: EncodeRequest) -> CheckpointResult:
            return _encode_in_config(name, make_setting, request)

        known = Encoding(
            encode=encode,
            max_ulp=max_ulp,
            config_only=True,
            model_type=lambda source_type: source_type,  # the output has the class of the source
        )
        ENCODINGS.add(name, known, make_setting.__module__, order)
        return make_setting

    return register


def _encode_in_config(name: str, make_setting: Setting, request: EncodeRequest) -> CheckpointResult:
    """Write RoPE frequencies into config.json, and predict what each runtime computes from it.

    Args:
        name: The name of the encoding, such as "native".
        make_setting: The function of the encoding. It returns the new RoPE keys of the config for
            a schedule, the RoPE of the source, and the family of the source.
        request: The schedule to write (frequencies and attention factor), and the source.

    Raises:
        UnsupportedBake: For log-n, a scaling of queries that no RoPE key describes.
    """
    refuse_log_n(request)
    schedule = request.schedule
    source_rope = request.spec
    family = request.family

    setting = make_setting(schedule, source_rope, family)
    config = bake_config(request.config, family, source_rope, setting)
    # what each runtime reads from the new config, compared with the schedule
    judgement = request.judge.planned(config, family, schedule, source_rope)
    return CheckpointResult(
        encoding=name,
        verdicts=judgement.verdicts,
        config=config,
        family=family,
        in_config=schedule,  # the config has all of the schedule; weights do not change
        written_as=name,  # the encoding of the config, here that of the whole checkpoint
        context=setting.context,
        notes=setting.notes,
    )


def refuse_log_n(request: EncodeRequest) -> None:
    """Raise UnsupportedBake for a schedule with log-n, for which stock classes have no key."""
    if request.schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {request.schedule.log_n.kind}",
            f"the keys of {request.family.name}",
            "its stock class does not scale queries by position",
            "use --encoding buffers or --encoding ministral3, where the family has them, or leave"
            " --log-n out",
        )


def try_all(request: EncodeRequest) -> tuple[list[CheckpointResult], Refusals]:
    """Try every encoding of only config.json. Returns the same as `attempts`."""
    encoders = {}
    for name, known in ENCODINGS.items():
        if known.config_only:
            encoders[name] = partial(known.encode, request)
    return attempts(encoders)


def select(request: EncodeRequest) -> CheckpointResult:
    """Write a schedule by the encoding that the user named, or by the best one for "auto".

    "auto" takes the first of these that exists:

    1. An encoding that only changes config.json and that the newest version of every named runtime
       computes exactly. If there are several, the one that most older versions compute exactly too.
    2. An encoding that also changes weights or adds code, and that every named runtime computes.
    3. An approximation, such as for log-n, where the user allows one.
    4. With `target.allow_untested`, an encoding that a named runtime was not tested with.

    Args:
        request: The schedule, the source, and the options of the output.

    Raises:
        UnsupportedBake: When nothing fits.
        UsageError: For an unknown name.
    """
    result = _select(request)
    verdicts = [result.verdict_of(row) for row in request.runtimes]
    return add_untested_note(result, request.target, verdicts)


def _select(request: EncodeRequest) -> CheckpointResult:
    """Write a schedule with the named encoding, or with the best encoding for "auto"."""
    family = request.family
    target = request.target

    # some families can have no attention factor, whatever the encoding is
    reason = why_no_attention_factor(request.config, family)
    if reason:
        refuse_attention_factor(
            request.schedule, request.spec.attention_factor, family.name, reason
        )

    if target.encoding == "auto":
        return _first_fitting(request)

    # the encoding that the user named
    is_of_gguf = target.encoding not in ENCODINGS and target.encoding in encoding_names()
    if is_of_gguf:
        raise UsageError(
            f"--encoding {target.encoding} goes with GGUF; add --to gguf, or leave it out"
        )
    if target.encoding not in ENCODINGS:
        *names, last = ENCODINGS
        raise UsageError(
            f"--encoding {target.encoding} is not known; choose auto, {', '.join(names)} or {last}"
        )
    result = ENCODINGS[target.encoding].encode(request)
    result.refuse_approximate(request.schedule, target, "use --encoding buffers")

    # A named encoding is refused where a runtime would silently compute another RoPE. A runtime
    # that fails is only a reason where the user has named it.
    user_named_runtimes = bool(target.runtimes)
    for runtime in request.runtimes:
        status = result.verdict_of(runtime).status
        is_silently_wrong = status in SILENT  # "differs" or "ignored"
        is_computed = status in RUNS  # "exact", "rounded" or "approximate"
        is_allowed_untested = status == UNTESTED and target.allow_untested
        is_accepted = is_computed or is_allowed_untested
        if is_silently_wrong or (user_named_runtimes and not is_accepted):
            raise nothing_fits([result], refusals={}, request=request)
    return result


def _best_untested(
    results: list[CheckpointResult], request: EncodeRequest
) -> CheckpointResult | None:
    """Return the result with most exact verdicts that may be right in every named runtime.

    None where every result is known to be wrong in a named runtime.
    """
    fitting = [result for result in results if result.suits(request.runtimes, (*RUNS, UNTESTED))]
    return max(fitting, key=CheckpointResult.exact_count, default=None)


def why_no_attention_factor(config: Config, family: Family) -> str:
    """Return why a model can have only the attention factor 1; empty where it can have others."""
    normalised = text_part(config, family).get("use_qk_norm", True)
    if family.weights.norm.endswith("after-rope") and normalised:
        return family.hooks.no_attention_factor or CANCELLED
    return family.hooks.no_attention_factor


def _exact_versions(request: EncodeRequest, result: CheckpointResult) -> int:
    """The number of current versions of the named runtimes that compute a result exactly."""
    exact = 0
    for versions in request.versions:
        for row in versions:
            verdict = result.verdict_of(row)
            exact += verdict.status == "exact" and not verdict.options
    return exact


def _first_fitting(request: EncodeRequest) -> CheckpointResult:
    """Write a schedule with the encoding that --encoding auto selects.

    The selected encoding is the first whose result every wanted runtime computes, in the order that
    `select` states. Results that a runtime computes only with a certain option of its server come
    last.
    """
    count_versions = partial(_exact_versions, request)  # that compute a result exactly

    # 1. encodings that only change config.json: the one that most versions compute exactly
    results, refusals = try_all(request)
    fitting = [result for result in results if result.suits(request.runtimes)]
    without_options = [result for result in fitting if not result.needs_options(request.runtimes)]
    selected = max(without_options, key=count_versions, default=None)

    # 2. encodings that change weights or add code: the first one that fits, since each of them may
    # have to read the checkpoint
    if selected is None:
        for name, encoding in ENCODINGS.items():
            if encoding.config_only:  # tried above
                continue
            try:
                result = encoding.encode(request)
            except UnsupportedBake as refusal:
                refusals[name] = refusal
                continue
            results.append(result)
            # multiplied weights may be rounded, so "rounded" is good enough here, as is "exact"
            if not result.suits(request.runtimes, GOOD):
                continue
            if not result.needs_options(request.runtimes):
                selected = result
                break
            fitting.append(result)

    # 3. the best of those that fit, but need an option of the server
    if selected is None:
        selected = max(fitting, key=count_versions, default=None)

    # 4. an approximation, or an encoding that was not tested, where the user allows it
    if selected is None:
        selected = _last_resort(results, refusals, request)
    return replace(selected, considered=_explain(selected, results, refusals, request))


def _last_resort(
    results: list[CheckpointResult], refusals: Refusals, request: EncodeRequest
) -> CheckpointResult:
    """Return the result of --encoding auto where no encoding is exact in every wanted runtime.

    The first choice is an encoding that all wanted runtimes compute, some of them approximately;
    the user must allow it with --allow-approximate. The second choice is an encoding that is
    untested in some of the runtimes; the user must allow it with --allow-untested.

    Args:
        results: The result of each encoding that can hold the schedule.
        refusals: The error of each encoding that cannot hold the schedule, by the encoding's name.
        request: The schedule and the wanted runtimes.

    Raises:
        UnsupportedBake: Where neither choice exists, or the user does not allow it.
    """
    # RUNS are the statuses "exact", "rounded" and "approximate"
    selected = _first_that_suits(results, request, statuses=RUNS)
    if selected is None and request.target.allow_untested:
        selected = _best_untested(results, request)
    if selected is None:
        raise nothing_fits(results, refusals, request)

    # raises for an approximate result that the user does not allow, with this advice at the end
    advice = "name a runtime that supports --encoding buffers"
    selected.refuse_approximate(request.schedule, request.target, advice)
    return selected


def _first_that_suits(
    results: list[CheckpointResult], request: EncodeRequest, statuses: tuple[str, ...]
) -> CheckpointResult | None:
    """The first result with one of the statuses in every named runtime; None without one."""
    for result in results:
        if result.suits(request.runtimes, statuses):
            return result
    return None


def _explain(
    selected: CheckpointResult,
    results: list[CheckpointResult],
    refusals: Refusals,
    request: EncodeRequest,
) -> tuple[ConsideredEncoding, ...]:
    """Return each encoding with the reason why --encoding auto selected it, or did not select it.

    Args:
        selected: The result that "auto" selected, one of `results`.
        results: The results of the encodings that were tried and can hold the schedule.
        refusals: The errors of the encodings that were tried and cannot hold the schedule, by name.
        request: The schedule and the runtimes.
    """
    # encodings after the selected one were not tried
    not_needed = "not needed"
    if ENCODINGS[selected.encoding].config_only:
        not_needed = "not needed, config.json is enough"

    result_of = {result.encoding: result for result in results}
    considered = []
    for name in ENCODINGS:
        if name in result_of:
            result = result_of[name]
            reason = _describe_result(result, result is selected, request)
        elif name in refusals:
            reason = refusals[name].reason
        else:
            reason = not_needed
        considered.append(ConsideredEncoding(name, name == selected.encoding, reason))
    return tuple(considered)


def _describe_result(result: CheckpointResult, is_selected: bool, request: EncodeRequest) -> str:
    """Return a sentence on why --encoding auto selected an encoding, or did not select it.

    For example, "exact in vLLM 0.33; exact in 9 of 12 runtime versions".

    Args:
        result: The result of the encoding.
        is_selected: Whether the encoding is selected.
        request: The schedule, and the runtimes that the user named.
    """
    named = " and ".join(runtime.display_name for runtime in request.runtimes)
    verdicts = [result.verdict_of(runtime) for runtime in request.runtimes]
    if is_selected:
        statuses = dict.fromkeys(verdict.status for verdict in verdicts)
        return f"{' and '.join(statuses)} in {named}; {result.exact_share}"

    # not selected because a named runtime does not compute it exactly
    for verdict in verdicts:
        if verdict.status != "exact":
            return f"{verdict.display_name}: {verdict.reason or verdict.status}"

    # The named runtimes compute this encoding exactly, as they do the selected encoding. "auto"
    # selects the encoding that is exact in most versions of these runtimes, and among equals the
    # encoding with the plainest output, which it tries first.
    return f"not plainer, and no better in the versions of {named}; {result.exact_share}"


def encode_for_most_versions(request: EncodeRequest) -> CheckpointResult:
    """Write a schedule by the encoding in config.json that most runtime versions compute exactly.

    Only encodings that every named runtime computes exactly are taken. Where none is, and
    `target.allow_untested` is set, one that is untested in a named runtime is taken.

    Raises:
        UnsupportedBake: Where no encoding in config.json fits.
    """
    results, refusals = try_all(request)
    fitting = [result for result in results if result.suits(request.runtimes)]
    if fitting:
        return max(fitting, key=lambda result: result.exact_count())

    if request.target.allow_untested:
        untested = _best_untested(results, request)
        if untested is not None:
            return untested
    raise nothing_fits(results, refusals, request)


def nothing_fits(
    results: list[CheckpointResult], refusals: Refusals, request: EncodeRequest
) -> UnsupportedBake:
    """Return the error for a schedule that no encoding writes for all wanted runtimes.

    Its message has the reasons, then advice: "this schedule cannot be baked for vLLM 0.33: with
    native: ...; choose another method".

    Args:
        results: The result of each encoding that can hold the schedule. Each of them is inexact in
            one of the wanted runtimes at least.
        refusals: The error of each encoding that cannot hold the schedule, by the encoding's name.
        request: The schedule and the wanted runtimes.
    """
    # the reasons: first that the runtimes need different encodings, then what each runtime does
    # with each encoding, or why the encodings cannot hold the schedule
    wanted_runtimes = request.runtimes
    reasons = []
    if len(wanted_runtimes) > 1:
        reasons += _explain_conflict(results, wanted_runtimes)
    not_exact = _why_not_exact(results, wanted_runtimes)
    if not_exact:
        reasons += not_exact
    else:
        for name, refusal in refusals.items():
            reasons.append(f"with {name}: {refusal.reason}")

    # the advice: first an encoding that the runtimes may compute exactly, but were not tested with
    advice = []
    untested = _best_untested(results, request)
    if untested is not None:
        advice.append(
            f"pass --allow-untested, which writes it with {untested.encoding} all the same"
        )

    has_two_lists = request.schedule.short_inv_freq is not None
    if has_two_lists and "native" in refusals:
        # Two factor lists (LongRoPE) need the encoding "native" or a GGUF file. GGUF is no help for
        # runtimes that the user named, since they read folders.
        advice.append(refusals["native"].alternatives)
        user_named_runtimes = bool(request.target.runtimes)
        if not user_named_runtimes:
            advice.append("take --to gguf")
    else:
        # the advice on dual chunk attention is "" where dropping its config key does not help
        advice.append(_advise_on_dual_chunk(request) or _advise(results, request))

    named = " and ".join(runtime.display_name for runtime in wanted_runtimes)
    reasons_once = dict.fromkeys(reasons)
    return UnsupportedBake("this schedule", named, "; ".join(reasons_once), ", or ".join(advice))


def _why_not_exact(results: list[CheckpointResult], rows: tuple[Runtime, ...]) -> list[str]:
    """A phrase for each encoding and each runtime that does not compute it exactly."""
    phrases = []
    for result in results:
        for row in rows:
            verdict = result.verdict_of(row)
            if verdict.status == "exact":
                continue
            who = f"{verdict.display_name} with" if len(rows) > 1 else "with"
            phrases.append(f"{who} {result.encoding}: {verdict.reason or verdict.status}")
    return phrases


def _explain_conflict(results: list[CheckpointResult], rows: tuple[Runtime, ...]) -> list[str]:
    """A sentence where nothing fits for all of several runtimes, and something for each of them."""
    named = []
    for row in rows:
        encodings = [result.encoding for result in results if result.suits((row,))]
        if not encodings:
            return []
        named.append(f"{row.display_name} on its own would get {' or '.join(encodings)}")
    return [f"they conflict: {', '.join(named)}"]


def _advise_on_dual_chunk(request: EncodeRequest) -> str:
    """Return the advice to drop dual_chunk_attention_config, empty where that does not help."""
    target = request.target
    if target.dual_chunk == "drop" or not text_part(request.config, request.family).get(DUAL_CHUNK):
        return ""
    results, _ = try_all(replace(request, target=replace(target, dual_chunk="drop")))
    if not any(result.suits(request.runtimes) for result in results):
        return ""
    return f"pass --dual-chunk drop, which removes {DUAL_CHUNK}"


def _advise(results: list[CheckpointResult], request: EncodeRequest) -> str:
    """Return advice for a schedule that no encoding writes, such as "choose another method".

    Args:
        results: The result of each encoding that can hold the schedule. None of them is exact in
            every named runtime.
        request: The schedule, and the runtimes that the user named.
    """
    # llama.cpp: it reads a GGUF file, not a folder
    if any(runtime.name == LLAMA_CPP for runtime in request.runtimes):
        return "convert it here, which llama.cpp then reads exactly: --to gguf"

    # a runtime that was not tested with some encoding, and that computes no encoding exactly
    for runtime in request.runtimes:
        statuses = {result.verdict_of(runtime).status for result in results}
        is_untested = "unknown" in statuses
        is_exact_in_one = "exact" in statuses
        cannot_load_model = "unsupported" in statuses
        if is_untested and not is_exact_in_one and not cannot_load_model:
            return (
                f"leave {runtime.name} out, and measure what it computes with `ropeconv validate"
                " OUTPUT --server URL` or record it with scripts/lab"
            )

    # "take a base, which is read exactly (--ntk 4), or " where the runtimes compute a higher base
    # exactly, else empty; it stands in front of all further advice
    base_or = _base_instead(request)

    # several runtimes, which need different encodings
    if len(request.runtimes) > 1:
        return f"{base_or}name one of them, and bake a second output for the others"

    # one runtime, while a usual runtime such as vLLM computes the schedule
    for name in DEFAULT_RUNTIMES:
        latest = newest(name)
        if any(result.verdict_of(latest).status == "exact" for result in results):
            return f"{base_or}name a runtime that computes it (--runtime {name} does)"
    return f"{base_or}choose another method"


def _base_instead(request: EncodeRequest) -> str:
    """Return the advice to change the base in place of a scaling; empty where that fails too.

    It is "take a base, which is read exactly (--ntk 4), or ", and other advice follows. Every
    runtime reads rope_theta, so another base often works where a scaling does not.
    """
    schedule = request.schedule
    source_rope = request.spec
    factor = schedule.context / schedule.original_context
    if factor <= 1:
        return ""
    if source_rope.scaled:
        return ""
    has_only_a_base = isinstance(schedule.form, Plain)
    if has_only_a_base:
        return ""

    # write the same context with an NTK-aware base instead, and see whether that would do
    with_base = replace(
        Ntk(factor).schedule(source_rope),
        context=schedule.context,
        query_scaling=schedule.query_scaling,
    )
    try:
        result = ENCODINGS["native"].encode(replace(request, schedule=with_base))
    except UnsupportedBake:
        return ""
    if not result.suits(request.runtimes):
        return ""
    return f"take a base, which is read exactly (--ntk {factor:.6g}), or "


FACTOR_TOLERANCE = 1e-7
"""The deviation of an attention factor with which a search ends."""
MOST_LONGER_CONTEXTS = 4096
"""How many longer contexts are tried."""


def original_for(context: int, attention_factor: float) -> tuple[int, int, tuple[str, ...]]:
    """Return a declared and an original context from which Phi-3 derives this attention factor.

    Classes like Phi-3's have no key for the attention factor A. They compute it from the declared
    context M and the original one O: `A = sqrt(1 + ln(M/O) / ln O)`, which is
    `A^2 = ln M / ln O`. O is a whole number and too coarse to give any A, so M is searched from
    `context` upwards, by up to 4096 tokens, until A is within 1e-7; 1e-6 is accepted.

    Args:
        context: The wanted context, in tokens.
        attention_factor: The wanted factor, A.

    Returns:
        The lengths M and O in tokens, and a note on them for the user.

    Raises:
        UnsupportedBake: For A < 1, and where no pair fits.
    """
    if abs(attention_factor - 1) < FACTOR_TOLERANCE:
        return context, context, ()

    lengths = None
    if attention_factor > 1:
        lengths = _closest_lengths(context, attention_factor)
    if lengths is None:
        raise UnsupportedBake(
            f"attention_factor {attention_factor:g}",
            "a class that derives it from two lengths",
            "no pair of lengths gives it",
            "choose --attention-factor 1",
        )

    declared, original = lengths
    note = (
        f"declares {declared} tokens (for {context}) and an original length of {original}, from"
        " which this architecture derives its attention factor; servers with that length as"
        " their default window need the window as an option"
    )
    return declared, original, (note,)


def _closest_lengths(context: int, attention_factor: float) -> tuple[int, int] | None:
    """Return a new context M and an original context O from which Phi-3 computes a factor A.

    It computes A = sqrt(ln M / ln O). M is `context` or up to `MOST_LONGER_CONTEXTS` tokens more.

    Args:
        context: The wanted context, in tokens.
        attention_factor: The wanted factor, A, above 1.

    Returns:
        (M, O) in tokens; None where no pair gives A within 1e-6.
    """
    closest = None
    least_error = 1e-6
    for declared in range(context, context + MOST_LONGER_CONTEXTS):
        # ln M / ln O = A^2, so O = M^(1 / A^2), rounded to a whole number of tokens
        original = round(declared ** (1 / attention_factor**2))
        if original < 2:  # ln O would not be above 0
            continue
        derived = math.sqrt(math.log(declared) / math.log(original))
        error = abs(derived - attention_factor)
        if error < least_error:
            least_error = error
            closest = (declared, original)
        if error < FACTOR_TOLERANCE:
            break
    return closest
