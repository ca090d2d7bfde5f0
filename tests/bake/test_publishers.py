"""The first line of `advise` beside the methods that publishers of models chose."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.bake.evidence import evidence, study_for
from scripts.pages.publishers import (
    PublishedModel,
    choice_sentence,
    first_choice,
    published_config,
    read_choices,
    read_models,
    read_reasons,
    without_scaling,
)

from ..conftest import CONFIGS
from ..support.extent import sample
from ..support.in_process import command

MODELS = read_models()
CHOICES = {choice.model: choice for choice in read_choices()}
MORE = CONFIGS.parent / "more_configs"


def scaling_of(config: dict[str, Any]) -> dict[str, Any]:
    """The scaling in a config, wherever the publisher wrote it."""
    part = config.get("text_config", config)
    scaling = part.get("rope_scaling") or part.get("rope_parameters") or config["rope_scaling"]
    return dict(scaling.get("full_attention", scaling))


def test_forty_models_of_which_none_is_there_twice() -> None:
    assert len({one.model for one in MODELS}) == len(MODELS) >= 40
    assert set(CHOICES) == {one.model for one in MODELS}


@pytest.mark.parametrize(
    "published", [one for one in MODELS if "config" in one.source], ids=lambda one: one.model
)
def test_a_method_is_that_of_the_config(published: PublishedModel) -> None:
    """Read with json, and not by ropeconv."""
    name, _, factor = published.method.partition(" ")
    scaling = scaling_of(published_config(published.model))
    assert (scaling.get("rope_type") or scaling["type"]) == name
    if factor:
        assert scaling["factor"] == float(factor)
    if "original_max_position_embeddings" in scaling:
        assert scaling["original_max_position_embeddings"] == published.trained


@pytest.mark.parametrize("published", sample(MODELS, 3), ids=lambda one: one.model)
def test_the_file_is_what_advise_says(published: PublishedModel) -> None:
    assert first_choice(published) == CHOICES[published.model]


def test_a_scaling_that_stays_is_noticed() -> None:
    """Without the removal, `advise` would be asked for a length that the model has."""
    kimi = next(one for one in MODELS if one.model == "moonshotai/Kimi-K2-Instruct")
    config = published_config(kimi.model)
    assert config["max_position_embeddings"] == kimi.context
    plain = without_scaling(config, kimi)
    assert plain["max_position_embeddings"] == 4096
    assert "rope_scaling" not in plain
    assert plain["rope_theta"] == config["rope_theta"]


def test_what_differs_has_a_reason() -> None:
    reasons = read_reasons()
    for choice in CHOICES.values():
        if not choice.agrees:
            assert choice.publisher.partition(" ")[0] in reasons, choice.model
    assert {"llama3", "longrope", "linear", "theta"} == reasons.keys()


def test_known_choices_by_hand() -> None:
    """Each factor is context over trained context; a wrong one is not called the same."""
    agreeing = {name: CHOICES[name].first for name in CHOICES if CHOICES[name].agrees}
    assert agreeing["deepseek-ai/DeepSeek-V3"] == "--yarn 40"
    assert agreeing["moonshotai/Kimi-K2-Instruct"] == "--yarn 32"
    assert agreeing["openai/gpt-oss-20b"] == "--yarn 32"
    assert agreeing["deepseek-ai/DeepSeek-V4-Pro"] == "--yarn 16"
    assert agreeing["Qwen/Qwen2.5-7B-Instruct"] == "--yarn 4"
    assert "meta-llama/Meta-Llama-3.1-8B" not in agreeing
    assert "google/gemma-3-27b-it" not in agreeing
    assert choice_sentence(list(CHOICES.values())).count(f" {len(agreeing)} ") == 1


def test_the_reason_for_linear_has_the_numbers_of_the_table() -> None:
    """docs/evaluating.md: 4.03 and 3.32 nats at twice the trained context, 5.14 and 3.37 at 4."""
    apart = {}
    for study in evidence().studies:
        if study.short_model == "SmolLM2-135M" and "linear" in study.lost:
            apart[study.factor] = study.lost["linear"] - study.lost["yarn"]
    assert [f"{apart[factor]:.1f}" for factor in (2, 4)] == ["0.7", "1.8"]
    assert (
        "0.7 nats more than YaRN at twice the trained context, and 1.8" in read_reasons()["linear"]
    )


@pytest.mark.parametrize(("reason", "method"), [("llama3", "llama3"), ("theta", "theta-for")])
def test_the_reasons_have_the_losses_of_the_study(reason: str, method: str) -> None:
    """The newest study of the method on a model that needs one: SmolLM2-135M at 4 times."""
    study = study_for(method, 4.0)
    assert study is not None
    assert (study.short_model, study.factor) == ("SmolLM2-135M", 4)
    assert study.sign("yarn", method) == 1
    numbers = re.findall(r"\d\.\d", read_reasons()[reason])
    assert numbers == [f"{study.lost[name]:.1f}" for name in (method, "yarn")]
    assert study.short_model in read_reasons()[reason]


@pytest.mark.parametrize(
    ("path", "context", "first", "level", "trained"),
    [
        # Kimi K2 was published for 256k with the same YaRN and factor 64 later (Thinking, K2.5)
        (
            MORE / "moonshotai--Kimi-K2-Instruct.json",
            "256k",
            "--yarn 256k --on-top",
            "needed",
            131072,
        ),
        # wider llama3 bands: pairs that turned often in the training stay as they are
        (
            CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json",
            "512k",
            "--llama3 512k --on-top",
            "needed",
            131072,
        ),
        # a quarter of the pairs rotates, all of them within 200 tokens: no angle is new
        (MORE / "google--gemma-4-26B-A4B.json", "512k", "--as-is", "undecided", 262144),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_longer_than_published(
    path: Path, context: str, first: str, level: str, trained: int
) -> None:
    best = ropeconv.advise(path, context).best
    assert best is not None
    assert (best.flags, best.fine_tuning.level) == (first, level)
    assert best.fine_tuning.trained == trained


def test_deepseek_v4_has_yarn_without_an_attention_factor(tmp_path: Path) -> None:
    """It rotates values too, which any factor would scale. Its publisher trained with YaRN 16."""
    v4 = next(one for one in MODELS if one.model == "deepseek-ai/DeepSeek-V4-Flash")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(without_scaling(published_config(v4.model), v4)))
    best = ropeconv.advise(path, "1M").best
    assert best is not None
    assert best.flags == "--yarn 16"
    assert best.command.endswith("--yarn 16 --attention-factor 1")
    assert best.schedule.attention_factor == 1
    path.write_text(json.dumps(published_config(v4.model)))
    longer = ropeconv.advise(path, "2M").best
    assert longer is not None
    assert (longer.flags, longer.fine_tuning.trained) == ("--yarn 2M --on-top", 1 << 20)


def test_hunyuan_keeps_its_mscale_pair() -> None:
    """With mscale and mscale_all_dim of 1, YaRN has no attention factor, so none is given."""
    best = ropeconv.advise(MORE / "tencent--Hunyuan-7B-Instruct.json", "64k").best
    assert best is not None
    assert best.command.endswith("--yarn 2")


def test_a_doubtful_trained_length_is_said() -> None:
    """Qwen 2 7B declares 131,072 tokens; its card says 32,768."""
    advice = ropeconv.advise(CONFIGS / "Qwen--Qwen2-7B.json", "256k")
    assert "--original-context 32768" in advice.training
    assert ropeconv.advise(CONFIGS / "Qwen--Qwen2.5-7B-Instruct.json", "64k").training == ""


def test_qwen_2_5_1m_was_trained_with_a_quarter_of_what_it_declares() -> None:
    """Its card says 262,144 tokens and dual chunk attention, of which the config says nothing."""
    advice = ropeconv.advise(CONFIGS / "Qwen--Qwen2.5-7B-Instruct-1M.json", "1M")
    assert advice.best is not None
    assert advice.best.flags == "--yarn 4"
    assert advice.best.fine_tuning.trained == 262144
    assert "1,010,000" in advice.training
    assert "262,144" in advice.training
    assert ropeconv.advise(CONFIGS / "Qwen--Qwen3-8B.json", "64k").training == ""


def test_what_changes_no_frequency_of_a_model_is_no_advice() -> None:
    """The slowest pair of Gemma 4 is pair 63 of 256, and the base is a million."""
    slowest = 1e6 ** (-2 * 63 / 512)
    turns = slowest * 262144 / (2 * math.pi)
    gemma = ropeconv.advise(MORE / "google--gemma-4-26B-A4B.json", "512k")
    assert gemma.best is not None
    assert f" {turns:,.0f} times" in gemma.best.fine_tuning.reason
    assert gemma.best.command.endswith("--as-is --context 524288")
    assert gemma.passed_over.keys() >= {"by-parts", "llama3", "yarn"}
    assert "piecewise" not in gemma.passed_over, "no pair to split at"

    # every pair but the fast ones changes where all rotate
    llama = ropeconv.advise(CONFIGS / "meta-llama--Meta-Llama-3-8B.json", "16k")
    assert not {"by-parts", "llama3"} & llama.passed_over.keys()
    assert "as-is" not in {row.method.name for row in llama.methods}


@pytest.mark.parametrize(
    "flags",
    [
        ["--llama3", "4"],
        ["--by-parts", "4"],
        ["--yarn", "4", "--attention-factor", "1"],
        ["--yarn", "1M", "--attention-factor", "1"],
    ],
)
def test_apply_refuses_what_changes_nothing_but_the_declared_length(
    flags: list[str], tmp_path: Path
) -> None:
    gemma = MORE / "google--gemma-4-26B-A4B.json"
    done = command(tmp_path, "apply", gemma, *flags, "--dry-run", code=1)
    assert f"{flags[0]} {flags[1]} changes no frequency" in done.stderr
    assert "--as-is --context 1M" in done.stderr
    assert "nats" not in done.stderr
    # both commands of the message work
    for words in (["--as-is", "--context", "1M"], ["--ntk", "1M"]):
        planned = command(tmp_path, "apply", gemma, *words, "--dry-run", "--json", code=0)
        assert json.loads(planned.stdout)["schedule"]["context"] == 1 << 20


def test_numbers_that_are_those_of_the_model_get_a_note(tmp_path: Path) -> None:
    llama = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
    own = tmp_path / "own.json"
    own.write_text(json.dumps([500000.0 ** (-pair / 64) for pair in range(64)]))
    for method in (["--inv-freq", own], ["--theta", "500000"], ["--linear", "1"]):
        done = command(tmp_path, "apply", llama, *method, "--context", "16k", "--dry-run", code=0)
        assert f"{method[0]} " in done.stdout + done.stderr
        assert "changes no frequency" in done.stdout + done.stderr
        assert "SmolLM2" not in done.stdout + done.stderr


def test_losses_on_other_texts_are_told_apart() -> None:
    """theta-for was measured on 2 texts, on which every loss is 0.3 nats lower than on 12."""
    config = CONFIGS / "meta-llama--Meta-Llama-3-8B.json"
    rows = {row[0]: row for row in ropeconv.advise(config, "16k").shown_tables()[0].rows}
    (theta,) = [row for flag, row in rows.items() if flag.startswith("--theta-for")]
    assert theta[5] == "SmolLM2-135M at 2x, 2 texts"
    assert rows["--yarn 2"][5] == "SmolLM2-135M at 2x, 12 texts"
    assert float(theta[2]) < float(rows["--yarn 2"][2])

    # on top of a trained scaling nothing was measured on a model that needs a method
    scaled = ropeconv.advise(CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json", "256k")
    assert not scaled.has_several_samples


def test_a_screen_says_what_is_not_known(tmp_path: Path) -> None:
    """The cache of DeepSeek V4 has compressed keys. vLLM computes only YaRN for Kimi K2."""
    (tmp_path / "config.json").write_text(
        json.dumps(published_config("deepseek-ai/DeepSeek-V4-Flash"))
    )
    screen = command(tmp_path, "advise", "config.json", "--context", "2M", code=0).stdout
    assert "Memory of the cache: not known for DeepSeek V4" in screen
    assert "Fits:" not in screen
    kimi = MORE / "moonshotai--Kimi-K2-Instruct.json"
    screen = command(tmp_path, "advise", kimi, "--context", "256k", code=0).stdout
    reason = "for vLLM 0.33 (--explain says why): "
    assert f"{reason}--llama3 256k --on-top, --by-parts 256k --on-top" in screen
    assert "not known for" not in screen

    # 61 layers of 512 + 64 numbers for each token, in bfloat16
    gibibytes = 61 * (512 + 64) * 2 * 262144 / 2**30
    assert f"KV cache {gibibytes:.1f} GiB" in screen
