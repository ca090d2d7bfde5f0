"""Outputs of `apply`, loaded stock, lose what the same method loses patched into their source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource, UnsupportedBake, UsageError
from ropeconv.evaluate.row import Row, parse_rows
from ropeconv.evaluate.runners import Opening, open_runner
from ropeconv.rope.recipe import Recipe

from ...support.baking import apply, make_plan
from ...support.extent import sample
from ...support.llamacpp import checkpoint
from .reading import LENGTH, TRAINED, distance, ids, losses_of

SAME = 2e-3
SCALED = {
    "max_position_embeddings": 2 * TRAINED,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": TRAINED, "rope_theta": 10000.0,
    },
}  # fmt: skip
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one list of frequencies": ("llama", "yarn:4", {}),
    "two lists": ("llama", "linear:4:keep_short=true", {}),
    "log-n": ("llama", "linear:4:log_n=clamped", {}),
    "windows in some layers": ("gemma3_text", "yarn:4", {}),
    "windows in all layers": ("mistral", "yarn:4", {"sliding_window": 96}),
    "latent attention": ("deepseek_v3", "yarn:4", {}),
    "latent attention with a pair of scales": ("deepseek_v3", "yarn:8", SCALED),
    "sections of positions": ("qwen3_5_text", "yarn:4", {}),
}
"""Family, row and changes of its config, by what is special about it."""


def bake(source: Path, row: str, out: Path, **options: Any) -> Path:
    recipe = parse_rows(row)[0].recipe
    assert isinstance(recipe, Recipe)
    return apply(make_plan(source, recipe, out, **options))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source, and an output of it."""
    folder = tmp_path_factory.mktemp("baked")
    bake(checkpoint("llama", folder / "source"), "yarn:4", folder / "baked")
    return folder


@pytest.mark.parametrize("case", sample(list(FAMILIES), 4))
def test_a_row_is_what_stock_transformers_makes_of_its_output(tmp_path: Path, case: str) -> None:
    family, row, changes = FAMILIES[case]
    source = checkpoint(family, tmp_path / "source", **changes)
    bake(source, row, tmp_path / "baked", replace="rope_scaling" in changes)
    patched = losses_of(source, f"base,{row}", chunk=50)
    stock = losses_of(tmp_path / "baked", against=str(source), chunk=50)
    assert list(stock) == ["base", "baked"]
    assert max(distance(patched["base"], stock["base"])) < SAME
    assert max(distance(patched[row], stock["baked"])) < SAME
    assert distance(patched["base"], stock["baked"])[1] > 50 * SAME  # the control: another row


def test_two_lists_are_chosen_by_the_whole_sequence_and_not_by_its_chunks(tmp_path: Path) -> None:
    source, row = checkpoint("llama", tmp_path / "source"), "linear:4:keep_short=true"
    for length, other in ((TRAINED, "base"), (LENGTH, "linear:4")):
        read = [losses_of(source, f"{row},{other}", length, chunk=chunk) for chunk in (16, 4096)]
        for found in read:
            assert np.abs(found[row] - read[0][other]).max() < SAME
    found = losses_of(source, f"{row},base", LENGTH)
    assert distance(found[row], found["base"])[1] > 1


def test_the_source_is_found_beside_an_output_and_left_out_where_it_is_not(made: Path, tmp_path: Path) -> None:
    assert list(losses_of(made / "baked")) == ["base", "baked"]
    shutil.copytree(made / "baked", tmp_path / "moved")
    alone = losses_of(tmp_path / "moved")
    assert list(alone) == ["moved"]
    assert max(distance(alone["moved"], losses_of(made / "source", "yarn:4")["yarn:4"])) < SAME
    with open_runner(Opening(str(tmp_path / "moved"), [])) as (runner, rows):
        schedule = runner.schedule(rows[0])
        assert runner.trained == TRAINED
        assert runner.note == "Its source (source) was not found; name it with --against to compare with it."
    with open_runner(Opening(str(made / "baked"), [])) as (runner, _):
        assert runner.note == ""
    with open_runner(Opening(str(made / "source"), parse_rows("yarn:4"))) as (patched, (row,)):
        wanted = patched.schedule(row)
        assert schedule is not None
        assert wanted is not None
        np.testing.assert_array_equal(schedule.inv_freq, wanted.inv_freq)


def test_an_output_with_methods_is_a_source_as_any_other(made: Path) -> None:
    found = losses_of(made / "baked", "base,linear:4")
    assert max(distance(found["base"], losses_of(made / "source", "yarn:4")["yarn:4"])) < SAME
    assert max(distance(found["linear:4"], losses_of(made / "source", "linear:4")["linear:4"])) < SAME


def refusal(model: Path, **options: Any) -> str:
    asked = Opening(str(model), **{"rows": [], **options})
    with pytest.raises((BadSource, UsageError)) as caught, open_runner(asked):
        pass
    return str(caught.value)


def test_what_does_not_go_together_is_said(made: Path, tmp_path: Path) -> None:
    other = checkpoint("llama", tmp_path / "other", rope_theta=500000.0)
    assert "is not what" in refusal(made / "baked", against=str(other))
    assert "leave --methods out" in refusal(made / "baked", against=str(made / "source"), rows=[Row("base")])
    assert "ropeconv.json" in refusal(made / "source", against=str(made / "source"))
    assert "leave --family out" in refusal(made / "baked", family="llama")
    assert "nothing here does" in refusal(made / "source", rows=[Row("base")], trust_remote_code=True)


def test_foreign_code_in_an_output_runs_with_permission_alone(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    bake(made / "source", "linear:4:log_n=clamped", folder)
    code = next(folder.glob("*.py"))
    code.write_text(code.read_text() + "\n# changed\n")
    said = refusal(folder, against=str(made / "source"))
    assert "brings code that is not what ropeconv writes" in said
    allowed = losses_of(folder, against=str(made / "source"), trust_remote_code=True)
    assert list(allowed) == ["base", "foreign"]


def test_a_family_that_cannot_be_extended_refuses_the_row_and_not_base(made: Path) -> None:
    with open_runner(Opening(str(made / "source"), parse_rows("base,yarn:4"))) as (runner, rows):
        runner.inspection = runner.inspection.__class__(**{**vars(runner.inspection), "refuse": "it has no rope"})
        assert runner.schedule(rows[0]) is not None
        with pytest.raises(UnsupportedBake, match="it has no rope"):
            runner.schedule(rows[1])


def test_another_output_has_another_digest_and_an_edited_one_too(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "baked", tmp_path / "baked")

    def digest() -> str:
        with open_runner(Opening(str(tmp_path / "baked"), [], against=str(made / "source"))) as (runner, rows):
            assert runner.digest(rows[0]) != runner.digest(rows[1])
            return runner.digest(rows[1])

    before = digest()
    assert digest() == before
    config = json.loads((tmp_path / "baked" / "config.json").read_text())
    (tmp_path / "baked" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert digest() != before


def test_outputs_in_gguf_beside_a_source_in_gguf_and_a_checkpoint(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    bake(made / "source", "mixed:4", tmp_path / "out.gguf", to="gguf", outtype="f32")
    wanted = losses_of(made / "source", "base,mixed:4")
    found = losses_of(tmp_path / "out.gguf", against=str(made / "source"))
    assert list(found) == ["base", "out"]
    for row, other in (("base", "base"), ("out", "mixed:4")):
        assert max(distance(found[row], wanted[other])) < 0.01
    assert distance(found["out"], wanted["base"])[1] > 1
    bake(made / "source", "as-is", tmp_path / "plain.gguf", to="gguf", outtype="f32")
    bake(tmp_path / "plain.gguf", "yarn:4", tmp_path / "yarn.gguf")
    again = losses_of(tmp_path / "yarn.gguf", against=str(tmp_path / "plain.gguf"))
    assert list(again) == ["base", "yarn"]
    np.testing.assert_array_equal(again["base"], found["base"])
    assert max(distance(again["yarn"], losses_of(made / "source", "yarn:4")["yarn:4"])) < 0.01
    assert len(ids()) == LENGTH


@pytest.mark.parametrize("target", ["gguf", "safetensors"])
def test_a_second_run_of_an_output_in_another_format_knows_the_first(made: Path, tmp_path: Path, target: str) -> None:
    pytest.importorskip("llama_cpp")
    source, out = made / "source", tmp_path / "out.gguf"
    if target == "gguf":
        bake(source, "yarn:4", out, to="gguf", outtype="f32")
    else:
        source, out = tmp_path / "source.gguf", tmp_path / "out"
        bake(made / "source", "as-is", source, to="gguf", outtype="f32")
        bake(source, "yarn:4", out, to="safetensors")

    def digests() -> list[str]:
        with open_runner(Opening(str(out), [], against=str(source))) as (runner, rows):
            return [runner.source, *map(runner.digest, rows)]

    first = digests()
    assert digests() == first
    assert len(set(first)) == 2, "the source is the first row"
    assert len(losses_of(out, against=str(source))) == 2
