"""restore of GGUF files: byte for byte, as new files and in place, judged by llama.cpp where it can
load them.
"""

import base64
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropeconv
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.errors import BadSource
from ropeconv.formats.gguf import inplace as room
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32, read_header, string, u32
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe

from ..support.baking import MIXED, NTK, YARN, apply, inspected, make_plan, recipe_of
from ..support.extent import sample
from ..support.gguf_files import TRAINED, contents, plain_tensors, write
from ..support.in_process import command

OWN = {"ropeconv.json", "ropeconv.reserved"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf")


@pytest.fixture
def baked(model: Path, tmp_path: Path) -> Path:
    return apply(make_plan(model, YARN, tmp_path / "baked.gguf"))


def brought_back(baked: Path, out: Path | None = None) -> Path:
    return restore(restore_plan(ropeconv.open_source(str(baked)), out, in_place=out is None)).path


def without_own(values: Any) -> dict[str, Any]:
    """Keys without those that ropeconv writes for itself."""
    return {key: value for key, value in values.items() if key not in OWN}


def insertable(path: Path) -> Path:
    if not room.can_insert(path):
        pytest.skip("this filesystem inserts no ranges")
    return path


CASES: dict[str, tuple[str, Recipe, dict[str, Any]]] = {
    "keys": ("llama", YARN, {}),
    "another base": ("llama", NTK, {}),
    "a base and a context": ("llama", recipe_of("theta", 1e6, context=256), {}),
    "an attention factor": ("llama", recipe_of("yarn", 4.0, attention_factor=1.3), {}),
    "a rope tensor": ("llama", MIXED, {}),
    "rows that are reordered": ("qwen2", MIXED, {}),
    "log-n": (
        "llama",
        recipe_of("mixed", 4.0, log_n="clamped"),
        {"carrier": "mistral3", "allow_approximate": True},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_file_is_as_it_was(tmp_path: Path, name: str) -> None:
    arch, recipe, options = CASES[name]
    path = write(tmp_path / "model.gguf", arch, extra={"feed_forward_length": 96})
    original = path.read_bytes()
    baked = apply(make_plan(path, recipe, tmp_path / "baked.gguf", **options))
    assert brought_back(baked, tmp_path / "back.gguf").read_bytes() == original
    insertable(path)
    apply(make_plan(path, recipe, in_place=True, **options))
    assert contents(path) == contents(baked)
    brought_back(path)
    assert path.read_bytes() == original
    shutil.copy(baked, path)
    brought_back(path)
    assert path.read_bytes() == original


def test_methods_are_tried_one_after_the_other_in_place(tmp_path: Path) -> None:
    """Each is what the same method makes of the pristine file, also back from a rope tensor to
    keys.
    """
    path = insertable(write(tmp_path / "model.gguf"))
    shutil.copy(path, tmp_path / "pristine.gguf")
    for number, recipe in enumerate(
        [YARN, MIXED, NTK, YARN, recipe_of("theta", 1e6, context=256), MIXED]
    ):
        apply(make_plan(path, recipe, in_place=True, replace=number > 0))
        fresh = apply(make_plan(tmp_path / "pristine.gguf", recipe, tmp_path / f"{number}.gguf"))
        here = read_header(path)
        there = read_header(fresh)
        assert without_own(here.values) == without_own(there.values)
        assert here.tensors == there.tensors
        assert contents(path) == contents(fresh)
        spec = inspected(path).spec
        length = gguf.GGUFReader(fresh).fields["llama.context_length"].contents()
        assert (spec.original_context, spec.context) == (TRAINED, length)
    brought_back(path)
    assert path.read_bytes() == (tmp_path / "pristine.gguf").read_bytes()


def test_the_trained_context_stands_in_the_standard_key(tmp_path: Path) -> None:
    """A second bake starts from it also without the receipt."""
    baked = apply(make_plan(write(tmp_path / "model.gguf"), NTK, tmp_path / "baked.gguf"))
    fields = gguf.GGUFReader(baked).fields
    assert fields["llama.rope.scaling.original_context_length"].contents() == TRAINED
    write_new(
        GgufFile.open(baked), 0, Edit(dropped=frozenset({"ropeconv.json"})), tmp_path / "bare.gguf"
    )
    assert (
        make_plan(tmp_path / "bare.gguf", YARN, tmp_path / "x.gguf", replace=True).schedule.context
        == 4 * TRAINED
    )


def test_llama3_divisors_of_the_source_come_back(tmp_path: Path) -> None:
    """The rope tensor of the source was overwritten, so its numbers are in the receipt."""
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    tensors = {**plain_tensors(), "rope_freqs.weight": divisors}
    path = write(tmp_path / "model.gguf", tensors=tensors)
    baked = apply(make_plan(path, YARN, tmp_path / "baked.gguf", replace=True))
    assert (np.frombuffer(contents(baked)["rope_freqs.weight"], np.float32) == 1).all()
    assert brought_back(baked, tmp_path / "back.gguf").read_bytes() == path.read_bytes()


def test_shards(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "qwen2", split=2)
    shards = sorted(tmp_path.glob("model-*.gguf"))
    apply(make_plan(shards[0], MIXED, tmp_path / "baked.gguf"))
    back = brought_back(tmp_path / "baked-00001-of-00002.gguf", tmp_path / "back.gguf")
    assert back.name == "back-00001-of-00002.gguf"
    for shard in shards:
        assert (tmp_path / shard.name.replace("model", "back")).read_bytes() == shard.read_bytes()


@pytest.mark.parametrize("recipe", [NTK, recipe_of("yarn", 2.0, on_top=True)])
def test_a_source_with_a_reserve_is_as_it_was_after_two_methods_in_place(
    tmp_path: Path, recipe: Recipe
) -> None:
    path = write(tmp_path / "model.gguf", extra={"ropeconv.reserved": " " * 9000})
    original = path.read_bytes()
    apply(make_plan(path, YARN, in_place=True))
    apply(make_plan(path, recipe, in_place=True, replace=not recipe.on_top))
    brought_back(path)
    assert path.read_bytes() == original


def test_shards_whose_keys_have_another_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", split=2)
    first, _ = sorted(tmp_path.glob("model-*.gguf"))
    write_new(GgufFile.open(first), 0, Edit({"split.tensors.count": u32(1)}), tmp_path / "m.gguf")
    (tmp_path / "m.gguf").replace(first)
    with pytest.raises(
        BadSource,
        match=r"would have split.count = 2 and split.tensors.count = 1 for 2 shards of \d",
    ):
        make_plan(first, YARN, tmp_path / "baked.gguf")


def altered(path: Path, change: Any) -> Path:
    receipt = json.loads(read_header(path).get("ropeconv.json"))
    change(receipt)
    out = path.with_name("altered.gguf")
    write_new(GgufFile.open(path), 0, Edit({"ropeconv.json": string(json.dumps(receipt))}), out)
    return out


def other_theta(receipt: dict[str, Any]) -> None:
    value = np.float32(20000).tobytes()
    receipt["original"]["gguf"]["values"]["llama.rope.freq_base"] = {
        "kind": 6,
        "raw": base64.b64encode(value).decode(),
    }


def record(**fields: Any) -> Any:
    return lambda receipt: receipt["original"]["gguf"].update({"sha256": "", **fields})


HOSTILE: dict[str, tuple[Any, str]] = {
    "a tail of a petabyte": (record(tail=1 << 50), "with 1125899906842624 bytes after it"),
    "divisors of 0": (
        record(contents={"rope_freqs.weight": base64.b64encode(bytes(128)).decode()}),
        "not positive",
    ),
    "another base": (other_theta, "its receipt was.*take the source again, the local file 'model'"),
    "data far behind it": (record(data_start=1 << 42), "the receipt of this file"),
    "half of a surrogate pair": (
        record(keys=["general.architecture", "\ud800"]),
        "half of a character",
    ),
}
"""Through the whole of `restore` and `apply --replace`; tests/inspection/receipts/test_checks.py
has every rule.
"""
RESTORED = {"another base", "data far behind it", "half of a surrogate pair"}
"""What `--replace` does not need, or takes for a file without a receipt."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_receipt_that_was_forged_is_not_trusted(tmp_path: Path, name: str) -> None:
    change, sentence = HOSTILE[name]
    tensors = {**plain_tensors(), "rope_freqs.weight": np.ones(32, np.float32)}
    source = write(tmp_path / "model.gguf", tensors=tensors)
    baked = altered(apply(make_plan(source, YARN, tmp_path / "baked.gguf", replace=True)), change)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BadSource, match=sentence):
        brought_back(baked, tmp_path / "back.gguf")
    if name not in RESTORED:
        with pytest.raises(BadSource, match=sentence):
            make_plan(baked, NTK, tmp_path / "again.gguf", replace=True)
    assert inspected(baked).spec.context == 4 * TRAINED
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_trained_context_beyond_that_of_the_file_is_believed(baked: Path) -> None:
    named = altered(
        baked, lambda receipt: receipt["schedule"].update(original_context=4 * TRAINED + 1)
    )
    assert inspected(named).spec.original_context == TRAINED


def test_changed_keys_and_earlier_receipts_are_refused(baked: Path, tmp_path: Path) -> None:
    write_new(
        GgufFile.open(baked),
        0,
        Edit({"llama.attention.head_count": u32(4)}),
        tmp_path / "mine.gguf",
    )
    with pytest.raises(BadSource, match="mine.gguf were changed"):
        brought_back(tmp_path / "mine.gguf", tmp_path / "back.gguf")
    with pytest.raises(BadSource, match="does not say"):
        brought_back(
            altered(baked, lambda receipt: receipt.pop("original")), tmp_path / "back.gguf"
        )


def edited(path: Path, edit: Edit) -> Path:
    """A copy of a file whose keys somebody has edited with another tool."""
    out = path.with_name("edited.gguf")
    write_new(GgufFile.open(path), 0, edit, out)
    return out


EDITS = {
    "a context that ropeconv wrote": (
        Edit({"llama.context_length": u32(100)}),
        "llama.context_length of edited.gguf .*set it to 256 again",
    ),
    "a key that only ropeconv wrote": (
        Edit({"llama.rope.scaling.factor": f32(3.0)}),
        "llama.rope.scaling.factor of edited.gguf .*set it to 4.0 again",
    ),
    "a key that ropeconv wrote, removed": (
        Edit(dropped=frozenset({"llama.rope.scaling.factor"})),
        "llama.rope.scaling.factor of edited.gguf",
    ),
    "a key that ropeconv removed, put back": (
        Edit({"llama.rope.scaling.attn_factor": f32(2.0)}),
        "attn_factor was added to edited.gguf",
    ),
    "a key that nobody had": (
        Edit({"general.author": string("somebody")}),
        "general.author was added to edited.gguf",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_no_edit_of_a_key_is_lost_silently(baked: Path, tmp_path: Path, name: str) -> None:
    edit, sentence = EDITS[name]
    path = edited(baked, edit)
    before = path.read_bytes()
    with pytest.raises(BadSource, match=sentence):
        brought_back(path, tmp_path / "back.gguf")
    with pytest.raises(BadSource, match=sentence):
        brought_back(path)
    assert path.read_bytes() == before


def test_an_edit_between_two_methods_is_not_lost_either(baked: Path, tmp_path: Path) -> None:
    path = edited(baked, Edit({"general.author": string("somebody")}))
    twice = apply(make_plan(path, recipe_of("yarn", 2.0, on_top=True), tmp_path / "twice.gguf"))
    with pytest.raises(BadSource, match="general.author was added to twice.gguf"):
        brought_back(twice, tmp_path / "back.gguf")
    other = edited(baked, Edit({"llama.rope.scaling.yarn_log_multiplier": f32(0.2)}))
    again = apply(make_plan(other, NTK, tmp_path / "again.gguf", replace=True))
    with pytest.raises(BadSource, match="yarn_log_multiplier was added to again.gguf"):
        brought_back(again, tmp_path / "back.gguf")


@pytest.mark.parametrize("name", [name for name in EDITS if "ropeconv wrote" in name])
def test_replace_refuses_an_edited_key_and_writes_nothing(
    baked: Path, tmp_path: Path, name: str
) -> None:
    """--replace starts from the first source, so the edit would be lost."""
    edit, sentence = EDITS[name]
    path = edited(baked, edit)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for place in (("-o", "again.gguf"), ("--in-place",)):
        refused = command(tmp_path, "apply", path.name, "--ntk", "8", "--replace", *place, "-q")
        assert refused.returncode == 1
        assert re.search(sentence, refused.stderr.replace("\n", " "))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

    # with the value set to what it was, the same command writes
    (key,) = edit.values or edit.dropped
    undo = Edit({key: read_header(baked).values[key]})
    write_new(GgufFile.open(path), 0, undo, tmp_path / "undone.gguf")
    again = make_plan(tmp_path / "undone.gguf", NTK, tmp_path / "again.gguf", replace=True)
    assert "llama.rope.scaling.factor" not in read_header(apply(again)).values


def test_another_method_keeps_the_keys_of_others(baked: Path, tmp_path: Path) -> None:
    path = edited(baked, Edit({"general.author": string("somebody")}))
    again = apply(make_plan(path, NTK, tmp_path / "again.gguf", replace=True))
    assert read_header(again).get("general.author") == "somebody"


def test_where_room_cannot_be_taken_away_it_is_said(
    baked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = baked.read_bytes()
    monkeypatch.setattr(room, "can_insert", lambda path: False)
    with pytest.raises(RopeconvError, match="filesystem.* -o"):
        brought_back(baked)
    assert baked.read_bytes() == before


CONVERSIONS = [("llama", "f32"), ("qwen2", "f32"), ("gemma3_text", "f32"), ("qwen2", "q4_k_m")]


@pytest.mark.parametrize(("model_type", "outtype"), sample(CONVERSIONS, 1))
def test_llama_cpp_computes_the_unscaled_model_again(
    tmp_path: Path, model_type: str, outtype: str
) -> None:
    """A conversion comes back as the same conversion without scaling, also where rows, norms or the
    order changed.

    Where it quantises, llama.cpp sorts the tensors, so that the rope tensor is among others, and
    adds a key.
    """
    import torch

    from ..support.llamacpp import bake, checkpoint, of_llamacpp

    wide = (
        {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
        if outtype == "q4_k_m"
        else {}
    )
    source = checkpoint(model_type, tmp_path / "source", **wide)
    plain = tmp_path / "plain.gguf"
    recipe = recipe_of("yarn", 4.0, attention_factor=1.2) if model_type == "gemma3_text" else MIXED
    bake(source, recipe, tmp_path / "baked.gguf", outtype=outtype)
    bake(source, recipe_of("as-is"), plain, outtype=outtype)
    back = brought_back(tmp_path / "baked.gguf", tmp_path / "back.gguf")
    assert contents(back) == contents(plain)
    assert dict(read_header(back).values) == without_own(read_header(plain).values)
    assert torch.equal(of_llamacpp(back), of_llamacpp(plain))
    assert not torch.equal(of_llamacpp(back), of_llamacpp(tmp_path / "baked.gguf"))


def test_a_restored_conversion_keeps_the_keys_of_others_and_says_so(tmp_path: Path) -> None:
    """No such file was on the disk, so that none comes back byte for byte."""
    from ..support.llamacpp import bake, checkpoint

    baked = bake(checkpoint("llama", tmp_path / "source"), YARN, tmp_path / "baked.gguf").out
    assert "Kept" not in command(tmp_path, "restore", "baked.gguf", "--dry-run").stderr
    edited(baked, Edit({"general.author": string("somebody")}))
    done = command(tmp_path, "restore", "edited.gguf", "-o", "back.gguf")
    assert done.returncode == 0
    assert "general.author" in done.stderr
    assert read_header(tmp_path / "back.gguf").get("general.author") == "somebody"

    name = read_header(baked).get("general.name")
    edited(baked, Edit({"general.name": string("mine")}))
    refused = command(tmp_path, "restore", "edited.gguf", "-o", "other.gguf")
    assert refused.returncode == 1
    assert f"set it to {name!r} again" in refused.stderr


# --in-place from the command line: other names, other writers, and a model that is being read


LINEAR = recipe_of("linear", 2.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a reserve, which any filesystem changes in place."""
    apply(make_plan(write(tmp_path / "plain.gguf"), LINEAR, tmp_path / "model.gguf"))
    (tmp_path / "plain.gguf").unlink()
    return tmp_path / "model.gguf"


def test_a_file_with_other_hard_links_is_not_changed(path: Path) -> None:
    run = partial(command, path.parent)
    other = path.with_name("other.gguf")
    before = path.read_bytes()
    other.hardlink_to(path)
    for words in (("apply", "model.gguf", "--yarn", "4", "--replace"), ("restore", "model.gguf")):
        refused = run(*words, "--in-place", "-q")
        assert refused.returncode == 1
        assert (
            "has 1 other hard link, which in place would change too; write a new file with -o"
            in refused.stderr
        )
    assert other.read_bytes() == path.read_bytes() == before
