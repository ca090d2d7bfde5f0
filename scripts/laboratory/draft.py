"""Drafts the row of a version that no row of the table of runtimes covers, and compares it with the
version before.

`draft` writes it. What it writes is read again as `ropeconv` reads it, and undone where that fails.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from ropeconv.errors import DamagedPackage
from ropeconv.formats.package_data import PACKAGE
from ropeconv.runtimes.evidence import ModelRecord, Record, records
from ropeconv.runtimes.runtime import Runtime, in_order, read_rows, runtimes, version_key

from .agree import Disagreement

DATA = PACKAGE / "runtimes" / "data"
RELEASE = re.compile(r"\d+(\.\d+)*(\.post\d+)?")
"""A release; a range that ended with `0.6.0rc1` would cover every 0.6."""


class CannotDraft(Exception):
    """No row was written, and every file is as before. The message is a sentence."""


def row_of(name: str, version: str) -> tuple[Runtime, bool]:
    """Return the row of a version, cut to it, and whether it covers the version; otherwise it is
    the nearest row.
    """
    row = nearest([row for row in runtimes() if row.name == name], version)
    return msgspec.structs.replace(row, version=version, through=version), row.covers(version)


def nearest(rows: list[Runtime], version: str) -> Runtime:
    """Return the row that covers a version, else the last one before it, else the first.

    rows: of one runtime, from the oldest version to the newest.
    """
    covering = [row for row in rows if row.covers(version)]
    if covering:
        return covering[-1]
    earlier = [row for row in rows if _is_later(version, row)]
    if earlier:
        return earlier[-1]
    return rows[0]


def _is_later(version: str, row: Runtime) -> bool:
    return version_key(row.version) <= version_key(version)


def previous(name: str, version: str) -> Record | None:
    """Return the record of the last executed version before this one."""
    earlier = [
        record
        for record in records()
        if record.runtime == name
        and not record.options
        and version_key(record.version) < version_key(version)
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
            left = old.statuses(tuple(sorted(cells)))
            right = model.statuses(tuple(sorted(cells)))
            differing = [
                f"{cell}: {left[cell]} -> {right[cell]}"
                for cell in left
                if left[cell] != right[cell]
            ]
            most = [f"most cells: {old.most} -> {model.most}"] if old.most != model.most else []
            if most or differing:
                yield f"{name}: {'; '.join([*most, *differing])}"


def draft(
    name: str, version: str, problems: Iterable[Disagreement], folder: Path | None = None
) -> str:
    """Write the row of a version that no row covers. Return a sentence on what was written.

    Where nothing disagrees, the last row before it is extended to this version. Otherwise, and
    before the first row, a new row inherits from the nearest one, with the disagreements by family
    as comments.

    Args:
        name: The runtime.
        version: The executed version, which ends the range that is written.
        problems: What was seen and the nearest row does not say.
        folder: With the rows, by default that of the package.

    Raises:
        CannotDraft: For a version that is not a release, or has a row, and where the row that was
            written does not load.
    """
    folder = folder or DATA
    if not RELEASE.fullmatch(version):
        raise CannotDraft(
            f"{name} {version} is not a release, so it gets no row; run the lab with the release"
        )

    before = read_rows(folder)
    row = nearest([row for row in in_order(before.values()) if row.name == name], version)
    if row.covers(version):
        raise CannotDraft(f"{row.key} covers {name} {version}; correct that row")

    file = folder / f"{next(stem for stem, known in before.items() if known == row)}.toml"
    by_family = _by_family(problems)
    if not by_family and _is_later(version, row):
        _extend(file, name, version, before)
        return f"{file.name} now goes through {version}; nothing disagrees with it"

    target = folder / f"{name}-{version}.toml"
    if target.exists():
        raise CannotDraft(
            f"{target.name} exists and does not cover {version}; rename it, and run the lab again"
        )
    _write_new(target, _new_row(row, file.stem, version, by_family), name, version, before)
    return (
        f"{target.name} is a draft; {len(by_family)} families disagree with {file.name}: write"
        " their rule sets there"
    )


def _by_family(problems: Iterable[Disagreement]) -> dict[str, list[str]]:
    """Return what was seen of each family, in words."""
    by_family: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        cell = problem.cell
        by_family[cell.family.name].append(f"{cell.model}, {cell.name}: {problem.answered}")
    return by_family


def _extend(file: Path, name: str, version: str, before: Mapping[str, Runtime]) -> None:
    """Write the last version into the file of a row. before: the rows of its folder."""
    old = file.read_text("utf-8")
    file.write_text(_through(old, version), "utf-8")

    problem = _problem(file, name, version, before)
    if problem:
        file.write_text(old, "utf-8")
        raise CannotDraft(f"{file.name} cannot go through {version}: {problem}; it is as before")


def _through(text: str, version: str) -> str:
    """Return the text of a row with another last version. It stands above the first table, beside
    the first version.
    """
    table = re.search(r"^\[", text, re.MULTILINE)
    end = table.start() if table else len(text)
    head = text[:end]
    tables = text[end:]

    head = re.sub(r"^through = .*\n", "", head, flags=re.MULTILINE)
    head = re.sub(r"^(version = .*\n)", rf'\g<1>through = "{version}"\n', head, flags=re.MULTILINE)
    return head + tables


def _new_row(row: Runtime, inherits: str, version: str, by_family: Mapping[str, list[str]]) -> str:
    """Return the text of a row that starts from another one. inherits: the name of its file,
    without the suffix.
    """
    source = f"{row.title} {version}"
    lines = [f'inherits = "{inherits}"', f'version = "{version}"', f"source = {json.dumps(source)}"]
    if not _is_later(version, row):
        lines.append("current = false")
    lines.append("")
    for family, cells in sorted(by_family.items()):
        # an answer may have several lines, such as the end of a traceback
        example = " ".join(cells[0].split())
        shown = "".join(character for character in example if character.isprintable())
        lines.append(
            f"# {family}: the table says otherwise for {len(cells)} cells, such as {shown}"
        )
    return "\n".join(lines) + "\n"


def _write_new(
    target: Path, text: str, name: str, version: str, before: Mapping[str, Runtime]
) -> None:
    """Write the file of a new row. before: the rows of its folder."""
    with target.open("x", encoding="utf-8") as file:
        file.write(text)

    problem = _problem(target, name, version, before)
    if problem:
        target.unlink()
        raise CannotDraft(f"{target.name} cannot be a row: {problem}; it was removed")


def _problem(file: Path, name: str, version: str, before: Mapping[str, Runtime]) -> str:
    """Return why the rows of a folder are not what they have to be after a file was written; empty
    where they are.

    before: the rows that were there.
    """
    try:
        after = read_rows(file.parent)
    except DamagedPackage as problem:
        return str(problem)

    covering = [stem for stem, row in after.items() if row.name == name and row.covers(version)]
    if covering != [file.stem]:
        return f"{version} is in {' and '.join(covering) or 'no row'}"
    changed = [stem for stem, row in before.items() if stem != file.stem and after.get(stem) != row]
    if changed:
        return f"{changed[0]}.toml changes with it"
    return ""
