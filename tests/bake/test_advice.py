"""Advice: every method that reaches a length, in a stated order, with commands that do what they
say.
"""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ropeconv.bake import advice
from ropeconv.bake.advice import (
    CRITERION,
    Advice,
    FormatAdvice,
    MeasuredMethod,
    advise,
    compare_method,
)
from ropeconv.bake.evidence import Study, evidence, study_for, weak_study_for, works_untuned
from ropeconv.bake.warnings import cannot_gain
from ropeconv.errors import UsageError
from ropeconv.inspection.inspection import inspect_source
from ropeconv.inspection.receipts.metrics import metric_of
from ropeconv.inspection.receipts.receipt import FineTuningRecord
from ropeconv.inspection.support import group_by_status
from ropeconv.models.config import sample_config
from ropeconv.models.open import open_source
from ropeconv.models.registry import families
from ropeconv.rope.bound.reach import profile
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import Plain
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import recipe_text
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.read_config import read_spec
from ropeconv.verbs.rows import parse_rows

from ..conftest import CONFIGS
from ..support.baking import recipe_of
from ..support.extent import sample
from ..support.in_process import command

LLAMA_2 = CONFIGS / "meta-llama--Llama-2-7b-hf.json"
LLAMA_HEAD = RopeSpec(128, 128, Plain(1e4), 4096, 4096)
MOST_MEASURED = 8
LLAMA_3_1 = CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json"
QWEN_3 = CONFIGS / "Qwen--Qwen3-8B.json"


@pytest.fixture(scope="module")
def ranked() -> list[Advice]:
    """For Llama 2 at 8 times its context."""
    return advise(open_source(str(LLAMA_2)), 32768)[0]


def test_what_is_known_of_llama_2_at_8_times(ranked: list[Advice]) -> None:
    by_name = {row.method.name: row for row in ranked}
    assert by_name.keys() == set(REGISTRY) - {"theta", "longrope", "inv-freq", "dynamic", "as-is"}
    first = {name: row.profile.reach.first_violation for name, row in by_name.items()}
    assert {name: first[name] for name in ("linear", "ntk", "yarn", "theta-for")} == {
        "linear": 13649,
        "ntk": 5732,
        "yarn": 8886,
        "theta-for": 9937,
    }
    assert by_name["theta-bound"].profile.reach.count == 0
    assert (by_name["linear"].profile.outside, by_name["ntk"].profile.outside) == (0, 34)
    assert not any(row.works_untuned for row in by_name.values())
    assert [row.method.name for row in ranked[:3]] == ["yarn", "by-parts", "theta-for"]
    words = {v.runtime: v.status for v in by_name["yarn"].writings["safetensors"].verdicts}
    assert (words["transformers@4.48"], words["vllm@0.33"]) == ("differs", "exact")
    groups = {
        name: dict(group_by_status(by_name[name].writings["safetensors"].verdicts))
        for name in ("yarn", "ntk")
    }
    assert groups["yarn"]["differs"] == "transformers 4.45-4.50; read: lmdeploy TurboMind 0.18"
    assert "ignored" in groups["yarn"]
    assert "differs" not in groups["ntk"]
    assert "no safetensors weights" in by_name["yarn"].writings["gguf"].reason
    assert {
        name: row.basis for name, row in by_name.items() if name in ("yarn", "ntk", "theta-bound")
    } == {
        "yarn": "measured on SmolLM2-135M at 8x",
        "ntk": "measured on SmolLM2-135M at 8x",
        "theta-bound": "not measured",
    }


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What advise names first for a model at 2, 4 and 8 times the trained context, and what that
    rests on.
    """

    model: str
    trained: int
    first: tuple[str, str, str]
    basis: tuple[str, str, str]
    training: tuple[str, str, str]


CHOICES = msgspec.toml.decode(
    Path(__file__).with_name("choices.toml").read_bytes(), type=dict[str, list[Choice]]
)["choices"]


def config_of(model: str) -> Path:
    name = f"{model.replace('/', '--')}.json"
    return next(
        folder / name
        for folder in (CONFIGS, CONFIGS.parent / "more_configs")
        if (folder / name).exists()
    )


def test_thirty_models_at_three_lengths() -> None:
    assert len({choice.model for choice in CHOICES}) == len(CHOICES) >= 30


@pytest.mark.parametrize("choice", sample(CHOICES, 3), ids=lambda choice: choice.model)
def test_what_to_try_first(choice: Choice) -> None:
    source = open_source(str(config_of(choice.model)))
    for factor, *expected in zip(
        (2, 4, 8), choice.first, choice.basis, choice.training, strict=True
    ):
        first = advise(source, factor * choice.trained, ("safetensors",))[0][0]
        assert [first.flags, first.basis, first.fine_tuning.level] == expected
        assert first.writable


def test_publishers_are_followed() -> None:
    """Each recommendation in the table is the first choice of a model that it is for."""
    followed = {
        choice.model.partition("/")[0] for choice in CHOICES if choice.basis[1] == "its publisher"
    }
    assert followed == {"Qwen", "HuggingFaceTB"}


def test_a_model_that_was_trained_with_its_scaling_keeps_it(ranked: list[Advice]) -> None:
    """Llama 3.1 was trained with 131,072 tokens: twice that is a factor of 2, and nothing is
    outside.
    """
    source = open_source(str(LLAMA_3_1))
    with pytest.raises(UsageError, match="trained 131072"):
        advise(source, 131072)
    rows, passed = advise(source, 262144, ("safetensors",))
    assert rows[0].command.endswith(" --llama3 256k --on-top")
    assert all(row.recipe.on_top and not row.replace for row in rows)
    assert rows[0].profile.outside == 0
    assert "--theta-bound is for training" in passed["theta-bound"]
    first = ranked[0]
    assert (first.replace, first.recipe.on_top) == (False, False)


def test_pairs_that_stand_still_count_nowhere() -> None:
    """Gemma 4: 64 of 256 pairs rotate; the others are neither outside the trained angles nor a
    reason to search.
    """
    family = next(family for family in families() if family.name == "gemma4")
    spec = read_spec(sample_config(family), family)
    assert (spec.rotating_pairs, spec.rotary_dim // 2) == (64, 256)
    known = profile(recipe_of("yarn", 2.0).schedule(spec.unscaled()), spec.unscaled())
    assert known.not_rotating == 192
    assert known.critical_dimension + known.outside <= 2 * 64
    assert known.reach.automatic


# The order, from numbers made for the test


def one(
    name: str, value: Any = 4.0, untuned: bool = True, reason: str = "", **numbers: Any
) -> Advice:
    """Advice of a method. numbers: outside, fast_change, recommended, lost (nats; None where it was
    not measured), trained (of the model), and the first position that violates.
    """
    given = {
        "outside": 0,
        "fast_change": 1.0,
        "first": None,
        "recommended": "",
        "lost": None,
        "trained": 8192,
        "factor": 4,
        "same_layers": True,
        "runtimes": 1,
        **numbers,
    }
    same_layers = given.pop("same_layers")
    runtimes = given.pop("runtimes")
    first = given.pop("first")
    recommended = given.pop("recommended")
    lost = given.pop("lost")
    trained = given.pop("trained")
    factor = given.pop("factor")
    measured = None
    if lost is not None:
        study = Study("m", factor, "nats", "1", "here", trained=trained, lost={name: lost})
        measured = MeasuredMethod(study, name, 4.0, same_layers)
    reach = SimpleNamespace(
        first_violation=first, effective_length=None if first is None else first - 1
    )
    profile: Any = SimpleNamespace(
        reach=reach, to_dict=lambda: {"outside": given["outside"]}, **given
    )
    schedule: Any = SimpleNamespace(context=4096, attention_factor=1.1)
    verdicts: Any = [
        SimpleNamespace(runtime=f"runtime {number}", status="exact") for number in range(runtimes)
    ]
    writings = {"gguf": FormatAdvice("keys", tuple(verdicts), reason)}
    command = "ropeconv apply"
    need = FineTuningRecord("none" if untuned else "needed", 8.0, 512, "a study")
    return Advice(
        recipe_of(name, value),
        schedule,
        profile,
        need,
        writings,
        command,
        recommended=recommended,
        measured=measured,
    )


def order(*rows: Advice) -> list[str]:
    return [row.method.name for row in sorted(rows, key=lambda row: row.rank)]


def test_advice_is_sorted_by_what_is_known() -> None:
    low = {"lost": 0.1}
    high = {"lost": 0.7}
    assert order(one("ntk", **high), one("yarn", **low), one("piecewise", "4@3")) == [
        "yarn",
        "ntk",
        "piecewise",
    ]
    # a method that meets the bar comes before one that loses less and does not
    assert order(one("yarn", untuned=False, **low), one("ntk", **high)) == ["ntk", "yarn"]
    assert order(one("yarn", **low), one("ntk", recommended="a card", **high)) == ["ntk", "yarn"]
    # losses of two models are not compared: the larger model comes first
    assert order(one("yarn", trained=128, **low), one("ntk", **high)) == ["ntk", "yarn"]
    # nor those at two lengths: a text of 2 times costs each method less than one of 4 times
    assert order(one("ntk", factor=2, **low), one("yarn", **high)) == ["yarn", "ntk"]
    assert order(one("ntk", factor=8, **low), one("yarn", **high)) == ["ntk", "yarn"]
    assert order(one("ntk", factor=2, **low), one("yarn", factor=3, **high)) == ["yarn", "ntk"]
    # nor are those of a model with other layers than this one has
    assert order(one("yarn", same_layers=False, **low), one("ntk", **high)) == ["ntk", "yarn"]
    # losses that are equal in the table: what more runtimes compute comes first
    nearly = {"lost": 0.104}
    assert order(one("yarn", **nearly), one("ntk", runtimes=3, **low)) == ["ntk", "yarn"]
    assert order(one("ntk", runtimes=2, **low), one("yarn", runtimes=3, **nearly)) == [
        "yarn",
        "ntk",
    ]
    assert order(one("ntk", runtimes=3, lost=0.12), one("yarn", **low)) == ["yarn", "ntk"]
    assert order(one("ntk", recommended="a card", reason="no"), one("linear", untuned=False)) == [
        "linear",
        "ntk",
    ]
    assert order(one("yarn", outside=2), one("linear", outside=0)) == ["linear", "yarn"]
    assert one("ntk", reason="no").basis == "cannot be written"


def test_a_study_of_chance_orders_no_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two models that lose little without a method, the larger one decides no pair."""

    def study(trained: int, better: tuple[tuple[str, str], ...]) -> Study:
        lost = {"base": 0.1, "yarn": 0.0, "ntk": 0.0}
        return Study("m", 4, "nats", "1", "", trained=trained, lost=lost, better=better)

    decided = study(128, (("yarn", "ntk"),))
    for studies, wanted in (
        ([decided, study(256, ())], decided),
        ([study(256, ())], None),
        ([decided, study(256, (("ntk", "yarn"),))], study(256, (("ntk", "yarn"),))),
    ):
        table = SimpleNamespace(studies=studies)
        monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda table=table: table)
        assert weak_study_for("yarn", 4) == wanted


def test_models_with_windows_are_judged_by_such_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where that model was measured at a smaller factor only."""

    def study(factor: float, window: int, trained: int) -> Study:
        name = f"{factor:g}x, window {window}"
        answers = {"yarn": 60.0}
        lost = {"base": 3.0, "yarn": 0.1}
        return Study(
            name,
            factor,
            "nats",
            "1",
            "",
            trained=trained,
            sliding_window=window,
            lost=lost,
            retrieval=answers,
        )

    full = study(2, 0, 8192)
    full_at_4 = study(4, 0, 8192)
    with_windows = study(2, 512, 32768)
    table = SimpleNamespace(studies=(full, full_at_4, with_windows))
    monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: table)
    assert study_for("yarn", 2, has_windows=True) == with_windows
    assert study_for("yarn", 2, has_windows=False) == full  # although trained with less
    assert study_for("yarn", 4, has_windows=True) == full_at_4
    assert study_for("yarn", 16, has_windows=True) == full_at_4  # the nearest, of any model


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ("google--gemma-3-1b-it", True),  # 22 of 26 layers see 512 tokens
        ("google--gemma-2-9b", False),  # every second layer
        ("mistralai--Mistral-7B-v0.1", False),  # every layer
        ("meta-llama--Llama-2-7b-hf", False),
    ],
)
def test_a_window_in_most_layers_chooses_the_study(config: str, windows: bool) -> None:
    spec = inspect_source(open_source(str(CONFIGS / f"{config}.json"))).spec
    assert (spec.sliding_window is not None) == windows


def a_study(factor: float, better: tuple[tuple[str, str], ...], **more: Any) -> Study:
    """A study of the methods that it decides between, and of linear."""
    names = {name for pair in better for name in pair} | {"linear", "yarn", "ntk"}
    beyond = dict.fromkeys(names, 0.0)
    return Study("m", factor, "nats", "1", f"{factor}", beyond=beyond, better=better, **more)


def test_a_method_is_compared_by_the_nearest_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 3 times the study of 4 counts, what is not decided is no difference, and fine-tuning is
    apart.
    """
    table = SimpleNamespace(
        studies=(
            a_study(2, (("ntk", "yarn"),)),
            a_study(4, (("yarn", "ntk"),)),
            a_study(4, (("ntk", "yarn"),), fine_tuned=True),
        )
    )
    monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: table)
    assert compare_method("yarn", 3, fine_tuned=False).signs == {"linear": 0.0, "ntk": 1.0}
    assert compare_method("yarn", 2, fine_tuned=False).signs == {"linear": 0.0, "ntk": -1.0}
    assert compare_method("yarn", 3, fine_tuned=True).signs == {"linear": 0.0, "ntk": -1.0}
    assert str(compare_method("mixed", 3, fine_tuned=False)) == "not measured"


def test_without_training_follows_from_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is 0.2 nats and half of the hidden facts: both count, at the next longer factor."""

    def study(factor: float, lost: float, found: float, **more: Any) -> Study:
        numbers = {"lost": {"yarn": lost}, "retrieval": {"yarn": found}}
        return Study("m (9 tokens)", factor, "nats", "1", "here", **numbers, **more)

    def judged(*studies: Study, factor: float = 4, on_top: str = "") -> str | None:
        table = SimpleNamespace(studies=studies)
        monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: table)
        return works_untuned("yarn", factor, on_top).result

    good = study(4, 0.2, 50.0)
    assert judged(good) == "met"
    assert judged(study(4, 0.21, 99.0)) == "missed", "it loses too much"
    assert judged(study(4, 0.0, 49.0)) == "missed", "it finds too little"
    assert judged(good, factor=3) == "met", "what works at 4 times works at 3"
    assert judged(good, factor=5) is None, "nothing was measured there"
    assert judged(good, study(8, 0.1, 90.0), factor=5) == "met"
    assert judged() is None
    weak = study(4, 0.1, 90.0)
    weak = msgspec.structs.replace(weak, lost={"yarn": 0.1, "base": 0.15})
    assert judged(weak) is None, "a model that loses little without a method judges none"
    losses = study(4, 0.1, 90.0)
    assert judged(msgspec.structs.replace(losses, retrieval={})) is None, "a loss is not enough"
    assert judged(msgspec.structs.replace(losses, retrieval={}, trained=8192), good) == "met"
    assert judged(study(4, 0.1, 90.0, fine_tuned=True)) is None
    assert judged(good, on_top="yarn") is None, "a scaled model is another matter"
    assert judged(study(4, 0.1, 90.0, trained=128), study(4, 0.9, 0.0, trained=8192)) == "missed", (
        "the larger model counts"
    )


def test_ntk_at_four_times_does_not_count_as_working_without_training() -> None:
    """It loses 0.70 nats and finds none of 12 passkeys (docs/evidence/smollm2-4T.json)."""
    assert works_untuned("ntk", 4).result == "missed"
    assert works_untuned("yarn", 4).result == "undecided", "6 of 12"
    assert works_untuned("yarn", 8).result == "missed"
    assert works_untuned("yarn", 16).result is None
    assert works_untuned("yarn", MOST_MEASURED).reason.startswith("on SmolLM2-135M at 8 times")


def test_the_table_of_evidence_names_methods_and_families() -> None:
    table = evidence()
    names = {*REGISTRY, "base"}
    for study in table.studies:
        assert study.beyond.keys() | study.inside.keys() | study.retrieval.keys() <= names
        assert study.source
        assert study.n
    known = {family.name for family in families()}
    assert {name for row in table.recommendations for name in row.families} <= known
    assert {row.method for row in table.recommendations} <= names


# Commands


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four methods, for which no bound is searched and nothing is counted."""
    numbers = profile(LLAMA_HEAD.current(), LLAMA_HEAD)
    monkeypatch.setattr(advice, "profile", lambda schedule, start: numbers)
    monkeypatch.setattr(
        advice, "REGISTRY", {name: REGISTRY[name] for name in ("theta", "linear", "yarn", "ntk")}
    )


@pytest.mark.parametrize("context", [1, 4096])
def test_a_length_within_the_trained_one_needs_nothing(quick: None, context: int) -> None:
    words = f"--context {context} is within the trained 4096 tokens; give a longer one"
    with pytest.raises(UsageError, match=words):
        advise(open_source(str(LLAMA_2)), context)
    rows, passed = advise(open_source(str(LLAMA_2)), 4097)
    assert ({item.method.name for item in rows}, passed) == ({"linear", "yarn", "ntk"}, {})


def test_commands_do_what_was_advised(llama: Path) -> None:
    """Each command, typed with --dry-run, plans the schedule that the advice was about."""
    document = json.loads(
        command(llama.parent, "advise", llama, "--context", "1k", "--json", code=0).stdout
    )
    assert document["sorted_by"] == CRITERION
    assert len(document["advice"]) > 8
    for item in sample(document["advice"], 2):
        words = shlex.split(item["command"])
        assert words[:2] == ["ropeconv", "apply"]
        plan = json.loads(command(llama.parent, *words[1:], "--dry-run", "--json", code=0).stdout)
        assert plan["schedule"]["context"] == 1024
        assert plan["schedule"]["attention_factor"] == item["attention_factor"]
        runtimes = {row["runtime"]: row["status"] for row in plan["runtimes"]}
        assert runtimes == {
            row["runtime"]: row["status"] for row in item["outputs"]["safetensors"]["runtimes"]
        }
        planned = command(llama.parent, *words[1:], "--to", "gguf", "--dry-run", "--json")
        assert (planned.returncode == 0) == (item["outputs"]["gguf"]["reason"] is None), (
            planned.stderr
        )


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (LLAMA_2, 10000),
        (LLAMA_2, 5000),
        (LLAMA_2, 32768),
        (LLAMA_2, 1 << 22),
        (CONFIGS / "google--gemma-3-27b-it.json", 300_000),
    ],
)
def test_the_row_that_measures_a_method_has_its_schedule(config: Path, context: int) -> None:
    """As `eval` reads it: small lengths without a suffix are factors there."""
    source = open_source(str(config))
    start = inspect_source(source).spec
    advised = advise(source, context, ("safetensors",))[0]
    for item in advised:
        _, row = parse_rows(f"base,{recipe_text(item.recipe)}")
        assert row.recipe is not None
        schedule = row.recipe.schedule(row.recipe.start(start))
        assert schedule.digest == item.recipe.schedule(item.recipe.start(start)).digest
        assert schedule.context == context
    screen = command(config.parent, "advise", config, "--context", context, code=0).stdout
    assert "Measure:" not in screen, "a config alone has no weights to run"


# Screens


def test_a_model_with_weights_gets_the_command_that_measures_it(llama: Path) -> None:
    screen = command(llama.parent, "advise", llama, "--context", 256, code=0).stdout
    assert f"Measure: ropeconv eval {llama} --methods base," in screen


def published(name: str, folder: Path, **changes: Any) -> Path:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder / "config.json"


def test_a_folder_without_weights_says_why_and_gives_no_command(
    quick: None, tmp_path: Path
) -> None:
    published("meta-llama--Llama-2-7b-hf", tmp_path)
    screen = command(tmp_path.parent, "advise", tmp_path, "--context", "8k", code=0).stdout
    assert screen.count("cannot be written") == 3
    assert "no safetensors weights" in screen
    assert "Bake:" not in screen


def test_what_is_not_decided_is_explained_only_where_a_row_says_it(llama: Path) -> None:
    """torchtitan ignores every scaling, so that no row about writing says what was measured."""
    line = ("advise", llama, "--context", 256)
    assert " is not decided: on SmolLM2" in command(llama.parent, *line, code=0).stdout
    screen = command(llama.parent, *line, "--runtime", "torchtitan", code=0).stdout
    assert "cannot be written" in screen
    assert "ot decided" not in screen


def test_the_wanted_length_counts_where_the_class_declares_more(tmp_path: Path) -> None:
    """Phi-3 derives its attention factor from two lengths, so that YaRN for 32,768 tokens declares
    more; 32,768 is 8 times the trained 4,096.
    """
    phi = published("microsoft--Phi-3-mini-4k-instruct", tmp_path)
    line = ("--context", 32768, "--json")
    advice = json.loads(command(tmp_path, "advise", phi, *line, code=0).stdout)
    yarn = next(row for row in advice["advice"] if row["recipe"]["method"] == "yarn")
    assert yarn["fine_tuning"]["factor"] == 8.0
    plan = json.loads(
        command(tmp_path, "apply", phi, "--yarn", 32768, *line[2:], "--dry-run").stdout
    )
    assert plan["fine_tuning"]["factor"] == 8.0


def test_what_needs_fine_tuning_is_said_with_the_command_for_it(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 3 was trained with linear scaling, so linear comes first: it needs training, and YaRN
    does not, by a study on top of such a scaling.
    """
    numbers = {"lost": {"yarn": 0.1, "linear": 0.4}, "retrieval": {"yarn": 80.0, "linear": 0.0}}
    study = Study("m (9 tokens)", 2, "nats", "1", "here", on_top="linear", **numbers)
    bounds = dict.fromkeys(("low", "high"), numbers["retrieval"])
    study = msgspec.structs.replace(study, **bounds)
    table = msgspec.structs.replace(evidence(), studies=(study,))
    monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: table)
    config = published("google--gemma-3-27b-it", tmp_path)
    screen = command(tmp_path, "advise", config, "--context", "256k", code=0)
    lines = [line.partition(":")[0].strip() for line in screen.stdout.splitlines()]
    assert lines[-5:] == ["Bake", "Train", "Untuned", "Fits", "More"]
    assert (
        "At 262,144 tokens (2 times the trained 131,072 tokens) --linear 256k --on-top needs"
        " fine-tuning." in screen.stdout
    )
    assert f"ropeconv apply {config} --yarn 256k --on-top" in screen.stdout
    assert "keep the scaling" in screen.stderr


def test_dual_chunk_attention_is_named(quick: None, tmp_path: Path) -> None:
    chunks = {"chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}
    config = published("Qwen--Qwen2.5-7B-Instruct-1M", tmp_path, dual_chunk_attention_config=chunks)
    screen = command(tmp_path, "advise", config, "--context", "2M", code=0)
    assert re.search("1,010,000 .*dual chunk.* 262,144", screen.stderr)


# Advice for a runtime


def test_a_named_runtime_restricts_what_can_be_written_and_is_in_the_command() -> None:
    """mlx-lm does not compute an attention factor on top of llama3, and vLLM does."""
    source = open_source(str(LLAMA_3_1))
    in_mlx = {row.method.name: row for row in advise(source, 524288, runtimes=("mlx-lm",)).methods}
    in_vllm = {row.method.name: row for row in advise(source, 524288, runtimes=("vLLM",)).methods}
    assert (in_mlx["yarn"].writable, in_vllm["yarn"].writable) == (False, True)
    assert in_mlx["llama3"].writable
    assert in_mlx["llama3"].command.endswith(" --runtime mlx-lm")
    assert in_vllm["llama3"].command.endswith(" --runtime vLLM")
    assert "--runtime" not in advise(source, 524288).methods[0].command

    # runtimes of GGUF files plan these only
    assert in_vllm["llama3"].writings.keys() == {"safetensors"}
    in_ollama = advise(source, 524288, runtimes=("ollama",)).methods[0]
    assert in_ollama.writings.keys() == {"gguf"}
    with pytest.raises(RecipeError, match="unknown runtime"):
        advise(source, 524288, runtimes=("nosuch",))


def test_the_command_and_the_function_take_a_runtime(tmp_path: Path) -> None:
    import ropeconv

    said = command(
        tmp_path, "advise", str(LLAMA_3_1), "--context", "512k", "--runtime", "mlx-lm", "--json"
    )
    document = json.loads(said.stdout)
    written = {
        row["method"]: row["outputs"]["safetensors"]["encoding"] for row in document["advice"]
    }
    assert written["yarn"] is None
    assert written["llama3"]
    rows = ropeconv.advise(LLAMA_3_1, "512k", runtime="mlx-lm").methods
    assert {row.method.name: row.writable for row in rows}["yarn"] is False


def test_the_reason_has_the_answers_with_their_interval() -> None:
    """YaRN finds 6 of 12 passkeys at 4 times, which Wilson's interval extends to 25 to 75 %."""
    assert "6 of 12 hidden facts (95 %: 25 to 75 %)" in works_untuned("yarn", 4.0).reason
    assert "0 of 12 hidden facts (95 %: 0 to 24 %)" in works_untuned("ntk", 4.0).reason


def test_few_questions_are_not_shown_as_a_yes_or_a_no() -> None:
    """By the intervals of docs/evaluating.md: 25 to 75 %, 0 to 24 %, and a publisher's word."""
    import ropeconv

    llama = {row.method.name: row for row in ropeconv.advise(LLAMA_2, "16k").methods}
    assert llama["yarn"].without_training == "not decided"
    assert llama["linear"].without_training == "no", "its loss is above the bar, whatever it finds"
    assert llama["ntk"].without_training == "no"
    assert llama["ntk-old"].without_training == "no", "1.42 nats, and no answers that count"
    assert llama["ntk-old"].fine_tuning.level == "needed"
    twice = {row.method.name: row for row in ropeconv.advise(LLAMA_2, "8k").methods}
    assert twice["ntk"].without_training == "not decided", (
        "below the bar, which is inside 18 to 70 %"
    )
    assert twice["theta-for"].without_training == "not judged", "0.08 nats, and no answers"
    qwen = {row.method.name: row for row in ropeconv.advise(QWEN_3, "128k").methods}
    assert qwen["yarn"].without_training == "yes"


@pytest.mark.parametrize(
    ("low", "high", "lost", "result"),
    [
        (50.0, 90.0, 0.1, "met"),
        (49.0, 90.0, 0.1, "undecided"),
        (10.0, 49.0, 0.1, "missed"),
        (10.0, 50.0, 0.1, "undecided"),
        (10.0, 90.0, 0.21, "missed"),
    ],
)
def test_a_bar_inside_the_interval_decides_nothing(
    low: float, high: float, lost: float, result: str
) -> None:
    numbers = {"lost": {"yarn": lost}, "low": {"yarn": low}, "high": {"yarn": high}}
    study = Study("m (9 tokens)", 4, "nats", "1", "here", retrieval={"yarn": 50.0}, **numbers)
    assert study.compare_with_bar("yarn") == result


@pytest.mark.parametrize(("lost", "result"), [(0.21, "missed"), (0.19, None)])
def test_a_loss_above_the_bar_needs_no_answers(
    lost: float, result: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a study with answers says more, where there is one."""
    without = Study("m", 4, "nats", "1", "", trained=8192, lost={"base": 3.0, "yarn": lost})
    assert without.compare_with_bar("yarn") == result
    answered = msgspec.structs.replace(without, retrieval={"yarn": 60.0})
    table = SimpleNamespace(studies=(without, answered))
    monkeypatch.setattr("ropeconv.bake.evidence.evidence", lambda: table)
    assert study_for("yarn", 4) == answered


def test_answers_at_a_farther_length_say_nothing_of_a_nearer_one() -> None:
    """theta-for finds nothing at 8 times, and has only losses at 2 and 4 times."""
    numbers = {"lost": {"base": 3.0, "yarn": 0.1}, "trained": 8192}
    twice = Study("m (8,192 tokens)", 2, "nats", "1", "", **numbers)
    far = msgspec.structs.replace(twice, factor=8, retrieval={"yarn": 0.0})
    other = msgspec.structs.replace(twice, model="another (512 tokens)", trained=512)
    assert study_for("yarn", 2, among=(far, twice)) == twice
    assert study_for("yarn", 4, among=(far, twice)) == far
    assert study_for("yarn", 2, among=(far, other)) == far
    # answers at the same length are preferred, and a scaling below the method is another study
    answered = msgspec.structs.replace(twice, retrieval={"yarn": 60.0})
    assert study_for("yarn", 2, among=(far, twice, answered)) == answered
    on_top = msgspec.structs.replace(twice, on_top="yarn")
    assert study_for("yarn", 2, among=(far, on_top)) == far


@pytest.mark.parametrize(
    ("config", "context", "level"),
    [
        ("mistralai/Mistral-7B-v0.1", 65536, "none"),
        ("microsoft/Phi-3-mini-4k-instruct", 16384, "none"),
        # its layers without RoPE see the whole context, which is new to them
        ("CohereForAI/c4ai-command-r7b-12-2024", 32768, "recommended"),
        # it was trained with a scaling, which --as-is keeps
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 20 << 20, "recommended"),
        ("LGAI-EXAONE/EXAONE-4.0-32B", 262144, "recommended"),
    ],
)
def test_layers_that_see_windows_only_keep_their_rope(
    config: str, context: int, level: str
) -> None:
    source = open_source(str(config_of(config)))
    first = advise(source, context, ("safetensors",))[0][0]
    assert (first.flags, first.basis, first.fine_tuning.level) == ("--as-is", "no new angle", level)
    assert first.command.endswith(f"--as-is --context {context}")
    assert first.writable
    useless = cannot_gain(inspect_source(source).spec, context)
    assert useless
    assert ("--as-is" in useless) == (level == "recommended")


def test_a_scaling_that_was_added_is_not_offered_as_the_unchanged_rope(tmp_path: Path) -> None:
    """--as-is would keep it."""
    config = json.loads(config_of("mistralai/Mistral-7B-v0.1").read_text())
    config["rope_scaling"] = {"rope_type": "dynamic", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = advise(open_source(str(tmp_path / "config.json")), 131072, ("safetensors",))[0]
    assert "as-is" not in {row.method.name for row in rows}


def test_explain_lists_the_study_that_is_in_the_table() -> None:
    """By its model, its sample and its source."""
    gemma = str(config_of("google/gemma-3-1b-it"))
    done = command(CONFIGS, "advise", gemma, "--context", "64k", "--explain", code=0)
    _table, explained = done.stdout.split("Sorted by:")
    by_method = dict(
        re.findall(r"^([a-z0-9-]+): (.*?)(?=^[a-z0-9-]+: |\Z)", explained, re.M | re.S)
    )
    for row in advise(open_source(gemma), 65536)[0]:
        if row.measured is not None:
            study = row.measured.study
            lines = by_method[row.method.name].splitlines()
            assert any(study.short_model in line and study.source in line for line in lines)


def test_no_number_is_minus_zero() -> None:
    """A price of -0.004 is +0.00 in two decimals."""
    study = Study("m (9 tokens)", 4, "nats", "1", "here", inside={"yarn": -0.004}, start=3.0)
    study = msgspec.structs.replace(study, lost={"yarn": 0.1})
    assert MeasuredMethod(study, "yarn").cells()[2] == "+0.00"
    assert metric_of("loss").difference(-0.0004) == "+0.000"
