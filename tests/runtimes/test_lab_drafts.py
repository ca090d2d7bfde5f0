"""The lab: the row that it drafts for a new version, the changes that it prints, and tables of cos
and sin.
"""

import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.engines.probes.installed import FOLDER
from ropeconv.runtimes.lab_file import ModelRecord, Record
from ropeconv.runtimes.runtime import newest, read_rows, runtimes
from scripts.laboratory import draft as module
from scripts.laboratory.draft import DATA, CannotDraft, changes, draft, previous, row_of
from scripts.laboratory.runtimes import RUNTIMES

NAME = "vllm"
LAST = newest(NAME)
NAMES = sorted(runtime.name for runtime in RUNTIMES)
GAPS = {"exllamav3": "1.4.3", "sglang": "0.5.18", "transformers": "4.47.1", "vllm": "0.15.0"}
"""Versions between two rows, or between two ranges of one, that no row covers."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the rows."""
    return shutil.copytree(DATA, tmp_path / "data")


def problem(family: str, answered: str = "refused") -> Any:
    cell = SimpleNamespace(family=SimpleNamespace(name=family), model=family, name="yarn / native")
    return SimpleNamespace(cell=cell, answered=answered)


def raised(version: str, place: int) -> str:
    """A version with a number one larger, and 0 after it. place: of the number, from 0 on."""
    numbers = [int(number) for number in version.split(".")]
    kept = [*numbers, 0, 0, 0][: place + 1]
    kept[place] += 1
    return ".".join(map(str, [*kept, *[0] * (2 - place)]))


def releases(name: str) -> dict[str, str]:
    """Releases of a runtime that no row covers, by what they are."""
    rows = [row for row in runtimes() if row.name == name]
    last = rows[-1].last
    found = {
        "patch": raised(last, 2),
        "minor": raised(last, 1),
        "major": raised(last, 0),
        "far": raised(raised(last, 1), 1),
    }
    if name in GAPS:
        found["gap"] = GAPS[name]
    return {
        kind: version
        for kind, version in found.items()
        if not any(row.covers(version) for row in rows)
    }


RELEASED = [(name, kind, version) for name in NAMES for kind, version in releases(name).items()]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def covering(folder: Path, name: str, version: str) -> list[str]:
    """The rows that cover a version, as the package loads them."""
    rows = read_rows(folder)
    return [key for key, row in rows.items() if row.name == name and row.covers(version)]


def content(text: str) -> dict[str, dict[str, Any]]:
    """The rows that a file has, by their first versions."""
    return {row["version"]: row for row in tomllib.loads(text)["rows"]}


def test_the_next_release_of_every_runtime_is_tried() -> None:
    """The first four are those for which a draft once overwrote a row, or had no end."""
    versions = {(name, version) for name, _, version in RELEASED}
    assert {
        ("sglang", "0.5.24"),
        ("mlx-lm", "0.32.3"),
        ("mlx-vlm", "0.7.11"),
        ("exllamav3", "1.6.6"),
    } <= versions
    assert {name for name, _ in versions} == set(NAMES)
    assert len(NAMES) == 8
    assert {kind for _, kind, _ in RELEASED} == {"patch", "minor", "major", "far", "gap"}


def test_a_new_version_is_judged_by_the_last_row() -> None:
    row, covered = row_of(NAME, "0.99.1")
    assert (row.version, row.through, row.rules, covered) == ("0.99.1", "0.99.1", LAST.rules, False)
    assert row_of(NAME, LAST.version)[1]
    earlier = previous(NAME, "0.99.1")
    assert earlier is not None
    assert LAST.covers(earlier.version)
    assert previous(NAME, "0.1") is None


@pytest.mark.parametrize(("name", "kind", "version"), RELEASED)
def test_a_release_that_agrees_extends_the_row_before_it_up_to_itself(
    name: str, kind: str, version: str, folder: Path
) -> None:
    before = contents(folder)
    assert covering(folder, name, version) == []
    message = draft(name, version, [], folder)
    after = contents(folder)

    file = f"{name}.toml"
    assert {other: after[other] for other in after if other != file} == {
        other: before[other] for other in before if other != file
    }
    old = content(before[file])
    (changed,) = (first for first, row in content(after[file]).items() if row != old[first])
    assert message.startswith(f"{name}@{changed} in {file} now goes through {version};")
    assert content(after[file]) == old | {changed: old[changed] | {"through": version}}
    lines = set(after[file].splitlines()) - set(before[file].splitlines())
    assert lines == {f'through = "{version}"'}

    assert covering(folder, name, version) == [f"{name}@{changed}"]
    assert covering(folder, name, raised(version, 2)) == [], "a later release was not executed"
    assert covering(folder, name, "99.0.0") == []


@pytest.mark.parametrize(("name", "kind", "version"), RELEASED)
def test_a_release_that_disagrees_gets_a_row_of_its_own(
    name: str, kind: str, version: str, folder: Path
) -> None:
    before = contents(folder)
    message = draft(name, version, [problem("llama"), problem("llama"), problem("phi3")], folder)
    after = contents(folder)

    file = f"{name}.toml"
    assert {other for other in after if after[other] != before.get(other)} == {file}
    assert len(after[file]) - len(before[file]) < 500
    old = content(before[file])
    new = content(after[file])
    assert {first: new[first] for first in old} == old
    (first,) = new.keys() - old.keys()
    assert first == version
    written = new[version]
    assert message.startswith(f"{name}@{version} in {file} is a draft; 2 families disagree with ")
    assert set(written) == {"inherits", "version", "source"}
    assert (
        "# llama: the table says otherwise for 2 cells, such as llama, yarn / native: refused"
        in after[file]
    )

    assert covering(folder, name, version) == [f"{name}@{version}"]
    assert covering(folder, name, raised(version, 2)) == []
    rows = read_rows(folder)
    assert rows[f"{name}@{version}"].rules == rows[f"{name}@{written['inherits']}"].rules


def test_the_newest_row_stands_first(folder: Path) -> None:
    draft(NAME, "0.99.1", [problem("llama")], folder)
    draft(NAME, "0.0.2", [problem("llama")], folder)
    versions = list(content((folder / f"{NAME}.toml").read_text()))
    assert versions[0] == "0.99.1"
    assert versions[-1] == "0.0.2"


def test_releases_one_after_the_other_extend_the_same_row(folder: Path) -> None:
    for version in ("0.5.24", "0.5.25", "0.6.0"):
        draft("sglang", version, [], folder)
        assert covering(folder, "sglang", version) == ["sglang@0.5.23"]
    draft("sglang", "0.6.1", [problem("llama")], folder)
    draft("sglang", "0.6.2", [], folder)
    assert covering(folder, "sglang", "0.6.2") == ["sglang@0.6.1"]


def test_a_version_before_the_first_row_gets_a_row_of_its_own(folder: Path) -> None:
    for name in NAMES:
        first = next(row for row in runtimes() if row.name == name)
        message = draft(name, "0.0.2", [], folder)
        assert message.startswith(f"{name}@0.0.2 in {name}.toml is a draft; 0 families disagree")
        written = content((folder / f"{name}.toml").read_text())["0.0.2"]
        row = read_rows(folder)[f"{name}@0.0.2"]
        assert written["inherits"] == first.version
        assert (row.version, row.last, row.current) == (
            "0.0.2",
            "0.0.2",
            False,
        ), "nobody means it by the name"


def test_an_answer_of_several_lines_stays_in_a_comment(folder: Path) -> None:
    draft(
        NAME,
        "0.99.1",
        [problem("llama", 'refused\n[rules]\n\x1b[31m"broken'), problem("x")],
        folder,
    )
    assert covering(folder, NAME, "0.99.1") == [f"{NAME}@0.99.1"]


def test_nothing_that_has_a_row_is_drafted(folder: Path) -> None:
    before = contents(folder)
    for version, why in ((f"{LAST.version}.7", "covers"), ("0.99.0rc1", "not a release")):
        with pytest.raises(CannotDraft, match=why):
            draft(NAME, version, [problem("llama")], folder)
    assert contents(folder) == before


@pytest.mark.parametrize("problems", [[], [problem("llama")]])
def test_a_row_that_does_not_load_is_undone(
    problems: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(folder)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_through", lambda text, *versions: text + "version = [")
        patched.setattr(module, "_with_row", lambda text, *row: text + 'inherits = "no-such-row"')
        with pytest.raises(CannotDraft, match="damaged"):
            draft(NAME, "0.99.1", problems, folder)
    assert contents(folder) == before

    # rows that load and say something else than they should
    with monkeypatch.context() as patched:
        patched.setattr(module, "_through", lambda text, *versions: text)
        patched.setattr(module, "_with_row", lambda text, *row: text)
        with pytest.raises(CannotDraft, match="0.99.1 .*no row"):
            draft(NAME, "0.99.1", problems, folder)
    assert contents(folder) == before


def test_changes_name_the_cells_whose_status_changed() -> None:
    old = {
        "same": ModelRecord("d", ("yarn",), "exact"),
        "worse": ModelRecord("d", ("yarn",), "exact", {"differs": {"why": ("linear",)}}),
        "gone": ModelRecord("d", ("yarn",), "exact"),
    }
    new = {
        "same": ModelRecord("e", ("yarn",), "exact"),
        "worse": ModelRecord("d", ("yarn",), "exact", {"refused": {"why": ("linear", "yarn")}}),
        "gone": ModelRecord("d", ("yarn",), "unsupported"),
        "new": ModelRecord("d", ("yarn",), "exact"),
    }
    assert list(changes(Record("made", "1", "date", "how", old), new)) == [
        "worse: linear: differs -> refused; yarn: exact -> refused",
        "gone: most cells: exact -> unsupported",
    ]


@pytest.mark.parametrize("layout", ["once", "halves", "neighbours"])
def test_each_pair_is_read_once_from_any_layout(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """gpt-oss has every pair once, Llama in two halves, Cohere beside each other."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import transformers_backend

    frequencies = torch.tensor([1.0, 0.5, 0.25, 0.125])
    angles = {
        "once": frequencies,
        "halves": frequencies.repeat(2),
        "neighbours": frequencies.repeat_interleave(2),
    }
    cos, sin = (1.5 * function(angles[layout])[None, None] for function in (torch.cos, torch.sin))
    inv_freq, attention_factor = transformers_backend.first_position(
        cos[0, 0].double(), sin[0, 0].double()
    )
    assert inv_freq == pytest.approx(frequencies.tolist(), rel=1e-6)
    assert attention_factor == pytest.approx(1.5, rel=1e-6)
