"""RunPlan: the TOML file of `ropeconv run`, with every key checked before anything is read or
fetched.
"""

import re
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli

from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.evaluation import (
    SOME,
    UNITS,
    Sizes,
    parse_duration,
    parse_measures,
)
from ropeconv.features.evaluation.options import SizeOptions
from ropeconv.formats.files import read_text
from ropeconv.hub.options import PushOptions
from ropeconv.options import RunOptions, TargetOptions, ValidateOptions, copied
from ropeconv.rope.errors import RopeconvError
from ropeconv.verbs.rows import Row, parse_rows

TaskName = Literal["apply", "validate", "eval", "push"]
LONGEST = 1 << 20
"""Characters of a plan; ten thousand sources have some 400,000."""
DAYS = UNITS | {"d": 24 * 3600}
"""Units of time that limits have."""
BYTES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class TargetTable(TargetOptions):
    """[[targets]]: the options of an output. name: in outputs and tables."""

    name: str = ""

    def target(self, out: Path) -> Target:
        """The target. out: the folder or GGUF file."""
        return copied(Target, self, out=out)


@dataclass(frozen=True, kw_only=True)
class PushTable(PushOptions):
    """[push]: `to` with {name}, {recipe} and {target}, and the options of publishing."""

    to: str


@dataclass(frozen=True, kw_only=True)
class EvalTable(SizeOptions, RunOptions):
    """[eval]: files of text, what is measured, and how the model is run."""

    text: list[str]

    def sizes(self) -> Sizes:
        """What is measured."""
        return copied(Sizes, self)


@dataclass(frozen=True)
class ValidateTable(ValidateOptions):
    """[validate]: how outputs are run, as in `Settings`."""

    length: int = 0


class LimitsTable(msgspec.Struct, frozen=True):
    """[limits]: jobs at once (0 for what the machine has), how often the work of a killed worker is
    tried again, hours after which the run ends, the time that a unit may take, bytes that outputs
    may have.
    """

    jobs: int = 0
    retries: int = 2
    hours: float | None = None
    unit_timeout: str = "24h"
    bytes: str = ""

    @property
    def unit_seconds(self) -> float:
        """The time that a unit may take. Raises UsageError for a text that is not one."""
        try:
            return parse_duration(self.unit_timeout, DAYS)
        except UsageError as problem:
            raise UsageError(f"limits.unit_timeout: {problem}") from None


class ExecutorTable(msgspec.Struct, frozen=True):
    """[executor]: where units run. gpus, cpus: of each worker on Ray and Slurm. timeout: of each
    job of Slurm. slurm: parameters of submitit.
    """

    on: str = "local"
    gpus: float = 0
    cpus: float = 1
    slurm: dict[str, Any] = {}
    timeout: str = "2h"


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The file. Paths are relative to its folder. out: folder of outputs, journal and report."""

    sources: list[str]
    recipes: list[str]
    tasks: list[TaskName]
    out: str = ""
    family: str = ""
    targets: list[TargetTable] = msgspec.field(default_factory=lambda: [TargetTable()])
    push: PushTable | None = None
    eval: EvalTable | None = None
    validate: ValidateTable = ValidateTable()
    limits: LimitsTable = LimitsTable()
    executor: ExecutorTable = ExecutorTable()

    @property
    def rows(self) -> list[Row]:
        """The recipes, parsed. Raises UsageError and RecipeError for wrong ones."""
        return parse_rows(",".join(self.recipes))

    @property
    def most_bytes(self) -> int | None:
        """The limit on bytes; None without one."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]B)", self.limits.bytes)
        return round(float(match[1]) * BYTES[match[2]]) if match else None


def read_plan(path: Path) -> RunPlan:
    """Return the plan in a file. Raises UsageError for a file that is not a plan."""
    try:
        text = read_text(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a plan (docs/running.md)"
        ) from None
    if len(text) > LONGEST:
        raise UsageError(
            f"{path} has more than {LONGEST:,} characters; use a pattern or a collection for the"
            " sources"
        )
    try:
        data = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as problem:
        raise UsageError(f"{path} is not TOML ({problem}); correct it") from None
    try:
        _known(data, RunPlan, "")
        listed = data.get("tasks")
        unknown = (
            [name for name in listed if name not in get_args(TaskName)]
            if isinstance(listed, list)
            else []
        )
        if unknown:
            raise UsageError(f"tasks has {unknown[0]!r}; choose {', '.join(get_args(TaskName))}")
        plan = msgspec.convert(data, RunPlan)
        _check(plan)
    except msgspec.ValidationError as problem:
        message = re.sub(r" - at `\$\.?(.*?)`$", r" in \1", str(problem)).replace("`", "")
        raise UsageError(f"{path}: {message[:1].lower()}{message[1:]}; correct it") from None
    except RopeconvError as problem:
        raise UsageError(
            f"{path}: {str(problem).replace('--methods has', 'recipes has')}"
        ) from None
    return plan


def _known(data: dict[str, Any], kind: type, place: str) -> None:
    """Raises UsageError for a key that a table does not have, with the nearest one."""
    fields = get_type_hints(kind)
    for key, value in data.items():
        if key not in fields:
            near = get_close_matches(key, fields, 1)
            repair = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(fields)}"
            raise UsageError(f"{place or 'the file'} has no key {key!r}; {repair}")
        for inner in (fields[key], *get_args(fields[key])):
            if get_origin(inner) is None and (
                is_dataclass(inner) or issubclass(inner, msgspec.Struct)
            ):
                for table in value if isinstance(value, list) else [value]:
                    if isinstance(table, dict):
                        _known(table, inner, f"[{key}]")


def _check(plan: RunPlan) -> None:
    """Raises UsageError for what does not go together."""
    for name in ("sources", "recipes", "tasks", "targets"):
        if not getattr(plan, name):
            raise UsageError(f"{name} is empty; name at least one")
    _check_tasks(plan)
    names = [target.name for target in plan.targets]
    if len(set(names)) < len(names):
        raise UsageError(
            f"targets have the name {max(names, key=names.count)!r} twice; give each its own"
        )
    _check_limits(plan)
    if plan.eval is not None:
        parse_measures(plan.eval.measures)
        plan.eval.sizes().resolve(SOME)


def _check_tasks(plan: RunPlan) -> None:
    if len(set(plan.tasks)) < len(plan.tasks):
        raise UsageError("tasks names one twice; name each once")
    if "validate" in plan.tasks and "apply" not in plan.tasks:
        raise UsageError("validate needs the outputs that apply writes; add apply to tasks")
    for task, table in (("eval", plan.eval), ("push", plan.push)):
        if task in plan.tasks and table is None:
            example = 'text = ["book.txt"]' if task == "eval" else 'to = "me/{name}-{recipe}"'
            raise UsageError(f"tasks has {task} and there is no [{task}]; add it, with {example}")
    if any(row.recipe is None for row in plan.rows) and plan.tasks != ["eval"]:
        raise UsageError(
            "recipes has base, the model without changes, which only eval can run; leave it out"
        )


def _check_limits(plan: RunPlan) -> None:
    if plan.limits.bytes and plan.most_bytes is None:
        raise UsageError(f"limits.bytes is {plan.limits.bytes!r}; write it like 200GB")
    for key, low in (("jobs", 0), ("retries", 0)):
        if not low <= getattr(plan.limits, key) <= 10_000:
            raise UsageError(
                f"limits.{key} is {getattr(plan.limits, key)}; give a number from {low} to 10,000"
            )
    if plan.limits.hours is not None and not plan.limits.hours > 0:
        raise UsageError(f"limits.hours is {plan.limits.hours}; give a positive number")
    assert plan.limits.unit_seconds
