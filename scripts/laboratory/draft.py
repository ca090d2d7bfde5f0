"""Drafts the row of a version that no row of the table of runtimes covers, and compares it with the version before."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from ropeconv.runtimes.evidence import ModelRecord, Record, records
from ropeconv.runtimes.runtime import Runtime, runtimes, version_key

from .agree import Disagreement

DATA = Path(__file__).parents[2] / "ropeconv" / "runtimes" / "data"


def row_of(name: str, version: str) -> tuple[Runtime, bool]:
    """Return the row of a version, cut to it, and whether it covers the version; otherwise it is the nearest row."""
    row = _nearest(name, version)
    return msgspec.structs.replace(row, version=version, through=version), row.covers(version)


def _nearest(name: str, version: str) -> Runtime:
    """The row that covers a version, else the last one before it, else the first."""
    rows = [row for row in runtimes() if row.name == name]
    covering = [row for row in rows if row.covers(version)]
    earlier = [row for row in rows if version_key(row.version) <= version_key(version)]
    return (covering or earlier or rows[:1])[-1]


def previous(name: str, version: str) -> Record | None:
    """Return the record of the last executed version before this one."""
    earlier = [
        record for record in records() if record.runtime == name and version_key(record.version) < version_key(version)
    ]
    return max(earlier, key=lambda record: version_key(record.version), default=None)


def changes(before: Record, models: Mapping[str, ModelRecord]) -> Iterator[str]:
    """Yield a sentence for each model whose results differ from those in an earlier record."""
    for name, model in models.items():
        if name not in before.models:
            continue
        old = before.models[name]
        if (model.most, model.others) != (old.most, old.others):
            cells = {
                cell
                for result in (old, model)
                for by in result.others.values()
                for cells in by.values()
                for cell in cells
            }
            left, right = old.statuses(tuple(sorted(cells))), model.statuses(tuple(sorted(cells)))
            differing = [f"{cell}: {left[cell]} -> {right[cell]}" for cell in left if left[cell] != right[cell]]
            most = [f"most cells: {old.most} -> {model.most}"] if old.most != model.most else []
            if most or differing:
                yield f"{name}: {'; '.join([*most, *differing])}"


def draft(name: str, version: str, problems: Iterable[Disagreement]) -> str:
    """Write the row of a version that no row covers. Return a sentence on what was written.

    Where nothing disagrees, the last row before it is extended to this version. Otherwise, and before the first row, a
    new row inherits from the nearest one, with the disagreements by family as comments.
    """
    row = _nearest(name, version)
    path = DATA / f"{name}-{row.version}.toml"
    by_family: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        by_family[problem.cell.family.name].append(f"{problem.cell.model}, {problem.cell.name}: {problem.answered}")
    minor = ".".join(version.split(".")[:2])
    if not by_family and version_key(row.version) <= version_key(version):
        text = re.sub(r"^through = .*\n", "", path.read_text(), count=1, flags=re.MULTILINE)
        path.write_text(re.sub(r"^(version = .*\n)", rf'\g<1>through = "{minor}"\n', text, count=1, flags=re.MULTILINE))
        return f"{path.name} now goes through {minor}; nothing disagrees with it"
    lines = [f'inherits = "{path.stem}"', f'version = "{minor}"', f'source = "{row.title} {version}"', ""]
    for family, cells in sorted(by_family.items()):
        lines += [f"# {family}: the table says otherwise for {len(cells)} cells, such as {cells[0]}"]
    target = DATA / f"{name}-{minor}.toml"
    target.write_text("\n".join(lines) + "\n")
    return f"{target.name} is a draft; {len(by_family)} families disagree with {path.name}: write their rule sets there"
