"""Advice: every method that reaches a length, in a stated order, with commands that do what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ropeconv.bake.advice import CRITERION, PUBLISHED_ORDER, advise, leaders
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY
from ropeconv.sources import open_source

from ..conftest import CONFIGS, Run

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"


@pytest.fixture(scope="module")
def found() -> list:
    return advise(open_source(str(LLAMA_2)), 32768)[0]


def test_every_method_that_reaches_a_length_is_there(found: list) -> None:
    spec = open_source(str(LLAMA_2))
    assert spec is not None
    names = {one.method.name for one in found}
    assert names == set(REGISTRY) - {"theta", "longrope", "inv-freq", "dynamic", "as-is"}


def test_what_is_known_of_llama_2_at_8_times(found: list) -> None:
    by_name = {one.method.name: one for one in found}
    first = {name: one.profile.reach.first_violation for name, one in by_name.items()}
    assert {name: first[name] for name in ("linear", "ntk", "yarn", "theta-for")} == {
        "linear": 13649, "ntk": 5732, "yarn": 8886, "theta-for": 9937,
    }  # fmt: skip
    assert by_name["theta-bound"].profile.reach.count == 0
    assert by_name["linear"].profile.outside == 0
    assert by_name["ntk"].profile.outside == 34
    assert [name for name, one in by_name.items() if one.works_untuned] == ["mixed", "ntk-fixed"]
    words = {v.runtime: v.status for v in by_name["yarn"].writings["safetensors"].verdicts}
    assert words["transformers@4.48"] == "differs"
    assert words["vllm@0.33"] == "exact"
    exceptions = "differs: transformers 4.45-4.50; read: lmdeploy TurboMind 0.18; ignored: "
    assert by_name["yarn"].writings["safetensors"].exceptions.startswith(exceptions)
    assert "differs" not in by_name["ntk"].writings["safetensors"].exceptions
    assert "no safetensors weights" in by_name["yarn"].writings["gguf"].reason


@pytest.mark.parametrize(("factor", "first"), [(4, "yarn"), (8, "mixed")])
@pytest.mark.parametrize("name", ["meta-llama--Llama-2-7b-hf", "Qwen--Qwen2.5-7B-Instruct", "google--gemma-7b"])
def test_what_to_try_first_is_what_the_readme_says(name: str, factor: int, first: str) -> None:
    source = open_source(str(CONFIGS / f"{name}.json"))
    spec = inspect_source(source).spec
    assert advise(source, factor * spec.original_context)[0][0].method.name == first
    readme = " ".join((CONFIGS.parents[2] / "README.md").read_text().split())
    assert f"up to {factor} times the trained context, `--{first} S`**" in readme


def test_the_order_is_the_stated_one(found: list) -> None:
    assert "without fine-tuning" in CRITERION
    keys = [
        (
            not one.works_untuned,
            PUBLISHED_ORDER.index(one.method.name) if one.works_untuned else 0,
            one.profile.outside,
            -min(one.profile.reach.effective_length or 32768, 32768),
            one.profile.fast_change,
        )
        for one in found
    ]
    assert keys == sorted(keys)


def test_each_question_has_its_own_answer(found: list) -> None:
    angles, length, change = leaders(found)
    assert angles.startswith("Fewest dimensions outside the trained angles: --theta-bound 32768, --linear 8")
    assert length == "Longest effective length: --theta-bound 32768 (32,768 of 32,768 tokens)."
    assert "--ntk-old 8 (by at most 4.32)" in change


def test_commands_do_what_was_advised(run: Run, llama: Path) -> None:
    """Each command, typed with --dry-run, plans the schedule that the advice was about."""
    said = json.loads(run("advise", llama, "--context", "1k", "--json").stdout)
    assert said["sorted_by"] == CRITERION
    assert len(said["advice"]) > 8
    for one in said["advice"]:
        command = shlex.split(one["command"])
        assert command[:2] == ["ropeconv", "apply"]
        plan = json.loads(run(*command[1:], "--dry-run", "--json").stdout)
        assert plan["schedule"]["context"] == 1024
        assert plan["schedule"]["attention_factor"] == one["attention_factor"]
        runtimes = {row["runtime"]: row["status"] for row in plan["runtimes"]}
        assert runtimes == {row["runtime"]: row["status"] for row in one["outputs"]["safetensors"]["runtimes"]}
        gguf = one["outputs"]["gguf"]
        planned = run(*command[1:], "--to", "gguf", "--dry-run", "--json")
        assert (planned.returncode == 0) == (gguf["reason"] is None), planned.stderr


def test_sentences_name_their_criterion_and_never_a_best(run: Run, llama: Path) -> None:
    said = run("advise", llama, "--context", "512").stdout
    assert "Sorted by: " in said
    assert "ropeconv apply" in said
    assert " best " not in said.lower()


def test_scaled_models_start_from_their_unscaled_rope() -> None:
    source = open_source(str(CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"))
    found, _ = advise(source, 1 << 18)
    assert all(one.command.endswith(" --replace") for one in found)
    assert next(one for one in found if one.method.name == "llama3").method.command == "--llama3 32"


def test_attention_factors_are_those_of_the_plans() -> None:
    """DeepSeek V3 was trained with mscale = mscale_all_dim = 1, so that YaRN leaves its cos and sin alone."""
    found, _ = advise(open_source(str(CONFIGS / "deepseek-ai--DeepSeek-V3.json")), 1 << 18)
    assert next(one for one in found if one.method.name == "yarn").schedule.attention_factor == 1


def test_no_search_of_minutes_is_begun() -> None:
    source = open_source(str(CONFIGS / "Qwen--Qwen2.5-7B-Instruct-1M.json"))
    found, passed = advise(source, 1 << 22)
    assert "takes minutes at 4194304 tokens" in passed["theta-bound"]
    assert len(found) > 8


def test_what_a_method_cannot_do_is_said() -> None:
    """Where less than half of the head rotates, there is no bound to meet."""
    source = open_source(str(CONFIGS / "EleutherAI--pythia-14m.json"))
    found, passed = advise(source, 8192)
    assert passed == {"theta-bound": "--theta-bound: theta 10000 keeps the bound up to 8192 tokens already"}
    assert all(one.profile.reach.automatic for one in found)
