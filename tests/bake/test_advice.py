"""Advice: every method that reaches a length, in a stated order, with commands that do what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeconv.bake import advice
from ropeconv.bake.advice import CRITERION, PUBLISHED_ORDER, Advice, FormatAdvice, advise, leaders
from ropeconv.errors import UsageError
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models.open import open_source
from ropeconv.rope.methods.method import REGISTRY

from ..conftest import CONFIGS
from ..support.extent import sample
from ..support.in_process import command

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
LLAMA_3_1 = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"


@pytest.fixture(scope="module")
def found() -> list[Advice]:
    """For Llama 2 at 8 times its context."""
    return advise(open_source(str(LLAMA_2)), 32768)[0]


def test_what_is_known_of_llama_2_at_8_times(found: list[Advice]) -> None:
    by_name = {one.method.name: one for one in found}
    assert by_name.keys() == set(REGISTRY) - {"theta", "longrope", "inv-freq", "dynamic", "as-is"}
    first = {name: one.profile.reach.first_violation for name, one in by_name.items()}
    assert {name: first[name] for name in ("linear", "ntk", "yarn", "theta-for")} == {
        "linear": 13649, "ntk": 5732, "yarn": 8886, "theta-for": 9937,
    }  # fmt: skip
    assert by_name["theta-bound"].profile.reach.count == 0
    assert (by_name["linear"].profile.outside, by_name["ntk"].profile.outside) == (0, 34)
    assert not any(one.works_untuned for one in by_name.values())
    words = {v.runtime: v.status for v in by_name["yarn"].writings["safetensors"].verdicts}
    assert (words["transformers@4.48"], words["vllm@0.33"]) == ("differs", "exact")
    exceptions = "differs: transformers 4.45-4.50; read: lmdeploy TurboMind 0.18; ignored: "
    assert by_name["yarn"].writings["safetensors"].exceptions.startswith(exceptions)
    assert "differs" not in by_name["ntk"].writings["safetensors"].exceptions
    assert "no safetensors weights" in by_name["yarn"].writings["gguf"].reason


MODELS = ["meta-llama--Llama-2-7b-hf", "Qwen--Qwen2.5-7B-Instruct", "google--gemma-7b"]


@pytest.mark.parametrize(("factor", "first"), [(4, "yarn"), (8, "yarn")])
@pytest.mark.parametrize("name", sample(MODELS, 1))
def test_what_to_try_first(name: str, factor: int, first: str) -> None:
    source = open_source(str(CONFIGS / f"{name}.json"))
    spec = inspect_source(source).spec
    assert advise(source, factor * spec.original_context)[0][0].method.name == first


# The order, from numbers made for the test


def one(name: str, value: Any = 4.0, untuned: bool = True, **numbers: Any) -> Advice:
    """Advice of a method. numbers: outside, fast_change, and the first position that violates the bound."""
    given = {"outside": 0, "fast_change": 1.0, "first": None, **numbers}
    first = given.pop("first")
    reach = SimpleNamespace(first_violation=first, effective_length=None if first is None else first - 1)
    profile: Any = SimpleNamespace(reach=reach, to_dict=lambda: {"outside": given["outside"]}, **given)
    schedule: Any = SimpleNamespace(context=4096, attention_factor=1.1)
    return Advice(
        REGISTRY[name](value), schedule, profile, untuned, {"gguf": FormatAdvice("", (), "no")}, "ropeconv apply"
    )


def order(*found: Advice) -> list[str]:
    return [item.method.name for item in sorted(found, key=lambda item: item.rank)]


def test_what_works_untuned_comes_first_in_the_published_order() -> None:
    assert "without fine-tuning" in CRITERION
    names = [*reversed(PUBLISHED_ORDER), "linear"]
    assert order(*(one(name) for name in names)) == [*PUBLISHED_ORDER, "linear"]
    assert order(one("linear"), one("yarn", untuned=False)) == ["linear", "yarn"]
    assert order(one("linear", untuned=False), one("yarn", untuned=False)) == ["yarn", "linear"]


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
    assert leaders([one("linear", first=10)])[1] == "Longest effective length: all (9 of 4,096 tokens)."
    assert leaders([]) == []


# Commands


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four methods, for which no bound is searched and nothing is counted."""
    monkeypatch.setattr(advice, "profile", lambda schedule, start: one("yarn").profile)
    monkeypatch.setattr(advice, "REGISTRY", {name: REGISTRY[name] for name in ("theta", "linear", "yarn", "ntk")})


@pytest.mark.parametrize("context", [1, 4096])
def test_a_length_within_the_trained_one_needs_nothing(quick: None, context: int) -> None:
    words = f"--context {context} is within the trained 4096 tokens; give a longer one"
    with pytest.raises(UsageError, match=words):
        advise(open_source(str(LLAMA_2)), context)
    found, passed = advise(open_source(str(LLAMA_2)), 4097)
    assert ({item.method.name for item in found}, passed) == ({"linear", "yarn", "ntk"}, {})


def test_commands_do_what_was_advised(llama: Path) -> None:
    """Each command, typed with --dry-run, plans the schedule that the advice was about."""
    said = json.loads(command(llama.parent, "advise", llama, "--context", "1k", "--json", code=0).stdout)
    assert said["sorted_by"] == CRITERION
    assert len(said["advice"]) > 8
    for item in sample(said["advice"], 2):
        words = shlex.split(item["command"])
        assert words[:2] == ["ropeconv", "apply"]
        plan = json.loads(command(llama.parent, *words[1:], "--dry-run", "--json", code=0).stdout)
        assert plan["schedule"]["context"] == 1024
        assert plan["schedule"]["attention_factor"] == item["attention_factor"]
        runtimes = {row["runtime"]: row["status"] for row in plan["runtimes"]}
        assert runtimes == {row["runtime"]: row["status"] for row in item["outputs"]["safetensors"]["runtimes"]}
        planned = command(llama.parent, *words[1:], "--to", "gguf", "--dry-run", "--json")
        assert (planned.returncode == 0) == (item["outputs"]["gguf"]["reason"] is None), planned.stderr
