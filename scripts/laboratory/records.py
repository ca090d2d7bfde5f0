"""Turns outcomes into the records that the package ships, and reads them back."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any

import msgspec

from ropeconv.formats.drafts import write_file
from ropeconv.models.config import detect, text_part
from ropeconv.runtimes.lab_file import LabFile, ModelRecord, Record, full_records
from ropeconv.runtimes.read_config import rope_dict, rope_type
from ropeconv.runtimes.runtime import newest
from ropeconv.runtimes.stored import SHIPPED

from . import lab_files
from .cells import Cell
from .compare import Outcome

MODELS = SHIPPED / "lab_models.json"
_SAVING = Lock()
"""Held while a file is changed: versions of one runtime may be executed at the same time."""


def in_file_name(options: str) -> str:
    """Options of a server as part of a file name, such as -model-impl-transformers."""
    words = re.findall(r"[A-Za-z0-9_.]+", options)
    return "".join(f"-{word}" for word in words)


def model_record(cells: Iterable[Cell], outcomes: Mapping[str, Outcome]) -> ModelRecord:
    """Return the record of one model: the status of most cells, and the cells with others.

    Args:
        cells: All cells of the model.
        outcomes: The outcome of each, by the name of the cell.
    """
    cells = list(cells)
    counts = Counter(outcomes[cell.name].status for cell in cells)
    [(most, _)] = counts.most_common(1)

    # a detail is recorded where all of these cells share it
    details = {outcomes[cell.name].detail for cell in cells if outcomes[cell.name].status == most}
    shared = details.pop() if len(details) == 1 else None
    others: dict[str, dict[str, tuple[str, ...]]] = {}
    for cell in cells:
        outcome = outcomes[cell.name]
        if outcome.status == most:
            continue
        by_detail = others.setdefault(outcome.status, {})
        names = by_detail.get(outcome.detail, ())
        by_detail[outcome.detail] = (*names, cell.name)
    return ModelRecord(
        digest=digest(cells),
        rope_types=tuple(sorted({cell_type(cell) for cell in cells})),
        most=most,
        others=others,
        detail=shared or "",
    )


def digest(cells: Iterable[Cell]) -> str:
    """A digest of the configs of a model, which shows whether a record is about them."""
    keys = "".join(f"{cell.name}{cell.key}" for cell in cells)
    return hashlib.sha256(keys.encode()).hexdigest()[:12]


def cell_type(cell: Cell) -> str:
    """The rope type in the config of a cell, as transformers reads it."""
    rope, _ = rope_dict(text_part(cell.config, cell.family), cell.family)
    return rope_type(rope, newest("transformers").rule_set(cell.family.name))


def save_models(configs: Mapping[str, dict[str, Any]]) -> None:
    """Writes the family and the model type of each config, a line per name."""
    families = {name: detect(config) for name, config in sorted(configs.items())}
    lines = [
        f" {msgspec.json.encode(name).decode()}: "
        f"{msgspec.json.encode((family.name, configs[name]['model_type'])).decode()}"
        for name, family in families.items()
        if not family.refuse
    ]
    write_file(MODELS, "{\n" + ",\n".join(lines) + "\n}\n")


def save(record: Record) -> None:
    """Writes a record into the file of its runtime, in the place of that of the same version."""
    with _SAVING:
        file = lab_files.read(record.runtime) or LabFile(record.runtime, record.how)
        lab_files.write(lab_files.replaced(file, record=record))


def extended(record: Record, models: Mapping[str, ModelRecord], date: str) -> Record:
    """Return a record with more models.

    Args:
        record: The record.
        models: The results of the other models.
        date: When these were executed; a model has a date only where it is not that of the record.
    """
    all_models = dict(record.models)
    for name, model in models.items():
        if date != record.date:
            model = msgspec.structs.replace(model, date=date)
        all_models[name] = model
    return msgspec.structs.replace(record, models=all_models)


def load(runtime: str, version: str, options: str = "") -> Record | None:
    """The record of a version, None where there is none."""
    file = lab_files.read(runtime)
    if file is None:
        return None
    for record in full_records(file):
        if (record.version, record.options) == (version, options):
            return record
    return None
