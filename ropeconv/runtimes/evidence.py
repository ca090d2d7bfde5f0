"""Results that the lab executed: `lab/*.json`, a file for each runtime, from `scripts/lab`.

`evidence` says how a verdict is known.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from ..models.config import text_part
from ..models.family import Family
from ..models.schema import LAYER_TYPES, ROPE, ROPE_DICTIONARIES, TOP, Config
from .lab_file import (
    ModelRecord,
    ReadKeys,
    Record,
    full_keys,
    lab_file,
    lab_models,
    runtime_records,
)
from .runtime import KeyStatement, RuleSet, Runtime, version_key
from .stored import runtime_files

Grade = Literal["run", "read", ""]


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
    found: list[Record] = []
    for place in runtime_files("lab", ".json"):
        found += runtime_records(PurePosixPath(place).stem)
    return tuple(found)


@cache
def executed_models(
    runtime: str, family: str, options: str = ""
) -> dict[str, tuple[ExecutedModel, ...]]:
    """Return what was seen when a runtime ran the configs of a family, by version, newest first.

    For vLLM and llama it is {"0.33.0": (ExecutedModel("llama", ...), ExecutedModel("llava", ...)),
    "0.32.0": ...}. Models that could not be run are left out. The results come with ropeconv: its
    laboratory (scripts/laboratory) runs a small config of each model in each version.

    Args:
        runtime: Its name.
        family: The name of the family.
        options: The options with which it was started; empty for none.
    """
    # the models of the family that the laboratory runs, by name, with their model types; for llama
    # these are its small config, called as the family, and wrappers of it such as llava
    model_types = {}
    for name, (model_family, model_type) in lab_models().items():
        if model_family == family:
            model_types[name] = model_type
    model_types.setdefault(family, family)

    models_by_version = {}
    for record in reversed(runtime_records(runtime)):  # the newest first
        if record.options != options:
            continue
        models = []
        for name, model_type in model_types.items():
            result = record.models.get(name)
            if result is not None and result.was_run:
                date = result.date or record.date  # models may be run again after the record
                models.append(ExecutedModel(model_type, result, date))
        models_by_version[record.version] = tuple(models)
    return models_by_version


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
    """Return how ropeconv knows what a runtime does with the models of a family.

    Args:
        runtime: A range of versions of a runtime.
        family: The name of the family.
        kind: The rope type, such as "yarn"; None for any.
        model_type: The model_type of the whole config; empty for any.
        options: The options with which the runtime is started; empty for none.

    Returns:
        Evidence("run", "0.33.0, 2026-11-22") if such a model was run in one of these versions;
        Evidence("read") if the source code of the runtime was read; or an empty Evidence().
    """
    # 1. a model of the family was run in one of these versions
    for version, models in executed_models(runtime.name, family, options).items():
        if not runtime.covers(version):
            continue
        for model in models:
            result = model.result
            is_same_model_type = model_type in ("", model.model_type)
            ran_rope_type = kind is None or kind in result.rope_types
            # The result with most rope types is `most`. A runtime that does not support the model
            # refuses it with every rope type, also with those that were not run.
            is_unsupported = result.most == "unsupported"
            if is_same_model_type and (ran_rope_type or is_unsupported):
                return Evidence("run", f"{version}, {model.date}")

    # 2. the table has a statement on the family, which comes from the source code; it is about the
    # runtime without options
    code_was_read = runtime.statement(family, model_type) is not None
    if code_was_read and not options:
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


HARMLESS_VALUES = {
    "rope_interleave": True,
    "rope_traditional": False,
    "use_sliding_window": False,  # no layer has a window
}
"""Config keys with the only value that says nothing new about the RoPE."""


def read_keys(runtime: Runtime) -> ReadKeys:
    """Return the config keys that a runtime reads, in a range of versions (a row of its table).

    They were extracted from the source of some versions. The newest one in the range counts, else
    the newest before the range, else the first of all: a new range, of which nothing was extracted
    yet, is taken to read what its neighbours read. Empty where no version was extracted.
    """
    extracted = _records(runtime.name)
    if not extracted:
        return ReadKeys((), {})

    # from the newest version to the oldest
    newest_first = list(reversed(extracted.items()))
    for version, keys in newest_first:
        if runtime.covers(version):
            return keys
    last = version_key(runtime.last)
    for version, keys in newest_first:
        if version_key(version) <= last:
            return keys
    _, keys_of_oldest = newest_first[-1]
    return keys_of_oldest


@cache
def _records(runtime: str) -> dict[str, ReadKeys]:
    """Return the extracted versions of a runtime, the newest last."""
    file = lab_file(runtime)
    if file is None:
        return {}
    return full_keys(file)


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
    """Return the first key of a config whose effect in a runtime ropeconv does not know.

    The code of the runtime reads this key for the family, and no rule of ropeconv describes it. It
    may change the RoPE, so the verdict is then "unknown" and not "exact". The result is empty
    without an unknown key.

    Args:
        part: The text part of a config.
        rope: Its RoPE dictionary.
        family: The family of the model.
        runtime: A range of versions of a runtime.
        rules: How the runtime reads configs of the family.
    """
    # the keys that the code of the runtime reads, which were found by a search in its source
    keys_in_code = read_keys(runtime)
    keys_that_are_read = []

    # keys of the config: `config` has the families whose model files read a key
    for key, value in part.items():
        is_read = family.name in keys_in_code.config.get(key, ())
        is_harmless = key in HARMLESS_VALUES and value == HARMLESS_VALUES[key]
        if is_read and value is not None and not is_harmless:
            keys_that_are_read.append(key)

    # keys of the RoPE dictionary, which are read for all families
    for key, value in rope.items():
        if key in keys_in_code.rope and value is not None:
            keys_that_are_read.append(key)
    if not keys_that_are_read:
        return ""

    # without the keys that ropeconv describes, such as rope_theta
    known_keys = _keys_with_known_effect(family, runtime, rules)
    for key in keys_that_are_read:
        if key not in known_keys:
            return key
    return ""


def _keys_with_known_effect(family: Family, runtime: Runtime, rules: RuleSet) -> set[str]:
    """Return all keys of a config.json whose effect on the RoPE ropeconv describes.

    The result also has words that are not keys, which do no harm.

    Args:
        family: The family of the model.
        runtime: A range of versions of a runtime.
        rules: How the runtime reads configs of the family.
    """
    # keys of all families: inside of a RoPE dictionary (ROPE), and at the top level (TOP)
    keys = {*ROPE, *TOP, *ROPE_DICTIONARIES, *LAYER_TYPES}

    # keys in the statements and rules of the runtime
    for statement in runtime.keys:
        keys |= set(statement.names)
    keys |= {need.key for need in rules.need}
    keys |= set(rules.required)

    # Keys of the family. They are in many fields of its description, nested in objects and lists.
    # So all texts in the JSON of these fields are taken, such as "rope_theta" and "attn_config".
    keys |= {*family.layers.types, *family.hooks.keys}
    fields = [getattr(family, name) for name in ROPE_FIELDS]
    return keys | _names_in_json(msgspec.json.encode(fields))


@cache
def _names_in_json(settings: bytes) -> set[str]:
    """The texts in settings as JSON, which are keys and values, and their parts between dots."""
    words = set()
    for text in re.findall(r'"([^"]*)"', settings.decode()):
        words |= {text, *text.split(".")}
    return words
