"""Suggests statements on families for `ropeconv/runtimes/data`: which rule set says what the lab saw in every cell.

    python -m scripts.laboratory.suggest vllm@0.33.0

It prints blocks for the families of the record with which the table disagrees. Where no rule set of the row fits, a
comment has the nearest one, and the first cells that it gets wrong: such a family needs a rule set of its own.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from ropeconv.runtimes import Runtime
from ropeconv.runtimes.evidence import ModelRecord
from ropeconv.runtimes.find import find
from ropeconv.runtimes.rules import FamilyStatement

from .agree import predicted
from .cells import Cell, cells, sources
from .records import load

SHOWN = 4
OUTSIDE = ("unsupported", "unknown")


def main() -> int:
    """Prints the suggestions for the version on the command line. Returns 1 where there is no record of it."""
    name, _, version = sys.argv[1].partition("@")
    record, row = load(name, version), find(f"{name}@{version}")[0]
    if record is None:
        print(f"there is no record of {name} {version}: run scripts/lab {name}@{version}")
        return 1
    blocks: dict[tuple[str, str], list[str]] = defaultdict(list)
    for model, config in sources(published=False).items():
        of_model = list(cells(model, config))
        if model in record.models and wrong(row, of_model, record.models[model]):
            blocks[suggested(row, of_model, record.models[model])].append(of_model[0].family.name)
    for (key, value), names in blocks.items():
        print(f"[[families]]\nnames = {msgspec.json.encode(names).decode()}\n{key} = {value}\n")
    return 0


def suggested(row: Runtime, of_model: list[Cell], seen: ModelRecord) -> tuple[str, str]:
    """The key and the value, in TOML, of a statement that says what was seen.

    row: of the runtime. of_model: the cells of one model. seen: its record.
    """
    if seen.most in OUTSIDE and not seen.others:
        return seen.most, msgspec.json.encode(seen.detail).decode()
    found = {rules: wrong(with_rules(row, of_model[0].family.name, rules), of_model, seen) for rules in row.rules}
    nearest = min(found, key=lambda rules: len(found[rules]))
    remarks = "".join(f"  # {one}" for one in found[nearest][:SHOWN])
    return "rules", f'"{nearest}"{remarks}'


def with_rules(row: Runtime, family: str, rules: str) -> Runtime:
    """A row that states that a family follows a rule set."""
    return msgspec.structs.replace(row, families=(*row.families, FamilyStatement((family,), rules=rules)))


def wrong(row: Runtime, of_model: list[Cell], seen: ModelRecord) -> list[str]:
    """The cells of a model of which a row says something else than was seen, as sentences."""
    statuses = seen.statuses(tuple(cell.name for cell in of_model))
    return list(_wrong(row, of_model, statuses))


def _wrong(row: Runtime, of_model: list[Cell], statuses: dict[str, str]) -> Iterator[str]:
    for cell in of_model:
        stated = predicted(cell, row)
        if stated.status != statuses[cell.name]:
            yield f"{cell.name}: {statuses[cell.name]}, not {stated.status} ({stated.reason})"


if __name__ == "__main__":
    sys.exit(main())
