"""A writing process is killed before each change of the disk that it makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ropeconv.bake.planned import FilePlan
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ...support.baking import make_plan
from ...support.extent import ALL, sample, tally
from ...support.gguf_files import write as write_gguf
from .plans import killed, small_plan, source_folder, tree, write


@dataclass(frozen=True)
class Scene:
    """A plan whose output is written while something is killed. last: changes at the end that all names belong to."""

    plan: Callable[[], FilePlan]
    earlier: Callable[[], FilePlan] | None = None
    last: int = 1000


def folder_plan(root: Path, label: str) -> FilePlan:
    return small_plan(root / "source", root / "out", label)


def shards_plan(root: Path, factor: float) -> FilePlan:
    return make_plan(root / "source" / "model-00001-of-00004.gguf", Recipe(REGISTRY["yarn"](factor)), root / "out.gguf")


def scene_of(name: str, root: Path) -> Scene:
    """The sources of a scene, and what is written from them."""
    if name.startswith("folder"):
        source_folder(root).rename(root / "source")
        earlier = (lambda: folder_plan(root, "first")) if name.endswith("--force") else None
        return Scene(lambda: folder_plan(root, "second"), earlier)
    (root / "source").mkdir()
    write_gguf(root / "source" / "model.gguf", split=1)
    earlier = (lambda: shards_plan(root, 8.0)) if name.endswith("--force") else None
    return Scene(lambda: shards_plan(root, 4.0), earlier, last=35)


@pytest.mark.parametrize("without", ["", "exchange"])
@pytest.mark.parametrize("name", ["folder", "folder --force", "shards", "shards --force"])
def test_a_kill_leaves_an_output_as_a_whole_and_the_same_command_completes_the_new_one(
    tmp_path: Path, name: str, without: str
) -> None:
    """without: a system that cannot exchange two names, where there is a moment with neither output at its name."""
    scene = scene_of(name, tmp_path)
    source, force = tree(tmp_path / "source"), scene.earlier is not None

    def work() -> None:
        write(scene.plan(), force=force)

    def outputs() -> dict[str, bytes]:
        return {name: data for name, data in tree(tmp_path).items() if name.startswith("out")}

    def reset() -> None:
        for path in {*tmp_path.iterdir()} - {tmp_path / "source"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if scene.earlier is not None:
            write(scene.earlier())

    reset()
    first = outputs()
    count = killed(work, -1, without)
    second = outputs()
    assert (bool(first), len(second)) == (force, 5 if name.startswith("folder") else 4)
    cases = sorted({*sample(range(count), 1), *sample(range(max(0, count - scene.last), count), 1)})
    partly = 0
    for call in cases:
        reset()
        assert outputs() == first
        assert killed(work, call, without) == call
        found = outputs()
        partly += found not in (first, second)
        assert name.startswith("shards") or without or found in (first, second), call
        if name == "folder --force":
            with pytest.raises(Exception, match="replace it with --force"):
                write(folder_plan(tmp_path, "third"))
            assert outputs() in (first, second), call
        if force or found != second:
            work()
            assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], call
        assert outputs() == second, call
        assert tree(tmp_path / "source") == source
    assert partly or not ALL or name == "folder" or (name == "folder --force" and not without)
    tally("kill", name, len(cases))
