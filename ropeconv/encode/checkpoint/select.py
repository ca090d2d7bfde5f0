"""Chooses how a schedule is written: a named encoding, or the first that the named runtimes read exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...errors import UnsupportedBake, UsageError
from ...families import Family
from ...families.config import Config, text_part
from ...rope.schedule import Schedule
from ...rope.spec import RopeSpec
from ...runtimes import Runtime, find
from ..fold.placement import Side
from ..result import Considered, refuse_amplitude, refuse_approximate
from .buffers import buffers
from .config_only import PLAIN, nothing_fits, plain, tried
from .ministral3 import ministral3
from .request import ConfigChoice, Task, Tensors
from .weights import weights

ENCODINGS: dict[str, Callable[[Task], ConfigChoice]] = {
    **{name: partial(plain, name) for name in PLAIN},
    "weights": weights,
    "ministral3": ministral3,
    "buffers": buffers,
}
GOOD = ("exact", "rounded")


def choose(
    schedule: Schedule,
    spec: RopeSpec,
    family: Family,
    config: Config,
    encoding: str,
    wanted: tuple[str, ...],
    tensors: Tensors = dict,
    side: Side = "k",
    allow_approximate: bool = False,
) -> ConfigChoice:
    """The encoding to use.

    `auto` takes, of the plain encodings that every named runtime reads exactly in its newest version, the one that most
    of its other current versions read exactly too; where there is none, the first of the others that fits.
    allow_approximate: whether what is only near the schedule may be taken, where nothing else fits. tensors: gives the
    checkpoint's tensors, asked only where weights change. Raises UnsupportedBake when nothing fits.
    """
    part = text_part(config, family)
    if family.weights.norm.endswith("after-rope") and part.get("use_qk_norm", True):
        refuse_amplitude(schedule, family)
    rows = [find(name) for name in wanted or ("transformers",)]
    task = Task(schedule, spec, family, config, tuple(row[-1] for row in rows), tensors, side)
    if encoding == "auto":
        return _auto(task, [row for current in rows for row in current], allow_approximate)
    if encoding not in ENCODINGS:
        *names, last = ENCODINGS
        raise UsageError(f"--encoding {encoding} is not known; choose auto, {', '.join(names)} or {last}")
    choice = ENCODINGS[encoding](task)
    if not allow_approximate:
        refuse_approximate(choice, schedule, "use --encoding buffers")
    return choice


def _auto(task: Task, current: list[Runtime], allow_approximate: bool) -> ConfigChoice:
    found, refusals = tried(task)
    fitting = [choice for choice in found if choice.suits(task.targets)]
    if fitting:
        chosen = max(fitting, key=lambda choice: sum(choice.word(row) == "exact" for row in current))
        return replace(chosen, considered=_considered(found, refusals, task, chosen))
    for name in [name for name in ENCODINGS if name not in PLAIN]:
        try:
            choice = ENCODINGS[name](task)
        except UnsupportedBake as refusal:
            refusals[name] = refusal
            continue
        found.append(choice)
        if choice.suits(task.targets, GOOD):
            return replace(choice, considered=_considered(found, refusals, task, choice))
    near = [choice for choice in found if choice.suits(task.targets, (*GOOD, "approximate"))]
    if near and not allow_approximate:
        refuse_approximate(near[0], task.schedule, "name a runtime that takes --encoding buffers")
    if near:
        return replace(near[0], considered=_considered(found, refusals, task, near[0]))
    raise nothing_fits(found, refusals, task)


def _considered(
    found: list[ConfigChoice], refusals: dict[str, UnsupportedBake], task: Task, chosen: ConfigChoice
) -> tuple[Considered, ...]:
    """Why each encoding was taken or passed over."""
    by_name = {choice.encoding: choice for choice in found}
    return tuple(
        Considered(name, name == chosen.encoding, _why(name, by_name, refusals, task, chosen)) for name in ENCODINGS
    )


def _why(
    name: str, by_name: dict[str, ConfigChoice], refusals: dict[str, UnsupportedBake], task: Task, chosen: ConfigChoice
) -> str:
    if name in refusals:
        return refusals[name].because
    if name not in by_name:
        return "not needed, a config says it all" if chosen.encoding in PLAIN else "not needed"
    choice, asked = by_name[name], " and ".join(row.title for row in task.targets)
    reach = f"exact in {choice.reach()} of {len(choice.verdicts)} runtimes"
    words = dict.fromkeys(choice.word(row) for row in task.targets)
    if name == chosen.encoding:
        return f"{' and '.join(words)} in {asked}; {reach}"
    targets = {row.key for row in task.targets}
    wrong = next((v for v in choice.verdicts if v.runtime in targets and v.word != "exact"), None)
    if wrong is not None:
        return f"{wrong.title}: {wrong.because or wrong.word}"
    return f"not plainer, and no better in the versions of {asked}; {reach}"
