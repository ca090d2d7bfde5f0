"""The TOML file of `ropeconv run`.

`read_plan` reads it into a `RunPlan`, and checks every key before anything is fetched. Each table
of the file has a class here.
"""

import re
from dataclasses import dataclass, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import tomli

from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.features.evaluation.evaluation import (
    ANY_TRAINED_CONTEXT,
    UNITS,
    Sizes,
    parse_duration,
    refuse_ignored,
)
from ropeconv.features.evaluation.options import SizeOptions
from ropeconv.formats.files import expand_home, read_text
from ropeconv.hub.options import PushOptions
from ropeconv.options import (
    ConverterOptions,
    RunOptions,
    TargetOptions,
    ValidateOptions,
    changed_names,
    copied,
)
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.lengths import parse_tokens
from ropeconv.verbs.rows import Row, parse_rows

TaskName = Literal["apply", "validate", "eval", "push"]
MOST_CHARACTERS = 1 << 20
"""Characters of a plan; ten thousand sources have some 400,000."""
TIME_UNITS = UNITS | {"d": 24 * 3600}
"""Units of time that limits have."""
BYTE_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class TargetTable(TargetOptions, ConverterOptions):
    """[[targets]]: the options of an output."""

    name: str = ""
    """The name in outputs and tables."""

    def target(self, out: Path) -> Target:
        """Return the target of an output, a folder or a GGUF file."""
        return copied(Target, self, out=out)

    def in_folder(self, folder: Path) -> "TargetTable":
        """Return the table with whole paths, which are relative to a folder here."""
        converter = self.converter
        if converter is not None:
            converter = folder / converter
        imatrix = self.imatrix
        if imatrix is not None:
            imatrix = folder / imatrix
        return replace(self, converter=converter, imatrix=imatrix)


@dataclass(frozen=True, kw_only=True)
class PushTable(PushOptions):
    """[push]: the repository, and the options of publishing."""

    to: str
    """The repository, with {name}, {recipe} and {target} in its name."""


@dataclass(frozen=True, kw_only=True)
class EvalTable(SizeOptions, RunOptions):
    """[eval]: files of text, the measures, and how the model is run."""

    text: list[str]
    """Files and patterns."""

    def sizes(self) -> Sizes:
        """Return the measures and their sizes."""
        return copied(Sizes, self)


@dataclass(frozen=True)
class ValidateTable(ValidateOptions):
    """[validate]: how outputs are run, as in `Settings`."""

    length: int = 0


class LimitsTable(msgspec.Struct, frozen=True):
    """[limits]: how much a run may take."""

    jobs: int = 0
    """Jobs at once; 0 for what the machine has."""

    retries: int = 2
    """How often the work of a killed worker is tried again."""

    hours: float | None = None
    """Hours after which the run ends; None for no limit."""

    unit_timeout: str = "24h"
    """The time that a unit may take."""

    bytes: str = ""
    """The bytes that outputs may have, such as 200GB; empty for no limit."""

    @property
    def unit_seconds(self) -> float:
        """The time that a unit may take, in seconds.

        Raises:
            UsageError: The text is not a time.
        """
        try:
            return parse_duration(self.unit_timeout, TIME_UNITS)
        except UsageError as problem:
            raise UsageError(f"limits.unit_timeout: {problem}") from None


class ExecutorTable(msgspec.Struct, frozen=True):
    """[executor]: where units run."""

    on: str = "local"
    """The name of the executor, as `executor_of` reads it."""

    gpus: float = 0
    """The GPUs of each worker on Ray and Slurm."""

    cpus: float = 1
    """The CPUs of each worker on Ray and Slurm."""

    slurm: dict[str, Any] = {}
    """Parameters of submitit."""

    timeout: str = "2h"
    """The time of each job of Slurm."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The file, whose paths are relative to its folder."""

    sources: list[str]
    """Paths, patterns, names on the Hub, collections and queries."""

    recipes: list[str]
    """Rows such as `yarn:4`."""

    tasks: list[TaskName]

    out: str = ""
    """The folder of outputs, journal and report; empty for the name of the file."""

    family: str = ""
    """The family that all sources are treated as, or empty."""

    targets: list[TargetTable] = msgspec.field(default_factory=lambda: [TargetTable()])
    push: PushTable | None = None
    eval: EvalTable | None = None
    validate: ValidateTable = ValidateTable()
    limits: LimitsTable = LimitsTable()
    executor: ExecutorTable = ExecutorTable()

    def rows(self, folder: Path) -> list[Row]:
        """Return the recipes, parsed.

        Args:
            folder: The folder of the plan file.

        Raises:
            UsageError: A recipe cannot be read.
            RecipeError: A method cannot have such a value.
        """
        return parse_rows(",".join(self.recipes), folder)

    @property
    def most_bytes(self) -> int | None:
        """The limit on bytes; None without one."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]B)", self.limits.bytes)
        if match is None:
            return None
        return round(float(match[1]) * BYTE_UNITS[match[2]])


def read_plan(path: Path) -> RunPlan:
    """Read a plan file (TOML) for `ropeconv run`.

    Raises:
        UsageError: The file is not a plan.
    """
    data = _read_toml(path)
    folder = path.resolve().parent
    try:
        # msgspec would refuse unknown keys too, but these messages name the nearest known key
        _refuse_unknown_keys(data, RunPlan, "")
        _refuse_unknown_tasks(data)
        plan = msgspec.convert(data, RunPlan, dec_hook=_decode_path)
        _refuse_contradictions(plan, folder)
    except msgspec.ValidationError as problem:
        raise UsageError(f"{path}: {_readable(problem)}; correct it") from None
    except RopeconvError as problem:
        # The recipes are read by the function that reads --methods of `eval`. A message such as
        # "--methods has 'yarn'" must name the key of the plan file instead.
        message = str(problem).replace("--methods has", "recipes has")
        raise UsageError(f"{path}: {message}") from None
    targets = [target.in_folder(folder) for target in plan.targets]
    return msgspec.structs.replace(plan, targets=targets)


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file of a reasonable size."""
    try:
        text = read_text(path, str(path))
    except OSError as problem:
        raise UsageError(
            f"{path} cannot be read ({problem.strerror}); give a plan (docs/running.md)"
        ) from None
    if len(text) > MOST_CHARACTERS:
        raise UsageError(
            f"{path} has more than {MOST_CHARACTERS:,} characters; use a pattern or a collection"
            " for the sources"
        )
    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as problem:
        raise UsageError(f"{path} is not TOML ({problem}); correct it") from None


def _readable(problem: msgspec.ValidationError) -> str:
    """Return the message of msgspec without its notation: "... - at `$.limits.jobs`"."""
    message = re.sub(r" - at `\$\.?(.*?)`$", r" in \1", str(problem))
    message = message.replace("`", "")
    return message[:1].lower() + message[1:]


def _refuse_unknown_keys(data: dict[str, Any], kind: type, place: str) -> None:
    """Refuse a key that a table does not have, and name the nearest one.

    Args:
        data: The table, as TOML has it.
        kind: The class whose fields are its keys.
        place: The name of the table, such as [push]; empty for the file.

    Raises:
        UsageError: A key of it, or of a table in it, is unknown.
    """
    known = get_type_hints(kind)
    for key, value in data.items():
        if key not in known:
            repair = f"the keys are {', '.join(known)}"
            close_names = get_close_matches(key, known, 1)
            if close_names:
                repair = f"did you mean {close_names[0]}?"
            raise UsageError(f"{place or 'the file'} has no key {key!r}; {repair}")

        inner_kind = _table_class(known[key])
        if inner_kind is None:  # a number or a text, and not a table
            continue
        tables = value if isinstance(value, list) else [value]
        for table in tables:
            if isinstance(table, dict):
                _refuse_unknown_keys(table, inner_kind, f"[{key}]")


def _table_class(hint: Any) -> type | None:
    """Return the class of a table in a type such as `list[TargetTable]` or `PushTable | None`.

    It is None for types without a table, such as `list[str]`.
    """
    for kind in (hint, *get_args(hint)):
        # list[str] is an instance of type too, and no class
        if not isinstance(kind, type) or get_origin(kind) is not None:
            continue
        if is_dataclass(kind) or issubclass(kind, msgspec.Struct):
            return kind
    return None


def _decode_path(kind: type, value: Any) -> Path:
    """A path of the file, in which it is a text."""
    if kind is Path and isinstance(value, str):
        return expand_home(value)
    raise NotImplementedError


def _refuse_unknown_tasks(data: dict[str, Any]) -> None:
    """Refuse a task that ropeconv does not have."""
    known = get_args(TaskName)
    listed = data.get("tasks")
    if not isinstance(listed, list):
        return  # msgspec refuses it
    for name in listed:
        if name not in known:
            raise UsageError(f"tasks has {name!r}; choose {', '.join(known)}")


def _refuse_contradictions(plan: RunPlan, folder: Path) -> None:
    """Refuse a plan file whose values do not go together.

    Args:
        plan: The plan file.
        folder: Its folder.

    Raises:
        UsageError: They do not; the message names the key.
    """
    for name in ("sources", "recipes", "tasks", "targets"):
        if not getattr(plan, name):
            raise UsageError(f"{name} is empty; name at least one")
    _check_tasks(plan, folder)

    target_names = [target.name for target in plan.targets]
    for name in target_names:
        if target_names.count(name) > 1:
            raise UsageError(f"targets have the name {name!r} twice; give each its own")
    _check_limits(plan)

    # these functions raise for a wrong measure or length of [eval]
    if plan.eval is not None:
        sizes = plan.eval.sizes()
        sizes.chosen_measures()
        # A length such as "2T" is twice the trained context, which differs between models. To find
        # mistakes, any trained context will do.
        sizes.resolve(ANY_TRAINED_CONTEXT)
        refuse_ignored(changed_names(sizes), model="", servers=(), measures=sizes.chosen_measures())
    if plan.validate.length:
        parse_tokens(str(plan.validate.length))


def _check_tasks(plan: RunPlan, folder: Path) -> None:
    """Refuse tasks that lack their settings, or the task that they need."""
    if len(set(plan.tasks)) < len(plan.tasks):
        raise UsageError("tasks names one twice; name each once")
    if "validate" in plan.tasks and "apply" not in plan.tasks:
        raise UsageError("validate needs the outputs that apply writes; add apply to tasks")
    if "eval" in plan.tasks and plan.eval is None:
        raise UsageError('tasks has eval and there is no [eval]; add it, with text = ["book.txt"]')
    if "push" in plan.tasks and plan.push is None:
        raise UsageError(
            'tasks has push and there is no [push]; add it, with to = "me/{name}-{recipe}"'
        )
    if any(row.recipe is None for row in plan.rows(folder)) and plan.tasks != ["eval"]:
        raise UsageError(
            "recipes has base, the model without changes, which only eval can run; leave it out"
        )


def _check_limits(plan: RunPlan) -> None:
    """Refuse wrong values of [limits]."""
    limits = plan.limits
    if limits.bytes and plan.most_bytes is None:
        raise UsageError(f"limits.bytes is {limits.bytes!r}; write it like 200GB")
    for key in ("jobs", "retries"):
        number = getattr(limits, key)
        if not 0 <= number <= 10_000:
            raise UsageError(f"limits.{key} is {number}; give a number from 0 to 10,000")
    if limits.hours is not None and not limits.hours > 0:  # nor NaN
        raise UsageError(f"limits.hours is {limits.hours}; give a positive number")
    assert limits.unit_seconds  # reading it raises UsageError for another text
