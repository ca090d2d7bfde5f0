"""Turns outcomes into the records that the package ships, and reads them back."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ropeconv.models.config import detect, text_part
from ropeconv.runtimes.evidence import ModelRecord, Record
from ropeconv.runtimes.read_config import rope_dict, rope_type
from ropeconv.runtimes.runtime import newest

from .cells import Cell
from .compare import Outcome

FOLDER = Path(__file__).parents[2] / "ropeconv" / "runtimes" / "lab"
MODELS = FOLDER.parent / "lab_models.json"


def path(runtime: str, version: str, options: str = "") -> Path:
    """The file of a record. options: those with which the server was started."""
    return FOLDER / f"{runtime}-{version}{in_file_name(options)}.json"


def in_file_name(options: str) -> str:
    """Options of a server as part of a file name, such as -model-impl-transformers."""
    words = re.findall(r"[A-Za-z0-9_.]+", options)
    return "".join(f"-{word}" for word in words)


def model_record(cells: Iterable[Cell], outcomes: Mapping[str, Outcome]) -> ModelRecord:
    """The record of one model. cells: all of it. outcomes: by the name of the cell."""
    cells = list(cells)
    most, _ = Counter(outcomes[cell.name].status for cell in cells).most_common(1)[0]
    details = {outcomes[cell.name].detail for cell in cells if outcomes[cell.name].status == most}
    others: dict[str, dict[str, tuple[str, ...]]] = {}
    shared = details.pop() if len(details) == 1 else None
    for cell in cells:
        outcome = outcomes[cell.name]
        if outcome.status == most:
            continue
        by_detail = others.setdefault(outcome.status, {})
        by_detail[outcome.detail] = (*by_detail.get(outcome.detail, ()), cell.name)
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
    MODELS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def save(record: Record) -> None:
    """Writes a record, a line per model."""
    FOLDER.mkdir(exist_ok=True)
    head = {
        "runtime": record.runtime,
        "version": record.version,
        "date": record.date,
        "how": record.how,
    }
    if record.options:
        head["options"] = record.options
    lines = [
        f"  {msgspec.json.encode(name).decode()}: {msgspec.json.encode(model).decode()}"
        for name, model in sorted(record.models.items())
    ]
    text = (
        msgspec.json.encode(head).decode()[:-1] + ',\n"models": {\n' + ",\n".join(lines) + "\n}}\n"
    )
    path(record.runtime, record.version, record.options).write_text(text)


def extended(record: Record, models: Mapping[str, ModelRecord], date: str) -> Record:
    """A record with more models. date: when these were executed."""
    dated = {
        name: model if date == record.date else msgspec.structs.replace(model, date=date)
        for name, model in models.items()
    }
    return msgspec.structs.replace(record, models={**record.models, **dated})


def load(runtime: str, version: str, options: str = "") -> Record | None:
    """The record of a version, None where there is none."""
    file = path(runtime, version, options)
    return msgspec.json.decode(file.read_bytes(), type=Record) if file.exists() else None
