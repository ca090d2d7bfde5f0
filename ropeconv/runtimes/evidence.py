"""Results that the lab executed: `lab/*.json`, one per runtime version, from `scripts/lab`.

`evidence` says how a verdict is known.
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
    """A digest of all its configs, so that a record shows when they have changed."""

    rope_types: tuple[str, ...]
    """The rope types of its configs."""

    most: str
    """The status of all cells that are not in `others`."""

    others: dict[str, dict[str, tuple[str, ...]]] = {}
    """Names of cells by status, and by what was different or the message."""

    detail: str = ""
    date: str = ""
    """The date where it is not that of the record."""

    def statuses(self, cells: tuple[str, ...]) -> dict[str, str]:
        """Return the status of each of `cells`, by name."""
        by_cell: dict[str, str] = {}
        for status, details in self.others.items():
            for names in details.values():
                by_cell |= dict.fromkeys(names, status)
        return {cell: by_cell.get(cell, self.most) for cell in cells}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the lab."""

    runtime: str
    version: str
    date: str
    how: str
    """How it was executed."""

    models: dict[str, ModelRecord]
    """By name: a family for its small config, or the name of a published config."""


@dataclass(frozen=True)
class ExecutedModel:
    """The results of one version of a runtime for the configs of one model."""

    model_type: str
    result: ModelRecord
    date: str


@dataclass(frozen=True)
class Evidence:
    """How a statement is known."""

    grade: Grade = ""
    """"run" (executed), "read" (in the source), or empty."""

    detail: str = ""
    """Version and date."""


@cache
def records() -> tuple[Record, ...]:
    """Return all records of the package, by runtime and version."""
    return tuple(package_data(entry, Record) for entry in package_files("runtimes/lab", ".json"))


@cache
def lab_models() -> dict[str, tuple[str, str]]:
    """Return the family and the model type of each config that the lab executes, by its name."""
    return package_data("runtimes/lab_models.json", dict[str, tuple[str, str]])


@cache
def executed_models(runtime: str, family: str) -> dict[str, tuple[ExecutedModel, ...]]:
    """Return the results of a runtime for the configs of a family by version, the newest first.

    Models without any result are left out.
    """
    # the models that were run for the family, such as llama and its wrapper llava, with their types
    model_types = {}
    for name, (model_family, model_type) in lab_models().items():
        if model_family == family:
            model_types[name] = model_type
    model_types.setdefault(family, family)

    by_version = {}
    for record in reversed(records()):
        if record.runtime != runtime:
            continue
        results = []
        for name, model_type in model_types.items():
            result = record.models.get(name)
            if result is not None and (result.most != "unknown" or result.others):
                results.append(ExecutedModel(model_type, result, result.date or record.date))
        by_version[record.version] = tuple(results)
    return by_version


def executed_types(runtime: Runtime, family: str) -> tuple[str, ...]:
    """Return the model types of a family whose configs were executed in the versions of a row."""
    types = []
    for version, models in executed_models(runtime.name, family).items():
        if runtime.covers(version):
            types += [model.model_type for model in models]
    return tuple(dict.fromkeys(types))


def evidence(
    runtime: Runtime, family: str, kind: str | None = None, model_type: str = ""
) -> Evidence:
    """Return how it is known what a runtime does with a family.

    Args:
        runtime: A row of the table of runtimes.
        family: The name of the family.
        kind: The rope type, None for any; models that the runtime does not support have none.
        model_type: The one of the config as a whole; empty for any.
    """
    # run in this version, else read in its source, else nothing
    for version, models in executed_models(runtime.name, family).items():
        if not runtime.covers(version):
            continue
        for model in models:
            # a runtime that does not support the model was seen to refuse every rope type
            result = model.result
            covers_kind = kind is None or kind in result.rope_types
            if result.most == "unsupported":
                covers_kind = True
            if covers_kind and model_type in ("", model.model_type):
                return Evidence("run", f"{version}, {model.date}")
    if runtime.statement(family, model_type):
        return Evidence("read")
    return Evidence()


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
    """Keys in the RoPE dictionary, whatever the family."""

    config: dict[str, tuple[str, ...]]
    """Keys in a config, with the families whose model files read them."""


class Understood(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys whose meaning for the RoPE is known, or which have none."""

    rope: tuple[str, ...]
    """Keys in the RoPE dictionary."""

    config: tuple[str, ...]
    """Keys outside of it."""

    values: dict[str, bool]
    """Keys with the only values that say nothing new."""

    families: dict[str, tuple[str, ...]]
    """Keys with the only families in which they say nothing new."""


@cache
def understood() -> Understood:
    """Return the keys of `understood_keys.toml`."""
    return package_data("runtimes/understood_keys.toml", Understood)


def read_keys(runtime: Runtime) -> ReadKeys:
    """Return the keys of a config that the newest extracted version of a row reads.

    A row of which no version was extracted has those of the version before it, else of the first
    one, so that a new row does not lose what its neighbours read; without any they are none.
    """
    extracted = _records(runtime.name)
    if not extracted:
        return ReadKeys((), {})

    covered = None
    earlier = None
    last = version_key(runtime.last)
    for version, keys in extracted.items():  # the newest comes last
        if runtime.covers(version):
            covered = keys
        if version_key(version) <= last:
            earlier = keys
    first, *_ = extracted.values()
    return covered or earlier or first


@cache
def _records(runtime: str) -> dict[str, ReadKeys]:
    """Return the extracted versions of a runtime, the newest last."""
    place = f"runtimes/keys/{runtime}.json"
    if not (PACKAGE / place).is_file():
        return {}
    return package_data(place, dict[str, ReadKeys])


def stated_key(config: Config, family: Family, runtime: Runtime) -> tuple[str, KeyStatement] | None:
    """Return a key of a config that the runtime reads for this family, with its statement."""
    part = text_part(config, family)
    record = read_keys(runtime)
    for statement in runtime.keys:
        for name in statement.names:
            families = statement.families or record.config.get(name, ())
            if part.get(name) and family.name in families:
                return name, statement
    return None


def unknown_key(
    part: Config, rope: Config, family: Family, runtime: Runtime, rules: RuleSet
) -> str:
    """Find a key that the runtime reads and that neither rules nor family mention; empty without.

    Such a key may change the RoPE in a way that ropeconv does not know.

    Args:
        part: The text part of a config.
        rope: Its RoPE dictionary.
        family: The family of the model.
        runtime: The row of the table of runtimes.
        rules: The rules that the family is read by.
    """
    # the keys that the code of the runtime reads for this family, and that have an effect
    record = read_keys(runtime)
    known = understood()
    read = []
    for key in part:
        is_read = family.name in record.config.get(key, ())
        is_usual = part[key] in (None, known.values.get(key))
        if is_read and not is_usual and family.name not in known.families.get(key, ()):
            read.append(key)
    for key in rope:
        if rope[key] is not None and key in record.rope:
            read.append(key)
    if not read:
        return ""

    explained = _known_keys(family, runtime, rules)
    return next((key for key in read if key not in explained), "")


def _known_keys(family: Family, runtime: Runtime, rules: RuleSet) -> set[str]:
    """Return the config keys that the schema, a family and the rules of a runtime name."""
    names = {*ROPE, *TOP, *SETTINGS, *LAYER_TYPES, *family.layers.types, *family.hooks.keys}
    for statement in runtime.keys:
        names |= set(statement.names)
    names |= {need.key for need in rules.need}
    names |= set(rules.required)
    settings = msgspec.json.encode([getattr(family, name) for name in ROPE_FIELDS])
    return names | _words(settings)


@cache
def _words(settings: bytes) -> set[str]:
    """The texts in settings as JSON, which are keys and values, and their parts between dots."""
    words = set()
    for text in re.findall(r'"([^"]*)"', settings.decode()):
        words |= {text, *text.split(".")}
    return words
