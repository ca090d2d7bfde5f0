"""The verdict of a runtime on a planned config, from reading the config by the rules that its model file follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..families.config import Config, geometry, text_part
from ..families.family import Family
from ..rope.forms import Yarn
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .compare import difference, unscaled
from .evidence import Evidence, evidence
from .find import newest
from .read_config import read_spec, rope_dict, rope_type
from .read_keys import stated_key, unknown_key
from .rules import Status
from .runtime import Runtime, runtimes
from .versions import VersionRange, before, version_key, within

CUSTOM_CODE, OTHER_KEY = "custom code", "another key"
LISTS: dict[str, tuple[Status, str]] = {
    "refused": ("refused", "it fails on two different factor lists"),
    "long": ("differs", "it takes the long list for every position"),
    "window": (
        "differs",
        "it takes the long list for every position, where its window is longer than the trained length",
    ),
    "mixed": ("differs", "it mixes the two factor lists by position inside one sequence"),
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

    def to_dict(self) -> dict[str, Any]:
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
    made = _Judge(family, runtime, model_type)
    outside = without_config(runtime, family, model_type)
    if outside is not None:
        return outside
    reading, part = runtime.rule_set(family.name, model_type), text_part(config, family)
    found, _ = rope_dict(part, family, reading)
    kind = rope_type(found, reading)
    if reading.own_text_config and part is not config and config.get("model_type") == part.get("model_type"):
        return made.verdict(reading.own_text_config, reading.own_text_config_reason, reading.source, kind)
    if reading.status:
        return made.verdict(reading.status, reading.reason, reading.source, kind)
    stated = stated_key(config, family, runtime)
    if stated is not None:
        key, said = stated
        return made.verdict(said.status, f"{key}: {said.reason}", said.source, OTHER_KEY)
    for key, status in reading.required.items():
        if part.get(key) is None and (reading.theta != "dict" or found.get(key) is None):
            reason = f"it fails without {key}" if status == "refused" else f"it reads {key} alone, which is absent"
            return made.verdict(status, reason, reading.source, kind)
    for need in reading.need:
        if part.get(need.key, need.default) != need.value:
            return made.verdict("refused", f"it takes {need.key} {need.value} only", reading.source, kind)
    rules = reading.types.get(kind)
    if rules is None:
        other: Status = "unknown" if kind in NEVER_WRITTEN else reading.other
        words = {"unknown": "nobody has looked at", "ignored": "it does not apply", "refused": "it fails on"}
        reason = reading.other_reason or f"{words[other]} rope_type {kind}"
        return made.verdict(other, reason, reading.source, kind)
    source = rules.source or reading.source
    if rules.status and (schedule.context > schedule.original_context or not rules.beyond_trained):
        return made.verdict(rules.status, rules.reason, source, kind)
    absent = next((key for key in rules.required if found.get(key) is None), None)
    if absent:
        return made.verdict("refused", f"it fails without {absent}", source, kind)
    present = next((key for key in rules.forbidden if found.get(key) is not None), None)
    if present:
        return made.verdict("refused", f"it fails on {present}", source, kind)
    sizes = geometry(config, family)
    if rules.partial and sizes.rotary_dim != sizes.head_dim:
        reason = f"{PARTIAL[rules.partial]} {sizes.rotary_dim} dimensions of {sizes.head_dim} rotate"
        return made.verdict(rules.partial, reason, source, kind)
    if rules.half_only and family.layout == "interleaved":
        return made.verdict(rules.half_only, HALF_ONLY[rules.half_only].format(kind), source, kind)
    if rules.formula_always and found.get("original_max_position_embeddings") == 1:
        reason = "it divides by the logarithm of original_max_position_embeddings, here 0"
        return made.verdict("refused", reason, source, kind)
    if rules.lists in LISTS and found.get("short_factor") != found.get("long_factor"):
        return made.verdict(*LISTS[rules.lists], source, kind)
    seen = read_spec(config, family, runtime)
    how = difference(schedule, before, seen)
    if how and isinstance(seen.form, Yarn) and rules.times_original != 1:
        how = f"it computes YaRN's ramp over {rules.times_original} times the trained length: {how}"
    if how:
        return made.verdict("ignored" if unscaled(seen, before, schedule) else "differs", how, source, kind)
    weights = _quantised(config, runtime)
    if weights:
        return made.verdict(*weights, runtime.source, kind)
    unread = unknown_key(part, found, family, runtime, reading)
    if unread:
        return made.verdict("unknown", f"its attention reads {unread}, whose effect on the RoPE is untested", source)
    at_its_own_length = kind == "longrope" and found.get("original_max_position_embeddings") == schedule.context
    return made.verdict("exact", "" if at_its_own_length else rules.window, source, kind)


def judge_code(family: Family) -> tuple[Verdict, ...]:
    """The verdicts of all runtimes on a checkpoint that brings its own rotary code. family: whose layers it uses."""
    return tuple(_judge_code(row, family) for row in rows_for(family))


def _judge_code(runtime: Runtime, family: Family) -> Verdict:
    made = _Judge(family, runtime)
    outside = without_config(runtime, family)
    if runtime.custom_code == "exact" and outside is not None:
        return outside
    reason = runtime.custom_code_reason or CODE_REASONS[runtime.custom_code]
    return made.verdict(runtime.custom_code, reason, runtime.source, CUSTOM_CODE)


def without_config(runtime: Runtime, family: Family, model_type: str = "") -> Verdict | None:
    """The verdict that holds for every config of a family: unknown or unsupported; None where the config decides.

    model_type: of the config as a whole.
    """
    made, stated = _Judge(family, runtime, model_type), runtime.statement(family.name, model_type)
    if stated is None and family.origin and runtime.key == newest("transformers").key:
        return None  # as its file says, which `apply` compares with what the installed version computes
    if stated is None:
        return made.verdict("unknown", f"nobody has looked at {family.name} in it")
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
    return tuple(part for row in runtimes() for part in _parts(row, family))


def _parts(row: Runtime, family: Family) -> list[Runtime]:
    since = _since(row, family)
    if not since or not version_key(row.version) < version_key(since) <= version_key(row.last):
        return [row]
    cut = msgspec.structs.replace
    return [cut(row, through=before(since)), cut(row, version=since, through=row.last)]


def _since(row: Runtime, family: Family) -> str:
    """The first version that has a family, where it follows rules of the row; else empty."""
    stated = row.statement(family.name)
    return family.since.get(row.name, "") if stated is not None and stated.rules else ""


def _quantised(config: Config, runtime: Runtime) -> tuple[Status, str] | None:
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
        said = status == "unknown" or self.family.assumed or self.family.origin
        known = Evidence() if said else evidence(self.runtime, self.family.name, kind)
        row = self.runtime
        if self.family.assumed:
            reason = "; ".join(filter(None, [f"where it runs {self.family.assumed} as {self.family.name}", reason]))
        stated = row.statement(self.family.name, self.model_type)
        place = source or (stated.source if stated else "") or row.source
        return Verdict(row.key, row.display_name, status, reason, place, row.last, known)
