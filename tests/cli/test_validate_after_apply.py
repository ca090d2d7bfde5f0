"""`apply` validates what it has written: where that is quick, on what was asked for, or not at all."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.output import Output
from ropeconv.validate.sampling import doublings
from ropeconv.verbs import validation
from ropeconv.verbs.validation import PATIENCE, choose_validation

from ..conftest import Run
from ..support.baking import YARN, YARN_16, make_plan
from ..support.gguf_files import write
from ..support.llamacpp import tokenizer_json


@pytest.fixture(autouse=True)
def automatic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default that users have; the suite switches it off."""
    monkeypatch.delenv("ROPECONV_VALIDATE")
    monkeypatch.chdir(tmp_path)


def test_a_small_model_is_validated_and_the_receipt_has_the_result(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["validation"]["agrees"]
    assert document["validate"] == ""  # there is nothing left to check
    assert json.loads(Path("out/ropeconv.json").read_text())["validation"]["agrees"]


def test_the_screen_says_so_in_a_sentence(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out")
    assert "Validated on cpu: PASS" in done.stdout
    assert "Check:" not in done.stdout


def test_the_plan_says_where_and_how_long(run: Run, llama: Path) -> None:
    document = json.loads(run("apply", llama, "--yarn", 4, "--dry-run", "--json").stdout)
    assert document["validating"]["device"] == "cpu"
    assert 0 < document["validating"]["seconds"] < PATIENCE


def test_off_leaves_it_out_and_names_the_command(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out", "--validate", "off")
    assert (done.returncode, "Validated" in done.stdout) == (0, False)
    assert "Check:   ropeconv validate out" in done.stdout


def test_the_environment_sets_the_default(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPECONV_VALIDATE", "off")
    assert "Validated" not in run("apply", llama, "--yarn", 4, "-o", "out").stdout
    monkeypatch.setenv("ROPECONV_VALIDATE", "sometimes")
    done = run("apply", llama, "--yarn", 4, "-o", "other")
    assert (done.returncode, Path("other").exists()) == (2, False)


def test_a_large_model_is_left_to_the_user_with_the_reason(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "_speed", lambda: 1e3)  # operations a second
    plan = json.loads(run("apply", llama, "--yarn", 4, "--dry-run", "--json").stdout)
    assert plan["validating"]["device"] is None
    assert "CPU" in plan["validating"]["reason"]
    done = run("apply", llama, "--yarn", 4, "-o", "out")
    assert (done.returncode, "Check:   ropeconv validate out" in done.stdout) == (0, True)


@pytest.mark.parametrize(("family", "device"), [("llama", "cpu"), ("gemma3_text", "")])
def test_the_tokens_that_are_read_decide_about_a_borderline_model(
    family: str,
    device: str,
    tiny: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six passes over every token would take 36 seconds, as they do in a model with a window."""
    plan = make_plan(tiny(family), YARN_16, tmp_path / "out")
    tokens = sum(min(512, high) for _, high in doublings(64, 1024))
    operations = 2 * validation.parameters(plan) * 6 * tokens
    monkeypatch.setattr(validation, "_speed", lambda: operations / 30 / validation.SHARE_OF_SPEED)
    choice = choose_validation(plan, "auto")
    assert choice.device == device, choice
    assert choice.seconds < PATIENCE


def test_what_is_asked_for_is_done_whatever_it_takes(
    run: Run, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "_speed", lambda: 1e3)
    done = run("apply", llama, "--yarn", 4, "-o", "out", "--validate", "cpu")
    assert (done.returncode, "Validated on cpu: PASS" in done.stdout) == (0, True)


def test_each_of_several_outputs_is_validated(run: Run, llama: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    (llama / "tokenizer.json").write_text(tokenizer_json())
    formats = ("--to", "safetensors", "--to", "gguf")
    done = run("apply", llama, "--yarn", 4, "-o", "out", *formats, "--json")
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout)["outputs"]
    assert [output["validation"]["agrees"] for output in outputs] == [True, True]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validations whose results do not agree."""
    found = validation.run_validation

    def fail(*arguments: Any, **options: Any) -> object:
        result, files = found(*arguments, **options)
        return dataclasses.replace(result, agrees=False, sentence="FAIL: KL 1."), files

    monkeypatch.setattr(validation, "run_validation", fail)


def test_the_screen_has_the_result_for_each_of_several_outputs(run: Run, llama: Path) -> None:
    shutil.copytree(llama, "second")
    plan = run("apply", llama, "second", "--yarn", 4, "-o", "out", "--dry-run")
    assert "validated on cpu" in plan.stderr
    done = run("apply", llama, "second", "--yarn", 4, "-o", "out")
    assert "Validated on cpu: PASS" in done.stdout
    assert "(all 2)" in done.stdout.splitlines()[-1]
    off = run("apply", llama, "second", "--yarn", 4, "-o", "other", "--validate", "off")
    assert off.stdout.count("Check: ropeconv validate other/") == 2


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_each_of_several_outputs_that_fails_is_said_to_be_kept(
    run: Run, llama: Path, quiet: tuple[str, ...]
) -> None:
    shutil.copytree(llama, "second")
    done = run("apply", llama, "second", "--yarn", 4, "-o", "out", *quiet)
    assert (done.returncode, done.stderr.count("is kept")) == (3, 2), done.stderr


@pytest.mark.usefixtures("failing")
def test_a_target_and_a_draft_that_fail_are_said_to_be_kept(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out", "--draft", llama)
    assert (done.returncode, done.stderr.count("is kept")) == (3, 2), done.stderr
    assert "out-draft is kept" in done.stderr


def test_a_draft_that_is_a_whole_model_is_validated_too(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out", "--draft", llama)
    assert (done.returncode, done.stdout.count("Validated on cpu: PASS")) == (0, 2), done.stdout


@pytest.mark.usefixtures("failing")
def test_a_failed_validation_ends_with_3_and_keeps_the_output(run: Run, llama: Path) -> None:
    done = run("apply", llama, "--yarn", 4, "-o", "out")
    assert done.returncode == 3
    assert "is kept" in done.stderr
    assert Path("out/config.json").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--in-place",), "in place"),
        (("--to", "overrides"), "overrides"),
    ],
)
def test_what_cannot_be_validated_is_refused_where_it_is_asked_for(
    run: Run, tmp_path: Path, options: tuple[str, ...], word: str
) -> None:
    write(tmp_path / "m.gguf")
    before = (tmp_path / "m.gguf").read_bytes()
    done = run("apply", "m.gguf", "--yarn", 4, "--validate", "cpu", *options)
    assert (done.returncode, word in done.stderr) == (2, True), done.stderr
    assert (tmp_path / "m.gguf").read_bytes() == before


def test_a_config_alone_has_nothing_to_run(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama / "config.json", YARN, tmp_path / "out")
    choice = choose_validation(plan, "auto")
    assert (choice.device, choice.reason) == ("", "")


def test_an_output_of_python_has_its_validation(llama: Path) -> None:
    import ropeconv

    output = ropeconv.apply(llama, yarn=4, out="out")
    assert isinstance(output, Output)
    assert output.validation is not None
    assert output.validation.agrees
    assert ropeconv.apply(llama, yarn=4, out="other", validate="off").validation is None


WITHOUT_TORCH = (
    "import sys\n"
    "for name in ('torch', 'transformers', 'accelerate'): sys.modules[name] = None\n"
    "from ropeconv.cli import main\n"
    "main()\n"
)


@pytest.mark.parametrize("source", ["model", "m.gguf"])
def test_without_torch_it_is_written_and_not_validated(
    llama: Path, tmp_path: Path, source: str
) -> None:
    write(tmp_path / "m.gguf")
    out = "out.gguf" if source == "m.gguf" else "out"
    words = ["apply", str(llama) if source == "model" else source, "--yarn", "4", "-o", out]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, (tmp_path / out).exists()) == (0, True), done.stderr
    assert "Validated" not in done.stdout
