"""Whatever a message tells people to do works: for every published config, every command and option
that a refusal, a hint or a table names is run, and the next one, until a plan comes or nothing is
named any more.

Three steps after the first command must be enough. `./scripts/test --all` goes through all configs.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.models.registry import by_model_type
from ropeconv.models.schema import text_config

from ..conftest import CONFIGS, DATA
from ..support.extent import sample
from ..support.followed import Follower, Words, named_options, with_option
from ..support.in_process import Done

CONFIG = "config.json"


def published() -> dict[str, dict[str, Any]]:
    """Every published config of the test data by the name of its model, each once."""
    found = {}
    for folder in (CONFIGS, DATA / "more_configs"):
        for path in sorted(folder.glob("*.json")):
            if not path.name.endswith(".params.json"):  # of Meta's layout, which is no config.json
                found[path.stem] = json.loads(path.read_text())
    for entry in json.loads((DATA / "published_ropes.json").read_text()):
        found.setdefault(entry["model"], entry["config"])
    distinct = {json.dumps(config, sort_keys=True): name for name, config in found.items()}
    return {name: found[name] for name in distinct.values()}


PUBLISHED = published()


def twice_the_context(config: dict[str, Any]) -> int:
    """A length that a model does not declare yet; of one that states none, beyond its class's."""
    declared: list[int] = []
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
            value = part.get(key)
            if isinstance(value, (int, float)):
                declared.append(int(value))
        scaling = part.get("rope_scaling")
        if declared and isinstance(scaling, dict) and isinstance(scaling.get("factor"), float):
            declared.append(int(declared[-1] * scaling["factor"]))
    return 2 * max(declared, default=131072)


def first_commands(config: dict[str, Any]) -> list[Words]:
    """The commands that people run first with a model."""
    length = str(twice_the_context(config))
    commands: list[Words] = [
        ("inspect", CONFIG),
        ("advise", CONFIG, "--context", length),
        ("apply", CONFIG, "--yarn", "2"),
        ("apply", CONFIG, "--context", length),
        ("apply", CONFIG, "--mixed", "4", "--runtime", "vllm"),
    ]
    part = text_config(config) or config
    if part.get("model_type") not in by_model_type():  # others are run in test_drafts.py
        commands.append(("family", CONFIG))
    return commands


@pytest.mark.parametrize("model", sample(list(PUBLISHED), 6))
def test_every_step_that_a_message_names_works(model: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps(PUBLISHED[model]))
    follower = Follower(tmp_path)
    for words in first_commands(PUBLISHED[model]):
        follower.follow(words)
    assert follower.result.failures == []
    assert follower.result.successes or follower.result.ends


@pytest.mark.parametrize("model", sample(list(PUBLISHED), 3, seed=1))
def test_advise_ends_with_a_plan_for_a_model_that_can_be_extended(
    model: str, tmp_path: Path
) -> None:
    config = PUBLISHED[model]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    follower = Follower(tmp_path)
    if follower.run(("apply", CONFIG, "--theta", "1e12", "--replace")).returncode:
        return  # a model that nothing extends
    follower.follow(("advise", CONFIG, "--context", str(twice_the_context(config))))
    assert follower.result.failures == []
    assert follower.result.successes


# The control: messages that lead nowhere are found


class Screens(Follower):
    """A follower of commands that were never run, with what each would print."""

    def __init__(self, screens: dict[str, str]) -> None:
        super().__init__(Path())
        self.screens = screens

    def run(self, words: Words) -> Done:
        message = self.screens.get(" ".join(words))
        return Done(0, "", "") if message is None else Done(1, "", message)


def test_a_fix_with_the_same_answer_is_a_loop() -> None:
    refusal = "no method fits; pass --on-top"
    follower = Screens(
        {"apply config.json --yarn 2": refusal, "apply config.json --yarn 2 --on-top": refusal}
    )
    follower.follow(("apply", CONFIG, "--yarn", "2"))
    (failure,) = follower.result.failures
    assert failure.startswith("the message comes again")
    assert follower.result.successes == 0


def test_a_chain_of_fixes_that_is_too_long_is_found() -> None:
    flags = ["", " --on-top", " --on-top --private", " --on-top --private --link"]
    fixes = ["--on-top", "--private", "--link", "--force"]
    screens = {}
    for given, fix in zip(flags, fixes, strict=True):
        screens[f"apply config.json --yarn 2{given}"] = f"{len(given)} is wrong; pass {fix}"
    follower = Screens(screens)
    follower.follow(("apply", CONFIG, "--yarn", "2"))
    (failure,) = follower.result.failures
    assert failure.startswith("there is no end")


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (
            "x is scaled; pass --on-top to extend it, --as-is to keep it, or --replace",
            [[("--on-top", "")], [("--as-is", "")], [("--replace", "")]],
        ),
        ("it is too short; pass --yarn 256k, or --context 8k if you mean it", [
            [("--yarn", "256k")], [("--context", "8k")],
        ]),
        ("it needs training; pass --yarn 20M --replace, or leave it", [
            [("--yarn", "20M"), ("--replace", "")],
        ]),
        ("--yarn 0.5: the factor must be at least 1", []),
        ("it is unknown; pass --family qwen3 to treat it as that", [[("--family", "qwen3")]]),
        ("it is untested; pass --runtime NAME", []),
    ],
)  # fmt: skip
def test_options_in_the_fix_of_a_message(message: str, options: list[list[Any]]) -> None:
    assert [list(fix) for fix in named_options(message)] == options


def test_an_option_takes_the_place_of_the_one_that_it_excludes() -> None:
    given = ("apply", CONFIG, "--yarn", "2", "--replace")
    assert with_option(given, "--linear", "4") == ("apply", CONFIG, "--replace", "--linear", "4")
    assert with_option(given, "--on-top", "") == ("apply", CONFIG, "--yarn", "2", "--on-top")
    assert with_option(given, "--as-is", "") == ("apply", CONFIG, "--as-is")
