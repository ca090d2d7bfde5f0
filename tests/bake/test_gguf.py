"""Plans of GGUF files in shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.bake import GgufTarget, Target
from ropeconv.bake.planner import make_plan as plan_with
from ropeconv.errors import UsageError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..baking import make_plan
from ..gguf_files import contents, write

MIXED, YARN = Recipe(REGISTRY["mixed"](4.0)), Recipe(REGISTRY["yarn"](4.0))
Q = "blk.0.attn_q.weight"


def test_shards_without_a_change_are_copied(tmp_path: Path) -> None:
    """The header of the first has the keys; of the others only those with changed tensors are written anew."""
    write(tmp_path / "model.gguf", split=1)
    first = tmp_path / "model-00001-of-00004.gguf"
    assert [file.action for file in make_plan(first, YARN, tmp_path / "out.gguf").files] == ["patch", *["copy"] * 3]
    (tmp_path / "qwen2").mkdir()
    write(tmp_path / "qwen2" / "model.gguf", "qwen2", split=1)
    first = tmp_path / "qwen2" / "model-00001-of-00004.gguf"
    files = make_plan(first, MIXED, tmp_path / "out.gguf", carrier="llama").files
    changed = [bool(contents(tmp_path / "qwen2" / f"model-0000{n}-of-00004.gguf").keys() & {Q}) for n in (2, 3, 4)]
    assert sum(changed) == 1
    assert [file.action for file in files] == ["patch", *("patch" if one else "copy" for one in changed)]


def test_no_architecture_is_assumed_where_it_is_known(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path / "model.gguf")))
    with pytest.raises(UsageError, match="llama is in the table; leave --assume-arch-keys out"):
        plan_with(source, YARN, Target(out=tmp_path / "out.gguf", gguf=GgufTarget(assume_arch_keys=True)))
