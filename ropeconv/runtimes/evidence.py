"""Results that the lab executed: `lab/*.json`, one file per runtime version, written by
`scripts/lab`.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from ..formats.package_data import PACKAGE, package_data, package_files
from ..models.config import text_part
from ..models.family import Family
from ..models.schema import LAYER_TYPES, ROPE, SETTINGS, TOP, Config
from .runtime import KeyStatement, RuleSet, Runtime, version_key

Grade = Literal["run", "read", ""]


class ModelRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The results of one version of a runtime for the configs of one model."""

    digest: str
    """of all its configs, so that a record shows when they have changed."""

    rope_types: tuple[str, ...]
    """That they have."""

    most: str
    """The status of all cells that are not in `others`."""

    others: dict[str, dict[str, tuple[str, ...]]] = {}
    """Names of cells by status, and by what was different or the message."""

    detail: str = ""
    date: str = ""
    """When, where it is not the date of the record."""

    def statuses(self, cells: tuple[str, ...]) -> dict[str, str]:
        """The status of each of `cells`, by name."""
        by_cell = {
            cell: status
            for status, details in self.others.items()
            for names in details.values()
            for cell in names
        }
        return {cell: by_cell.get(cell, self.most) for cell in cells}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the lab."""

    runtime: str
    """what was executed."""

    version: str
    """what was executed."""

    date: str
    """when."""

    how: str
    """what was executed."""

    models: dict[str, ModelRecord]
    """By name, a family for its small config, or the name of a published config."""


@dataclass(frozen=True)
class Evidence:
    """How a statement is known."""

    grade: Grade = ""
    """"run" (executed), "read" (in the source), or empty."""

    detail: str = ""
    """Version and date."""


@cache
def records() -> tuple[Record, ...]:
    """All records of the package, by runtime and version."""
    return tuple(package_data(entry, Record) for entry in package_files("runtimes/lab", ".json"))


@cache
def lab_models() -> dict[str, tuple[str, str]]:
    """Return the family and the model type of the configs that the lab executes, by their names in
    records.
    """
    return package_data("runtimes/lab_models.json", dict[str, tuple[str, str]])


@cache
def executed_models(runtime: str, family: str) -> tuple[tuple[Record, str, ModelRecord], ...]:
    """Return what the versions of a runtime do with the configs of a family, the newest first, by
    model type.

    Models of which the lab saw nothing are left out.
    """
    names = {name: model_type for name, (of, model_type) in lab_models().items() if of == family}
    names.setdefault(family, family)
    return tuple(
        (record, model_type, record.models[name])
        for record in reversed(records())
        if record.runtime == runtime
        for name, model_type in names.items()
        if name in record.models
        and (record.models[name].most != "unknown" or record.models[name].others)
    )


def executed_types(runtime: Runtime, family: str) -> tuple[str, ...]:
    """Return the model types of a family whose configs were executed in the versions of a row."""
    executed = executed_models(runtime.name, family)
    return tuple(
        dict.fromkeys(
            model_type for record, model_type, _ in executed if runtime.covers(record.version)
        )
    )


def evidence(
    runtime: Runtime, family: str, kind: str | None = None, model_type: str = ""
) -> Evidence:
    """Return how it is known what a runtime does with a family.

    Args:
        runtime: A row of the table of runtimes.
        family: The name of the family.
        kind: The rope type, None for any, also for models that the runtime does not support.
        model_type: The one of the config as a whole; empty for any.
    """
    for record, executed, result in executed_models(runtime.name, family):
        known = kind is None or kind in result.rope_types or result.most == "unsupported"
        if known and model_type in ("", executed) and runtime.covers(record.version):
            return Evidence("run", f"{record.version}, {result.date or record.date}")
    return Evidence("read" if runtime.statement(family, model_type) else "")


ROPE_FIELDS = (
    "rotates",
    "keys",
    "defaults",
    "layers",
    "window",
    "trained",
    "writing",
    "weights",
    "cache",
)
"""Fields of a family that name the config keys which its RoPE and its attention follow from."""


class ReadKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys that one version of a runtime reads, without those of `understood_keys.toml`."""

    rope: tuple[str, ...]
    """In the RoPE dictionary, whatever the family."""

    config: dict[str, tuple[str, ...]]
    """In a config, with the families whose model files read it."""


class Understood(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys whose meaning for the RoPE is known, or which have none."""

    rope: tuple[str, ...]
    """In the RoPE dictionary."""

    config: tuple[str, ...]
    """outside."""

    values: dict[str, bool]
    """Keys with the only values that say nothing new."""

    families: dict[str, tuple[str, ...]]
    """Keys with the only families in which they say nothing new."""


@cache
def understood() -> Understood:
    """The keys of `understood_keys.toml`."""
    return package_data("runtimes/understood_keys.toml", Understood)


def read_keys(runtime: Runtime) -> ReadKeys:
    """The keys that the newest extracted version of a row reads.

    A row of which no version was extracted has those of the version before it, else of the first
    one, so that a new row does not lose what its neighbours read; without any they are none.
    """
    extracted = _records(runtime.name)
    covered = [keys for version, keys in extracted.items() if runtime.covers(version)]
    if covered:
        return covered[-1]
    last = version_key(runtime.last)
    earlier = [keys for version, keys in extracted.items() if version_key(version) <= last]
    return next(iter([*reversed(earlier), *extracted.values()]), ReadKeys((), {}))


@cache
def _records(runtime: str) -> dict[str, ReadKeys]:
    """The extracted versions of a runtime, the newest last."""
    place = f"runtimes/keys/{runtime}.json"
    return package_data(place, dict[str, ReadKeys]) if (PACKAGE / place).is_file() else {}


def stated_key(config: Config, family: Family, runtime: Runtime) -> tuple[str, KeyStatement] | None:
    """A key of a config that the runtime reads for this family, with what is stated about it; None
    without one.
    """
    part = text_part(config, family)
    record = read_keys(runtime)
    for statement in runtime.keys:
        for name in statement.names:
            if part.get(name) and family.name in (
                statement.families or record.config.get(name, ())
            ):
                return name, statement
    return None


def unknown_key(
    part: Config, rope: Config, family: Family, runtime: Runtime, rules: RuleSet
) -> str:
    """A key that the runtime reads and that neither rules nor family mention; empty without one.

    Args:
        part: The text part of a config.
        rope: Its RoPE dictionary.
        rules: Those that the family is read by.
    """
    record = read_keys(runtime)
    same = understood().values
    families = understood().families
    keys = [
        key
        for key in part
        if family.name in record.config.get(key, ())
        and part[key] not in (None, same.get(key))
        and family.name not in families.get(key, ())
    ]
    keys += [key for key in rope if rope[key] is not None and key in record.rope]
    names = _mentioned(family, runtime, rules) if keys else set()
    return next((key for key in keys if key not in names), "")


def _mentioned(family: Family, runtime: Runtime, rules: RuleSet) -> set[str]:
    """The config keys that the schema of configs, a family and the rules of a runtime name."""
    settings = msgspec.json.encode([getattr(family, name) for name in ROPE_FIELDS])
    keyed = {name for setting in runtime.keys for name in setting.names}
    needed = {*rules.required, *(need.key for need in rules.need)}
    schema = {*ROPE, *TOP, *SETTINGS, *LAYER_TYPES, *family.layers.types, *family.hooks.keys}
    return _words(settings) | keyed | needed | schema


@cache
def _words(settings: bytes) -> set[str]:
    """The texts in settings as JSON, which are keys and values, and their parts between dots."""
    texts = re.findall(r'"([^"]*)"', settings.decode())
    return {word for text in texts for word in (text, *text.split("."))}
