"""Groups verdicts for display: one line per status, with the runtimes that have it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import get_args

from .llamacpp import arch_table
from .runtime import Status, runtimes

VERSIONS = re.compile(r"(?P<name>.+) (?P<first>[\d.]+)(?:-(?P<last>[\d.]+))?")


def grouped(statuses: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of a status, best first, and its runtimes: `("exact", "transformers 4.51-5.23, vLLM 0.33")`.

    statuses: by `name@version`, in the order of `runtimes()`. Consecutive versions are joined to a range.
    """
    found = []
    for status in (*get_args(Status), "unknown"):
        if status in statuses.values():
            found.append((status, ", ".join(_ranges(statuses, status))))
    return found


def _ranges(statuses: Mapping[str, str], status: str) -> list[str]:
    table = arch_table()
    known = {row.key: row.display_name for row in runtimes()} | {table.key: table.display_name}
    labels = []
    for _, keys in groupby(statuses, key=lambda key: key.partition("@")[0]):
        of_runtime = list(keys)
        for same, run in groupby(of_runtime, key=lambda key: statuses[key] == status):
            if same:
                labels.append(_label([known.get(key, key.replace("@", " ")) for key in run]))
    return labels


def _label(rows: list[str]) -> str:
    """One name for consecutive versions of a runtime: a range where each is a range, else a list of versions."""
    parts = [VERSIONS.fullmatch(row) for row in rows]
    if len(rows) == 1 or None in parts:
        return ", ".join(rows)
    matches = [part for part in parts if part]
    if all(part["last"] for part in matches):
        return f"{matches[0]['name']} {matches[0]['first']}-{matches[-1]['last']}"
    return f"{matches[0]['name']} {' and '.join(part['first'] for part in matches)}"
