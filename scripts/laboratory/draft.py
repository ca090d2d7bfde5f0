"""Drafts the row of a version that no row of the table of runtimes covers, and compares it with the
version before.

`draft` writes it into the file of its runtime. What it writes is read again as `ropeconv` reads it,
and undone where that fails.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from ropeconv.errors import DamagedPackage
from ropeconv.formats.drafts import write_file
from ropeconv.runtimes.lab_file import ModelRecord, Record, runtime_records
from ropeconv.runtimes.runtime import Runtime, in_order, read_rows, runtimes, version_key
from ropeconv.runtimes.stored import SHIPPED

from .agree import Disagreement

DATA = SHIPPED / "data"
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
        for record in runtime_records(name)
        if not record.options and version_key(record.version) < version_key(version)
    ]
    return max(earlier, key=lambda record: version_key(record.version), default=None)


def changes(before: Record, models: Mapping[str, ModelRecord]) -> Iterator[str]:
    """Yield a sentence for each model whose results differ from those in an earlier record.

    A record has the status of most cells of a model, and the names of the cells with others.
    """
    for name, model in models.items():
        old = before.models.get(name)
        if old is None or (model.most, model.others) == (old.most, old.others):
            continue
        differing = []
        if old.most != model.most:
            differing.append(f"most cells: {old.most} -> {model.most}")

        # the cells that either record names
        named = tuple(sorted({*_named_cells(old), *_named_cells(model)}))
        old_statuses = old.statuses(named)
        new_statuses = model.statuses(named)
        for cell, status in old_statuses.items():
            if status != new_statuses[cell]:
                differing.append(f"{cell}: {status} -> {new_statuses[cell]}")
        if differing:
            yield f"{name}: {'; '.join(differing)}"


def _named_cells(model: ModelRecord) -> Iterator[str]:
    """Yield the cells of a model whose status is another one than that of most."""
    for by_detail in model.others.values():
        for cells in by_detail.values():
            yield from cells


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
        problems: The results that the nearest row does not say.
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
    rows = [row for row in in_order(before.values()) if row.name == name]
    row = nearest(rows, version)
    if row.covers(version):
        raise CannotDraft(f"{row.key} covers {name} {version}; correct that row")

    file = folder / f"{name}.toml"
    old = file.read_text("utf-8")
    by_family = _by_family(problems)
    agrees = not by_family and _is_later(version, row)
    if agrees:
        text = _through(old, row.version, version)
    else:
        text = _with_row(old, _new_row(row, version, by_family), _is_later(version, rows[-1]))

    write_file(file, text)
    key = row.key if agrees else f"{name}@{version}"
    problem = _problem(folder, name, version, key, before)
    if problem:
        write_file(file, old)
        raise CannotDraft(f"{file.name} cannot have {version}: {problem}; it is as before")

    if agrees:
        return f"{row.key} in {file.name} now goes through {version}; nothing disagrees with it"
    return (
        f"{key} in {file.name} is a draft; {len(by_family)} families disagree with {row.key}: write"
        " their rule sets there"
    )


def _by_family(problems: Iterable[Disagreement]) -> dict[str, list[str]]:
    """Return what was seen of each family, in words."""
    by_family: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        cell = problem.cell
        by_family[cell.family.name].append(f"{cell.model}, {cell.name}: {problem.answered}")
    return by_family


def _through(text: str, first: str, version: str) -> str:
    """Return the text of a file, in which the row that begins with a version ends with another.

    The last version is a key beside that of the first one, above the tables of the row.

    Args:
        text: The file, with rows such as `[[rows]]`, `version = "0.30"`, `[rows.families.llama]`.
        first: The first version of the row.
        version: The version with which it is to end.
    """
    rows = re.split(r"^(?=\[\[rows\]\]$)", text, flags=re.MULTILINE)
    for index, row in enumerate(rows):
        # the keys of the row, and then its tables
        table = re.search(r"^\[+rows\.", row, re.MULTILINE)
        end = table.start() if table else len(row)
        head = row[:end]
        tables = row[end:]
        is_wanted_row = re.search(rf'^version = "{re.escape(first)}"$', head, re.MULTILINE)
        if not is_wanted_row:
            continue
        head = re.sub(r"^through = .*\n", "", head, flags=re.MULTILINE)
        with_end = rf'\g<1>through = "{version}"\n'
        head = re.sub(r"^(version = .*\n)", with_end, head, flags=re.MULTILINE)
        rows[index] = head + tables
    return "".join(rows)


def _with_row(text: str, row: str, is_newest: bool) -> str:
    """Return the text of a file with another row: the first one if it is the newest."""
    if not is_newest:
        return f"{text}\n{row}"
    head = re.search(r"^title = .*\n", text, re.MULTILINE)
    assert head, text[:200]
    return f"{text[: head.end()]}\n{row}{text[head.end() :]}"


def _new_row(row: Runtime, version: str, by_family: Mapping[str, list[str]]) -> str:
    """Return the text of a row that starts from another one."""
    source = f"{row.title} {version}"
    lines = [
        "[[rows]]",
        f'version = "{version}"',
        f'inherits = "{row.version}"',
        f"source = {json.dumps(source)}",
    ]
    if not _is_later(version, row):
        lines.append("current = false")
    for family, cells in sorted(by_family.items()):
        # an answer may have several lines, such as the end of a traceback
        example = " ".join(cells[0].split())
        shown = "".join(character for character in example if character.isprintable())
        lines.append(
            f"# {family}: the table says otherwise for {len(cells)} cells, such as {shown}"
        )
    return "\n".join(lines) + "\n"


def _problem(folder: Path, name: str, version: str, key: str, before: Mapping[str, Runtime]) -> str:
    """Return what is wrong with the rows of a folder after a file was written; empty if nothing.

    Args:
        folder: The folder.
        name: The runtime whose file was written.
        version: The version that it must cover now.
        key: The row that has to cover it, such as "vllm@0.33.0".
        before: The rows that were there.
    """
    try:
        after = read_rows(folder)
    except DamagedPackage as problem:
        return str(problem)

    covering = [row.key for row in after.values() if row.name == name and row.covers(version)]
    if covering != [key]:
        return f"{version} is in {' and '.join(covering) or 'no row'}"
    for known, row in before.items():
        if known != key and after.get(known) != row:
            return f"{known} changes with it"
    return ""
