"""restore of folders: every file as it was before the first bake, judged by sha256 and by
transformers.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.bake import apply as baking
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.errors import BadSource
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe

from ..conftest import hashes
from ..support.baking import MIXED, NTK, YARN, apply, inspected, make_plan, recipe_of
from ..support.corruptions import edit
from ..support.models import TRAINED

TOKENIZER = '{\r\n  "model_max_length": 64,\r\n  "unk_token": "<unk>"\r\n}\r\n'


@pytest.fixture
def source(llama: Path) -> Path:
    """A tiny Llama with the files that a bake rewrites, one of them with the line ends of
    Windows.
    """
    (llama / "tokenizer_config.json").write_bytes(TOKENIZER.encode())
    (llama / "LICENSE").write_text("terms")
    return llama


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    return apply(make_plan(source, YARN, tmp_path / "out"))


def brought_back(baked: Path, out: Path, **options: Any) -> Path:
    return restore(restore_plan(ropeconv.open_source(str(baked)), out), **options).path


@pytest.mark.parametrize(
    ("recipe", "encoding"),
    [
        (YARN, "native"),
        (NTK, "native"),
        (MIXED, "factors"),
        (MIXED, "buffers"),  # adds a shard, an index and code, and renames the weights
        (recipe_of("as-is"), "native"),
    ],
)
def test_every_file_is_as_it_was(
    source: Path, tmp_path: Path, recipe: Recipe, encoding: str
) -> None:
    out = apply(
        make_plan(
            source,
            recipe,
            tmp_path / "out",
            encoding=encoding,
            allow_approximate=bool(recipe.log_n),
        )
    )
    assert hashes(out)["config.json"] != hashes(source)["config.json"]
    assert hashes(brought_back(out, tmp_path / "back")) == hashes(source)


def test_several_bakes_go_back_to_the_first_source(source: Path, tmp_path: Path) -> None:
    once = apply(make_plan(source, NTK, tmp_path / "once"))
    twice = apply(make_plan(once, MIXED, tmp_path / "twice", encoding="buffers", replace=True))
    thrice = apply(make_plan(twice, YARN, tmp_path / "thrice", replace=True))
    kept = apply(make_plan(thrice, recipe_of("as-is", context=512), tmp_path / "kept"))
    for baked in (twice, thrice, kept):
        assert hashes(brought_back(baked, tmp_path / f"{baked.name}-back")) == hashes(source)
    assert ropeconv.read_receipt(kept).original.source.name == "model"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("recipe", "encoding"),
    [(YARN, "weights"), (recipe_of("mixed", 4.0, log_n="full"), "ministral3")],
)
def test_weights_that_a_factor_changed_are_refused_by_the_name_of_the_source(
    recipe: Recipe, encoding: str, source: Path, tmp_path: Path
) -> None:
    out = apply(
        make_plan(
            source,
            recipe,
            tmp_path / "out",
            encoding=encoding,
            allow_approximate=bool(recipe.log_n),
        )
    )
    with pytest.raises(BadSource, match="multiplied.*'model'"):
        restore_plan(ropeconv.open_source(str(out)))
    with pytest.raises(BadSource, match="multiplied"):
        make_plan(out, NTK, replace=True)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_file_that_was_changed_since_is_refused(out: Path, name: str) -> None:
    (out / name).write_text((out / name).read_text().replace("256", "128"))
    with pytest.raises(BadSource, match=f"{name} of .* changed .* ropeconv.json"):
        restore_plan(ropeconv.open_source(str(out)))
    with pytest.raises(BadSource, match="was changed after"):
        make_plan(out, MIXED, replace=True)
    (out / "ropeconv.json").unlink()
    assert make_plan(out, MIXED, replace=True).before.original_context == TRAINED


def test_weights_that_were_changed_since_are_refused(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"), checksum=True)
    weights = out / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BadSource, match="model.safetensors of .* changed"):
        brought_back(out, tmp_path / "back")
    weights.write_bytes(data[:-1])
    with pytest.raises(BadSource, match="not as ropeconv"):
        restore_plan(ropeconv.open_source(str(out)))


Change = Callable[[dict[str, Any]], object]


def altered(out: Path, change: Change) -> Path:
    edit(out, "ropeconv.json", change)
    return out


def record(**fields: Any) -> Change:
    return lambda receipt: receipt["original"]["folder"].update(fields)


def first_config(change: Callable[[dict[str, Any]], object], agrees: bool = True) -> Change:
    """Another config.json of the first source. agrees: whether its sha256 does."""

    def altered_config(receipt: dict[str, Any]) -> None:
        text = next(
            text for text in receipt["original"]["folder"]["texts"] if text["name"] == "config.json"
        )
        config = json.loads(text["text"])
        change(config)
        text["text"] = json.dumps(config)
        if agrees:
            text["sha256"] = hashlib.sha256(text["text"].encode()).hexdigest()

    return altered_config


HOSTILE: dict[str, tuple[Change, str]] = {
    "weights from outside": (
        record(renamed={"../secret.safetensors": "README.safetensors"}),
        "outside it",
    ),
    "a name that another file has": (
        record(renamed={"model.safetensors": "other.safetensors"}),
        "gives 'other.safet",
    ),
    "a file twice": (
        lambda receipt: receipt["files"].append(receipt["files"][0]),
        "lists a file twice",
    ),
    "another text": (
        first_config(lambda config: config.clear(), agrees=False),
        "no longer restores config.json",
    ),
}
"""Through the whole of `restore` and `apply --replace`; tests/inspection/receipts/test_checks.py
has every rule.
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_receipt_that_was_forged_is_not_trusted(out: Path, tmp_path: Path, name: str) -> None:
    """Receipts come with other people's checkpoints. The files are those that ropeconv wrote, the
    receipt is not.
    """
    change, sentence = HOSTILE[name]
    (out / "README.md").write_text("x" * 10)
    (out / "other.safetensors").write_text("x")
    (tmp_path / "secret.safetensors").write_text("the secret")
    listed = {"name": "README.md", "action": "copy", "size": 10}
    altered(out, lambda receipt: (receipt["files"].append(listed), change(receipt)))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadSource, match=sentence):
        brought_back(out, tmp_path / "back")
    if name != "a file twice":  # `files` are of the output, and not what --replace starts from
        with pytest.raises(BadSource, match=sentence):
            apply(make_plan(out, NTK, tmp_path / "again", replace=True))
    assert sorted(tmp_path.iterdir()) == before
    inspection = inspected(out)
    assert (inspection.spec.original_context, inspection.spec.context) == (TRAINED, 4 * TRAINED)


def test_the_default_place_is_in_the_current_folder(out: Path) -> None:
    altered(out, lambda receipt: receipt["original"]["source"].update(name="../../home/someone/x"))
    assert restore_plan(ropeconv.open_source(str(out))).out == Path("x-restored")


def test_no_trained_context_beyond_that_of_the_files_is_believed(out: Path) -> None:
    altered(out, lambda receipt: receipt["schedule"].update(original_context=4 * TRAINED + 1))
    assert inspected(out).spec.original_context == TRAINED


@pytest.mark.parametrize(
    "change", [lambda config: config.update(model_type="x"), lambda config: config.clear()]
)
def test_a_first_config_that_cannot_be_read_is_none(out: Path, change: Change) -> None:
    assert inspected(out).first is not None
    inspection = inspected(altered(out, first_config(change)))
    assert (inspection.first, inspection.spec.context) == (None, 4 * TRAINED)


def test_what_is_not_of_the_source_stays_out_and_what_was_left_out_is_named(
    source: Path, tmp_path: Path
) -> None:
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    (out / "README.md").write_text("mine")
    plan = restore_plan(ropeconv.open_source(str(out)), tmp_path / "back")
    assert (plan.skipped, plan.absent) == (("README.md",), ("pytorch_model.bin",))
    restore(plan)
    assert hashes(tmp_path / "back") == {
        k: v for k, v in hashes(source).items() if k != "pytorch_model.bin"
    }


def test_a_card_in_the_place_of_that_of_the_source_is_named_as_missing(
    source: Path, tmp_path: Path
) -> None:
    """A repository has one README.md, that of the output, and its receipt lists the one of the
    source.
    """
    (source / "README.md").write_text("# The base")
    out = baking.apply(make_plan(source, YARN, tmp_path / "out"), check=False).path
    (out / "README.md").write_text("# The output")
    plan = restore_plan(ropeconv.open_source(str(out)), tmp_path / "back")
    assert (plan.skipped, plan.absent) == ((), ("README.md",))
    restore(plan)
    assert hashes(tmp_path / "back") == {
        k: v for k, v in hashes(source).items() if k != "README.md"
    }


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_was_restored_and_edited_stays_and_the_repair_works(
    out: Path, tmp_path: Path, force: bool
) -> None:
    """It has no receipt, so that it looks as any folder of the user."""
    back = brought_back(out, tmp_path / "back")
    before = hashes(back)
    brought_back(out, back, force=force)
    assert hashes(back) == before
    (back / "notes.txt").write_text("mine")
    before = hashes(back)
    with pytest.raises(
        RopeconvError,
        match=r"--force .*another place",
    ):
        brought_back(out, back, force=force)
    assert hashes(back) == before


def test_the_output_is_never_written_to(out: Path, tmp_path: Path) -> None:
    before = hashes(out)
    with pytest.raises(RopeconvError, match="lie within"):
        brought_back(out, out)
    brought_back(out, tmp_path / "back")
    (tmp_path / "back" / "config.json").write_text("{}")
    with pytest.raises(RopeconvError, match="back exists"):
        brought_back(out, tmp_path / "back")
    assert hashes(out) == before
