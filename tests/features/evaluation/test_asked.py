"""What users write: lengths, sizes, times, measures, rows, and conditions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv import METHODS, Recipe, RopeconvError, UsageError
from ropeconv.features.evaluation.cases import EvaluationSizes, Observation, parse_lengths
from ropeconv.features.evaluation.evaluation import parse_duration, parse_measures
from ropeconv.features.evaluation.ranking import Condition, parse_condition
from ropeconv.features.evaluation.result import Result, items_of
from ropeconv.features.evaluation.run import RunOutcome
from ropeconv.features.evaluation.statistics import summarise
from ropeconv.verbs.rows import parse_rows

from .results import LENGTHS, ROWS, TRAINED, made


def in_4096(text: str) -> tuple[int, ...]:
    return parse_lengths(text, 4096)


def recipe(name: str, *values: object, **settings: object) -> Recipe:
    return Recipe(METHODS[name](*values, **settings))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k, 32k", (8192, 32768)),
        ("2T,8k,1T", (4096, 8192)),
        ("1.5T", (6144,)),
        ("3/4T", (3072,)),
    ],
)
def test_lengths_are_sorted_and_each_once(text: str, lengths: tuple[int, ...]) -> None:
    assert in_4096(text) == lengths


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"windows": 0}, "--windows is 0"), ({"seed": 1 << 31}, "give a number from 0")],
)
def test_sizes_out_of_range_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(RopeconvError, match=message):
        EvaluationSizes((64,), 64, **sizes)


def test_times_are_parsed() -> None:
    assert [parse_duration(text) for text in ("90s", "20m", "1.5h")] == [90, 1200, 5400]


def test_rows_are_methods_with_values_settings_and_modifiers() -> None:
    rows = parse_rows(
        "base, yarn:4, linear:128k,theta:1e6,yarn:4:beta-fast=16:attention_factor=1:context=64k"
    )
    assert [row.name for row in rows][:3] == ["base", "yarn:4", "linear:128k"]
    assert [row.recipe for row in rows] == [
        None,
        recipe("yarn", 4.0),
        recipe("linear", "128k"),
        recipe("theta", 1e6),
        Recipe(METHODS["yarn"](4.0, beta_fast=16), attention_factor=1, context=65536),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dynamic:yarn:4:at=8k", recipe("dynamic", "yarn:4", at=8192)),  # a value with a colon
        (
            "ntk:4:log_n=clamped:on_top=true",
            Recipe(METHODS["ntk"](4.0), log_n="clamped", on_top=True),
        ),
    ],
)
def test_a_row_is_the_recipe_of_the_command_line_or_a_saved_one(
    text: str, expected: Recipe, tmp_path: Path
) -> None:
    assert parse_rows(text)[0].recipe == expected
    (tmp_path / "mine.json").write_text(json.dumps(expected.to_dict()))
    assert parse_rows(f"recipe:{tmp_path / 'mine.json'}")[0].recipe == expected


REFUSED = {
    in_4096: dict.fromkeys(("", "0T", "1/0T", "xT", "-1T", "8q"), ""),
    parse_duration: dict.fromkeys(
        ("", "20", "0m", "-3m", "20 minutes"), "write it like 90s, 20m or 2h"
    ),
    parse_measures: {
        "grow": "choose growth, keys, latest, longppl, niah, ",
        "growth,growth": "twice",
        "growth:3": "only sliding",
        "sliding:0": "only sliding",
    },
    parse_rows: {
        "": "no method",
        "base,base": "base twice",
        "base:2": "write base",
        "yern:4": "is not a method",
        "yarn": "write it like yarn:4",
        "yarn:4:8": "needs one value",
        "yarn:x": "128k",
        "yarn:4:factor=8": "gives factor twice",
        "yarn:4:beta_fast=1:beta_fast=2": "a setting twice",
        "yarn:4:gamma=1": "setting gamma, which yarn does not have; it has beta_fast, ",
        "dynamic:yarn:4": "as in dynamic:yarn:4:at=32k",
        "dynamic:4:at=8k": "METHOD one of",
        "theta:big": "needs a number",
        "yarn:0.5": "at least 1",
        "recipe:/nowhere.json": "cannot be read",
        "yarn:4:log_n=sometimes": "clamped or full",
    },
}
"""By the function that parses it, texts that are refused and what is said."""


@pytest.mark.parametrize(
    ("parse", "text", "hint"),
    [(parse, text, hint) for parse, texts in REFUSED.items() for text, hint in texts.items()],
)
def test_another_text_is_refused_with_a_repair(
    parse: Callable[[str], object], text: str, hint: str
) -> None:
    with pytest.raises(
        UsageError if parse in (parse_duration, parse_measures) else RopeconvError,
        match=hint or None,
    ):
        parse(text)


# --fail-if: what is a condition, and when it is true


def parsed(text: str) -> Condition:
    condition = parse_condition(text)
    measures = ["growth", "position", "speed", "passkey"]
    condition.check(list(ROWS), measures, EvaluationSizes(LENGTHS, TRAINED))
    return condition


NOISE = np.random.default_rng(4).normal(size=10)
NOISE = (NOISE - NOISE.mean()) / NOISE.std(ddof=1)
"""Ten numbers with the mean 0 and the standard deviation 1."""


def with_rows(count: int = 10, **losses: float) -> Result:
    """A result of so many texts with growth at 2T, by row: yarn_4 for yarn:4.

    All rows have the noise of the texts in common, and the others than base a noise of their own,
    so that a difference to base has an error of 0.01.
    """
    noise = NOISE[:count]
    rows = {}
    for name, loss in losses.items():
        own = 0.01 * 10**0.5 * (noise if name != "base" else 0 * noise)
        values = loss + 3 * noise[::-1] + own
        place = ("growth", "loss", 2 * TRAINED)
        rows[name.replace("_", ":")] = [
            Observation(*place, number, 0, float(value)) for number, value in enumerate(values)
        ]
    parsed = parse_rows(",".join(rows))
    summary = summarise(RunOutcome(rows), parsed, EvaluationSizes(LENGTHS, TRAINED))
    items = items_of(rows, [f"{number}.txt" for number in range(count)])
    return msgspec.structs.replace(made("base", ["growth"]), cells=summary.cells, items=items)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yarn:4 > base @2T", ("growth", "yarn:4", True, "base", 2 * TRAINED)),
        ("yarn:4<base@1/4T", ("growth", "yarn:4", False, "base", TRAINED // 4)),
        (" yarn:4 > 3.5 @32k ", ("growth", "yarn:4", True, 3.5, 4 * TRAINED)),
        ("position yarn:4 > base @10k", ("position", "yarn:4", True, "base", 10240)),
        (
            "lm-eval:arc_easy yarn:4 < base @1T",
            ("lm-eval:arc_easy", "yarn:4", False, "base", TRAINED),
        ),
    ],
)
def test_conditions_are_read(text: str, expected: tuple[object, ...]) -> None:
    condition = parse_condition(text)
    assert (
        condition.measure,
        condition.left,
        condition.above,
        condition.right,
        condition.length_in_tokens(TRAINED),
    ) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "not a condition")
            for text in (
                "yarn:4 > base",
                "yarn:4 >= base @2T",
                "> base @2T",
            )
        ),
        ("yarn:4 > ntk:4", "without a length, @2T"),
        ("yarn:4 > bse @2T", "'bse'"),
        ("4 > base @2T", "'4'"),
        ("yarn:4 > nan @2T", "'nan'"),
        ("sliding yarn:4 > base @2T", "needs sliding; add it"),
        ("speed yarn:4 < base @2T", "speed has too few numbers"),
        ("passkey yarn:4 > 90 @2T", "0.9 for 90 %"),
        ("passkey yarn:4 < -0.1 @2T", "from 0 to 1"),
        ("yarn:4 > base @3T", "needs 24,576 tokens; add"),
        ("yarn:4 > base @twoT", "is not a length"),
        ("yarn:4 > base @1T,2T", "several lengths"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "losses", "met"),
    [
        # the losses of texts differ by 3 nats; paired, 0.1 is ten errors
        ("yarn:4 > base @2T", {"base": 3.0, "yarn_4": 3.1}, True),
        ("yarn:4 > base @2T", {"base": 3.0, "yarn_4": 3.03}, False),
        ("yarn:4 > base @2T", {"base": 3.0, "yarn_4": 2.9}, False),
        ("yarn:4 < base @2T", {"base": 3.0, "yarn_4": 2.9}, True),
        ("base > yarn:4 @2T", {"base": 3.0, "yarn_4": 2.9}, True),
        # a number is compared with the loss, whose error between texts is 1 nat
        ("base > 3.5 @2T", {"base": 4.5}, False),
        ("base > 3.5 @2T", {"base": 12.5}, True),
        # two rows behind the first are paired with each other: their noise is the same
        ("yarn:4 > linear:4 @2T", {"base": 3.0, "yarn_4": 3.0, "linear_4": 2.999}, True),
        ("yarn:4 > linear:4 @2T", {"base": 3.0, "yarn_4": 3.0, "linear_4": 3.001}, False),
    ],
)
def test_it_is_true_beyond_the_margin(text: str, losses: dict[str, float], met: bool) -> None:
    assert parsed(text).judge(with_rows(**losses))[0] == met


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ntk:4 > base @2T", "ntk:4 has no growth at 16,384 tokens"),
        ("position base < 0.9 @2T", "no position"),
        ("yarn:4 > base @2T", "needs at least 6 independent windows"),
    ],
)
def test_what_was_not_measured_cannot_be_judged(text: str, message: str) -> None:
    with pytest.raises(RopeconvError, match=message):
        parsed(text).judge(with_rows(5, base=3.0, yarn_4=4.0))
