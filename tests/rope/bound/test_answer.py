"""What the bound says besides a base: as data, what is published, and what it does not compute."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import pytest

from ropeconv.rope.bound import answer, bound, reach, smallest_base, wide_base
from ropeconv.rope.bound.answer import is_quick
from ropeconv.rope.bound.smallest import exp, smallest_log_base, up
from ropeconv.rope.bound.sums import Sums
from ropeconv.rope.bound.table import DATA, farthest, look_up
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import base_inv_freq

PUBLISHED = {source: row["4096"] for source, row in json.loads((DATA / "published.json").read_text()).items()}


def test_a_bound_as_data() -> None:
    found = bound(4096, 128, 128)
    data = json.loads(json.dumps(found.to_dict()))
    assert data == {
        "length": 4096,
        "rotary_dim": 128,
        "head_dim": 128,
        "base": pytest.approx(26952.339227857868),
        "binding_distance": 4012,
        "window": [found.base, found.base * (1 + (found.width or 0))],
        "first_wide_window": list(found.first_wide_window or ()),
        "last_violating_base": pytest.approx(58790, rel=1e-3),
        "known_windows": True,
        "asymptotic": pytest.approx(4096 / 0.6165, rel=1e-4),
        "published": PUBLISHED,
    }
    assert len(PUBLISHED) == 2
    assert data["first_wide_window"][0] == pytest.approx(28629, rel=1e-3)
    assert bound(4096, 64, 64).published == {}
    assert bound(4096, 96, 128).to_dict()["published"] == {}
    assert bound(4097, 128, 128).published == {}


def test_heads_that_rotate_half_as_data() -> None:
    found = bound(4096, 64, 128)
    assert (found.window, found.width, found.first_wide_window) == ((1.0, None), None, (1.0, None))
    assert found.to_dict()["window"] == [1.0, None]
    assert found.known_windows


def test_windows_that_nobody_asked_for_are_said_to_be_unknown() -> None:
    """No table has heads of 72 dimensions."""
    without, reported = bound(300, 72, 72, windows=False), list[str]()
    assert (without.first_wide_window, without.last_violating_base, without.known_windows) == (None, None, False)
    assert without.to_dict()["first_wide_window"] is None
    for windows in (None, True):
        found = bound(300, 72, 72, windows, tell=reported.append)
        assert found.known_windows
        assert found.first_wide_window is not None
        assert found.base == without.base
        assert found.base * (1 - 1e-12) <= found.first_wide_window[0] < (found.last_violating_base or 0)
    assert reported[0].startswith("ruled out: all bases up to ")
    assert "looking for the first window that is 1 % wide" in reported
    assert any(one.startswith("proven: no base above ") for one in reported)


def test_long_lengths_are_not_searched_for_windows_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(answer, "smallest_log_base", lambda *given: (Decimal(9), 100))
    monkeypatch.setattr(answer, "window_end", lambda *given: 10.0)
    monkeypatch.setattr(answer, "wide_windows", lambda sums, n, at: asked.append(("wide", n)) or iter([(10.0, 11.0)]))
    monkeypatch.setattr(answer, "last_violating", lambda sums, n, tell: asked.append(("last", n)) or (12.0, 3))
    for length in (1 << 17, (1 << 17) + 1, 1 << 20, (1 << 20) + 1):
        bound(length, 72, 72)
    assert asked == [("wide", 1 << 17), ("last", 1 << 17), ("wide", (1 << 17) + 1), ("wide", 1 << 20)]
    asked.clear()
    bound((1 << 20) + 1, 72, 72, windows=True)
    assert asked == [("wide", (1 << 20) + 1), ("last", (1 << 20) + 1)]


def test_a_proof_is_computed_where_the_tables_have_the_base() -> None:
    proof: list[tuple[float, float, int]] = []
    assert bound(500, 128, 128, windows=False, proof=proof).base == bound(500, 128, 128, windows=False).base
    assert proof[0][0] == 0
    assert math.exp(proof[-1][1]) == pytest.approx(bound(500, 128, 128).base)


@pytest.mark.parametrize("length", [1, 2])
def test_two_tokens_have_no_binding_distance_by_the_search_either(length: int) -> None:
    assert smallest_log_base(Sums(72), length) == (Decimal(0), None)
    found = bound(length, 72, 72)
    assert (found.base, found.binding_distance, found.window) == (1.0, None, (1.0, None))


def test_what_the_tables_know_at_once() -> None:
    assert smallest_base(4096, 128, 128) == pytest.approx(26952.339227857868)
    assert smallest_base(4096, 96, 128) is None
    assert smallest_base(4096, 72, 72) is None
    assert smallest_base(1, 128, 128) == 1.0
    assert farthest(72) == (1, 1.0)
    through, base = farthest(128)
    assert look_up("base", 128, through + 1) is None
    assert look_up("base", 128, through) is not None
    assert base == smallest_base(through, 128, 128)


def test_which_searches_are_quick() -> None:
    assert is_quick(1 << 18, 72, 72)
    assert not is_quick((1 << 18) + 1, 72, 72)
    assert is_quick((1 << 18) + 1, 128, 128)
    assert not is_quick((1 << 18) + 1, 96, 128)


def test_a_single_pair_has_no_base() -> None:
    assert list(base_inv_freq(1e9, 2)) == [1.0]
    for ask in (bound, wide_base):
        with pytest.raises(RecipeError, match="a single pair has the frequency 1 at every base"):
            ask(256, 2, 2)


def test_lengths_beyond_what_is_computed() -> None:
    far = (1 << 27) + 1
    for ask in (bound, wide_base):
        with pytest.raises(RecipeError, match="computed up to 134217728 tokens, and 134217729 is more"):
            ask(far, 64, 64)

    assert bound(far - 1, 64, 128).base == 1.0
    with pytest.raises(RecipeError, match="looked at up to 134217728 tokens, and 134217729 is more"):
        reach(base_inv_freq(1e4, 64), 0.0, far)


def test_a_reach_as_data() -> None:
    found = reach(base_inv_freq(1e4, 128), 0.0, 1720)
    places = [list(place) for place in found.places]
    assert json.loads(json.dumps(found.to_dict())) == {
        "effective_length": 1706,
        "first_violation": 1707,
        "searched": 1720,
        "automatic": False,
        "violations": {"below": 1720, "count": found.count, "runs": len(places), "places": places},
    }
    assert places[0][0] == 1707
    none = reach(base_inv_freq(1e4, 32), 16.0, 100)
    assert none.to_dict()["effective_length"] is None
    assert none.to_dict()["automatic"] is True


def test_rounding_of_bases() -> None:
    assert up(Decimal(4)) == 4.0
    assert up(Decimal("0.1")) == 0.1  # the float64 next to 0.1 is above it
    assert up(Decimal("0.3")) == math.nextafter(0.3, 1)  # and that next to 0.3 is below
    assert exp(2.0) == math.exp(2.0)
    assert exp(699.0) == math.exp(699)
    assert exp(700.0) == math.inf
