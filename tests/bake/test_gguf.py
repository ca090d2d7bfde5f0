"""Plans of GGUF files in shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.bake import GgufTarget, Target
from ropeconv.bake.planner import make_plan as plan_with
from ropeconv.bake.restore import restore_plan
from ropeconv.errors import UsageError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import open_source

from ..support.baking import apply, make_plan
from ..support.gguf_files import contents, write

MIXED, YARN, NTK = (Recipe(REGISTRY[name](4.0)) for name in ("mixed", "yarn", "ntk"))
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


def test_shards_that_are_copied_come_from_those_with_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=1)
    shards = sorted(tmp_path.glob("model-*.gguf"))
    plan = make_plan(shards[0], YARN, tmp_path / "out.gguf")
    assert plan.out == tmp_path / "out-00001-of-00004.gguf"
    assert [file.name for file in plan.files] == [f"out-{number:05}-of-00004.gguf" for number in range(1, 5)]
    assert [plan.origin(file) for file in plan.files] == [None, *shards[1:]]
    assert [file.size for file in plan.files[1:]] == [shard.stat().st_size for shard in shards[1:]]
    back = restore_plan(open_source(str(apply(plan))), tmp_path / "back.gguf")
    written = sorted(tmp_path.glob("out-*.gguf"))
    assert [back.origin(file) for file in back.files] == [None, *written[1:]]
    found = back.to_dict()
    assert (found["first"]["name"], found["in_place"], found["absent"]) == ("model", False, [])
    assert found["out"] == str(tmp_path / "back-00001-of-00004.gguf")
    assert found["bytes"] == sum(file["size"] for file in found["files"]) == back.bytes
    one = make_plan(write(tmp_path / "one.gguf"), YARN)
    assert (one.out, one.is_folder) == (Path("one-yarn4.gguf"), False)
    assert [file.name for file in one.files] == ["one-yarn4.gguf"]


def test_what_is_said_of_a_file_follows_from_what_it_starts_from(tmp_path: Path) -> None:
    """With --replace the first source counts for the plan, and the file as it is for what it declares."""
    baked = apply(make_plan(write(tmp_path / "model.gguf"), NTK, tmp_path / "baked.gguf"))
    plan = make_plan(baked, Recipe(REGISTRY["mixed"](8.0), keep_short=True), tmp_path / "out.gguf", replace=True)
    assert (plan.before.rope_theta, plan.before.context) == (10000.0, 64)
    assert plan.source_spec.rope_theta > 10000.0
    assert plan.source_spec.context == 256
    assert any("takes the short list" in note for note in plan.notes)
    assert plan.family == "llama"
    assert plan.kv_cache is not None
    fresh = make_plan(tmp_path / "model.gguf", Recipe(REGISTRY["yarn"]("1k")), tmp_path / "out.gguf")
    assert fresh.notes == ("factor 16 = 1,024 / 64 trained tokens",)
    assert fresh.before == fresh.source_spec


def test_no_architecture_is_assumed_where_it_is_known(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path / "model.gguf")))
    with pytest.raises(UsageError, match="llama is in the table; leave --assume-arch-keys out"):
        plan_with(source, YARN, Target(out=tmp_path / "out.gguf", gguf=GgufTarget(assume_arch_keys=True)))
