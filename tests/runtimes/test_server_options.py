"""A server option is part of an encoding: where only that makes an output exact, the verdict, the
commands, the receipt and the card say so.

vLLM's own gpt-oss fails on every rope type but YaRN, and computes the class of transformers with
`--model-impl transformers`. That was compared on logits too: tests/engines/test_server_options.py.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.next_steps import run_commands
from ropeconv.bake.overrides import override_commands, with_overrides
from ropeconv.bake.plan import Plan
from ropeconv.errors import UnsupportedBake
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.config import detect
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.evidence import executed_models
from ropeconv.runtimes.runtime import Runtime, find, newest
from ropeconv.runtimes.verdict import PlannedConfig, Verdict, judge, judge_row, judge_with_option
from scripts.pages.engine_tables import configs

from ..support.baking import LINEAR, NTK, YARN, apply, inspected, make_plan, recipe_of
from ..support.models import make

WORDS = "--model-impl transformers"
BOTH = ("transformers", "vllm")


def published(tmp_path: Path, name: str) -> Path:
    """A published config."""
    (tmp_path / "config.json").write_text(json.dumps(configs()[name]))
    return tmp_path / "config.json"


def planned_ntk(tmp_path: Path, row: Runtime, **changes: Any) -> tuple[PlannedConfig, Verdict]:
    """A gpt-oss extended by a new base, and the verdict of a row without options."""
    source = make("gpt_oss", tmp_path / "source")
    plan = make_plan(source, NTK, tmp_path / "out")
    assert isinstance(plan, CheckpointPlan)
    config = {**plan.result.config, **changes}
    family = detect(config)
    planned = PlannedConfig(config, family, plan.schedule, plan.source_spec)
    return planned, judge(config, family, plan.schedule, plan.source_spec, row)


def last(plan: Plan, name: str) -> Verdict:
    """The verdict that counts for a runtime."""
    return [v for v in plan.result.verdicts if v.runtime.partition("@")[0] == name][-1]


def test_the_verdict_is_of_the_config_with_the_option(tmp_path: Path) -> None:
    source = make("gpt_oss", tmp_path / "source")
    plan = make_plan(source, NTK, tmp_path / "out", runtimes=BOTH)
    verdict = last(plan, "vllm")
    assert (verdict.status, verdict.options, verdict.grade) == ("exact", WORDS, "run")
    assert verdict.display_name == f"vLLM 0.33 with {WORDS}"
    assert verdict.to_dict()["options"] == WORDS
    assert verdict.reason.startswith("without the option, ")
    assert WORDS not in verdict.reason  # the name has it already

    # the controls: the version before was not run with it, and transformers needs none
    before = [v for v in plan.result.verdicts if v.runtime.startswith("vllm@")][-2]
    assert (before.status, before.options) == ("refused", "")
    assert last(plan, "transformers").options == ""


def test_an_encoding_that_needs_no_option_comes_first(tmp_path: Path) -> None:
    source = make("gpt_oss", tmp_path / "source")
    plan = make_plan(source, YARN, tmp_path / "out", runtimes=BOTH)
    assert last(plan, "vllm").status == "exact"
    assert last(plan, "vllm").options == ""


def test_what_was_not_run_is_not_offered(tmp_path: Path) -> None:
    row = newest("vllm")
    option = row.options[0]
    planned, without = planned_ntk(tmp_path, row)
    assert without.status == "refused"
    offered = judge_with_option(planned, row, option, without)
    assert offered is not None
    assert offered.status == "exact"

    # weights of mxfp4, a key that the option does not go with, and an option that nobody ran
    quantised, _ = planned_ntk(tmp_path, row, quantization_config={"quant_method": "mxfp4"})
    assert judge_with_option(quantised, row, option, without) is None
    for changed in ({"without": ("sliding_window",)}, {"words": "--model-impl other"}):
        other = type(option)(**{**_fields(option), **changed})
        assert judge_with_option(planned, row, other, without) is None
    assert executed_models("vllm", "gpt_oss", "--model-impl other").get("0.33.0") in (None, ())


def _fields(option: Any) -> dict[str, Any]:
    return {name: getattr(option, name) for name in option.__struct_fields__}


def test_two_lists_are_not_offered(tmp_path: Path) -> None:
    """transformers chooses between them by the length of a pass, and servers cut prompts."""
    row = newest("vllm")
    option = row.options[0]
    source = make("gpt_oss", tmp_path / "source")
    pairs = inspected(source).spec.rotary_dim // 2
    long = tuple(1.0 + pair for pair in range(pairs))

    # with two equal lists it is offered
    for short, is_offered in ((long, True), ((1.0,) * pairs, False)):
        recipe = recipe_of("longrope", long, short, context=1024, attention_factor=1.0)
        plan = make_plan(source, recipe, tmp_path / "out", encoding="native")
        assert isinstance(plan, CheckpointPlan)
        planned = PlannedConfig(
            plan.result.config, plan.result.family, plan.schedule, plan.source_spec
        )
        assert planned.verdict(newest("transformers")).status == "exact"
        without = judge_row(planned, row)
        found = judge_with_option(planned, row, option, without)
        assert (found is not None) == is_offered


def test_sglang_drops_the_soft_cap_of_gemma_2_with_the_option(tmp_path: Path) -> None:
    """sglang/srt/models/transformers.py gives its attention no logit_cap (0.5.23)."""
    gemma = published(tmp_path, "google--gemma-2-9b")
    with pytest.raises(UnsupportedBake):
        make_plan(gemma, LINEAR, tmp_path / "out", runtimes=("sglang",), encoding="native")
    mixtral = published(tmp_path, "mistralai--Mixtral-8x7B-v0.1")
    plan = make_plan(mixtral, LINEAR, tmp_path / "out", runtimes=("sglang",))
    assert last(plan, "sglang").options == WORDS


def test_an_older_version_does_not_inherit_the_option() -> None:
    rows = [row for row in find("vllm") if row.options]
    assert [row.key for row in rows] == [newest("vllm").key]


VISION = "Qwen--Qwen3-VL-8B-Instruct"
OLDER_VISION = "Qwen--Qwen2.5-VL-7B-Instruct"
LLAMA3 = recipe_of("llama3", 4.0)


def test_the_settings_of_a_probe_are_those_of_the_command_line() -> None:
    by_words = {option.words: option.settings for option in newest("vllm").options}
    assert by_words[WORDS] == {"model-impl": "transformers"}
    text = next(words for words in by_words if words.startswith("--language-model-only"))
    assert by_words[text] == {
        "language-model-only": True,
        "hf-overrides": {"text_config": {"rope_parameters": {"mrope_section": None}}},
    }


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("vllm", "--language-model-only --hf-overrides "),
        ("sglang", WORDS),  # the class of transformers has M-RoPE for every type, so with images
    ],
)
def test_a_vision_model_is_computed_with_an_option(tmp_path: Path, server: str, words: str) -> None:
    """vLLM and SGLang have a class for M-RoPE with the types default and yarn only."""
    model = published(tmp_path, VISION)
    verdict = last(make_plan(model, LLAMA3, tmp_path / "out", runtimes=(server,)), server)
    assert (verdict.status, verdict.grade) == ("exact", "run")
    assert verdict.options.startswith(words)
    assert ("refuses images" in verdict.reason) == (server == "vllm")

    # the control: YaRN has a class, and needs no option
    plain = last(make_plan(model, YARN, tmp_path / "plain", runtimes=(server,)), server)
    assert (plain.status, plain.options) == ("exact", "")


def test_sglang_serves_the_text_of_qwen3_5(tmp_path: Path) -> None:
    """Its backend for classes of transformers refuses this one: _supports_attention_backend."""
    model = published(tmp_path, "Qwen--Qwen3.5-27B")
    verdict = last(make_plan(model, LLAMA3, tmp_path / "out", runtimes=("sglang",)), "sglang")
    assert (verdict.status, verdict.grade) == ("exact", "run")
    assert verdict.options.startswith("--json-model-override-args ")


def test_four_times_the_rotations_undo_four_times_the_trained_length(tmp_path: Path) -> None:
    model = published(tmp_path, OLDER_VISION)
    verdict = last(make_plan(model, YARN, tmp_path / "out", runtimes=("vllm",)), "vllm")
    assert verdict.status == "exact"
    assert '"beta_fast": 128.0' in verdict.options

    # the control: with other rotations than the usual ones, it is another ramp
    other = Recipe(REGISTRY["yarn"](4.0, beta_fast=16.0))  # type: ignore[call-arg]
    with pytest.raises(UnsupportedBake):
        make_plan(model, other, tmp_path / "other", runtimes=("vllm",), encoding="native")


def test_overrides_and_an_option_with_overrides_are_one() -> None:
    option = ' --language-model-only --hf-overrides \'{"a": {"b": null}}\''
    both = with_overrides(option, "--hf-overrides", '{"a": {"c": 1}, "d": 2}')
    words = shlex.split(both)
    assert words[:2] == ["--language-model-only", "--hf-overrides"]
    assert json.loads(words[2]) == {"a": {"c": 1, "b": None}, "d": 2}
    assert with_overrides(" --x y", "--hf-overrides", "{}") == " --x y --hf-overrides '{}'"


def test_commands_receipt_and_card_carry_the_option(tmp_path: Path) -> None:
    source = make("gpt_oss", tmp_path / "source")
    out = tmp_path / "out"
    plan = make_plan(source, LINEAR, out, runtimes=BOTH)
    plan = replace(plan, target=replace(plan.target, runtimes=("vllm",)))
    (command,) = run_commands(plan, out)
    assert command.startswith(f"vllm serve {out} --max-model-len ")
    assert command.endswith(f" {WORDS}")
    assert override_commands(plan, "{}")[0].endswith(f"{WORDS} --hf-overrides '{{}}'")

    apply(plan)
    receipt = read_receipt(out)
    assert receipt is not None
    rows = [row for row in receipt.runtimes if row.runtime.startswith("vllm@")]
    assert rows[-1].options == WORDS
    assert {row.options for row in rows[:-1]} == {""}
    card = (out / "README.md").read_text()
    assert WORDS in card.partition("## How to run it")[2].partition("## Runtime support")[0]

    # the control: YaRN needs no option, and nothing speaks of one
    plain = make_plan(source, YARN, tmp_path / "plain", runtimes=BOTH)
    assert WORDS not in "".join(run_commands(plain, tmp_path / "plain"))
