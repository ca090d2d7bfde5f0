"""The same change in place again, as after a kill at its very end: it is found done."""

from pathlib import Path

import pytest

import ropeconv
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32

from ..conftest import Run
from ..support.gguf_files import write

DONE = "complete from an earlier run"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", "qwen2", extra={"feed_forward_length": 96})


@pytest.mark.parametrize("method", ["--yarn 4", "--mixed 4", "--yarn 4 --context 200", "--as-is"])
def test_the_same_change_is_found_done_and_can_be_restored(
    run: Run, model: Path, method: str
) -> None:
    before = model.read_bytes()
    words = ("apply", "model.gguf", *method.split(), "--in-place")
    first = run(*words)
    assert (first.returncode, DONE in first.stderr) == (0, False), first.stderr
    changed = model.read_bytes()

    again = run(*words)
    assert (again.returncode, DONE in again.stderr) == (0, True), again.stderr
    assert model.read_bytes() == changed != before
    assert run(*words, "--dry-run").returncode == 0

    assert run("restore", "model.gguf", "--in-place").returncode == 0
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


def test_a_scaling_on_top_is_added_once(run: Run, model: Path) -> None:
    assert run("apply", "model.gguf", "--yarn", "4", "--in-place").returncode == 0
    words = ("apply", "model.gguf", "--yarn", "2", "--on-top", "--in-place")
    assert run(*words).returncode == 0
    changed = model.read_bytes()
    again = run(*words)
    assert (again.returncode, DONE in again.stderr) == (0, True), again.stderr
    assert model.read_bytes() == changed
    assert run("apply", "model.gguf", "--yarn", "4", "--in-place").returncode == 1


def test_a_plan_of_a_scaling_on_top_is_applied_once(model: Path) -> None:
    ropeconv.apply(model, yarn=4, in_place=True, validate="off")
    plan = ropeconv.plan(model, yarn=2, on_top=True, in_place=True)
    first = ropeconv.apply(plan, validate="off")
    context = ropeconv.inspect(model).context
    changed = model.read_bytes()
    assert (first.was_complete, first.context) == (False, context)

    # the same plan, a new plan, and the recipe of it
    new_plan = ropeconv.plan(model, yarn=2, on_top=True, in_place=True)
    recipe = ropeconv.plan(model, new_plan.recipe, in_place=True)
    for again in (plan, new_plan, recipe):
        assert ropeconv.apply(again, validate="off").was_complete
        assert model.read_bytes() == changed
    assert ropeconv.inspect(model).context == context


def test_another_plan_is_applied_to_a_changed_file(model: Path) -> None:
    ropeconv.apply(model, yarn=4, in_place=True, validate="off")
    plan = ropeconv.plan(model, yarn=4, on_top=True, in_place=True)
    done = ropeconv.apply(plan, validate="off")
    assert not done.was_complete
    assert ropeconv.inspect(model).context == done.context


def test_a_missing_modelfile_is_written_then(run: Run, model: Path) -> None:
    words = ("apply", "model.gguf", "--yarn", "4", "--in-place", "--ollama")
    assert run(*words).returncode == 0
    modelfile = model.with_suffix(".Modelfile")
    text = modelfile.read_text()
    modelfile.unlink()
    assert run(*words).returncode == 0
    assert modelfile.read_text() == text


@pytest.mark.parametrize(
    "words",
    ["--yarn 8", "--linear 4", "--yarn 4 --context 192", "--yarn 4 --attention-factor 1.5"],
)
def test_another_change_is_refused(run: Run, model: Path, words: str) -> None:
    assert run("apply", "model.gguf", "--yarn", "4", "--in-place").returncode == 0
    changed = model.read_bytes()
    other = run("apply", "model.gguf", *words.split(), "--in-place")
    assert (other.returncode, "--replace" in other.stderr) == (1, True)
    assert model.read_bytes() == changed


def test_an_output_of_another_source_is_refused(run: Run, model: Path) -> None:
    assert run("apply", "model.gguf", "--yarn", "4", "-o", "out.gguf").returncode == 0
    assert run("apply", "out.gguf", "--yarn", "4", "--in-place").returncode == 1


def test_a_file_that_was_changed_since_is_refused(run: Run, model: Path) -> None:
    words = ("apply", "model.gguf", "--yarn", "4", "--in-place")
    assert run(*words).returncode == 0
    out = model.with_name("edited.gguf")
    write_new(
        GgufFile.open(model), 0, Edit({"qwen2.attention.layer_norm_rms_epsilon": f32(0.5)}), out
    )
    out.replace(model)
    assert run(*words).returncode == 1
