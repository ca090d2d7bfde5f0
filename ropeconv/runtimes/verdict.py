"""The verdict of a runtime on a planned config, from reading the config by the rules of the runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..families.config import Config, text_part
from ..families.family import Family
from ..rope.forms import Form, LongRope, Plain, Vector
from ..rope.log_n import QueryScaling
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from .read_config import read_spec, rope_dict, rope_type
from .runtime import FamilyOverride, Runtime, Status, version_key

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Verdict:
    """What a runtime does with an output.

    runtime: `name@version`. display_name: for people. status: what it does, explained at `judge`. reason: why, or a
    remark; may be empty where the status is "exact". source: where the rule is stated.
    """

    runtime: str
    display_name: str
    status: Status
    reason: str
    source: str


def judge(config: Config, family: Family, schedule: Schedule, before: RopeSpec, runtime: Runtime) -> Verdict:
    """The verdict of one runtime on a planned config.

    config: the planned config.json. family: of its model. schedule: what has to be computed. before: the RoPE of the
    source. runtime: the one to judge.

    "exact": it computes the schedule. "refused": it fails to load, with an error. "ignored": it loads and computes the
    unscaled RoPE, silently. "differs": it loads and computes something else, silently; `reason` names it. Encodings
    replace "exact" by "rounded" where folding rounds weights, and by "approximate" for a log-n approximation.
    """

    def verdict(status: Status, reason: str, source: str = "") -> Verdict:
        return Verdict(runtime.key, runtime.display_name, status, reason, source or runtime.source)

    unknown = too_old(runtime, family)
    if unknown:
        return verdict("refused", unknown)
    found, _ = rope_dict(text_part(config, family), family, runtime)
    kind = rope_type(found, runtime)
    known = _family_override(runtime, family, kind)
    if known is not None and known.status != "exact":
        return verdict(known.status, known.reason, known.source)
    rules = runtime.rules(family.name, kind)
    if rules is None:
        reason = "fails on" if runtime.unsupported == "refused" else "does not apply"
        return verdict(runtime.unsupported, f"it {reason} rope_type {kind}")
    if rules.neox_only and family.layout == "interleaved":
        return verdict("refused", "it takes longrope only for models with rotate-half pairs", rules.source)
    if rules.formula_always and found.get("original_max_position_embeddings") == 1:
        return verdict(
            "refused", "it divides by the logarithm of original_max_position_embeddings, here 0", rules.source
        )
    if known is None:
        seen = read_spec(config, family, runtime)
        found_other = difference(schedule, before, seen)
        if found_other:
            return verdict("ignored" if _unscaled(seen, before) else "differs", found_other, rules.source)
    at_its_own_length = kind == "longrope" and found.get("original_max_position_embeddings") == schedule.context
    remarks = ["" if at_its_own_length else rules.window]
    since = family.since.get(runtime.name)
    if since and version_key(since)[:2] > version_key(runtime.version)[:2]:
        remarks.append(f"from {since} on, which is the first to know {family.name}")
    return verdict("exact", "; ".join(filter(None, remarks)), rules.source)


def too_old(runtime: Runtime, family: Family) -> str:
    """A sentence for a runtime older than its first version with this family; empty for others."""
    since = family.since.get(runtime.name)
    late = since and version_key(since)[:2] > version_key(runtime.through or runtime.version)[:2]
    return f"it does not know {family.name} before {since}" if late else ""


def _family_override(runtime: Runtime, family: Family, kind: str) -> FamilyOverride | None:
    for known in runtime.family_overrides:
        meant = known.families == ("*",) or family.name in known.families
        if meant and kind in known.types:
            return known
    return None


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
    if not _same_query_scaling(seen.query_scaling, schedule.query_scaling):
        return "it does not scale queries by position" if seen.query_scaling is None else "it scales queries otherwise"
    if before.local_form is not None and seen.local_form != before.local_form:
        return f"it changes the window layers as well ({describe(seen.local_form)})"
    return ""


def _unscaled(seen: RopeSpec, before: RopeSpec) -> bool:
    """Whether a runtime computes the RoPE of the unscaled model, so that it ignores the scaling."""
    plain = Plain(before.rope_theta).inv_freq(before.rotary_dim)
    return seen.attention_factor == 1 and _close(seen.form.inv_freq(seen.rotary_dim), plain)


def _same_query_scaling(left: QueryScaling | None, right: QueryScaling | None) -> bool:
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
    return ", ".join([form.kind, *numbers])
