"""Lengths as users write them."""

from __future__ import annotations

import pytest

from ropeconv.errors import RopeconvError
from ropeconv.evaluate.asked import Asked, in_trained, parse_lengths


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("1/4T,1T,2T", (1024, 4096, 8192)), ("8k, 32k", (8192, 32768)), ("2T,8k,1T", (4096, 8192)), ("T", (4096,)),
        ("1.5T", (6144,)), ("3/4T", (3072,)), ("100", (100,)),
    ],
)  # fmt: skip
def test_lengths_are_sorted_and_each_once(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text, 4096) == lengths


@pytest.mark.parametrize("text", ["", "0T", "1/0T", "xT", "-1T", "1e400T", "8q", "1/9999T"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(RopeconvError):
        parse_lengths(text, 4096)


def test_lengths_beside_the_trained_context() -> None:
    assert [in_trained(n, 4096) for n in (1024, 4096, 16384, 6144, 3000)] == ["1/4T", "1T", "4T", "6k", "3000"]


@pytest.mark.parametrize("name", ["windows", "targets", "depths", "stride"])
def test_sizes_are_positive(name: str) -> None:
    with pytest.raises(RopeconvError, match=f"--{name} is 0"):
        Asked((64,), 64, **{name: 0})


@pytest.mark.parametrize("seed", [-1, 1 << 31])
def test_seeds_are_those_that_numpy_takes(seed: int) -> None:
    with pytest.raises(RopeconvError, match=f"--seed is {seed}; give a number from 0"):
        Asked((64,), 64, seed=seed)
