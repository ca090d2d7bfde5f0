"""Recipes as people read them."""

from __future__ import annotations

from ropeconv.receipts.recipe import described, described_settings


def test_a_recipe_is_described_by_its_method_and_what_was_set() -> None:
    """Numbers without needless digits, switches as on and off, lists by their length, names as on the command line."""
    assert described({"method": "linear", "parameters": {"factor": 4.0}}) == "linear: factor 4"
    settings = {"factor": "128k", "beta_fast": 32.0, "truncate": False, "share": 1 / 3}
    found = described_settings({"method": "yarn", "parameters": settings, "keep_short": True, "context": 131072})
    assert found == ("factor 128k, beta-fast 32, truncate off, share 0.333333333333, keep-short on, context 131072")
    assert described_settings({"parameters": {"inv_freq": [1.0, 0.1, 0.01]}}) == "inv-freq of 3 values"


def test_what_a_recipe_does_not_say_is_left_out() -> None:
    assert described({"method": "as-is"}) == "as-is"
    assert described({"parameters": {"base": 5e6}}) == "base 5000000"
    assert described({}) == described_settings({}) == ""
