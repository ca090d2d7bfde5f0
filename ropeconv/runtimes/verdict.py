"""The verdict of a runtime on a planned config, from reading the config by the rules that its model file follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ..formats.jsontext import JsonObject
from ..models.config import Geometry, geometry, text_part
from ..models.family import Family
from ..models.schema import Config
from ..rope.forms import Form, LongRope, Yarn
from ..rope.lazy import Vector
from ..rope.schedule import QueryScaling, Schedule
from ..rope.spec import RopeSpec
from .evidence import Evidence, evidence, executed_types, stated_key, unknown_key
from .grouping import newest
from .read_config import read_spec, rope_dict, rope_type
from .runtime import RuleSet, Runtime, Status, TypeRules, VersionRange, before, runtimes, version_key, within

TOLERANCE = 1e-6
Finding = tuple[Status, str]
"""A status and its reason."""


def difference(schedule: Schedule, before: RopeSpec, seen: RopeSpec) -> str:
    """A sentence on the first difference between what a runtime computes and a schedule; empty where there is none.

    before: the RoPE of the source, for window layers. seen: what the runtime reads.
    """
    if not _close(seen.form.inv_freq(seen.rotary_dim), schedule.inv_freq):
        return f"it computes other frequencies ({describe(seen.form)})"
    short = seen.form.short_inv_freq(seen.rotary_dim) if isinstance(seen.form, LongRope) else schedule.inv_freq
    wanted = schedule.short_inv_freq if schedule.short_inv_freq is not None else schedule.inv_freq
    if not _close(short, wanted):
        return "it computes other frequencies inside the trained context"
    if not _same(seen.attention_factor, schedule.attention_factor):
        return f"it uses the attention factor {seen.attention_factor:.4f}, not {schedule.attention_factor:.4f}"
    if not _same(seen.softmax_scale, schedule.softmax_scale):
        return f"it scales logits by {seen.softmax_scale:.4f}, not {schedule.softmax_scale:.4f}"
    if not _same_query_scaling(seen.query_scaling, schedule.query_scaling, schedule.context):
        return "it does not scale queries by position" if seen.query_scaling is None else "it scales queries otherwise"
    left, right = seen.local_form, before.local_form
    if "local" in before.layers and right is not None and left != right:
        size = before.rotary_dim
        if left is None or not _close(left.inv_freq(size), right.inv_freq(size)):
            return f"it changes the window layers as well ({describe(left)})"
    return ""


def unscaled(seen: RopeSpec, before: RopeSpec, schedule: Schedule) -> bool:
    """Whether a runtime computes the RoPE of the unscaled model where a schedule has another one."""
    plain = before.unscaled().form.inv_freq(before.rotary_dim)
    changes = schedule.attention_factor != 1 or not _close(schedule.inv_freq, plain)
    return changes and seen.attention_factor == 1 and _close(seen.form.inv_freq(seen.rotary_dim), plain)


def _same_query_scaling(left: QueryScaling | None, right: QueryScaling | None, context: int) -> bool:
    """Whether two query scalings are the same up to a context, in tokens; within its length one has no effect."""
    if all(scaling is None or context <= scaling.length for scaling in (left, right)):
        return True
    if left is None or right is None:
        return left is right
    return left.length == right.length and _same(left.beta, right.beta)


def _same(left: float, right: float) -> bool:
    return abs(left - right) <= TOLERANCE * right


def _close(left: Vector, right: Vector) -> bool:
    return left.shape == right.shape and bool(np.all(np.abs(left - right) <= TOLERANCE * right))


def frequencies(schedule: Schedule) -> str:
    """The frequencies of a schedule for display: its form as `describe` has it, or "custom inv_freq"."""
    return describe(schedule.form) if schedule.form else "custom inv_freq"


def describe(form: Form | None) -> str:
    """A form for display: `yarn, theta 10000, factor 4, original_context 4096`."""
    if form is None:
        return "none"
    numbers = [
        f"{name} {value:.12g}"
        for name, value in vars(form).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    flags = ["truncate false"] if isinstance(form, Yarn) and not form.truncate else []
    return ", ".join([form.kind, *numbers, *flags])


CUSTOM_CODE, OTHER_KEY = "custom code", "another key"
LISTS: dict[str, Finding] = {
    "refused": ("refused", "it fails on two different factor lists"),
    "long": ("differs", "it applies the long list to every position"),
    "window": ("differs", "it applies the long list to every position if --max-model-len is above the trained length"),
    "chunked": (
        "differs",
        "it chooses the list for each forward pass, so chunked prefill mixes both lists in one long prompt; start it "
        "with {}",
    ),
    "mixed": ("differs", "it mixes the two factor lists by position in one sequence"),
    "untested": ("unknown", "untested with two factor lists when it computes a prompt in chunks"),
}
"""Outcomes for two different factor lists, by `TypeRules.lists`."""
PARTIAL = {"refused": "it fails where", "differs": "it rotates the whole head, and"}
HALF_ONLY = {
    "refused": "it takes {} only for models with rotate-half pairs",
    "differs": "it rotates halves of the head",
}
CODE_REASONS: dict[str, str] = {
    "exact": "with trust_remote_code",
    "refused": "it does not run code of a checkpoint",
    "unknown": "nobody has looked whether it runs the code of a checkpoint",
}


NEVER_WRITTEN = ("dynamic",)
"""Rope types that no encoding writes, so that the lab has not asked what runtimes without rules do with them."""


@dataclass(frozen=True)
class Verdict:
    """What a range of versions of a runtime does with an output.

    runtime: `name@version`, of the first version. through: the last version. display_name: for people. status: what it
    does, explained at `judge`. reason: why, or a remark; may be empty where the status is "exact". source: where the
    rule is stated. evidence: whether it was executed or read.
    """

    runtime: str
    display_name: str
    status: Status
    reason: str
    source: str
    through: str = ""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def grade(self) -> str:
        """How it is known: "run", "read", or empty where it is not."""
        return self.evidence.grade

    def covers(self, runtime: VersionRange) -> bool:
        """Whether the verdict is about the last version of a row."""
        name, _, first = self.runtime.partition("@")
        return name == runtime.name and (
            self.runtime == runtime.key or within(runtime.last, first, self.through or first)
        )

    def to_dict(self) -> JsonObject:
        """The fields as JSON-ready data."""
        return {
            "runtime": self.runtime, "display_name": self.display_name, "status": self.status, "reason": self.reason,
            "evidence": self.evidence.grade or None, "evidence_detail": self.evidence.detail or None,
            "source": self.source,
        }  # fmt: skip


def judge_all(config: Config, family: Family, schedule: Schedule, before: RopeSpec) -> tuple[Verdict, ...]:
    """The verdicts of all runtimes on a planned config. Parameters are those of `judge`."""
    return tuple(judge(config, family, schedule, before, row) for row in rows_for(family))


def judge(config: Config, family: Family, schedule: Schedule, before: RopeSpec, runtime: Runtime) -> Verdict:
    """The verdict of one runtime on a planned config.

    config: the planned config.json. family: of its model. schedule: what has to be computed. before: the RoPE of the
    source. runtime: the one to judge; its last version counts where they differ.

    "exact": it computes the schedule. "differs": it computes something else, silently; `reason` names it. "ignored": it
    computes the unscaled RoPE, silently. "refused": it fails, at load or at the first forward pass. "unsupported": it
    cannot run such a model, or not in that version. "unknown": nobody looked. Encodings replace "exact" by "rounded"
    where folding rounds weights, and by "approximate" for a log-n approximation.
    """
    model_type = str(config.get("model_type", ""))
    outside = without_config(runtime, family, model_type)
    if outside is not None:
        return outside
    made, rules = _Judge(family, runtime, model_type), runtime.rule_set(family.name, model_type)
    part = text_part(config, family)
    found, _ = rope_dict(part, family, rules)
    kind = rope_type(found, rules)
    if rules.own_text_config and part is not config and config.get("model_type") == part.get("model_type"):
        return made.verdict(rules.own_text_config, rules.own_text_config_reason, rules.source, kind)
    if rules.status:
        return made.verdict(rules.status, rules.reason, rules.source, kind)
    stated = stated_key(config, family, runtime)
    if stated is not None:
        key, statement = stated
        return made.verdict(statement.status, f"{key}: {statement.reason}", statement.source, OTHER_KEY)
    types = rules.types.get(kind)
    finding = _of_keys(part, found, rules)
    if finding or types is None:
        return made.verdict(*(finding or _of_unknown_type(kind, rules)), rules.source, kind)
    source = types.source or rules.source
    finding = _of_type(types, found, schedule) or _of_head(types, geometry(config, family), family, kind, found)
    if finding:
        return made.verdict(*finding, source, kind)
    seen = read_spec(config, family, runtime)
    how = difference(schedule, before, seen)
    if how and isinstance(seen.form, Yarn) and types.times_original != 1:
        how = f"it computes YaRN's ramp over {types.times_original} times the trained length: {how}"
    if how:
        return made.verdict("ignored" if unscaled(seen, before, schedule) else "differs", how, source, kind)
    weights = _quantised(config, runtime)
    if weights:
        return made.verdict(*weights, runtime.source, kind)
    unread = unknown_key(part, found, family, runtime, rules)
    if unread:
        return made.verdict("unknown", f"its attention reads {unread}, whose effect on the RoPE is untested", source)
    at_its_own_length = kind == "longrope" and found.get("original_max_position_embeddings") == schedule.context
    return made.verdict("exact", "" if at_its_own_length else types.window, source, kind)


def _of_keys(part: Config, found: Config, rules: RuleSet) -> Finding | None:
    """The finding about keys that a reader requires. found: the RoPE dictionary."""
    for key, status in rules.required.items():
        if part.get(key) is None and (rules.theta != "dict" or found.get(key) is None):
            refused = status == "refused"
            return status, f"it fails without {key}" if refused else f"it reads {key} alone, which is absent"
    for need in rules.need:
        if part.get(need.key, need.default) != need.value:
            return "refused", f"it takes {need.key} {need.value} only"
    return None


def _of_unknown_type(kind: str, rules: RuleSet) -> Finding:
    other: Status = "unknown" if kind in NEVER_WRITTEN else rules.other
    words = {"unknown": "nobody has looked at", "ignored": "it does not apply", "refused": "it fails on"}
    return other, rules.other_reason or f"{words[other]} rope_type {kind}"


def _of_type(types: TypeRules, found: Config, schedule: Schedule) -> Finding | None:
    """The finding about a rope type, and about keys next to it. found: the RoPE dictionary."""
    if types.status and (schedule.context > schedule.original_context or not types.beyond_trained):
        return types.status, types.reason
    absent = next((key for key in types.required if found.get(key) is None), None)
    if absent:
        return "refused", f"it fails without {absent}"
    present = next((key for key in types.forbidden if found.get(key) is not None), None)
    return ("refused", f"it fails on {present}") if present else None


def _of_head(types: TypeRules, sizes: Geometry, family: Family, kind: str, found: Config) -> Finding | None:
    """The finding about which dimensions of a head rotate, in which pairs, and by which lists of factors."""
    if types.partial and sizes.rotary_dim != sizes.head_dim:
        return types.partial, f"{PARTIAL[types.partial]} {sizes.rotary_dim} dimensions of {sizes.head_dim} rotate"
    if types.half_only and family.layout == "interleaved":
        return types.half_only, HALF_ONLY[types.half_only].format(kind)
    if types.formula_always and found.get("original_max_position_embeddings") == 1:
        return "refused", "it divides by the logarithm of original_max_position_embeddings, here 0"
    if types.lists not in LISTS or found.get("short_factor") == found.get("long_factor"):
        return None
    status, reason = LISTS[types.lists]
    return status, reason.format(types.whole_prompt)


def judge_code(family: Family) -> tuple[Verdict, ...]:
    """The verdicts of all runtimes on a checkpoint that brings its own rotary code. family: whose layers it uses."""
    verdicts = []
    for row in rows_for(family):
        outside = without_config(row, family) if row.custom_code == "exact" else None
        reason = row.custom_code_reason or CODE_REASONS[row.custom_code]
        verdicts.append(outside or _Judge(family, row).verdict(row.custom_code, reason, row.source, CUSTOM_CODE))
    return tuple(verdicts)


def without_config(runtime: Runtime, family: Family, model_type: str = "") -> Verdict | None:
    """The verdict that holds for every config of a family: unknown or unsupported; None where the config decides.

    model_type: of the config as a whole.
    """
    made, stated = _Judge(family, runtime, model_type), runtime.statement(family.name, model_type)
    if stated is None and family.origin and runtime.key == newest("transformers").key:
        return None  # as its file says, which `apply` compares with what the installed version computes
    if stated is None:
        return made.verdict("unknown", f"nobody has looked at {family.name} in it")
    tested = () if family.assumed or model_type in stated.model_types else executed_types(runtime, family.name)
    if model_type and tested and model_type not in tested and not runtime.wrappers:
        return made.verdict("unknown", f"only model_type {' and '.join(tested)} was tested in it, not {model_type}")
    if stated.unknown:
        return made.verdict("unknown", stated.unknown, stated.source)
    if stated.unsupported:
        return made.verdict("unsupported", stated.unsupported, stated.source)
    since = _since(runtime, family)
    if since and version_key(runtime.last)[:2] < version_key(since)[:2]:
        return made.verdict("unsupported", f"it does not know {family.name} before {since}", stated.source)
    return None


def rows_for(family: Family) -> tuple[Runtime, ...]:
    """All rows, cut in two where a version within one is the first to have the family."""
    rows, cut = list[Runtime](), msgspec.structs.replace
    for row in runtimes():
        since = _since(row, family)
        if since and version_key(row.version) < version_key(since) <= version_key(row.last):
            rows += [cut(row, through=before(since)), cut(row, version=since, through=row.last)]
        else:
            rows.append(row)
    return tuple(rows)


def _since(row: Runtime, family: Family) -> str:
    """The first version that has a family, where it follows rules of the row; else empty."""
    stated = row.statement(family.name)
    return family.since.get(row.name, "") if stated is not None and stated.rules else ""


def _quantised(config: Config, runtime: Runtime) -> Finding | None:
    """A status and its reason for weights that the runtime does not load; None for others."""
    setting = config.get("quantization_config")
    if not isinstance(setting, dict):
        return None
    method = setting.get("quant_method") or ("mlx" if "group_size" in setting else "of an unnamed method")
    if runtime.quantization is None:
        return "unknown", f"nobody has looked whether it loads {method} weights"
    if method not in runtime.quantization:
        return "unsupported", f"it does not load {method} weights"
    depends = runtime.quantization[method]
    return ("unknown", f"it loads {method} weights {depends}") if depends else None


@dataclass(frozen=True)
class _Judge:
    """Makes verdicts of a runtime about a family."""

    family: Family
    runtime: Runtime
    model_type: str = ""

    def verdict(self, status: Status, reason: str, source: str = "", kind: str | None = None) -> Verdict:
        untested = status == "unknown" or self.family.assumed or self.family.origin
        known = Evidence() if untested else evidence(self.runtime, self.family.name, kind, self.model_type)
        row = self.runtime
        if self.family.assumed:
            reason = "; ".join(filter(None, [f"where it runs {self.family.assumed} as {self.family.name}", reason]))
        stated = row.statement(self.family.name, self.model_type)
        place = source or (stated.source if stated else "") or row.source
        return Verdict(row.key, row.display_name, status, reason, place, row.last, known)


SWITCHES = {
    "trained": "{names}: the short list in forward passes in which no sequence of the batch is longer than {length:,} "
    "tokens, else the long one for every sequence",
    "chunked": "{names}: the short list in forward passes in which no position is beyond {length:,}. Chunked prefill "
    "mixes both lists in one longer prompt; to compute a prompt in one pass, start {options}",
    "window": "{names}: the long list for every position if --max-model-len is above {length:,} tokens, else the short "
    "one",
    "long": "{names}: the long list for every position, so short prompts see it too",
    "short": "{names}: the short list for every position, so nothing is extended",
    "mixed": "{names}: both lists inside one sequence, by position",
}
RECOMPUTED = {"phi3"}
"""Families for which transformers' generate computes the cache anew there: transformers#33129."""


def switching(family: Family, length: int, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Sentences on which list each current runtime takes, and on a cache that crosses the length.

    family: of the model. length: at which the lists change, in tokens. verdicts: on the config with these lists, by
    which runtimes that do not read them are left out.
    """
    read = [verdict for verdict in verdicts if verdict.status in ("exact", "rounded", "differs")]
    by_rule: dict[str, list[str]] = {}
    options = []
    for name in dict.fromkeys(row.name for row in runtimes()):
        row = newest(name)
        stated = row.statement(family.name)
        if stated is None or not any(verdict.covers(row) for verdict in read):
            continue
        reading = row.rule_set(family.name)
        rules = reading.types.get("longrope")
        if rules is not None and not (reading.status or rules.status or rules.read_as):
            by_rule.setdefault(rules.lists, []).append(row.display_name)
            options += [f"{row.title} with {rules.whole_prompt}"] if rules.whole_prompt else []
    found = [
        words.format(names=", ".join(by_rule[rule]), length=length, options=", ".join(options))
        for rule, words in SWITCHES.items()
        if rule in by_rule
    ]
    return (*found, crossing(length, family.name in RECOMPUTED))


def crossing(length: int, recomputed: bool = False) -> str:
    """The sentence on a cache that crosses the length at which lists change.

    length: in tokens. recomputed: whether transformers' generate computes the cache anew there.
    """
    fact = (
        f"a sequence that grows past {length:,} tokens keeps keys in its cache that were rotated with the short list, "
        "under queries of the long one, and what follows is wrong"
    )
    if recomputed:
        return f"{fact}; transformers computes the cache of this family anew there, servers do not"
    return f"{fact}: transformers' generate does not compute the cache anew, so give such a prompt whole"
