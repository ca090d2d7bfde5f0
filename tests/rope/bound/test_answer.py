"""What is said of bounds and their windows, and of effective lengths: against an enumeration, and
term by term.
"""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from ropeconv.rope.bound.answer import DATA, bound, is_quick, look_up, wide_base
from ropeconv.rope.bound.reach import effective_length, worse_than_source
from ropeconv.rope.bound.sums import Sums
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Llama3, Plain, Yarn, base_inv_freq
from ropeconv.rope.spec import RopeSpec
from scripts.make_bound_table import base_steps, last_steps, wide_steps

from ...support.baking import recipe_of
from ...support.extent import ALL, sample
from .naive import sums

PUBLISHED = {
    source: row["4096"] for source, row in json.loads((DATA / "published.json").read_text()).items()
}


def test_a_bound_as_data() -> None:
    answer = bound(4096, 128, 128)
    data = json.loads(json.dumps(answer.to_dict()))
    assert data == {
        "length": 4096,
        "rotary_dim": 128,
        "head_dim": 128,
        "base": pytest.approx(26952.339227857868),
        "binding_distance": 4012,
        "window": [answer.base, answer.base * (1 + (answer.width or 0))],
        "first_wide_window": list(answer.first_wide_window or ()),
        "published": PUBLISHED,
        "last_violating_base": pytest.approx(58790, rel=1e-3),
        "known_windows": True,
        "asymptotic": pytest.approx(4096 / 0.6165, rel=1e-4),
    }
    assert len(PUBLISHED) == 2
    assert data["first_wide_window"][0] == pytest.approx(28629, rel=1e-3)
    assert bound(4096, 64, 64).published == {}
    assert bound(4096, 96, 128).to_dict()["published"] == {}
    assert bound(4097, 128, 128).published == {}


def test_heads_that_rotate_half_need_no_base() -> None:
    answer = bound(1 << 20, 64, 128)
    assert (answer.base, answer.binding_distance, answer.last_violating_base) == (1.0, None, None)
    assert (answer.window, answer.width, answer.first_wide_window) == (
        (1.0, None),
        None,
        (1.0, None),
    )
    assert answer.known_windows


def test_a_base_that_takes_minutes_is_announced_and_reports_where_it_is() -> None:
    """The tables have heads whose every pair rotates."""
    assert [is_quick(1 << 19, *head) for head in ((128, 128), (64, 128), (96, 128))] == [
        True,
        False,
        False,
    ]
    reports: list[str] = []
    bound(2000, 20, 20, tell=reports.append)
    assert list(dict.fromkeys(re.sub(r"\b\d[\d,]*", "N", report) for report in reports)) == [
        "ruled out: all bases up to N",
        "looking for the first interval that is N % wide",
        "proven: no base above N violates",
    ]


@pytest.mark.parametrize(
    ("length", "rotary_dim", "words"),
    [
        (256, 2, "a single pair has the frequency 1 at every base"),
        ((1 << 27) + 1, 64, "computed up to 134217728 tokens, and 134217729 is more"),
    ],
)
def test_bases_that_cannot_be_computed(length: int, rotary_dim: int, words: str) -> None:
    for ask in (bound, wide_base):
        with pytest.raises(RecipeError, match=words):
            ask(length, rotary_dim, rotary_dim)
    assert bound(1 << 27, 64, 128).base == 1.0


LLAMA_2 = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
LLAMA_3 = RopeSpec(128, 128, Plain(5e5), 8192, 8192)
QWEN_3 = RopeSpec(128, 128, Plain(1e6), 32768, 40960)
QWEN_3_YARN = RopeSpec(128, 128, Yarn(1e6, 4.0, 32768), 32768, 131072, attention_factor=1.1386)


@pytest.mark.parametrize(
    ("spec", "published"),
    [
        (LLAMA_2, 1706),  # the first violation of theta 10000 is at 1,707
        (LLAMA_3, None),
        (QWEN_3, 27114),
        (QWEN_3_YARN, 66233),
        (RopeSpec(128, 128, Llama3(5e5, 8.0, 8192), 8192, 131072), 85132),  # Llama 3.1
        (RopeSpec(64, 64, Plain(1e4), 4096, 163840, mla=True), None),
    ],
)
def test_models_as_they_are(spec: RopeSpec, published: int | None) -> None:
    assert effective_length(spec.current(), spec) == published
    assert worse_than_source(spec.current(), spec) == ""


@pytest.mark.parametrize(
    ("spec", "change", "expected"),
    [
        (LLAMA_2, ("yarn", 16.0), ""),  # 1,706 became more
        (QWEN_3, ("yarn", 4.0), ""),  # 27,114 became 66,233
        (QWEN_3, ("theta", 5e5), "the source's is 27,114"),
        (LLAMA_3, ("linear", 16.0), ""),
        (
            LLAMA_3,
            ("theta", 1e4),
            "the effective length is 1,706 of 8,192 tokens; the source's covers 8,192 tokens",
        ),
        (
            LLAMA_3,
            1 << 20,
            "of 1,048,576 tokens; the source's is",
        ),  # which covers its own 8,192 tokens
        # contexts that outgrow the same frequencies
        (
            replace(LLAMA_2, context=1706),
            16384,
            "1,706 of 16,384 tokens; the source's is the same, for 1,706 tokens",
        ),
        (replace(LLAMA_2, context=1707), 16384, ""),
        (replace(LLAMA_2, context=1706), 1707, ""),
    ],
)
def test_only_what_becomes_worse_is_said(
    spec: RopeSpec, change: tuple[str, float] | int, expected: str
) -> None:
    """By a method, or by a context that is declared with the frequencies as they are."""
    declared = replace(spec.current(), context=change) if isinstance(change, int) else None
    sentence = worse_than_source(declared or recipe_of(change[0], change[1]).schedule(spec), spec)
    assert expected in sentence
    assert bool(sentence) == bool(expected)


def test_only_distances_that_a_layer_sees_count() -> None:
    windowed = replace(LLAMA_2, layers=("global", "none"), windows=(1024, None))
    assert windowed.visible(4096) == 1024
    assert effective_length(windowed.current(), windowed) is None
    one_sees_all = replace(windowed, layers=("global", "global"))
    assert effective_length(one_sees_all.current(), one_sees_all) == 1706


# d = 128: relative width of the first window, begin of the first 1 % wide, last violating base
ENUMERATED = {
    1 << 10: (8.6e-3, 6018, 6018.3),
    1 << 11: (5.4e-3, 14470, 22764),
    1 << 12: (7.7e-4, 28629, 58790),
    1 << 13: (8.4e-3, 96422, 394328),
    1 << 14: (3.4e-4, 360420, 1.321e6),
    1 << 15: (1.6e-3, 1.507e6, 3.326e6),
    1 << 16: (5.8e-4, 4.458e6, 1.495e7),
    1 << 17: (7.0e-4, 1.597e7, 4.227e7),
    1 << 18: (3.8e-5, 5.428e7, 2.694e8),
    1 << 19: (4.3e-6, 3.307e8, 1.299e9),
    1 << 20: (4.8e-6, 7.612e8, 3.914e9),
}


@pytest.mark.parametrize("length", ENUMERATED)
def test_windows_of_128_dimensions(length: int) -> None:
    width, wide, last = ENUMERATED[length]
    answer = bound(length, 128, 128)
    assert answer.known_windows
    assert answer.width == pytest.approx(width, rel=2e-2)
    assert answer.first_wide_window is not None
    assert answer.first_wide_window[0] == pytest.approx(wide, rel=3e-4)
    assert answer.last_violating_base == pytest.approx(last, rel=4e-4)


@pytest.mark.parametrize("rotary_dim", sample([64, 80, 96, 128, 256], 1))
def test_every_step_of_the_tables_is_that_of_a_search(rotary_dim: int) -> None:
    head = Sums(rotary_dim)
    through = 1000 if ALL else 50
    steps = {
        "base": base_steps(head, through),
        "wide": wide_steps(head, through),
        "last": last_steps(head, through),
    }
    for kind, searched in steps.items():
        for step in searched:
            known = look_up(kind, rotary_dim, step.length)
            assert known is not None
            assert (known.begin, known.end) == (
                pytest.approx(step.begin, rel=1e-9),
                pytest.approx(step.end, rel=1e-9),
            )


@pytest.mark.parametrize(
    ("length", "rotary_dim"), [(1024, 128), (4096, 128), (8192, 128), (1024, 96)]
)
def test_the_first_wide_window_is_one(length: int, rotary_dim: int) -> None:
    still = (128 - rotary_dim) / 2
    low, high = wide_base(length, rotary_dim, 128)
    assert high / low == pytest.approx(1.01)
    for theta in np.geomspace(low * 1.0001, high * 0.9999, 7):
        assert sums(base_inv_freq(theta, rotary_dim), still, 1, length).min() >= 0
    assert sums(base_inv_freq(low * 0.98, rotary_dim), still, 1, length).min() < 0
    assert bound(length, rotary_dim, 128).first_wide_window[0] == low  # type: ignore[index]


def test_where_every_larger_base_will_do_the_smallest_one_is_the_last_that_violates() -> None:
    """B(2) = 1/2 + cos 2 + cos 2b^(-1/2)."""
    answer = bound(3, 4, 5)
    assert (answer.base, answer.last_violating_base) == (
        pytest.approx((2 / math.acos(-0.5 - math.cos(2))) ** 2),
    ) * 2
    assert answer.window[1] is None


@pytest.mark.parametrize(("rotary_dim", "length"), [(72, 1000), (20, 300)])
def test_a_search_without_tables_is_right_on_both_sides_of_each_answer(
    rotary_dim: int, length: int
) -> None:
    def lowest(base: float) -> float:
        return float(sums(base_inv_freq(base, rotary_dim), 0, 1, length).min())

    answer = bound(length, rotary_dim, rotary_dim)
    begin, end = answer.window
    wide = answer.first_wide_window
    last = answer.last_violating_base
    assert end is not None
    assert wide is not None
    assert wide[1] is not None
    assert last is not None
    for edge, inside in ((begin, 1), (end, -1), (wide[0], 1), (wide[1], -1), (last, 1)):
        assert lowest(edge * (1 + inside * 1e-6)) > 0 > lowest(edge * (1 - inside * 1e-6))
    assert wide[1] / wide[0] > 1.01
    free = [
        *np.geomspace(begin, end, 20)[1:-1],
        *np.geomspace(*wide, 50)[1:-1],
        *np.geomspace(last, 1e9, 200)[1:],
    ]
    assert min(map(lowest, free)) >= 0
