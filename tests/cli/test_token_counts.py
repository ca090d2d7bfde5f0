"""A whole number of tokens is a length on every front: it is declared as it is, and the factor
reaches it.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.rope.lengths import LARGEST_FACTOR, SMALLEST_LENGTH

from ..conftest import CONFIGS, DATA
from ..support.in_process import command

MORE = DATA / "more_configs"
QWEN_3 = CONFIGS / "Qwen--Qwen3-8B.json"
QWEN_3_5 = CONFIGS / "Qwen--Qwen3.5-27B.json"
TRAINED = {QWEN_3: 32768, QWEN_3_5: 262144}


def planned(model: Path, *words: str) -> dict[str, Any]:
    done = command(model.parent, "apply", model, *words, "--dry-run", "--json", code=0)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (QWEN_3, "--context 100000"),
        (QWEN_3, "--yarn 100000"),
        (QWEN_3, "--linear 100000"),
        (QWEN_3, "--theta-for 100000"),
        (QWEN_3, "--piecewise 100000@40"),
        (QWEN_3, "--dynamic ntk:4 --at 100000"),
        (QWEN_3, "--yarn 4 --context 100000"),
        (QWEN_3_5, "--yarn 1010000"),
        (QWEN_3_5, "--context 1010000"),
    ],
)
def test_the_length_is_declared_exactly(model: Path, words: str) -> None:
    length = 1010000 if "1010000" in words else 100000
    document = planned(model, *words.split())
    assert document["schedule"]["context"] == length
    if "--yarn 1" in words or words.startswith("--context"):
        plan = ropeconv.apply(model, dry_run=True, yarn=length)
        assert plan.schedule.form is not None
        assert vars(plan.schedule.form)["factor"] == length / TRAINED[model]
        assert document["schedule"]["digest"] == plan.schedule.digest


def test_the_config_reaches_the_length_to_the_token() -> None:
    """3.0517578125 x 32,768 is 100,000; the runtimes that derive the length from the factor find
    the same.
    """
    plan = ropeconv.apply(QWEN_3, dry_run=True, context=100000)
    config = json.loads(next(file.text for file in plan.files if file.name == "config.json") or "")
    assert config["max_position_embeddings"] == 100000
    assert config["rope_scaling"]["factor"] == 3.0517578125
    assert int(config["rope_scaling"]["factor"] * 32768) == 100000


@pytest.mark.parametrize(
    "keywords",
    [{"yarn": 100000}, {"yarn": "100000"}, {"context": 100000}, {"yarn": 4, "context": 100000}],
)
def test_python_takes_it_too(keywords: dict[str, Any]) -> None:
    assert ropeconv.apply(QWEN_3, dry_run=True, **keywords).schedule.context == 100000


def test_every_front_reads_it_alike(tmp_path: Path) -> None:
    """A recipe file with a number, the rows of `eval`, and the commands of `advise`."""
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"method": "yarn", "parameters": {"factor": 100000}}')
    assert planned(QWEN_3, "--recipe", str(recipe)) == planned(QWEN_3, "--yarn", "100000")
    document = json.loads(
        command(tmp_path, "advise", QWEN_3, "--context", "100000", "--json", code=0).stdout
    )
    for item in document["advice"]:
        words = shlex.split(item["command"])
        assert "100000" in item["command"], item["command"]
        assert planned(QWEN_3, *words[3:])["schedule"]["context"] == 100000
    bound = json.loads(command(tmp_path, "bound", "100000", "--json", code=0).stdout)
    assert bound


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (str(LARGEST_FACTOR), 0),
        (str(LARGEST_FACTOR + 1), 2),
        (str(SMALLEST_LENGTH - 1), 2),
        (str(SMALLEST_LENGTH), 0),
        (f"{SMALLEST_LENGTH}.5", 2),
        (f"{SMALLEST_LENGTH}.0", 2),
    ],
)
def test_no_number_is_both_a_factor_and_a_length(
    typed: str, code: int, llama: Path, tmp_path: Path
) -> None:
    """The model is trained for 64 tokens: 1,000 is its factor, and 1,024 its length, 16 times the
    trained one.
    """
    done = command(tmp_path, "apply", llama, "--yarn", typed, "--dry-run", "--json", code=code)
    if code == 0:
        context = json.loads(done.stdout)["schedule"]["context"]
        assert context == (64 * LARGEST_FACTOR if typed == str(LARGEST_FACTOR) else SMALLEST_LENGTH)
    else:
        assert "at most 1,000" in done.stderr


def test_a_short_context_without_a_method_is_refused_with_a_command(
    llama: Path, tmp_path: Path
) -> None:
    """Below 1,024 a number would be read as a factor where it is written down."""
    done = command(tmp_path, "apply", llama, "--context", "200", "--dry-run", code=2)
    repair = done.stderr.partition("as in ")[2].split()
    plan = command(tmp_path, "apply", llama, *repair, "--dry-run", "--json", code=0)
    assert json.loads(plan.stdout)["schedule"]["context"] == 200


def test_a_length_is_refused_where_its_method_changes_no_frequency() -> None:
    """Gemma 4 26B turns its slowest pair 1,393 times within 262,144 tokens."""
    model = "google--gemma-4-26B-A4B.json"
    done = command(MORE, "apply", model, "--context", "512k", "--dry-run", code=2)
    assert "1,393 times" in done.stderr
    repair = done.stderr.partition("pass ")[2].partition(" to ")[0].split()
    assert repair == ["--as-is", "--context", "512k"]
    plan = command(MORE, "apply", model, *repair, "--dry-run", "--json", code=0)
    assert json.loads(plan.stdout)["schedule"]["context"] == 1 << 19
    # a method that is named is planned, if something can hold it
    named = command(MORE, "apply", model, "--ntk", "512k", "--dry-run", "--json", code=0)
    assert json.loads(named.stdout)["schedule"]["context"] == 1 << 19


def test_a_refused_length_is_named_as_it_was_typed() -> None:
    """Phi 3 declares a longer one, from which its class derives the attention factor."""
    done = command(CONFIGS, "apply", "microsoft--Phi-3-mini-4k-instruct.json", "--context", "32k")
    assert done.returncode == 2
    assert "--context 32k is 8 times" in done.stderr
    assert "pass --yarn 32k" in done.stderr
