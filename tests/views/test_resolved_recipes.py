"""Recipes are shown resolved: a length as the factor that reaches it, and factors as people write
them.
"""

import json
import re
from pathlib import Path

import pytest

from ropeconv.inspection.receipts.storage import describe_settings
from ropeconv.rope.lengths import format_factor
from ropeconv.rope.recipe import parse_recipe

from ..conftest import CONFIGS
from ..support.in_process import command

UNRESOLVED = re.compile(r"factor \d+[kM]\b|factor \d{4,}|(factor|--yarn) \d+\.\d{4,}")


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (4.0, "4"),
        (10.666666666666666, "10.67"),
        (3.0517578125, "3.052"),
        (64, "64"),
        (1.5, "1.5"),
        (1234.5, "1,234"),
    ],
)
def test_a_factor_as_people_write_it(factor: float, text: str) -> None:
    assert format_factor(factor) == text


@pytest.mark.parametrize(
    ("recipe", "trained", "declared", "text"),
    [
        ("yarn:128k", 32768, 40960, "factor 4,"),
        ("yarn:100000", 32768, 40960, "factor 3.052,"),
        ("yarn:256k:on_top=true", 8192, 131072, "factor 2,"),
        ("yarn:128k:original_context=40960", 32768, 40960, "factor 3.2,"),
        ("yarn:10.666666666666666", 32768, 40960, "factor 10.67,"),
        ("piecewise:128k@40", 32768, 40960, "spec 4@40"),
        ("theta-for:128k", 32768, 40960, "target 131072"),
    ],
)
def test_the_settings_of_a_receipt(recipe: str, trained: int, declared: int, text: str) -> None:
    """By hand: 131072 / 32768 = 4; 262144 / 131072 = 2 on top; 131072 / 40960 = 3.2."""
    settings = describe_settings(parse_recipe(recipe).to_dict(), trained, declared)
    assert f"{settings},".startswith(text) or settings.startswith(text)


@pytest.mark.parametrize(
    ("typed", "factor"),
    [("--yarn 1k", "16"), ("--linear 1366", "21.34"), ("--yarn 10.666666666666666", "10.67")],
)
def test_every_text_of_an_output_has_the_factor(
    typed: str, factor: str, llama: Path, tmp_path: Path
) -> None:
    """The tiny model is trained for 64 tokens. The plan, the card, and the screens about the
    output.
    """
    words = typed.split()
    planned = command(tmp_path, "apply", llama, *words, "--dry-run", code=0)
    assert re.search(rf"factor {factor}\)|{words[0]} {factor}$", planned.stdout.splitlines()[0])
    out = json.loads(command(tmp_path, "apply", llama, *words, "--json", code=0).stdout)["out"]
    card = (tmp_path / out / "README.md").read_text()
    exact = [line for line in card.splitlines() if not line.startswith("ropeconv apply")]
    screens = [
        command(tmp_path, "inspect", out, *more, code=0).stdout for more in ([], ["--explain"])
    ]
    for text in ("\n".join(exact), planned.stdout, *screens):
        # digits of attention factors and of frequencies are not those of the recipe
        lines = [
            line
            for line in text.splitlines()
            if "factor" in line and "attention factor" not in line
        ]
        assert not [
            line for line in lines if UNRESOLVED.search(line) and "ropeconv apply" not in line
        ], lines
    assert f"factor {factor}" in card
    assert any(line.startswith("ropeconv apply") and words[1] in line for line in card.splitlines())


def test_the_check_of_this_test_finds_what_is_wrong() -> None:
    for wrong in (
        "(YaRN; factor 128k)",
        "factor 100000",
        "factor 10.666666666666666",
        "factor 1M, beta",
    ):
        assert UNRESOLVED.search(wrong)
    for right in ("factor 4", "factor 10.67", "factor 999"):
        assert not UNRESOLVED.search(right)


def test_lists_of_plans_have_the_factor(tmp_path: Path, llama: Path) -> None:
    done = command(tmp_path, "profiles", llama, "yarn:1k", "yarn:4", "--dry-run", code=0)
    assert "--yarn 1k (factor 16)" in done.stdout
    qwen = command(
        tmp_path, "apply", CONFIGS / "Qwen--Qwen3-8B.json", "--yarn", "128k", "--dry-run", code=0
    )
    assert "40,960 -> 131,072 tokens with --yarn 128k (factor 4)" in qwen.stdout
