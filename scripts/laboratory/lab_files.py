"""Writes the files of the lab: each release of a runtime with what is different in it.

`write` writes a file, and `replaced` returns one with a new record or with new keys.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ropeconv.formats.drafts import write_file
from ropeconv.runtimes.lab_file import (
    KeysEntry,
    LabFile,
    ModelRecord,
    ReadKeys,
    Record,
    RecordEntry,
    full_keys,
    full_records,
)
from ropeconv.runtimes.runtime import version_key
from ropeconv.runtimes.stored import SHIPPED

FOLDER = SHIPPED / "lab"

Models = Mapping[str, ModelRecord]


def path(runtime: str, folder: Path | None = None) -> Path:
    """Return the file of a runtime."""
    return (folder or FOLDER) / f"{runtime}.json"


def read(runtime: str, folder: Path | None = None) -> LabFile | None:
    """Return the file of a runtime; None where there is none."""
    file = path(runtime, folder)
    if not file.exists():
        return None
    return msgspec.json.decode(file.read_bytes(), type=LabFile)


def write(file: LabFile, folder: Path | None = None) -> None:
    """Write the file of a runtime."""
    write_file(path(file.runtime, folder), text(file))


def replaced(
    file: LabFile, record: Record | None = None, keys: Mapping[str, ReadKeys] | None = None
) -> LabFile:
    """Return a file with a record in the place of that of its version, or with other keys."""
    entries = file.records
    if record is not None:
        others = []
        for known in full_records(file):
            if (known.version, known.options) != (record.version, record.options):
                others.append(known)
        entries = tuple(record_entries([*others, record]))

    key_entries = file.keys
    if keys is not None:
        key_entries = tuple(keys_entries(full_keys(file) | dict(keys)))
    return LabFile(file.runtime, file.how, entries, key_entries)


def record_entries(records: Iterable[Record]) -> Iterator[RecordEntry]:
    """Yield the entries of records of one runtime, from the oldest version to the newest."""

    def place(record: Record) -> tuple[tuple[int, ...], str]:
        return version_key(record.version), record.options

    earlier: dict[str, Models] = {}
    for record in sorted(records, key=place):
        models = {name: _undated(model) for name, model in sorted(record.models.items())}
        dates: dict[str, list[str]] = {}
        for name, model in sorted(record.models.items()):
            if model.date not in ("", record.date):
                dates.setdefault(model.date, []).append(name)

        like = _most_alike(models, earlier)
        without, different = _differences(models, earlier.get(like, {}))
        yield RecordEntry(
            version=record.version,
            date=record.date,
            options=record.options,
            like=like,
            without=without,
            dates={date: tuple(names) for date, names in sorted(dates.items())},
            models=different,
        )
        if not record.options:
            earlier[record.version] = models


def _undated(model: ModelRecord) -> ModelRecord:
    return msgspec.structs.replace(model, date="")


def _most_alike(models: Models, earlier: Mapping[str, Models]) -> str:
    """Return the version from which the fewest bytes are different, the latest of several.

    Empty where a record of its own is as short.
    """
    best = ""
    least = _size((), models)
    for version, known in earlier.items():
        size = _size(*_differences(models, known))
        if size < least or (best and size == least):
            best = version
            least = size
    return best


def _differences(models: Models, known: Models) -> tuple[tuple[str, ...], dict[str, ModelRecord]]:
    """Return the models that only an earlier record has, and those that it has not or otherwise."""
    without = tuple(name for name in known if name not in models)
    different = {name: model for name, model in models.items() if known.get(name) != model}
    return without, different


def _size(without: Sequence[str], models: Models) -> int:
    return len(msgspec.json.encode(without)) + len(msgspec.json.encode(models))


def keys_entries(versions: Mapping[str, ReadKeys]) -> Iterator[KeysEntry]:
    """Yield the entries of the keys of versions, from the oldest to the newest."""
    before = ReadKeys((), {})
    for index, version in enumerate(sorted(versions, key=version_key)):
        keys = versions[version]
        config = {}
        for key in sorted({*keys.config, *before.config}):
            families = keys.config.get(key, ())
            if families != before.config.get(key, ()):
                config[key] = families
        same_rope = keys.rope == before.rope and index > 0
        yield KeysEntry(version, None if same_rope else keys.rope, config)
        before = keys


def text(file: LabFile) -> str:
    """Return the text of a file, with a line for each model and each key."""
    records = ",\n".join(_opened(entry, "models") for entry in file.records)
    keys = ",\n".join(_opened(entry, "config") for entry in file.keys)
    return (
        "{\n"
        f'"runtime":{_json(file.runtime)},\n'
        f'"how":{_json(file.how)},\n'
        f'"records":[\n{records}\n],\n'
        f'"keys":[\n{keys}\n]\n'
        "}\n"
    )


def _opened(entry: RecordEntry | KeysEntry, field: str) -> str:
    """Return an entry as JSON, with a line for each item of one of its fields, the last one."""
    content = msgspec.to_builtins(entry)
    items = content.pop(field, {})
    head = _json(content)
    if not items:
        return head
    lines = ",\n".join(f" {_json(name)}:{_json(value)}" for name, value in items.items())
    return f"{head[:-1]},{_json(field)}:{{\n{lines}}}}}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
