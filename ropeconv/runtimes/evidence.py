"""What the lab has executed: `lab/*.json`, one file per runtime version, written by `scripts/lab`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec

from ..formats.typed import package_data, package_files
from .runtime import Runtime

Grade = Literal["run", "read", ""]


class ModelRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one version of a runtime did with the configs of one model.

    digest: of all its configs, so that a record shows when they have changed. rope_types: that they have. most: the
    status of all cells that are not in `others`. others: names of cells by status, and by what was different or the
    message. date: when, where it is not the date of the record.
    """

    digest: str
    rope_types: tuple[str, ...]
    most: str
    others: dict[str, dict[str, tuple[str, ...]]] = {}
    detail: str = ""
    date: str = ""

    def statuses(self, cells: tuple[str, ...]) -> dict[str, str]:
        """The status of each of `cells`, by name."""
        named = {
            cell: status for status, details in self.others.items() for names in details.values() for cell in names
        }
        return {cell: named.get(cell, self.most) for cell in cells}


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the lab. runtime, version: what was executed. date: when. how: what was executed. models: by name,
    a family for its small config, or the name of a published config."""

    runtime: str
    version: str
    date: str
    how: str
    models: dict[str, ModelRecord]


@dataclass(frozen=True)
class Evidence:
    """How a statement is known. grade: "run" (executed), "read" (in the source), or empty. detail: version and date."""

    grade: Grade = ""
    detail: str = ""


@cache
def records() -> tuple[Record, ...]:
    """All records of the package, by runtime and version."""
    return tuple(package_data(entry, Record) for entry in package_files("ropeconv.runtimes", "lab", ".json"))


def evidence(runtime: Runtime, family: str, kind: str | None = None) -> Evidence:
    """How it is known what a runtime does with a family.

    kind: the rope type, None for any, as where the runtime has no such model.
    """
    for record in reversed(records()):
        if record.runtime != runtime.name or not runtime.covers(record.version):
            continue
        seen = record.models.get(family)
        if seen is not None and (kind is None or kind in seen.rope_types or seen.most == "unsupported"):
            return Evidence("run", f"{record.version}, {seen.date or record.date}")
    return Evidence("read" if runtime.statement(family) else "")
