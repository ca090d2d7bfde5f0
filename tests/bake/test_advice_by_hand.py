"""Advice from numbers made for the test: its order, its data, its commands, and whom it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.bake import advice
from ropeconv.bake.advice import PUBLISHED_ORDER, Advice, Writing, advise, leaders
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.sources import GgufSource, open_source

from ..conftest import CONFIGS
from ..support.baking import apply, make_plan
from ..support.gguf_files import write

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
LLAMA_3_1 = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"


def one(name: str, value: Any = 4.0, untuned: bool = True, **numbers: Any) -> Advice:
    given = {"outside": 0, "fast_change": 1.0, "first": None, **numbers}
    first = given.pop("first")
    reach = SimpleNamespace(first_violation=first, effective_length=None if first is None else first - 1)
    profile: Any = SimpleNamespace(reach=reach, to_dict=lambda: {"outside": given["outside"]}, **given)
    schedule: Any = SimpleNamespace(context=4096, attention_factor=1.1)
    writings = {"gguf": Writing("", (), "no")}
    return Advice(REGISTRY[name](value), schedule, profile, untuned, writings, "ropeconv apply m --x")


def order(*found: Advice) -> list[str]:
    return [item.method.name for item in sorted(found, key=lambda item: item.rank)]


# The order


def test_what_works_untuned_comes_first_in_the_published_order() -> None:
    names = [*reversed(PUBLISHED_ORDER), "linear"]
    assert order(*(one(name) for name in names)) == [*PUBLISHED_ORDER, "linear"]
    assert order(one("linear"), one("yarn", untuned=False)) == ["linear", "yarn"]
    assert order(one("yarn", untuned=False), one("linear", untuned=False)) == ["linear", "yarn"]  # by name alone


def test_the_numbers_decide_among_the_others_one_after_the_other() -> None:
    def pair(better: dict[str, Any], worse: dict[str, Any]) -> list[str]:
        return order(one("yarn", untuned=False, **better), one("by-parts", untuned=False, **worse))

    assert pair({}, {}) == ["by-parts", "yarn"]
    assert pair({"outside": 2}, {"outside": 4}) == ["yarn", "by-parts"]
    assert pair({"first": 4000}, {"first": 3999}) == ["yarn", "by-parts"]
    assert pair({}, {"first": 4096}) == ["yarn", "by-parts"]
    assert pair({}, {"first": 4097}) == ["by-parts", "yarn"]  # both cover the context
    assert pair({"fast_change": 2.0}, {"fast_change": 2.5}) == ["yarn", "by-parts"]
    assert pair({"outside": 2, "first": 10}, {"outside": 4}) == ["yarn", "by-parts"]
    assert pair({"first": 4000, "fast_change": 9.0}, {"first": 3000}) == ["yarn", "by-parts"]


def test_the_best_in_each_number() -> None:
    found = [
        one("yarn", outside=4, first=5000, fast_change=1.5), one("linear", outside=2, first=3001, fast_change=4.0),
        one("ntk", outside=2, first=3000, fast_change=1.5 * (1 + 1e-12)),
    ]  # fmt: skip
    assert leaders(found) == [
        "Fewest dimensions outside the trained angles: --linear 4, --ntk 4 (2).",
        "Longest effective length: --yarn 4 (4,096 of 4,096 tokens).",
        "Smallest change of the pairs that complete a period in the trained length: --yarn 4, --ntk 4 "
        "(by at most 1.5).",
    ]
    assert leaders(found[:1])[0] == "Fewest dimensions outside the trained angles: all (4)."
    everything = [one("yarn"), one("linear", first=10)]
    assert leaders(everything)[1] == "Longest effective length: --yarn 4 (4,096 of 4,096 tokens)."
    assert leaders(everything[1:])[1] == "Longest effective length: all (9 of 4,096 tokens)."


def test_advice_as_data() -> None:
    found = replace(one("yarn", outside=6), command="ropeconv apply m --yarn 4")
    assert found.to_dict() == {
        "method": "yarn",
        "recipe": {
            "method": "yarn", "context": 4096,
            "parameters": {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
        },
        "command": "ropeconv apply m --yarn 4",
        "context": 4096,
        "attention_factor": 1.1,
        "outside": 6,
        "works_untuned": True,
        "finetuning_note": REGISTRY["yarn"].finetuning_note,
        "outputs": {"gguf": {"encoding": None, "runtimes": [], "reason": "no"}},
    }  # fmt: skip


# Which methods, and how they are typed


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound is searched for, and nothing is counted."""
    monkeypatch.setattr(advice, "profile", lambda schedule, start: one("yarn").profile)
    monkeypatch.setattr(advice, "REGISTRY", {name: REGISTRY[name] for name in ("theta", "linear", "yarn", "ntk")})


def test_a_length_within_the_trained_one_needs_nothing(quick: None) -> None:
    source = open_source(str(LLAMA_2))
    for context in (1, 4096):
        with pytest.raises(
            UsageError, match=f"--context {context} is within the trained 4096 tokens; give a longer one"
        ):
            advise(source, context)
    found, passed = advise(source, 4097)
    assert ({item.method.name for item in found}, passed) == ({"linear", "yarn", "ntk"}, {})


def test_a_factor_works_untuned_up_to_what_is_reported(quick: None) -> None:
    source = open_source(str(LLAMA_2))
    for context, works in ((16384, {"ntk"}), (16385, set())):
        found = {item.method.name: item.works_untuned for item in advise(source, context)[0]}
        assert {name for name, untuned in found.items() if untuned} - {"yarn"} == works
        assert not found["linear"]


def commands(path: Path, context: int) -> dict[str, str]:
    return {item.method.name: item.command for item in advise(open_source(str(path)), context)[0]}


def test_commands_name_the_context_where_the_factor_does_not_give_it(quick: None) -> None:
    assert commands(LLAMA_2, 16384)["linear"] == f"ropeconv apply {LLAMA_2} --linear 4"
    assert commands(LLAMA_2, 10000)["linear"] == f"ropeconv apply {LLAMA_2} --linear 2.44140625"
    # Llama 3.1 was trained for 8,192 tokens and declares 131,072
    assert commands(LLAMA_3_1, 1 << 18)["linear"] == f"ropeconv apply {LLAMA_3_1} --linear 32 --replace"
    assert commands(LLAMA_3_1, 1 << 17)["linear"] == f"ropeconv apply {LLAMA_3_1} --linear 16 --replace"
    assert commands(LLAMA_3_1, 1 << 16)["linear"] == f"ropeconv apply {LLAMA_3_1} --linear 8 --context 65536 --replace"


def test_an_output_of_ropeconv_is_replaced_though_no_scaling_is_left_in_it(quick: None, tmp_path: Path) -> None:
    """ntk leaves another base alone."""
    source = write(tmp_path / "model.gguf")
    baked = apply(make_plan(source, Recipe(REGISTRY["ntk"](2.0)), tmp_path / "baked.gguf"))
    assert commands(baked, 256)["yarn"] == f"ropeconv apply {baked} --yarn 4 --replace"
    assert commands(source, 256)["yarn"] == f"ropeconv apply {source} --yarn 4"


def test_what_no_format_holds_is_judged_by_its_own_schedule(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def refuses(source: Any, recipe: Any, target: Any) -> Any:
        asked.append((target.to, target.replace))
        raise RopeconvError(f"no {target.to}")

    monkeypatch.setattr(advice, "make_plan", refuses)
    (found,) = [item for item in advise(open_source(str(LLAMA_2)), 16384)[0] if item.method.name == "yarn"]
    assert {name: item.reason for name, item in found.writings.items()} == {
        "safetensors": "no safetensors", "gguf": "no gguf",
    }  # fmt: skip
    assert found.schedule.context == 16384
    assert set(asked) == {("safetensors", True), ("gguf", True)}
    asked.clear()
    source = GgufSource(write(tmp_path / "model.gguf"))
    assert [set(item.writings) for item in advise(source, 256)[0]] == [{"gguf"}] * 3
    assert set(asked) == {("gguf", True)}
