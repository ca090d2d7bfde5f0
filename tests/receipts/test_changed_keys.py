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


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"), ({}, "{}"), (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"), (list(range(9)), "9 values, 0 to 8"),
        ("é" * 98, f'"{"é" * 98}"'), ("é" * 99, f'"{"é" * 99}...'),
    ],
    ids=["true", "an empty object", "8 numbers", "9 numbers", "98 letters", "99 letters"],
)  # fmt: skip
def test_edits_since_the_bake_are_changes_too_and_long_values_are_cut(
    llama: Path, tmp_path: Path, value: object, shown: str
) -> None:
    """Up to eight numbers are shown, and the first hundred characters of a text, its quotation marks among them."""
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    config = json.loads((baked / "config.json").read_text())
    (baked / "config.json").write_text(json.dumps(config | {"edited": value}))
    assert changes(baked)["edited"] == ChangedKey("edited", "", shown)


def test_keys_of_a_gguf_file(tmp_path: Path) -> None:
    found = changes(apply(make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "out.gguf")))
    assert found["llama.rope.scaling.type"] == ChangedKey("llama.rope.scaling.type", "", '"yarn"')
    length = found["llama.context_length"]
    assert int(length.after) == 4 * int(length.before)
    assert "ropeconv.json" not in found
    assert "llama.block_count" not in found


def test_a_receipt_that_does_not_tell_the_source_gives_none(llama: Path, tmp_path: Path) -> None:
    baked = apply(make_plan(llama, YARN, tmp_path / "out"))
    receipt = read_receipt(baked)
    assert changed_keys(baked, receipt) != ()
    assert changed_keys(baked, msgspec.structs.replace(receipt, original=None)) == ()
    assert changed_keys(tmp_path / "nothing", receipt) == ()
