"""The progress bar: percentage, rate and remaining time, right from the second second on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ropeconv.cli.screen import bar

from ..support.waiting import Clock


def shown(clock: Clock, steps: list[tuple[float, int]]) -> str:
    """The last line of a bar after some steps: seconds that pass, and what is done then."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    with bar("Running", "tokens", console, clock) as (set_total, advance):
        clock.now += 30  # a model is loaded, which does not count
        set_total(1000)
        for seconds, done in steps:
            clock.now += seconds
            advance(done)
        screen.truncate(0)
    return screen.getvalue()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(2, 100)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(1, 10), (1, 90)], ("10%", "50 tokens/s", "0:00:18 left")),
        ([(60, 1)], ("0%", "0.0 tokens/s", "16:39:00 left")),
        ([(2, 500), (2, 500)], ("100%", "250 tokens/s", "0:00:00 left")),
    ],
)
def test_percentage_rate_and_time_from_the_first_step_on(steps: list[tuple[float, int]], said: tuple[str, ...]) -> None:
    text = shown(Clock(), steps)
    assert [words for words in said if words not in text] == []
