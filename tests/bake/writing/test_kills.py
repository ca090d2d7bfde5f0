"""A writing process is killed before each change of the disk that it makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.bake import Plan
from ropeconv.receipts import read_receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.baking import apply, make_plan
from ...support.extent import sample, tally
from ...support.gguf_files import contents
from ...support.gguf_files import write as write_gguf
from .plans import beside, killed, small_plan, source_folder, tree, write

MOST = 200
WAYS = ["", "exchange"]
"""With everything that the system has, and without exchanging names."""


def calls(work: Callable[[], object], reset: Callable[[], object], without: str) -> int:
    """How many changes of the disk something makes."""
    for call in range(0, MOST, 10):
        reset()
        if not killed(work, call, without):
            return call
    raise AssertionError("too many")


@pytest.mark.parametrize("without", WAYS)
def test_a_new_output_is_there_as_a_whole_or_not_at_all(tmp_path: Path, without: str) -> None:
    folder, out = source_folder(tmp_path), tmp_path / "out"
    before = tree(folder)

    def reset() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(tmp_path / ".out.ropeconv-partial", ignore_errors=True)

    def work() -> None:
        write(small_plan(folder, out))

    work()
    whole = tree(out)
    cases = sample(range(calls(work, reset, without)), 12)
    for call in cases:
        reset()
        killed(work, call, without)
        assert not out.exists() or tree(out) == whole, call
        assert tree(folder) == before
        if not out.exists():
            work()
        else:
            write(small_plan(folder, out), force=True)
        assert tree(out) == whole
        assert beside(out) == [], call
    tally("kill", "a new folder", len(cases))


@pytest.mark.parametrize("without", WAYS)
def test_an_earlier_output_is_in_view_until_the_new_one_is(tmp_path: Path, without: str) -> None:
    folder, out = source_folder(tmp_path), tmp_path / "out"

    def work() -> None:
        write(small_plan(folder, out, "second"), force=True)

    work()
    second = tree(out)
    write(small_plan(folder, out), force=True)
    first = tree(out)
    assert first != second

    def reset() -> None:
        shutil.rmtree(tmp_path / ".out.ropeconv-partial", ignore_errors=True)
        write(small_plan(folder, out), force=True)

    cases = sample(range(calls(work, reset, without)), 16)
    for call in cases:
        reset()
        killed(work, call, without)
        if not without:  # else there is a moment between two renames, which the next start undoes
            assert tree(out) in (first, second), call
        with pytest.raises(Exception, match="replace it with --force"):
            write(small_plan(folder, out, "third"))
        assert tree(out) in (first, second), call
        work()
        assert tree(out) == second
        assert beside(out) == [], call
    tally("kill", "--force", len(cases))


def shards(folder: Path, **options: object) -> Plan:
    yarn = Recipe(REGISTRY["yarn"](4.0))
    return make_plan(folder / "model-00001-of-00004.gguf", yarn, folder / "out.gguf", **options)


@pytest.mark.parametrize("without", WAYS)
@pytest.mark.parametrize("force", [False, True])
def test_shards_that_are_taking_their_names_can_be_run_again(tmp_path: Path, without: str, force: bool) -> None:
    write_gguf(tmp_path / "model.gguf", split=1)
    sources = sorted(tmp_path.glob("model-*"))
    assert len(sources) == 4
    origin = {path.name: path.read_bytes() for path in sources}

    def outputs() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(tmp_path.glob("out-*"))}

    def work() -> None:
        apply(shards(tmp_path), force=force)

    def earlier() -> None:
        yarn = Recipe(REGISTRY["yarn"](8.0))
        apply(make_plan(sources[0], yarn, tmp_path / "out.gguf"), force=True)
        for path in tmp_path.glob("out-*"):
            path.write_bytes(path.read_bytes() + b"earlier")

    def reset() -> None:
        shutil.rmtree(tmp_path / ".out-00001-of-00004.gguf.ropeconv-partial", ignore_errors=True)
        for path in tmp_path.glob("out-*"):
            path.unlink()
        if force:
            earlier()

    earlier()
    first = outputs()
    reset()
    work()
    second = outputs()
    assert len(first) == len(second) == 4
    partly = 0
    count = calls(work, reset, without)
    cases = sorted({*sample(range(count), 6), *sample(range(max(0, count - 35), count), 24)})
    for call in cases:
        reset()
        assert outputs() == (first if force else {})
        killed(work, call, without)
        partly += outputs() not in ({}, first, second)
        if outputs() != second or force:
            work()
        assert outputs() == second, call
        left = {path.name for path in tmp_path.iterdir()} - set(second) - set(origin)
        assert left - {".out-00001-of-00004.gguf.ropeconv-partial"} == set(), call
    assert partly  # some of the kills were between two of the names
    assert {path.name: path.read_bytes() for path in sources} == origin
    found = read_receipt(tmp_path / "out-00001-of-00004.gguf")
    assert found.recipe["parameters"]["factor"] == 4.0
    assert contents(tmp_path / "out-00002-of-00004.gguf") == contents(sources[1])
    tally("kill", "shards of GGUF", len(cases))
