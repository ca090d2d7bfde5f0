"""The schema of `lab/*.json`: what the lab saw in the releases of one runtime, and what they read.

`scripts/lab` writes these files. Each release has only what is different in it: `full_records` and
`full_keys` return the whole of each. `runtime_records` reads those of the package.
"""

from collections.abc import Iterator
from functools import cache

import msgspec

from .stored import data_errors, has_runtime_file, runtime_data


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
    """The date where it is not that of the record. A file has it in `dates` of the entry."""

    @property
    def was_run(self) -> bool:
        """Whether one of its configs could be run: "unknown" for all means that none could."""
        return self.most != "unknown" or bool(self.others)

    @property
    def is_unsupported(self) -> bool:
        """Whether the runtime refused every config, since it does not have the model."""
        return self.most == "unsupported" and not self.others

    def statuses(self, cells: tuple[str, ...]) -> dict[str, str]:
        """Return the status of each of `cells`, by name."""
        by_cell: dict[str, str] = {}
        for status, details in self.others.items():
            for names in details.values():
                by_cell |= dict.fromkeys(names, status)
        return {cell: by_cell.get(cell, self.most) for cell in cells}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of one version of a runtime."""

    runtime: str
    version: str
    date: str
    how: str
    """How it was executed."""

    models: dict[str, ModelRecord]
    """By name: a family for its small config, or the name of a published config."""

    options: str = ""
    """The options with which it was started; empty for none."""


class ReadKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys that one version of a runtime reads, without those that are known to be harmless."""

    rope: tuple[str, ...]
    """Keys in the RoPE dictionary, whatever the family."""

    config: dict[str, tuple[str, ...]]
    """Keys in a config, with the families whose model files read them."""


class RecordEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A record as its file has it."""

    version: str
    date: str
    options: str = ""
    """As in `Record`."""

    like: str = ""
    """An earlier entry of the file with the same results, but for the next two; empty for none."""

    without: tuple[str, ...] = ()
    """Models of that entry that were not executed in this version."""

    dates: dict[str, tuple[str, ...]] = {}
    """Models that were executed on another day, by the day."""

    models: dict[str, ModelRecord] = {}
    """The results of the other models."""


class KeysEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys of a version as their file has them."""

    version: str
    rope: tuple[str, ...] | None = None
    """As in `ReadKeys`; None where the version before has the same."""

    config: dict[str, tuple[str, ...]] = {}
    """As in `ReadKeys`, those that the version before has not; without families where they went."""


class LabFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the lab."""

    runtime: str
    """As in `data`."""

    how: str
    """How its versions were executed."""

    records: tuple[RecordEntry, ...] = ()
    """From the oldest version to the newest."""

    keys: tuple[KeysEntry, ...] = ()
    """The config keys of some versions, from the oldest to the newest."""


def full_records(file: LabFile) -> Iterator[Record]:
    """Yield the records of a file, each with all results, from the oldest version to the newest.

    In the file, {"version": "0.33.0", "like": "0.32.0", "models": {"llama": ...}} has the results
    of 0.32.0 but for llama.

    Raises:
        KeyError: For an entry that is like one that is not before it.
    """
    models_by_version: dict[str, dict[str, ModelRecord]] = {}
    for entry in file.records:
        # an entry has only the results that differ from those of the entry that it names in `like`
        models: dict[str, ModelRecord] = {}
        if entry.like:
            models |= models_by_version[entry.like]
        for name in entry.without:
            del models[name]
        models |= entry.models
        if not entry.options:  # later entries can be like this one
            models_by_version[entry.version] = dict(models)

        # the day is that of this execution, whatever the entry that it is like
        for date, names in entry.dates.items():
            for name in names:
                models[name] = msgspec.structs.replace(models[name], date=date)
        by_name = dict(sorted(models.items()))
        yield Record(file.runtime, entry.version, entry.date, file.how, by_name, entry.options)


def full_keys(file: LabFile) -> dict[str, ReadKeys]:
    """Return the config keys that each version reads, the newest last."""
    rope: tuple[str, ...] = ()
    config: dict[str, tuple[str, ...]] = {}
    versions = {}
    for entry in file.keys:
        if entry.rope is not None:
            rope = entry.rope
        config = config | entry.config
        config = {key: families for key, families in sorted(config.items()) if families}
        versions[entry.version] = ReadKeys(rope, config)
    return versions


@cache
def lab_file(runtime: str) -> LabFile | None:
    """Return the file of the lab on a runtime; None for one that was not executed."""
    place = f"lab/{runtime}.json"
    if not has_runtime_file(place):
        return None
    return runtime_data(place, LabFile)


@cache
def runtime_records(runtime: str) -> tuple[Record, ...]:
    """Return the records of a runtime, from the oldest version to the newest."""
    file = lab_file(runtime)
    if file is None:
        return ()
    with data_errors(f"lab/{runtime}.json"):
        return tuple(full_records(file))


@cache
def lab_models() -> dict[str, tuple[str, str]]:
    """Return the family and the model type of each config that the lab executes, by its name."""
    return runtime_data("lab_models.json", dict[str, tuple[str, str]])


@cache
def refused_families(runtime: str) -> dict[str, dict[str, bool]]:
    """Return whether each version of a runtime refused every model of a family.

    It is {"0.33.0": {"llama": False, "hrm": True}, ...}, from the newest version to the oldest,
    each with the families of which a model was run in it.

    Args:
        runtime: The name of the runtime, such as "vllm".
    """
    by_version = {}
    for record in reversed(runtime_records(runtime)):
        if record.options:  # the server was started in another way than usual
            continue

        # one answer for each model that was run, such as {"llama": [False, False], "hrm": [True]}
        refusals_by_family: dict[str, list[bool]] = {}
        for name, model in record.models.items():
            if name not in lab_models() or not model.was_run:
                continue
            family, _ = lab_models()[name]
            refusals_by_family.setdefault(family, []).append(model.is_unsupported)

        refused = {family: all(answers) for family, answers in refusals_by_family.items()}
        by_version[record.version] = refused
    return by_version
