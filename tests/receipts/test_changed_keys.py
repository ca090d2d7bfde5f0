"""What a bake changed in config.json, or among the keys of a GGUF file, for display."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ropeconv.receipts import read_receipt
from ropeconv.receipts.changed_keys import ChangedKey, changed_keys
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.gguf_files import write

YARN = Recipe(REGISTRY["yarn"](4.0))


def changes(baked: Path) -> dict[str, ChangedKey]:
    return {one.name: one for one in changed_keys(baked, read_receipt(baked))}


def test_keys_of_a_config_that_changed_were_added_or_stayed(llama: Path, tmp_path: Path) -> None:
    found = changes(apply(make_plan(llama, YARN, tmp_path / "out")))
    assert found["max_position_embeddings"] == ChangedKey("max_position_embeddings", "64", "256")
    assert found["rope_scaling.factor"] == ChangedKey("rope_scaling.factor", "", "4.0")
    assert found["rope_scaling.rope_type"].after == '"yarn"'
    assert not {"hidden_size", "model_type", "vocab_size"} & found.keys()


def test_lists_are_shown_by_their_length(llama: Path, tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["mixed"](4.0))
    found = changes(apply(make_plan(llama, recipe, tmp_path / "out")))
    assert found["rope_scaling.long_factor"].after.startswith("32 values, ")
    assert max(len(one.after) for one in found.values()) < 110


@pytest.mark.parametrize("length", [97, 98, 99, 4000])
def test_a_long_text_is_shown_by_its_first_hundred_characters(llama: Path, tmp_path: Path, length: int) -> None:
    """Its quotation marks count: 98 letters are shown as they are."""
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    config = json.loads((baked / "config.json").read_text())
    (baked / "config.json").write_text(json.dumps(config | {"about": "é" * length}))
    shown = changes(baked)["about"].after
    assert shown == (f'"{"é" * length}"' if length <= 98 else f'"{"é" * 99}...')


@pytest.mark.parametrize(("count", "shown"), [(8, "[0, 1, 2, 3, 4, 5, 6, 7]"), (9, "9 values, 0 to 8")])
def test_up_to_eight_values_are_shown_as_they_are(llama: Path, tmp_path: Path, count: int, shown: str) -> None:
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    config = json.loads((baked / "config.json").read_text())
    (baked / "config.json").write_text(json.dumps(config | {"numbers": list(range(count)), "none": {}}))
    assert changes(baked)["numbers"].after == shown
    assert changes(baked)["none"].after == "{}"


def test_keys_of_a_gguf_file(tmp_path: Path) -> None:
    found = changes(apply(make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "out.gguf")))
    assert found["llama.rope.scaling.type"] == ChangedKey("llama.rope.scaling.type", "", '"yarn"')
    length = found["llama.context_length"]
    assert int(length.after) == 4 * int(length.before)
    assert "ropeconv.json" not in found
    assert "llama.block_count" not in found


def test_edits_since_the_bake_are_changes_too(llama: Path, tmp_path: Path) -> None:
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    config = json.loads((baked / "config.json").read_text())
    (baked / "config.json").write_text(json.dumps({"edited": True} | config))
    assert changes(baked)["edited"] == ChangedKey("edited", "", "true")


def test_a_receipt_that_does_not_tell_the_source_gives_none(llama: Path, tmp_path: Path) -> None:
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    receipt = read_receipt(baked)
    assert changed_keys(baked, receipt) != ()
    assert changed_keys(baked, msgspec.structs.replace(receipt, original=None)) == ()
    assert changed_keys(tmp_path / "nothing", receipt) == ()
