"""Encodings that are a config and nothing else: `native` and `factors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import UnsupportedBake
from ...families import Family
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...runtimes import newest, runtimes
from ...runtimes.verdict import judge
from .config_edit import bake_config
from .factors import factors
from .native import native
from .request import ConfigChoice, Task
from .rope_setting import Written

PLAIN: dict[str, Callable[[Schedule, RopeSpec, Family], Written]] = {"native": native, "factors": factors}


def plain(name: str, task: Task) -> ConfigChoice:
    """The schedule in the config, written as `name`. Raises UnsupportedBake where that cannot hold it."""
    schedule, spec, family = task.schedule, task.spec, task.family
    refuse_log_n(task)
    written = PLAIN[name](schedule, spec, family)
    baked = bake_config(task.config, family, spec, written)
    verdicts = tuple(judge(baked, family, schedule, spec, runtime) for runtime in runtimes())
    return ConfigChoice(
        name, verdicts, config=baked, family=family, in_config=schedule, written_as=name, context=written.context,
        notes=written.notes,
    )  # fmt: skip


def refuse_log_n(task: Task) -> None:
    """Raises UnsupportedBake for a schedule with log-n, which no config of these families can say."""
    if task.schedule.log_n is not None:
        raise UnsupportedBake(
            f"--log-n {task.schedule.log_n.kind}", f"the keys of {task.family.name}",
            "its stock class does not scale queries by position",
            "use --encoding buffers or --encoding ministral3, where the family has them, or leave --log-n out",
        )  # fmt: skip


def tried(task: Task) -> tuple[list[ConfigChoice], dict[str, UnsupportedBake]]:
    """Every plain encoding that can hold the schedule, plainest first, and why the others cannot."""
    found: list[ConfigChoice] = []
    refusals: dict[str, UnsupportedBake] = {}
    for name in PLAIN:
        try:
            found.append(plain(name, task))
        except UnsupportedBake as refusal:
            refusals[name] = refusal
    return found, refusals


def furthest(task: Task) -> ConfigChoice:
    """Of the plain encodings that every target reads exactly, the one that most runtimes read exactly.

    Raises UnsupportedBake when there is none.
    """
    found, refusals = tried(task)
    fitting = [choice for choice in found if choice.suits(task.targets)]
    if not fitting:
        raise nothing_fits(found, refusals, task)
    return max(fitting, key=ConfigChoice.reach)


def nothing_fits(found: list[ConfigChoice], refusals: dict[str, UnsupportedBake], task: Task) -> UnsupportedBake:
    """The error that says, per encoding, what stands in its way."""
    reasons = [
        f"{verdict.title} with {choice.encoding}: {verdict.because or verdict.word}"
        for choice in found
        for verdict in choice.verdicts
        if verdict.runtime in {row.key for row in task.targets} and verdict.word != "exact"
    ]
    best = next((row for row in [newest("transformers")] if any(c.word(row) == "exact" for c in found)), None)
    return UnsupportedBake(
        "this schedule",
        " and ".join(row.title for row in task.targets),
        "; ".join(dict.fromkeys(reasons or map(str, refusals.values()))),
        f"name a runtime that reads it (--runtime {best.name} does)" if best else "choose another method",
    )


def bare(task: Task) -> Task:
    """The task without what weights can carry."""
    return replace(task, schedule=replace(task.schedule, attention_factor=1.0, softmax_scale=1.0))
