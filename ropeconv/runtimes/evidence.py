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

    options: str = ""
    """The options with which it was started; empty for none."""


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
def executed_models(
    runtime: str, family: str, options: str = ""
) -> dict[str, tuple[ExecutedModel, ...]]:
    """Return what was seen when a runtime ran the configs of a family, by version, newest first.

    Models without any result are left out.

    Args:
        runtime: Its name.
        family: The name of the family.
        options: The options with which it was started; empty for none.
    """
    # the models of the family that the lab runs, by name, with their model types; for llama these
    # are its small config, called as the family, and wrappers of it such as llava
    model_types = {}
    for name, (model_family, model_type) in lab_models().items():
        if model_family == family:
            model_types[name] = model_type
    model_types.setdefault(family, family)

    by_version = {}
    for record in reversed(records()):
        if record.runtime != runtime or record.options != options:
            continue
        results = []
        for name, model_type in model_types.items():
            result = record.models.get(name)
            if result is None:
                continue
            # "unknown" for all of its configs means that none could be run
            was_run = result.most != "unknown" or bool(result.others)
            if was_run:
                date = result.date or record.date  # models may be run again after the record
                results.append(ExecutedModel(model_type, result, date))
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
    runtime: Runtime, family: str, kind: str | None = None, model_type: str = "", options: str = ""
) -> Evidence:
    """Return how it is known what a runtime does with a family.

    Args:
        runtime: A row of the table of runtimes.
        family: The name of the family.
        kind: The rope type, None for any.
        model_type: The one of the config as a whole; empty for any.
        options: The options with which it is started; empty for none.
    """
    # run in this version, else read in its source, else nothing
    for version, models in executed_models(runtime.name, family, options).items():
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
    if not options and runtime.statement(family, model_type):
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
    """Return the config keys that a runtime reads, in a range of versions (a row of its table).

    They were extracted from the source of some versions. The newest one in the range counts, else
    the newest before the range, else the first of all: a new range, of which nothing was extracted
    yet, is taken to read what its neighbours read. Empty where no version was extracted.
    """
    extracted = _records(runtime.name)
    if not extracted:
        return ReadKeys((), {})

    covered = None
    earlier = None
    last = version_key(runtime.last)
    for version, keys in extracted.items():  # the newest comes last, and replaces the others
        if runtime.covers(version):
            covered = keys
        if version_key(version) <= last:
            earlier = keys
    first = next(iter(extracted.values()))
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
    """Return a key that a runtime reads, and whose effect ropeconv does not know; empty without.

    It is in the code of the runtime for this family, and neither the runtime's rules nor the family
    mention it. It may change the RoPE, so the verdict is then "unknown" and not "exact".

    Args:
        part: The text part of a config.
        rope: Its RoPE dictionary.
        family: The family of the model.
        runtime: The row of the table of runtimes.
        rules: The rules that the family is read by.
    """
    # keys that the model file of the family reads there, without those that say nothing new: by
    # their value, or in this family (understood_keys.toml)
    extracted = read_keys(runtime)
    harmless = understood()
    suspects = []
    for key in part:
        readers = extracted.config.get(key, ())  # families whose model files read the key
        harmless_in = harmless.families.get(key, ())
        has_harmless_value = part[key] in (None, harmless.values.get(key))
        if family.name in readers and family.name not in harmless_in and not has_harmless_value:
            suspects.append(key)
    for key in rope:
        if rope[key] is not None and key in extracted.rope:
            suspects.append(key)
    if not suspects:
        return ""

    mentioned = _known_keys(family, runtime, rules)
    return next((key for key in suspects if key not in mentioned), "")


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
