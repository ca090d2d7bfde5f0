"""Verdicts, groups of versions and comparisons, on runtimes and verdicts that are made for the
test.
"""

from dataclasses import replace
from typing import Any

import pytest

from ropeconv.inspection.support import group_by_status
from ropeconv.models.registry import by_model_type
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import (
    InterpolatedForm,
    LongRope,
    Plain,
    Yarn,
    temperature_attention_factor,
)
from ropeconv.rope.schedule import QueryScaling, Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.runtime import (
    Runtime,
    VersionRange,
    before,
    canonical,
    choose,
    find,
    newest,
    row_from,
    row_of_version,
    version_key,
    within,
)
from ropeconv.runtimes.verdict import Verdict, difference, judge

LLAMA = by_model_type()["llama"]
CONFIG = {
    "model_type": "llama",
    "head_dim": 8,
    "max_position_embeddings": 256,
    "num_hidden_layers": 2,
    "rope_theta": 10000.0,
}
ROPE = {"rope_type": "linear", "factor": 4.0}
BEFORE = RopeSpec(8, 8, Plain(10000.0), 64, 64)
FORM = InterpolatedForm(10000.0, 4.0)
SCHEDULE = Schedule(FORM.inv_freq(8), 1.0, 256, 64, FORM)


def runtime(
    families: list[dict[str, Any]] | None = None, types: dict[str, Any] | None = None, **rules: Any
) -> Runtime:
    fields = {
        key: rules.pop(key)
        for key in ("quantization", "loads", "custom_code", "custom_code_reason")
        if key in rules
    }
    generic = {
        "schemas": ["rope_scaling"],
        "theta": "top",
        "types": {"linear": {}, "default": {}, **(types or {})},
        **rules,
    }
    return row_from(
        {
            "name": "made",
            "version": "1.0",
            "title": "Made",
            "source": "row",
            "rules": {"generic": generic},
            **fields,
            "families": (
                [{"names": ["llama"], "rules": "generic", "source": "family"}]
                if families is None
                else families
            ),
        }
    )


def judged(
    by: Runtime, schedule: Schedule = SCHEDULE, rope: dict[str, Any] | None = ROPE, **config: Any
) -> tuple[str, str, str]:
    verdict = judge({**CONFIG, "rope_scaling": rope, **config}, LLAMA, schedule, BEFORE, by)
    return verdict.status, verdict.reason, verdict.source


@pytest.mark.parametrize(
    ("types", "status"),
    [
        ({"rope_type": "linear", "type": "linear"}, "exact"),
        ({"rope_type": "linear", "type": None}, "exact"),
        ({"rope_type": "linear", "type": "yarn"}, "refused"),
        ({"rope_type": "linear", "type": "mrope"}, "refused"),
        ({"rope_type": "default", "type": "mrope"}, "ignored"),
    ],
)
def test_two_rope_types(types: dict[str, Any], status: str) -> None:
    """vLLM raises a ValueError, except for the older names of a type; transformers takes one."""
    rope = ROPE | types
    vllm = find("vllm@0.33")[0]
    assert judged(vllm, rope=rope)[0] == status
    assert judged(find("vllm@0.11.0")[0], rope=rope)[0] == status
    assert judged(find("transformers@5.23.0")[0], rope=rope)[0] in ("exact", "ignored")


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (runtime(), ("exact", "", "family")),
        (runtime(types={"linear": {"window": "says less"}}), ("exact", "says less", "family")),
        (runtime([]), ("unknown", "llama is untested", "row")),
        (runtime([{"names": ["llama"], "unknown": "not yet"}]), ("unknown", "not yet", "row")),
        (runtime([{"names": ["llama"], "unsupported": "never"}]), ("unsupported", "never", "row")),
        (runtime(status="ignored", reason="all of it"), ("ignored", "all of it", "family")),
        (
            runtime(status="ignored", reason="all of it", source="set"),
            ("ignored", "all of it", "set"),
        ),
        (runtime(required={"absent": "refused"}), ("refused", "it fails without absent", "family")),
        (
            runtime(required={"absent": "differs"}),
            ("differs", "it reads only absent, which is absent", "family"),
        ),
        (runtime(required={"rope_theta": "refused"}), ("exact", "", "family")),
        (runtime(required={"factor": "refused"}), ("refused", "it fails without factor", "family")),
        (
            runtime(need=[{"key": "bias", "value": False, "default": False}]),
            ("exact", "", "family"),
        ),
        (
            runtime(need=[{"key": "bias", "value": True, "default": False}]),
            ("refused", "it supports only bias = True", "family"),
        ),
        (
            runtime(types={"linear": {"status": "refused", "reason": "no"}}),
            ("refused", "no", "family"),
        ),
        (
            runtime(types={"linear": {"required": ["alpha"]}}),
            ("refused", "it fails without alpha", "family"),
        ),
        (runtime(types={"linear": {"required": ["factor"]}}), ("exact", "", "family")),
        (
            runtime(types={"linear": {"forbidden": ["factor"]}}),
            ("refused", "it fails on factor", "family"),
        ),
        (runtime(types={"linear": {"forbidden": ["alpha"]}}), ("exact", "", "family")),
        (
            runtime(types={"linear": {"partial": "refused", "half_only": "refused"}}),
            ("exact", "", "family"),
        ),
        (runtime(types={"linear": {"formula_always": True}}), ("exact", "", "family")),
        (
            runtime(types={"linear": {"factor": "max/original"}}),
            ("ignored", "it computes other frequencies (linear, theta 10000, factor 1)", "family"),
        ),
        (
            runtime(theta=500.0),
            ("differs", "it computes other frequencies (linear, theta 500, factor 4)", "family"),
        ),
    ],
)
def test_each_rule_has_its_verdict(by: Runtime, expected: tuple[str, str, str]) -> None:
    assert judged(by) == expected


def test_a_key_that_the_attention_reads_and_nobody_examined_makes_it_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ropeconv.runtimes.verdict.unknown_key", lambda *given: "odd")
    reason = "its attention reads odd, whose effect on the RoPE is untested"
    assert judged(runtime(source="set")) == ("unknown", reason, "set")


def test_what_holds_only_beyond_the_trained_length() -> None:
    by = runtime(types={"linear": {"status": "refused", "reason": "no", "beyond_trained": True}})
    assert judged(by)[0] == "refused"
    within_it = replace(SCHEDULE, context=64)
    assert judged(by, within_it)[0] == "exact"


@pytest.mark.parametrize(
    ("other", "status", "words"),
    [
        ("unknown", "unknown", "rope_type cubic is untested"),
        ("ignored", "ignored", "it ignores rope_type cubic"),
        ("refused", "refused", "it fails on rope_type cubic"),
    ],
)
def test_rope_types_without_rules(other: str, status: str, words: str) -> None:
    assert judged(runtime(other=other), rope={"rope_type": "cubic"})[:2] == (status, words)
    assert judged(runtime(other=other, other_reason="so"), rope={"rope_type": "cubic"})[1] == "so"
    assert (
        judged(runtime(other=other), rope={"rope_type": "dynamic", "factor": 2.0})[0] == "unknown"
    )


def test_two_lists_and_what_they_become() -> None:
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    form = LongRope(10000.0, (1.0,) * 4, (2.0,) * 4, 64)
    two = Schedule(form.inv_freq(8), 1.0, 256, 64, form, form.short_inv_freq(8))
    for lists, status in (
        ("refused", "refused"),
        ("long", "differs"),
        ("mixed", "differs"),
        ("window", "differs"),
        ("chunked", "differs"),
        ("untested", "unknown"),
        ("trained", "exact"),
    ):
        assert judged(runtime(types={"longrope": {"lists": lists}}), two, rope)[0] == status
    same = {**rope, "short_factor": [2.0] * 4}
    single = Schedule(form.inv_freq(8), 1.0, 256, 64, form)
    for lists in ("refused", "long", "mixed", "window"):
        assert judged(runtime(types={"longrope": {"lists": lists}}), single, same)[0] == "exact"
    assert (
        judged(
            runtime(types={"longrope": {"formula_always": True}}),
            single,
            {**same, "original_max_position_embeddings": 1},
        )[0]
        == "refused"
    )
    remark = runtime(types={"longrope": {"window": "less"}})
    assert judged(remark, single, same)[1] == "less"
    assert judged(remark, single, {**same, "original_max_position_embeddings": 256})[1] == ""


@pytest.mark.parametrize(
    ("setting", "loads", "expected"),
    [
        ({"quant_method": "awq"}, None, ("unknown", "loading awq weights is untested")),
        ({"quant_method": "awq"}, {"fp8": ""}, ("unsupported", "it does not load awq weights")),
        ({"quant_method": "awq"}, {"awq": ""}, ("exact", "")),
        (
            {"quant_method": "awq"},
            {"awq": "on Hopper"},
            ("unknown", "it loads awq weights on Hopper"),
        ),
        ({"group_size": 64}, {"mlx": ""}, ("exact", "")),
        ({}, {"mlx": ""}, ("unsupported", "it does not load quantised weights")),
        ("x", {"mlx": ""}, ("exact", "")),
    ],
)
def test_quantised_weights(
    setting: Any, loads: dict[str, str] | None, expected: tuple[str, str]
) -> None:
    assert judged(runtime(quantization=loads), quantization_config=setting)[:2] == expected


def test_weights_that_load_in_some_families() -> None:
    """A condition is left out where the weights of the family were loaded."""
    fp8 = {"quant_method": "fp8"}
    condition = {"fp8": "only in some families"}
    seen = runtime(quantization=condition, loads={"fp8": ("llama",)})
    other = runtime(quantization=condition, loads={"fp8": ("qwen3",)})
    assert judged(seen, quantization_config=fp8)[:2] == ("exact", "")
    assert judged(other, quantization_config=fp8)[0] == "unknown"
    # nothing is loaded that the runtime does not have at all
    without = runtime(quantization={"awq": ""}, loads={"fp8": ("llama",)})
    assert judged(without, quantization_config=fp8)[0] == "unsupported"


def test_interleaved_and_partial_models() -> None:
    family = by_model_type()["gpt_neox"]
    config = {**CONFIG, "model_type": "gpt_neox", "rotary_pct": 0.5, "rope_scaling": ROPE}
    by = runtime(
        [{"names": [family.name, "cohere"], "rules": "generic"}], {"linear": {"partial": "refused"}}
    )
    verdict = judge(config, family, SCHEDULE, BEFORE, by)
    assert (verdict.status, verdict.reason) == (
        "refused",
        "it fails where 4 dimensions of 8 rotate",
    )
    cohere = by_model_type()["cohere"]
    half = runtime(
        [{"names": ["cohere"], "rules": "generic"}], {"linear": {"half_only": "differs"}}
    )
    verdict = judge(
        {**CONFIG, "model_type": "cohere", "rope_scaling": ROPE}, cohere, SCHEDULE, BEFORE, half
    )
    assert (verdict.status, verdict.reason) == ("differs", "it rotates halves of the head")


# Comparisons


def seen(**changes: Any) -> RopeSpec:
    return replace(RopeSpec(8, 8, FORM, 64, 256), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"form": InterpolatedForm(10000.0, 4.0 * (1 + 5e-7))}, ""),
        ({"attention_factor": 1 + 9e-7}, ""),
        ({"attention_factor": 1 - 2e-6}, "it uses the attention factor"),
        (
            {"form": InterpolatedForm(10000.0, 4.0 * (1 + 5e-6))},
            "it computes other frequencies (linear",
        ),
        ({"rotary_dim": 4}, "it computes other frequencies"),
        ({"attention_factor": 1.1}, "it uses the attention factor 1.1000, not 1.0000"),
        ({"attention_factor": 0.9}, "it uses the attention factor 0.9000, not 1.0000"),
        ({"softmax_scale": 1.1}, "it scales logits by 1.1000, not 1.0000"),
        ({"query_scaling": QueryScaling(0.1, 64)}, "it scales queries otherwise"),
        ({"query_scaling": QueryScaling(0.1, 256)}, ""),
        ({"query_scaling": QueryScaling(0.1, 255)}, "otherwise"),
        (
            {"form": LongRope(10000.0, (1.0,) * 4, (4.0,) * 4, 64)},
            "it computes other frequencies inside the trained",
        ),
        ({"form": LongRope(10000.0, (4.0,) * 4, (4.0,) * 4, 64)}, ""),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], words: str) -> None:
    reason = difference(SCHEDULE, BEFORE, seen(**changes))
    assert words in reason
    assert bool(reason) is bool(words)


def test_differences_of_window_layers_and_query_scaling() -> None:
    local = replace(BEFORE, local_form=Plain(500.0), layers=("global", "local"))
    assert difference(SCHEDULE, local, seen(local_form=Plain(500.0))) == ""
    assert difference(SCHEDULE, replace(local, layers=("global", "global")), seen()) == "", (
        "no layer has a window"
    )
    assert difference(SCHEDULE, local, seen(local_form=InterpolatedForm(500.0, 1.0))) == ""
    assert "(linear" in difference(SCHEDULE, local, seen(local_form=FORM))
    assert "(none)" in difference(SCHEDULE, local, seen())
    scaled = replace(SCHEDULE, query_scaling=QueryScaling(0.1, 64))
    assert "does not scale queries" in difference(scaled, BEFORE, seen())
    for same in (QueryScaling(0.1, 64), QueryScaling(-0.1, 64)):
        assert (
            difference(replace(scaled, query_scaling=same), BEFORE, seen(query_scaling=same)) == ""
        )
    for other in (QueryScaling(0.1, 65), QueryScaling(0.2, 64)):
        assert (
            difference(scaled, BEFORE, seen(query_scaling=other)) == "it scales queries otherwise"
        )
    form = LongRope(10000.0, (1.0,) * 4, (4.0,) * 4, 64)
    two = replace(SCHEDULE, form=form, short_inv_freq=form.short_inv_freq(8))
    assert difference(two, BEFORE, seen(form=form)) == ""
    assert "inside" in difference(two, BEFORE, seen())


# Versions


@pytest.mark.parametrize(("context", "status"), [(512, "exact"), (513, "refused")])
@pytest.mark.parametrize("version", ["0.33.0", "0.20.2", "0.11.0"])
def test_positions_beyond_the_table_of_yarn(version: str, context: int, status: str) -> None:
    """vLLM has a row of cosines for each position up to 8 * 64 (yarn_scaling_rope.py:79)."""
    form = Yarn(10000.0, 8.0, 64)
    factor = temperature_attention_factor(8.0)
    schedule = Schedule(form.inv_freq(8), factor, context, 64, form)
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
    config = CONFIG | {"max_position_embeddings": context, "rope_scaling": rope}
    vllm = row_of_version("vllm", version)
    assert judge(config, LLAMA, schedule, BEFORE, vllm).status == status
    # the classes of transformers compute cosines from the positions
    transformers = newest("transformers")
    assert judge(config, LLAMA, schedule, BEFORE, transformers).status == "exact"


@pytest.mark.parametrize(
    ("version", "first", "last", "inside"),
    [
        ("4.48", "4.48", "4.52", True),
        ("4.52.9", "4.48", "4.52", True),
        ("4.47.9", "4.48", "4.52", False),
        ("4.53", "4.48", "4.52", False),
        ("5.0", "4.48", "4.52", False),
        ("4.48.1", "4.48.2", "4.52", False),
    ],
)
def test_versions_within_a_range(version: str, first: str, last: str, inside: bool) -> None:
    assert within(version, first, last) is inside
    row = VersionRange(name="a", version=first, title="A", source="", through=last)
    assert row.covers(version) is inside


def test_names_of_ranges() -> None:
    def row(version: str, through: str = "", current: bool = True) -> VersionRange:
        return VersionRange(
            name="a", version=version, title="A", source="", through=through, current=current
        )

    assert (row("1").key, row("").key, row("1").last, row("1", "2").last) == ("a@1", "a", "1", "2")
    assert (row("1").display_name, row("1", "1").display_name, row("1", "2").display_name) == (
        "A 1",
        "A 1",
        "A 1-2",
    )
    assert (before("5.2"), before("5.0"), before("4.10.3")) == ("5.1", "before 5.0", "4.9")
    assert version_key("4.10.rc1.2") == (4, 10, 2)
    rows = [row("1", "2", False), row("3"), row("4", "5")]
    assert choose("a", "", rows) == tuple(rows[1:])
    assert [entry.display_name for entry in choose("a@4.1", "4.1", rows)] == ["A 4.1"]
    with pytest.raises(RecipeError, match="--runtime a@9: .*tested: 1-2, 3, 4-5$"):
        choose("a@9", "9", rows)
    names = {" GGUF ": "llama-cpp", "llama.cpp@1": "llama-cpp@1", "vLLM@0.3": "vllm@0.3"}
    assert {name: canonical(name) for name in names} == names


def verdict(
    version: str, status: Any = "exact", name: str = "a", grade: Any = "run", title: str = "A"
) -> Verdict:
    return Verdict(
        f"{name}@{version.split('-')[0]}", f"{title} {version}", status, "", "", "", Evidence(grade)
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([verdict("1.1"), verdict("1.2"), verdict("1.3-1.5")], [("exact", "A 1.1-1.5")]),
        ([verdict("1.9"), verdict("2.0")], [("exact", "A 1.9-2.0")]),
        ([verdict("1.9"), verdict("2.1")], [("exact", "A 1.9 and 2.1")]),
        (
            [verdict("1"), verdict("2", "differs"), verdict("3")],
            [("exact", "A 1 and 3"), ("differs", "A 2")],
        ),
        ([verdict("1.1"), verdict("1.2", grade="read")], [("exact", "A 1.1; read: A 1.2")]),
        ([verdict("1.1"), verdict("1.2", name="b", title="B")], [("exact", "A 1.1, B 1.2")]),
        (
            [verdict("1.1", "refused"), verdict("1.2", "exact")],
            [("exact", "A 1.2"), ("refused", "A 1.1")],
        ),
        (
            [Verdict("b", "B", "exact", "", ""), Verdict("c", "", "exact", "", "")],
            [("exact", "B, c")],
        ),
        ([], []),
    ],
)
def test_verdicts_in_groups(verdicts: list[Verdict], expected: list[tuple[str, str]]) -> None:
    assert group_by_status(verdicts) == expected
