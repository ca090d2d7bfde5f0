"""The verdict of a runtime on a planned config, by the rules that its model file follows.

Read `judge` first. A plan judges through a `Judge`, which looks at every config once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import msgspec
import numpy as np

from ..formats.jsontext import JsonObject
from ..models.config import geometry, text_part, text_parts
from ..models.family import Family
from ..models.schema import Config
from ..models.wrappers import transformers_finds_text_model, wrapper_of, wrapper_types
from ..rope.errors import shown
from ..rope.forms import Form, LongRope, Vector, Yarn
from ..rope.lengths import format_factor
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from .evidence import Evidence, evidence, executed_types, stated_key, unknown_key
from .read_config import read_by, rope_dict, rope_type
from .runtime import (
    GOOD,
    RuleSet,
    Runtime,
    ServerOption,
    Status,
    TypeRules,
    VersionRange,
    before,
    canonical,
    find,
    newest,
    row_of_version,
    runtimes,
    version_key,
    within,
)

TOLERANCE = 1e-6
Finding = tuple[Status, str]
"""A status and its reason."""


def difference(schedule: Schedule, before: RopeSpec, spec: RopeSpec) -> str:
    """Return the first difference between the planned RoPE and the RoPE that a runtime computes.

    A difference is "it uses the attention factor 1.0000, not 1.1386". The result is empty if there
    is none.

    Args:
        schedule: The planned frequencies and factors.
        before: The RoPE of the source model before the extension, whose layers with a window keep
            their frequencies.
        spec: The RoPE that the runtime computes.
    """
    # 1. the frequencies
    if not _close(spec.form.inv_freq(spec.rotary_dim), schedule.inv_freq):
        return f"it computes other frequencies ({describe(spec.form)})"

    # the frequencies for short prompts, which are others only with LongRoPE
    computed_short = schedule.inv_freq
    if isinstance(spec.form, LongRope):
        computed_short = spec.form.short_inv_freq(spec.rotary_dim)
    expected_short = schedule.inv_freq
    if schedule.short_inv_freq is not None:
        expected_short = schedule.short_inv_freq
    if not _close(computed_short, expected_short):
        return "it computes other frequencies inside the trained context"

    # 2. factors
    if not _same(spec.attention_factor, schedule.attention_factor):
        return (
            f"it uses the attention factor {spec.attention_factor:.4f}, not"
            f" {schedule.attention_factor:.4f}"
        )
    if not _same(spec.softmax_scale, schedule.softmax_scale):
        return f"it scales logits by {spec.softmax_scale:.4f}, not {schedule.softmax_scale:.4f}"
    if not _same_query_scaling(spec.query_scaling, schedule.query_scaling, schedule.context):
        if spec.query_scaling is None:
            return "it does not scale queries by position"
        return "it scales queries otherwise"

    # 3. layers with a window and frequencies of their own ("local"), if the source has such layers
    source_local = before.local_form
    computed_local = spec.local_form
    if source_local is None or "local" not in before.layers:
        return ""
    # they keep the formula of the source, or its frequencies by another formula
    if computed_local == source_local:
        return ""
    if computed_local is not None:
        source_frequencies = source_local.inv_freq(before.rotary_dim)
        if _close(computed_local.inv_freq(before.rotary_dim), source_frequencies):
            return ""
    return f"it changes the window layers as well ({describe(computed_local)})"


def is_unscaled(spec: RopeSpec, before: RopeSpec, schedule: Schedule) -> bool:
    """Whether a runtime computes the unscaled RoPE where a schedule has another one."""
    plain = before.unscaled().form.inv_freq(before.rotary_dim)
    changes = schedule.attention_factor != 1 or not _close(schedule.inv_freq, plain)
    if not changes or spec.attention_factor != 1:
        return False
    return _close(spec.form.inv_freq(spec.rotary_dim), plain)


def _same_query_scaling(
    left: QueryScaling | None, right: QueryScaling | None, context: int
) -> bool:
    """Whether two query scalings are the same up to a context; each acts only beyond its length."""
    left_matters = left is not None and context > left.length
    right_matters = right is not None and context > right.length
    if not left_matters and not right_matters:
        return True
    if left is None or right is None:
        return left is right
    return left.length == right.length and _same(left.beta, right.beta)


def _same(left: float, right: float) -> bool:
    """Whether two numbers are the same but for rounding."""
    return abs(left - right) <= TOLERANCE * abs(right)


def _close(left: Vector, right: Vector) -> bool:
    """Whether two vectors are the same but for rounding."""
    return left.shape == right.shape and bool(np.all(np.abs(left - right) <= TOLERANCE * right))


def frequencies(schedule: Schedule) -> str:
    """Return the frequencies of a schedule for display: its form, or "custom inv_freq"."""
    if schedule.form is None:
        return "custom inv_freq"
    return describe(schedule.form)


def describe(form: Form | None) -> str:
    """Return a form for display, without the parameters that have their default.

    Example: `yarn, theta 10000, factor 4, original_context 4096`.
    """
    if form is None:
        return "none"
    defaults = {entry.name: entry.default for entry in fields(form) if entry.name != "factor"}

    # numbers only: lists of factors are too long; a bool is an int too
    words = [form.kind]
    for name, value in vars(form).items():
        if not isinstance(value, (int, float)) or value == defaults.get(name):
            continue
        if isinstance(value, bool):
            words.append(f"{name} {str(value).lower()}")
        elif name == "factor":
            words.append(f"{name} {format_factor(value)}")
        else:
            words.append(f"{name} {value:.12g}")
    return ", ".join(words)


CUSTOM_CODE = "custom code"
OTHER_KEY = "another key"
LISTS: dict[str, Finding] = {
    "refused": ("refused", "it fails if the two factor lists differ"),
    "long": ("differs", "it applies the long list to every position"),
    "window": (
        "differs",
        "it applies the long list to every position if --max-model-len is above the trained length",
    ),
    "chunked": (
        "differs",
        (
            "it chooses the list for each forward pass, so chunked prefill mixes both lists in one"
            " long prompt; start it with {}"
        ),
    ),
    "mixed": ("differs", "it mixes the two factor lists by position in one sequence"),
    "untested": ("unknown", "untested with two factor lists when it computes a prompt in chunks"),
}
"""Outcomes for two different factor lists, by `TypeRules.lists`."""
PARTIAL = {"refused": "it fails where", "differs": "it rotates the whole head, and"}
HALF_ONLY = {
    "refused": "it supports {} only for models with rotate-half pairs",
    "differs": "it rotates halves of the head",
}
CODE_REASONS: dict[str, str] = {
    "exact": "with trust_remote_code",
    "refused": "it does not run the code of a checkpoint",
    "unknown": "untested: running the code of a checkpoint",
}


NEVER_WRITTEN = ("dynamic",)
"""Rope types that no encoding writes; the lab has not asked what runtimes do with them."""


@dataclass(frozen=True)
class Verdict:
    """The behaviour of a range of versions of a runtime for an output."""

    runtime: str
    """`name@version`, of the first version."""

    display_name: str
    """For people."""

    status: Status
    """The behaviour, as `judge` explains it."""

    reason: str
    """Why, or a remark; may be empty where the status is "exact"."""

    source: str
    """The place where the rule is stated."""

    through: str = ""
    """The last version."""

    evidence: Evidence = field(default_factory=Evidence)
    """Whether it was executed or read."""

    here: bool = False
    """Whether an installed runtime was asked about this very config."""

    options: str = ""
    """The options with which it must be started, such as `--model-impl transformers`."""

    @property
    def grade(self) -> str:
        """How it is known: "run", "read", or empty where it is not."""
        return self.evidence.grade

    def covers(self, runtime: VersionRange) -> bool:
        """Whether the verdict is about the last version of a row."""
        name, _, first = self.runtime.partition("@")
        if name != runtime.name:
            return False
        return self.runtime == runtime.key or within(runtime.last, first, self.through or first)

    def to_dict(self) -> JsonObject:
        """Return the fields as JSON-ready data."""
        return {
            "runtime": self.runtime,
            "display_name": self.display_name,
            "status": self.status,
            "reason": self.reason,
            "evidence": self.evidence.grade or None,
            "evidence_detail": self.evidence.detail or None,
            "source": self.source,
            "options": self.options,
        }


class Asking:
    """A runtime that answers questions about configs."""

    name: str
    """As `--runtime` has it."""

    version: str
    """The version that answers."""

    def verdict(self, planned: PlannedConfig) -> Verdict | None:
        """Return its verdict on a config; None where it has none."""
        raise NotImplementedError

    def stop(self) -> None:
        """End what the answers have started."""


class Judge:
    """Judges the configs that a plan may write, each of them once.

    A plan has one judge: the inspection of its source makes it, and every `EncodeRequest` carries
    it on. A config that comes up again, as in the repair that a refusal names, has the verdicts
    that it has already.

    Args:
        asked: Installed runtimes that are asked about the configs, in place of their last rows.
    """

    def __init__(self, asked: Sequence[Asking] = ()) -> None:
        self.configs: list[PlannedConfig] = []
        self.asked = asked

    def find(self, name: str) -> tuple[Runtime, ...]:
        """Return the rows for a runtime as `runtime.find` does.

        The last one, which counts, is the version that is asked, unless the name has another one.
        """
        rows = find(name)
        for asking in self.asked:
            if canonical(name) == asking.name:
                return (*rows, row_of_version(asking.name, asking.version))
        return rows

    def planned(
        self, config: Config, family: Family, schedule: Schedule, before: RopeSpec
    ) -> PlannedConfig:
        """Return a config with its verdicts. Parameters are those of `judge`."""
        planned = PlannedConfig(config, family, schedule, before, self.asked)
        for known in self.configs:
            if known.is_same(planned):
                return known
        self.configs.append(planned)
        return planned


class PlannedConfig:
    """A config that may be written, with the verdict of each row of the table of runtimes.

    Many rows share their rules, and each set of rules reads the config once. Parameters are those
    of `judge`, and the runtimes that are asked about it.
    """

    def __init__(
        self,
        config: Config,
        family: Family,
        schedule: Schedule,
        before: RopeSpec,
        asked: Sequence[Asking] = (),
    ) -> None:
        """Keep a config.json that may be written, and the RoPE that runtimes must compute from it.

        Args:
            config: The whole planned config.json.
            family: The family of its model.
            schedule: The frequencies and factors that a runtime must compute.
            before: The RoPE of the source model, which the plan extends.
            asked: Installed runtimes whose own code loads the config and shows which RoPE it
                computes. For all other runtimes, a table says how they read configs.
        """
        self.asked = asked
        self.config = config
        self.family = family
        self.schedule = schedule
        self.before = before
        self.part = text_part(config, family)
        self.model_type = str(config.get("model_type", ""))
        # kept, since many rows share a set of rules, and callers ask for a verdict again
        self._readings: list[RuleReading] = []
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # by first and last version

    @cached_property
    def numbers(self) -> tuple[str, int, int]:
        """The parts of the schedule that verdicts follow from; it has no equality itself."""
        schedule = self.schedule
        return schedule.digest, schedule.context, schedule.original_context

    def is_same(self, other: PlannedConfig) -> bool:
        """Return whether another one has the same verdicts, since it is equal in all parts."""
        if self.config != other.config or self.family is not other.family:
            return False
        return self.before == other.before and self.numbers == other.numbers

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of all rows, each runtime's from the oldest version to the newest.

        An installed runtime that was asked about this config adds a verdict of its own. It stands
        behind all others of that runtime, whatever its version, since the last one counts: first
        vllm@0.20 and vllm@0.33, then the installed vLLM, then sglang@0.5.
        """
        by_runtime: dict[str, list[Verdict]] = {}
        for row in rows_for(self.family):
            verdict = self.verdict(row)
            name, _, _ = verdict.runtime.partition("@")  # "vllm@0.20"
            by_runtime.setdefault(name, []).append(verdict)
        for name, asked_verdict in self.asked_verdicts.items():
            by_runtime.setdefault(name, []).append(asked_verdict)

        verdicts: list[Verdict] = []
        for verdicts_of_runtime in by_runtime.values():
            verdicts += verdicts_of_runtime
        return tuple(verdicts)

    @cached_property
    def asked_verdicts(self) -> dict[str, Verdict]:
        """The verdicts of the runtimes that were asked, by name, without those that have none."""
        answers = {asking.name: asking.verdict(self) for asking in self.asked}
        return {name: verdict for name, verdict in answers.items() if verdict is not None}

    def judge_all(self) -> None:
        """Find the verdicts of all rows, and ask, for callers that want the errors now.

        Raises:
            BadSource: For a config that the rules of some row cannot read.
        """
        for row in rows_for(self.family):
            self.verdict(row)
        self.asked_verdicts  # noqa: B018  a process that answers may be gone later

    def verdict(self, row: Runtime) -> Verdict:
        """Return whether a runtime computes the schedule from this config, as `judge` explains it.

        Where it does so only when it is started with an option, such as `--model-impl
        transformers`, the verdict is the one with that option. Verdicts are kept for later calls.

        Args:
            row: A range of versions of a runtime.
        """
        versions = (row.key, row.last)
        if versions in self._verdicts:
            return self._verdicts[versions]

        verdict = judge_row(self, row)
        for option in row.options:
            if verdict.status in GOOD:
                break
            with_this_option = judge_with_option(self, row, option, verdict)
            if with_this_option is not None:
                verdict = with_this_option

        # some families start only with options, whatever their RoPE
        statement = row.statement(self.family.name, self.model_type)
        if statement is not None and statement.options and verdict.status in GOOD:
            verdict = with_stated_options(verdict, statement.options)
        self._verdicts[versions] = verdict
        return verdict

    def read_by(self, rules: RuleSet) -> RuleReading:
        """Return the reading of a set of rules, which rows with equal rules share."""
        for reading in self._readings:
            if reading.rules == rules:
                return reading
        reading = RuleReading(self, rules)
        self._readings.append(reading)
        return reading


class RuleReading:
    """The RoPE that one set of rules reads from a planned config, and the findings about it."""

    def __init__(self, planned: PlannedConfig, rules: RuleSet) -> None:
        self.planned = planned
        self.rules = rules
        self.rope, _ = rope_dict(planned.part, planned.family, rules)
        self.rope_type = rope_type(self.rope, rules)

    @property
    def source(self) -> str:
        """Where the rules of the rope type are stated."""
        types = self.rules.types.get(self.rope_type)
        return (types.source if types else "") or self.rules.source

    @cached_property
    def finding_on_model(self) -> Finding | None:
        """Why the runtime does not run the model, whatever its RoPE is; None if it does."""
        return _model_finding(self.planned.config, self.planned.part, self.rules)

    @cached_property
    def finding_on_rope(self) -> tuple[Status, str, str] | None:
        """Why the runtime does not compute the planned RoPE from the config; None if it does.

        It is a status, its reason, and the place in the code of the runtime that shows it:
        ("ignored", "it has no code for this type", "vllm/model_executor/...").
        """
        # 1. keys of the dictionary that the runtime needs or refuses
        rules = self.rules
        finding = _keys_finding(self.planned.part, self.rope, self.planned.family, rules)
        if finding is not None:
            status, reason = finding
            return status, reason, rules.source

        # 2. a rope type that the runtime does not know
        type_rules = rules.types.get(self.rope_type)
        if type_rules is None:
            status, reason = _unknown_type_finding(self.rope_type, rules)
            return status, reason, rules.source

        # 3. another RoPE by the rules of the rope type, which may have a place of their own
        finding = self._finding_on_type(type_rules)
        if finding is not None:
            status, reason = finding
            return status, reason, self.source
        return None

    def _finding_on_type(self, type_rules: TypeRules) -> Finding | None:
        """Return why the runtime does not compute the planned RoPE; None if it does.

        Args:
            type_rules: How the runtime reads the rope type of the config.
        """
        # 1. reasons that follow from the config alone: keys of the dictionary, which dimensions of
        # a head rotate, and LongRoPE's two lists
        planned = self.planned
        finding = (
            _type_finding(type_rules, self.rope, planned.schedule)
            or _rotation_finding(type_rules, planned.config, planned.family, self.rope_type)
            or _factor_lists_finding(type_rules, self.rope)
        )
        if finding is not None:
            return finding

        # 2. other numbers, when the config is read as the runtime reads it
        spec = read_by(planned.config, planned.family, self.rules)
        finding = _schedule_finding(planned.schedule, planned.before, spec, type_rules)
        if finding is not None:
            return finding

        # 3. vLLM keeps a table of cosines for YaRN, with a row for each position, which may end
        # before the context does
        has_table_of_cosines = self.rules.yarn_table
        if has_table_of_cosines:
            return _yarn_table_finding(planned.schedule, spec)
        return None


def judge(
    config: Config, family: Family, schedule: Schedule, before: RopeSpec, runtime: Runtime
) -> Verdict:
    """Return the verdict of one runtime on a planned config, started without an option.

    - "exact": it computes the schedule;
    - "differs": it computes something else, silently; `reason` names it;
    - "ignored": it computes the unscaled RoPE, silently;
    - "refused": it fails, at load or at the first forward pass;
    - "unsupported": it cannot run such a model, or not in that version;
    - "unknown": it is untested.

    Encodings replace "exact" by "rounded" where folding rounds weights, and by "approximate" for a
    log-n approximation.

    Args:
        config: The planned config.json.
        family: The family of its model.
        schedule: The schedule that must be computed.
        before: The RoPE of the source.
        runtime: The one to judge; its last version counts where they differ.
    """
    return judge_row(PlannedConfig(config, family, schedule, before), runtime)


def judge_row(planned: PlannedConfig, runtime: Runtime) -> Verdict:
    """Return the verdict on one runtime: whether it computes the planned RoPE from a config.

    A verdict has a status, such as "exact" or "unsupported", and its reason. The first reason
    decides, in the order in which a runtime would fail.

    Args:
        planned: The config.json that is planned, and the RoPE that must be computed from it.
        runtime: A range of versions of a runtime, with the rules by which it reads configs.
    """
    # 1. the family
    config = planned.config
    family = planned.family
    model_type = planned.model_type
    verdict_on_family = without_config(runtime, family, model_type)
    if verdict_on_family is not None:
        return verdict_on_family

    # 2. a multimodal model around the text model
    verdict = partial(_make_verdict, runtime, family, model_type)
    wrapper_finding = _wrapper_finding(config, family, runtime)
    if wrapper_finding is not None:
        status, reason = wrapper_finding
        return verdict(status, reason)

    # 3. a reason that holds for the model whatever its RoPE is
    rules = runtime.rule_set(family.name, model_type)
    reading = planned.read_by(rules)  # the config as the runtime reads it
    kind = reading.rope_type
    if reading.finding_on_model is not None:
        status, reason = reading.finding_on_model
        return verdict(status, reason, source=rules.source, kind=kind)

    # 4. a key beside the RoPE that changes the attention in this runtime, by a statement of the
    # table
    key_and_statement = stated_key(config, family, runtime)
    if key_and_statement is not None:
        key, statement = key_and_statement
        reason = f"{key}: {statement.reason}"
        return verdict(statement.status, reason, source=statement.source, kind=OTHER_KEY)

    # 5. the RoPE dictionary
    if runtime.one_type and has_two_types(reading.rope):
        return verdict("refused", TWO_TYPES, source=runtime.one_type, kind=kind)
    if reading.finding_on_rope is not None:
        status, reason, source = reading.finding_on_rope
        return verdict(status, reason, source=source, kind=kind)

    # 6. quantised weights
    weights_finding = quantised(config, runtime, family)
    if weights_finding is not None:
        status, reason = weights_finding
        return verdict(status, reason, source=runtime.source, kind=kind)

    # 7. a key that the code of the runtime reads, and that ropeconv does not know
    key = unknown_key(planned.part, reading.rope, family, runtime, rules)
    if key:
        reason = f"its attention reads {key}, whose effect on the RoPE is untested"
        return verdict("unknown", reason, source=reading.source)

    # It computes the planned RoPE. The reason is a remark on its default context window (`window`).
    # For LongRoPE the remark is about the length at which the long list begins; it is left out if
    # no prompt is that long.
    remark = rules.types[kind].window
    long_list_begins_at = reading.rope.get("original_max_position_embeddings")
    if kind == "longrope" and long_list_begins_at == planned.schedule.context:
        remark = ""
    return verdict("exact", remark, source=reading.source, kind=kind)


TWO_TYPES = "it fails where rope_type and type differ"
RENAMED_TYPES = {"su": "longrope", "mrope": "default"}
"""Rope types by their older names, with which the key `type` may stay."""


def has_two_types(rope: JsonObject) -> bool:
    """Whether a RoPE dictionary has two rope types that differ, other than by their older names."""
    rope_type = rope.get("rope_type")
    older = rope.get("type")
    if rope_type is None or older is None:
        return False
    return rope_type not in (older, RENAMED_TYPES.get(older))


def judge_with_option(
    planned: PlannedConfig, runtime: Runtime, option: ServerOption, without: Verdict
) -> Verdict | None:
    """Return the verdict "exact" if a server computes the planned RoPE with an option.

    Such an option is vLLM's `--model-impl transformers`, with which vLLM runs the classes of
    transformers in place of its own.

    Args:
        planned: The config.json that is planned, and the RoPE that must be computed from it.
        runtime: A range of versions of the server.
        option: One of its options.
        without: The verdict on the server without the option.

    Returns:
        The verdict; None if the option does not help, or if ropeconv's laboratory has not run a
        similar config with it.
    """
    if not _was_run_in_laboratory(planned, option):
        return None
    if without.reason == TWO_TYPES:  # it fails before the options count
        return None

    # 1. the rules by which the config is read: of a version of transformers, or other rules of the
    # server
    family = planned.family
    model_type = planned.model_type
    reader = runtime
    if option.transformers:
        reader = row_of_version("transformers", option.transformers)
    if option.rules:
        rules = reader.rules[option.rules]
    else:
        rules = reader.rule_set(family.name, model_type)

    # 2. a model was run with the option (the records have the rope type of the config in the file)
    reading_of_file = planned.read_by(rules)
    known = evidence(
        runtime, family.name, reading_of_file.rope_type, model_type, options=option.words
    )
    if known.grade != "run":
        return None

    # 3. The config that the server uses. vLLM's --hf-overrides changes keys of the RoPE dictionary
    # after the file was read.
    reading = reading_of_file
    if option.changes:
        changed_config = with_rope_keys(planned.config, family, option.changes)
        changed_plan = PlannedConfig(changed_config, family, planned.schedule, planned.before)
        reading = changed_plan.read_by(rules)

    # 4. a reason why the server does not compute the planned RoPE from it, by its rules; a key that
    # changes the attention, by a statement of the table; or a key that ropeconv does not know
    if reading.finding_on_model is not None or reading.finding_on_rope is not None:
        return None
    if stated_key(planned.config, family, reader) is not None:
        return None
    if unknown_key(planned.part, reading.rope, family, reader, rules):
        return None

    # 5. LongRoPE: servers compute a prompt in chunks, and transformers chooses the short or the
    # long list for each chunk
    has_two_lists = reading.rope.get("short_factor") != reading.rope.get("long_factor")
    if has_two_lists:
        return None
    return with_option(replace(without, source=option.source), option, known)


def _was_run_in_laboratory(planned: PlannedConfig, option: ServerOption) -> bool:
    """Return whether the laboratory has run servers with an option for configs of this kind.

    The laboratory (scripts/laboratory) starts each runtime with small models of the families of the
    package, whose weights are not quantised.

    Args:
        planned: The config.
        option: The option.
    """
    # a family that the user names with --family (`assumed`), or describes in a file (`origin`)
    is_family_of_user = bool(planned.family.assumed or planned.family.origin)
    if is_family_of_user:
        return False
    is_quantised = bool(planned.config.get("quantization_config"))
    if is_quantised:
        return False

    # configs with some keys do not work with the option; `without` lists these keys
    excluded_keys = option.without
    for part in (planned.config, planned.part):  # the whole config, and its text part
        if any(part.get(key) is not None for key in excluded_keys):
            return False
    return True


def with_rope_keys(config: Config, family: Family, changes: JsonObject) -> Config:
    """Return a copy of a config with other values in the RoPE dictionaries of its text model.

    Args:
        config: The whole config.json.
        family: The family of its model.
        changes: The keys with their new values.
    """
    changed = copy.deepcopy(config)
    for part in text_parts(changed, family):
        for name in ("rope_scaling", "rope_parameters"):
            if isinstance(part.get(name), dict):
                part[name].update(changes)
    return changed


def with_option(without: Verdict, option: ServerOption, known: Evidence) -> Verdict:
    """Return the verdict "exact" on a server that needs an option to compute the planned RoPE.

    Args:
        without: The verdict on the server without the option.
        option: The option, such as `--model-impl transformers`.
        known: How ropeconv knows what the server computes with the option.
    """
    remarks = []
    if option.text_only:
        remarks.append("for text only: it refuses images")
    if without.reason:
        remarks.append(f"without the option, {without.reason}")
    return replace(
        without,
        display_name=f"{without.display_name} with {option.words}",
        status="exact",
        reason="; ".join(remarks),
        evidence=known,
        options=option.words,
    )


def with_stated_options(verdict: Verdict, words: str) -> Verdict:
    """Return the verdict on a server that starts a family only with options.

    Args:
        verdict: The verdict on the server that was started so.
        words: The options on the command line.
    """
    options = " ".join(part for part in (verdict.options, words) if part)
    return replace(
        verdict,
        display_name=f"{verdict.display_name} with {words}",
        options=options,
    )


def _wrapper_finding(config: Config, family: Family, runtime: Runtime) -> Finding | None:
    """Return the status "unknown" and its reason for a multimodal model that was not tested.

    LLaVA is a multimodal model around the text model Llama. A runtime that runs Llama may not run
    LLaVA: ("unknown", "untested: model_type llava around a llama model"). The result is None for a
    text model, and for a multimodal model that the runtime is known to load.

    Args:
        config: The whole config.json.
        family: The family of the text model.
        runtime: A range of versions of a runtime.
    """
    # None for a text model, "" for a multimodal model without model_type; a type that the user
    # says is of the family (`assumed`) has a verdict with that condition
    wrapper = wrapper_of(config, family)
    if wrapper is None or family.assumed:
        return None
    name = f"model_type {wrapper}" if wrapper else "a config without model_type"

    # the class of transformers reads the text model in another place of the config, such as
    # thinker_config; None means that transformers has no such class
    class_finds_text_model = transformers_finds_text_model(config, family, wrapper)
    if class_finds_text_model is False:
        path = wrapper_types()[wrapper].path
        return "unknown", f"{name} keeps its text model in {path}, and this config has it elsewhere"

    # 1. the multimodal model was run in this runtime
    if wrapper in executed_types(runtime, family.name):
        return None

    # 2. the table of runtimes has a statement on it, by its model_type
    statement = runtime.statement(family.name, wrapper)
    if statement is not None:
        types_of_statement = (*statement.model_types, family.name)
        if wrapper in types_of_statement:
            return None

    # 3. the runtime has the multimodal classes of transformers (`wrappers`): a class that was run
    # in transformers, in versions that have it
    if runtime.wrappers and class_finds_text_model:
        class_in_transformers = wrapper_types()[wrapper]
        was_run = bool(class_in_transformers.run)
        first_version = class_in_transformers.since
        has_class = version_key(first_version) <= version_key(runtime.last)
        if was_run and has_class:
            return None
    return "unknown", f"untested: {name} around a {family.name} model"


def unseen_wrapper(config: Config, family: Family) -> str:
    """Return a sentence about a multimodal model that no runtime is known to load.

    A multimodal model has a text model inside: {"model_type": "llava", "text_config": {...}}. The
    sentence is "config.json has model_type 'my_vlm' around a llama model, and no runtime was seen
    to load such a model". It is empty if a runtime loads the model.

    Args:
        config: The whole config.json.
        family: The family of the text model.
    """
    for runtime in runtimes():
        reason_against = _wrapper_finding(config, family, runtime)
        if reason_against is None:
            return ""

    wrapper = wrapper_of(config, family)
    around = "no model_type"
    if wrapper:
        around = f"model_type {shown(wrapper)}"
        class_in_transformers = wrapper_types().get(wrapper)
        if class_in_transformers:
            around += f", whose class in transformers reads {class_in_transformers.path}"

    return (
        f"config.json has {around} around a {family.name} model, and no runtime was seen to load"
        " such a model"
    )


def _model_finding(config: Config, part: Config, rules: RuleSet) -> Finding | None:
    """Return the finding that holds for a model whatever its RoPE dictionary says."""
    is_nested = part is not config
    same_type = config.get("model_type") == part.get("model_type")
    if rules.own_text_config and is_nested and same_type:
        return rules.own_text_config, rules.own_text_config_reason
    if rules.status:
        return rules.status, rules.reason
    return None


def _keys_finding(part: Config, rope: Config, family: Family, rules: RuleSet) -> Finding | None:
    """Return the finding about keys that a reader requires, and the form of their values."""
    for key in family.keys.context:
        if rules.whole_context and isinstance(part.get(key), float):
            return "refused", f"it fails on {key} = {part[key]}, with a decimal point"
    for key, status in rules.required.items():
        in_dictionary = rules.theta == "dict" and rope.get(key) is not None
        if part.get(key) is not None or in_dictionary:
            continue
        if status == "refused":
            return status, f"it fails without {key}"
        return status, f"it reads only {key}, which is absent"
    for need in rules.need:
        if part.get(need.key, need.default) != need.value:
            return "refused", f"it supports only {need.key} = {need.value}"
    return None


def _unknown_type_finding(kind: str, rules: RuleSet) -> Finding:
    """Return the finding about a rope type without rules."""
    status: Status = "unknown" if kind in NEVER_WRITTEN else rules.other
    words = {
        "unknown": "rope_type {} is untested",
        "ignored": "it ignores rope_type {}",
        "refused": "it fails on rope_type {}",
    }
    return status, rules.other_reason or words[status].format(kind)


def _type_finding(types: TypeRules, rope: Config, schedule: Schedule) -> Finding | None:
    """Return the finding about a rope type and the keys next to it."""
    is_extended = schedule.context > schedule.original_context
    if types.status and (is_extended or not types.beyond_trained):
        return types.status, types.reason
    for key in types.required:
        if rope.get(key) is None:
            return "refused", f"it fails without {key}"
    for key in types.forbidden:
        if rope.get(key) is not None:
            return "refused", f"it fails on {key}"
    return None


def _rotation_finding(
    types: TypeRules, config: Config, family: Family, kind: str
) -> Finding | None:
    """Return why a runtime rotates other dimensions of a head than the model; None if it does not.

    With some rope types, some runtimes support only models that rotate the whole head, or only
    models that rotate the pairs (i, i + r/2).

    Args:
        types: The rules of the runtime for the rope type.
        config: The planned config.json.
        family: The family of the model.
        kind: The rope type, for the message.

    Returns:
        A status and its reason, such as ("differs", "it rotates the whole head, and 64 dimensions
        of 128 rotate").
    """
    # Phi rotates a part of each head: "differs" or "refused" in runtimes that do not support it,
    # and empty in other runtimes
    status_if_partial = types.partial
    if status_if_partial:
        sizes = geometry(config, family)
        if sizes.rotary_dim != sizes.head_dim:
            words = PARTIAL[status_if_partial]
            part = f"{sizes.rotary_dim} dimensions of {sizes.head_dim} rotate"
            return status_if_partial, f"{words} {part}"

    # GPT-J rotates the pairs (2i, 2i + 1): the same
    status_if_interleaved = types.half_only
    if status_if_interleaved and family.layout == "interleaved":
        return status_if_interleaved, HALF_ONLY[status_if_interleaved].format(kind)
    return None


def _factor_lists_finding(types: TypeRules, rope: Config) -> Finding | None:
    """Return the finding about two lists of factors, and about their attention factor."""
    # the attention factor of LongRoPE is sqrt(1 + ln s / ln original)
    if types.formula_always and rope.get("original_max_position_embeddings") == 1:
        return "refused", "it divides by the logarithm of original_max_position_embeddings, here 0"

    if rope.get("short_factor") == rope.get("long_factor"):
        return None  # whichever list is used
    if types.lists not in LISTS:
        return None
    status, reason = LISTS[types.lists]
    return status, reason.format(types.whole_prompt)


def _schedule_finding(
    schedule: Schedule, before: RopeSpec, spec: RopeSpec, type_rules: TypeRules
) -> Finding | None:
    """Return why a runtime computes another RoPE than the planned one; None if it does not.

    Args:
        schedule: The planned frequencies and factors.
        before: The RoPE of the source, before the extension.
        spec: The RoPE that the runtime reads from the planned config.
        type_rules: The rules of the runtime for the rope type.

    Returns:
        A status and its reason: "ignored" if the runtime computes RoPE without any scaling, so that
        the model works up to its old context; or "differs".
    """
    reason = difference(schedule, before, spec)
    if not reason:
        return None

    # Other frequencies may have a known cause: YaRN's ramp between fast and slow pairs follows from
    # the trained length, which some runtimes multiply by a number.
    multiple = type_rules.times_original
    if isinstance(spec.form, Yarn) and multiple != 1:
        reason = f"it computes YaRN's ramp over {multiple} times the trained length: {reason}"

    if is_unscaled(spec, before, schedule):
        return "ignored", reason
    return "differs", reason


def _yarn_table_finding(schedule: Schedule, spec: RopeSpec) -> Finding | None:
    """Return why a runtime with a table of YaRN's cosines fails; None if the table is long enough.

    The table has a row for each position, up to the factor times the original context. A user may
    declare a longer context: with `--yarn 8 --context 1M`, and a model that was trained for 32,768
    tokens, the table has 262,144 rows.

    Args:
        schedule: The planned schedule, with the declared context.
        spec: The RoPE that the runtime reads from the planned config.
    """
    if not isinstance(spec.form, Yarn):
        return None
    rows = int(spec.form.factor * spec.form.original_context)
    if schedule.context <= rows:
        return None
    reason = (
        f"its table of YaRN's cosines ends at {rows:,} tokens,"
        f" {format_factor(spec.form.factor)} times the original context"
    )
    return "refused", reason


def judge_code(family: Family, config: Config) -> tuple[Verdict, ...]:
    """Return the verdicts on all runtimes for a checkpoint that brings its own rotary code.

    Args:
        family: The family whose layers the checkpoint uses.
        config: The config.json of the checkpoint.
    """
    verdicts = []
    for runtime in rows_for(family):
        # The status of all such checkpoints: "exact" for a runtime that runs their code, and so
        # computes their RoPE; otherwise "refused" or "unknown".
        status: Status = runtime.custom_code
        reason = runtime.custom_code_reason or CODE_REASONS[status]

        # a runtime that runs the code may still not run the family, or its quantised weights
        runs_code = status == "exact"
        if runs_code:
            verdict_against_family = without_config(runtime, family)
            if verdict_against_family is not None:
                verdicts.append(verdict_against_family)
                continue
            finding_on_weights = quantised(config, runtime, family)
            if finding_on_weights is not None:
                status, reason = finding_on_weights

        verdict = _make_verdict(
            runtime,
            family,
            model_type="",
            status=status,
            reason=reason,
            source=runtime.source,
            kind=CUSTOM_CODE,
        )
        verdicts.append(verdict)
    return tuple(verdicts)


def without_config(runtime: Runtime, family: Family, model_type: str = "") -> Verdict | None:
    """Return the verdict "unknown" or "unsupported" on a runtime, if it holds for a whole family.

    An example is "unsupported", with the reason "it does not support qwen3 before 4.51". The result
    is None if the verdict depends on the config.

    Args:
        runtime: A range of versions of a runtime.
        family: The family of the model.
        model_type: The model_type of the whole config; empty for any.
    """
    # 1. The table of runtimes has no statement on the family. A family that the user describes in a
    # file (`origin`) depends on the config in the newest transformers, which `apply` runs to check
    # the output.
    verdict = partial(_make_verdict, runtime, family, model_type)
    statement = runtime.statement(family.name, model_type)
    if statement is None:
        is_described_by_user = bool(family.origin)
        is_newest_transformers = runtime.key == newest("transformers").key
        if is_described_by_user and is_newest_transformers:
            return None
        return verdict("unknown", f"{family.name} is untested")

    # 2. Only other model types of the family were tested, such as the text model but not the
    # multimodal one. Three cases need no test: a type that the user says is of the family
    # (`assumed`), a type that the statement names, and every type in a runtime that finds the text
    # model in all multimodal models (`wrappers`).
    is_named = model_type in statement.model_types
    needs_test = not (family.assumed or is_named or runtime.wrappers)
    if model_type and needs_test:
        tested = executed_types(runtime, family.name)
        if tested and model_type not in tested:
            return verdict(
                "unknown", f"only model_type {' and '.join(tested)} is tested, not {model_type}"
            )

    # 3. the statement has a reason why the status is unknown or unsupported
    if statement.unknown:
        return verdict("unknown", statement.unknown, statement.source)
    if statement.unsupported:
        return verdict("unsupported", statement.unsupported, statement.source)

    # 4. the versions are older than the family; the first two numbers of a version are compared,
    # such as 4.57 of 4.57.1
    since = _since(runtime, family)
    last_version = version_key(runtime.last)[:2]
    is_older = bool(since) and last_version < version_key(since)[:2]
    if is_older:
        return verdict(
            "unsupported", f"it does not support {family.name} before {since}", statement.source
        )
    return None


def rows_for(family: Family) -> tuple[Runtime, ...]:
    """Return all rows, cut in two where a version within one is the first to have the family."""
    rows = list[Runtime]()
    cut = msgspec.structs.replace
    for row in runtimes():
        since = _since(row, family)
        if since and version_key(row.version) < version_key(since) <= version_key(row.last):
            rows.append(cut(row, through=before(since)))
            rows.append(cut(row, version=since, through=row.last))
        else:
            rows.append(row)
    return tuple(rows)


def _since(row: Runtime, family: Family) -> str:
    """Return the first version that has a family, where it follows rules of the row; else empty."""
    statement = row.statement(family.name)
    if statement is None or not statement.rules:
        return ""
    return family.since.get(row.name, "")


def quantised(config: Config, runtime: Runtime, family: Family) -> Finding | None:
    """Return a status and its reason for quantised weights that a runtime may not load; else None.

    Such as ("unsupported", "it does not load gptq weights").

    The table has the methods that each runtime loads, such as "gptq", each with a condition on
    which that depends, such as "with sym only"; most conditions are empty. A condition says nothing
    about families whose weights were loaded (`Runtime.loads`).

    Args:
        config: The whole config.json.
        runtime: The row of the table of runtimes.
        family: The family of the model.
    """
    setting = config.get("quantization_config")
    if not isinstance(setting, dict):
        return None
    method = setting.get("quant_method")
    if not method:  # mlx_lm writes only {"group_size": 64, "bits": 4}
        method = "mlx" if "group_size" in setting else "quantised"
    if runtime.quantization is None:
        return "unknown", f"loading {method} weights is untested"
    if method not in runtime.quantization:
        return "unsupported", f"it does not load {method} weights"
    condition = runtime.quantization[method]
    if condition and family.name not in runtime.loads.get(method, ()):
        return "unknown", f"it loads {method} weights {condition}"
    return None


def _make_verdict(
    runtime: Runtime,
    family: Family,
    model_type: str,
    status: Status,
    reason: str,
    source: str = "",
    kind: str | None = None,
) -> Verdict:
    """Return a verdict on a runtime, with the evidence for it and the place that shows it.

    Args:
        runtime: A range of versions of a runtime.
        family: The family of the model.
        model_type: The model_type of the whole config; empty for any.
        status: The status, such as "exact".
        reason: Why, or a remark on the status.
        source: The place in the code of the runtime, or a URL, that shows the reason; empty for the
            place of the table's statement on the family, or of the whole runtime.
        kind: The rope type by which the runs of the laboratory are searched for evidence; None for
            any. CUSTOM_CODE and OTHER_KEY are names that no run has, since no run shows such a
            reason.
    """
    # a family that the user names with --family (`assumed`) or describes in a file (`origin`) was
    # not run in the laboratory
    known = Evidence()
    is_family_of_user = bool(family.assumed or family.origin)
    if status != "unknown" and not is_family_of_user:
        known = evidence(runtime, family.name, kind, model_type)
    if family.assumed:
        condition = f"if it runs {family.assumed} as {family.name}"
        reason = f"{condition}; {reason}" if reason else condition

    # the place of the statement on the family, or of the whole runtime
    if not source:
        statement = runtime.statement(family.name, model_type)
        if statement is not None:
            source = statement.source
    if not source:
        source = runtime.source
    return Verdict(
        runtime=runtime.key,  # the name and the first version, such as "vllm@0.20"
        through=runtime.last,  # the last version
        display_name=runtime.display_name,
        status=status,
        reason=reason,
        source=source,
        evidence=known,
    )


SENTENCE_BY_LIST_RULE = {
    "trained": (
        "With {names}, a forward pass uses the short list if no sequence of the batch is longer"
        " than {length:,} tokens, else the long one"
    ),
    "chunked": (
        "With {names}, a forward pass uses the short list if no position is beyond {length:,};"
        " chunked prefill mixes both lists in a longer prompt, so start {options}"
    ),
    "window": (
        "With {names}, every position uses the long list if --max-model-len is above {length:,}"
        " tokens, else the short one"
    ),
    "long": "With {names}, every position uses the long list, also in short prompts",
    "short": "With {names}, every position uses the short list, so nothing is extended",
    "mixed": "With {names}, one sequence mixes both lists by position",
}
RECOMPUTE_CACHE = {"phi3"}
"""Families for which transformers' generate recomputes the cache: transformers#33129."""


def switch_notes(family: Family, length: int, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return sentences on how current runtimes choose between the two lists of LongRoPE.

    LongRoPE has a short list of factors within a length, and a long list beyond. A sentence is
    "With vLLM, every position uses the long list if --max-model-len is above 4,096 tokens, else the
    short one". The last one warns that a change of list does not reach the key-value cache.

    Args:
        family: The family of the model.
        length: The length at which the lists change, in tokens.
        verdicts: The verdicts on the config with these lists, which leave out runtimes that do not
            read them.
    """
    # the runtimes by the rule by which they choose a list, e.g. {"window": ["vLLM 0.33"], ...}; and
    # the options with which some of them compute a long prompt at once, so with the long list
    names_by_rule: dict[str, list[str]] = {}
    options_for_whole_prompts = []
    for runtime in _newest_readers(family, verdicts):
        longrope = _rules_of_lists(runtime, family)
        if longrope is None:
            continue
        # the rule is e.g. "window": by the context window of the server
        names_by_rule.setdefault(longrope.lists, []).append(runtime.display_name)
        option = longrope.whole_prompt  # empty without such an option
        if option:
            options_for_whole_prompts.append(f"{runtime.title} with {option}")

    # one sentence for each rule, with the names of its runtimes
    sentences = []
    options = ", ".join(options_for_whole_prompts)
    for rule, template in SENTENCE_BY_LIST_RULE.items():
        if rule in names_by_rule:
            names = ", ".join(names_by_rule[rule])
            sentences.append(template.format(names=names, length=length, options=options))

    # keys are rotated before they are cached, so that a change of list does not reach them
    crossing = (
        f"if generation passes {length:,} tokens, the cache still holds keys rotated with the short"
        " list, while new queries use the long one, so the output is wrong"
    )
    if family.name in RECOMPUTE_CACHE:
        repair = "transformers recomputes the cache for this family, servers do not"
    else:
        repair = "pass the whole text as one prompt"
    return (*sentences, f"{crossing}; {repair}")


def _newest_readers(family: Family, verdicts: Iterable[Verdict]) -> list[Runtime]:
    """Return the newest version of each runtime that uses the lists of factors in a config.

    Args:
        family: The family of the model.
        verdicts: The verdicts on the config.
    """
    # the runtimes that use the lists, rightly ("exact", "rounded") or not ("differs"); others
    # ignore them, or refuse the config
    verdicts_with_lists = []
    for verdict in verdicts:
        if verdict.status in ("exact", "rounded", "differs"):
            verdicts_with_lists.append(verdict)

    readers = []
    names = dict.fromkeys(runtime.name for runtime in runtimes())  # each once, in their order
    for name in names:
        newest_version = newest(name)
        uses_lists = any(verdict.covers(newest_version) for verdict in verdicts_with_lists)
        # the table of runtimes has a statement on each family that a runtime has
        has_family = newest_version.statement(family.name) is not None
        if uses_lists and has_family:
            readers.append(newest_version)
    return readers


def _rules_of_lists(runtime: Runtime, family: Family) -> TypeRules | None:
    """Return how a runtime chooses between the two lists of LongRoPE; None where it does not."""
    rule_set = runtime.rule_set(family.name)
    longrope = rule_set.types.get("longrope")
    if longrope is None:
        return None
    has_fixed_status = bool(rule_set.status or longrope.status)
    if has_fixed_status:  # it holds whatever the lists are
        return None
    if longrope.read_as:  # a type that is read as another has no lists
        return None
    return longrope
