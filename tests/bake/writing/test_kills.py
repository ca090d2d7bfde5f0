"""A writing process is killed before each change of the disk, on a system that cannot exchange two names.

tests/faults kills commands at every call where the system can. Without it there is a moment between two renames, with
neither output at its name, which the next start undoes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ropeconv.bake.planned import FilePlan
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.baking import make_plan
from ...support.extent import ALL, sample, tally
from ...support.gguf_files import write as write_gguf
from .plans import killed, small_plan, source_folder, tree, write


def plan_of(kind: str, root: Path, factor: float) -> FilePlan:
    """The plan of an output. factor: tells outputs apart."""
    if kind == "folder":
        return small_plan(root / "model", root / "out", str(factor))
    return make_plan(root / "model" / "x-00001-of-00004.gguf", Recipe(REGISTRY["yarn"](factor)), root / "out.gguf")


@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_a_killed_replacement_is_undone_or_complete_after_the_next_start(tmp_path: Path, kind: str) -> None:
    write_gguf(source_folder(tmp_path) / "x.gguf", split=1)
    source = tree(tmp_path / "model")

    def work() -> None:
        write(plan_of(kind, tmp_path, 4.0), force=True)

    def outputs() -> dict[str, bytes]:
        return {name: data for name, data in tree(tmp_path).items() if name.startswith("out")}

    def reset() -> None:
        for path in {*tmp_path.iterdir()} - {tmp_path / "model"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write(plan_of(kind, tmp_path, 8.0))

    reset()
    first = outputs()
    count = killed(work)
    second = outputs()
    assert (first != second, len(first), len(second)) == (True, *([5, 5] if kind == "folder" else [4, 4]))
    cases, partly = sorted({*sample(range(count), 1), *sample(range(count - 35, count), 2)}), 0
    for call in cases:
        reset()
        assert outputs() == first
        assert killed(work, call) == call
        partly += outputs() not in (first, second)
        with pytest.raises(Exception, match="replace it with --force"):
            write(plan_of(kind, tmp_path, 2.0))
        assert outputs() in (first, second), call
        work()
        assert outputs() == second, call
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], call
        assert tree(tmp_path / "model") == source
    assert partly or not ALL
    tally("kill", f"--force without exchange, {kind}", len(cases))
