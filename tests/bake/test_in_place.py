"""--in-place from the command line: other names, other writers, and a model that is being read."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest

from ropeconv.bake import in_place
from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import GgufFile, write
from ropeconv.formats.gguf.inplace import phases
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import Run
from ..support.baking import apply, make_plan
from ..support.gguf_files import write as written
from ..support.in_process import command

YARN, LINEAR = Recipe(REGISTRY["yarn"](4.0)), Recipe(REGISTRY["linear"](2.0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a reserve, which any filesystem changes in place."""
    apply(make_plan(written(tmp_path / "plain.gguf"), LINEAR, tmp_path / "model.gguf"))
    (tmp_path / "plain.gguf").unlink()
    return tmp_path / "model.gguf"


def test_other_hard_links_are_changed_only_with_a_word(path: Path) -> None:
    run = partial(command, path.parent)
    other, before = path.with_name("other.gguf"), path.read_bytes()
    other.hardlink_to(path)
    change = ("apply", "model.gguf", "--yarn", "4", "--replace", "--in-place", "-q")
    refused = run(*change)
    assert refused.returncode == 1
    assert "has 1 other hard link, which in place would change too" in refused.stderr
    assert other.read_bytes() == before
    assert run(*change, "--allow-hard-links").returncode == 0
    assert other.read_bytes() == path.read_bytes() != before
    back = ("restore", "model.gguf", "--in-place", "-q")
    assert "other hard link" in run(*back).stderr
    assert run("restore", "model.gguf", "--allow-hard-links").returncode == 2
    assert run(*back, "--allow-hard-links").returncode == 0
    assert other.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("words", ["apply model.gguf --yarn 8 --in-place", "inspect model.gguf"])
def test_a_command_beside_a_change_ends_in_one_sentence(run: Run, path: Path, words: str) -> None:
    """In another process: the lock is one between processes."""
    plan = make_plan(path, YARN, in_place=True, replace=True)
    walk = phases(plan.source.file, plan.edit)  # type: ignore[union-attr]
    next(walk)
    now = path.read_bytes()
    done = run(*words.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert "another ropeconv is changing model.gguf in place; run again when that has ended" in done.stderr
    assert path.read_bytes() == now
    assert list(walk)[-1] == "done"


def test_a_model_that_changes_while_it_is_copied_is_not_published(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change in place that came and went between the header and the last byte."""
    plan = make_plan(path, YARN, tmp_path / "out.gguf", replace=True)
    real = write.copy_part

    def slow(*arguments: object) -> None:
        apply(make_plan(path, LINEAR, in_place=True, replace=True))
        monkeypatch.undo()
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(write, "copy_part", slow)
    with pytest.raises(BadSource, match=r"model.gguf changed while it was read; leave the source alone and run again"):
        apply(plan)
    assert not (tmp_path / "out.gguf").exists()
    assert GgufFile.open(path).header.get("llama.context_length") == 128
    apply(make_plan(path, YARN, tmp_path / "out.gguf", replace=True))


@pytest.mark.parametrize("name", ["/dev/x", None])
def test_a_failed_change_in_place_is_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    def fails(*given: object) -> None:
        raise OSError(errno.EIO, "Input/output error", name)

    monkeypatch.setattr(in_place, "phases", fails)
    with pytest.raises(
        RopeconvError, match=rf"cannot be changed in place \(Input/output error: {name or path}\) and is"
    ):
        apply(make_plan(path, YARN, in_place=True, replace=True))
