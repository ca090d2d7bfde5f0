"""The keywords of the verbs: editors and type checkers know them, and `help` lists them."""

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import ropeconv
from ropeconv import keywords
from ropeconv.hub.options import PublishOptions
from ropeconv.options import (
    ConverterOptions,
    Option,
    OutputPlace,
    TargetOptions,
    ValidateRequest,
    options,
)
from ropeconv.verbs.recipes import recipe_options
from ropeconv.verbs.request import ApplyRequest
from scripts.pages.keywords import FILES, text

ROOT = Path(__file__).parents[1]

ACCEPTED = """\
from pathlib import Path

import ropeconv

done: ropeconv.Output = ropeconv.apply("./model", yarn=4)
ropeconv.apply(Path("model"), yarn="128k", runtime=["vllm", "sglang"], out="longer")
ropeconv.apply("me/model", theta=1e6, context=131072, to="gguf", outtype="q8_0", force=True)
ropeconv.apply("model", "recipe.json", replace=True)
ropeconv.apply("model", mixed=4, mixed_exponent=0.75, attention_factor=1.2, log_n="clamped")
ropeconv.apply("model", dynamic="ntk:2", at="8k", validate="off")
plan: ropeconv.Plan = ropeconv.plan("model", inv_freq=Path("numbers.npy"))
again: ropeconv.Plan = ropeconv.apply("model", yarn=4, dry_run=True)
ropeconv.apply(plan)
undo = ropeconv.patch(object(), yarn=4, beta_fast=16)
"""
REJECTED = (
    'ropeconv.apply("model", yran=4)',
    'ropeconv.apply("model", yarn=[4])',
    "ropeconv.apply()",
    "ropeconv.apply(yarn=4)",
    'ropeconv.apply("model", theta="1e6")',
    'ropeconv.apply("model", yarn=4, to="onnx")',
    'ropeconv.apply("model", yarn=4, force="yes")',
    'ropeconv.apply("model", yarn=4, log_n="half")',
    'ropeconv.plan("model", yarn=4, oit="x")',
    'ropeconv.patch(object(), yarn=4, out="x")',
    'ropeconv.apply("model", {"yarn": 4})',
    'ropeconv.apply("model", yarn=4, runtime=7)',
)
"""Mistakes, one a line."""


def mypy(script: Path) -> str:
    """The messages of mypy --strict on a script of a user."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            str(script),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_file_is_what_the_options_say(path: Path) -> None:
    assert path.read_text("utf-8") == text(path)


@pytest.mark.parametrize(
    ("kind", "groups", "others"),
    [
        (keywords.RecipeKeywords, recipe_options(), {"recipe"}),
        (keywords.TargetKeywords, options(OutputPlace, ConverterOptions, TargetOptions), set()),
        (keywords.RunKeywords, options(ApplyRequest), {"dry_run", "no_fsync", "no_check"}),
        (keywords.ValidateKeywords, options(ValidateRequest), {"against"}),
        (keywords.PushKeywords, options(PublishOptions), set()),
    ],
)
def test_every_option_of_a_command_is_a_keyword(
    kind: type, groups: list[Option], others: set[str]
) -> None:
    """others: options that are arguments in Python, or have another name."""
    assert {option.parameter for option in groups} - others <= set(kind.__annotations__)


def test_a_type_checker_accepts_natural_calls_and_finds_mistakes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    first = len(ACCEPTED.splitlines()) + 1
    script.write_text(ACCEPTED + "\n".join(REJECTED) + "\n")
    answer = mypy(script)
    errors: dict[int, list[str]] = {}
    for line in answer.splitlines():
        if f"{script.name}:" in line and ": error:" in line:
            number = int(line.split(f"{script.name}:")[1].split(":")[0])
            errors.setdefault(number, []).append(line)
    assert [line for number, line in errors.items() if number < first] == [], answer
    missed = [call for number, call in enumerate(REJECTED, first) if number not in errors]
    assert missed == [], answer


@pytest.mark.parametrize("verb", ["apply", "plan", "patch"])
def test_help_lists_every_keyword_with_its_sentence(verb: str) -> None:
    page = pydoc.plain(pydoc.render_doc(getattr(ropeconv, verb)))
    assert "yarn: YaRN as every runtime computes it" in page
    assert ("runtime: Write a form that this runtime supports" in page) == (verb != "patch")
