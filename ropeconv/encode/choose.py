"""Chooses how a schedule is written: a named encoding, or the first that the named runtimes read exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UnsupportedBake, UsageError
from ..families import Family
from ..families.config import Config, text_part
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes import Runtime, find, newest, runtimes
from ..runtimes.verdict import judge
from .choice import Choice
from .config import bake_config
from .factors import factors
from .native import native
from .written import Written

ENCODINGS: dict[str, Callable[[Schedule, RopeSpec, Family], Written]] = {"native": native, "factors": factors}


@dataclass(frozen=True)
class ConfigChoice(Choice):
    """A chosen encoding for config.json: what it writes, and the whole config."""

    written: Written
    config: Config


def choose(
    schedule: Schedule, spec: RopeSpec, family: Family, config: Config, encoding: str, wanted: tuple[str, ...]
) -> ConfigChoice:
    """The encoding to use.

    `auto` takes, of the encodings that every named runtime reads exactly in its newest version, the one that most
    of its other current versions read exactly too. Raises UnsupportedBake when there is none.
    """
    refuse_unbakeable(schedule, family, config)
    targets = [find(name) for name in wanted or ("transformers",)]
    if encoding != "auto":
        if encoding not in ENCODINGS:
            raise UsageError(f"--encoding {encoding} is not known; choose auto, {' or '.join(ENCODINGS)}")
        return _try(encoding, schedule, spec, family, config)
    tried: list[ConfigChoice] = []
    refusals: list[str] = []
    for name in ENCODINGS:
        try:
            tried.append(_try(name, schedule, spec, family, config))
        except UnsupportedBake as refusal:
            refusals.append(str(refusal))
    fitting = [choice for choice in tried if all(choice.word(rows[-1]) == "exact" for rows in targets)]
    if fitting:
        return max(fitting, key=lambda choice: sum(choice.word(row) == "exact" for rows in targets for row in rows))
    raise _nothing_fits(tried, refusals, family, [rows[-1] for rows in targets])


def refuse_unbakeable(schedule: Schedule, family: Family, config: Config) -> None:
    """Raises UnsupportedBake for what no encoding in a config can carry."""
    if schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind}",
            "config.json",
            "no stock class of this architecture scales queries by position",
            "leave --log-n out",
        )
    part = text_part(config, family)
    cancels = family.weights.norm.endswith("after-rope") and part.get("use_qk_norm", True)
    if cancels and schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            family.name,
            "it normalises queries and keys after the rotation, which cancels any amplitude",
            "pass --attention-factor 1",
        )


def _try(name: str, schedule: Schedule, spec: RopeSpec, family: Family, config: Config) -> ConfigChoice:
    written = ENCODINGS[name](schedule, spec, family)
    baked = bake_config(config, family, spec, written)
    verdicts = tuple(judge(baked, family, schedule, spec, runtime) for runtime in runtimes())
    return ConfigChoice(name, verdicts, written, baked)


def _nothing_fits(
    tried: list[ConfigChoice], refusals: list[str], family: Family, targets: list[Runtime]
) -> UnsupportedBake:
    reasons = [
        f"{verdict.title} with {choice.encoding}: {verdict.because or verdict.word}"
        for choice in tried
        for verdict in choice.verdicts
        if verdict.runtime in {row.key for row in targets} and verdict.word != "exact"
    ]
    best = next((row for row in [newest("transformers")] if any(c.word(row) == "exact" for c in tried)), None)
    return UnsupportedBake(
        "this schedule",
        " and ".join(row.title for row in targets),
        "; ".join(dict.fromkeys(reasons or refusals)),
        f"name a runtime that reads it (--runtime {best.name} does)" if best else "choose another method",
    )
