"""What each rule of a rule set does to a config, with runtimes made for the test, and what families
alone have.
"""

import math
import re
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.registry import by_model_type
from ropeconv.models.schema import check_config
from ropeconv.rope.forms import DynamicNtk, InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.schedule import QueryScaling
from ropeconv.rope.spec import Proportional, RopeSpec
from ropeconv.runtimes.read_config import read_spec, rope_type
from ropeconv.runtimes.runtime import Runtime, row_from

CONFIG = {
    "model_type": "llama",
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 2,
    "rope_theta": 10000.0,
}
TYPES: dict[str, dict[str, Any]] = {
    name: {} for name in ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
}
OLD = ["rope_scaling"]
BOTH = ["rope_parameters", "rope_scaling"]


def runtime(types: dict[str, dict[str, Any]] | None = None, **rules: Any) -> Runtime:
    generic = {
        "schemas": OLD,
        "theta": "top",
        "types": {**TYPES, "proportional": {}, **(types or {})},
        **rules,
    }
    return row_from(
        {
            "name": "made",
            "version": "1",
            "title": "Made",
            "source": "here",
            "rules": {"generic": generic},
        }
    )


def read(
    rope: dict[str, Any] | None = None,
    *,
    of: str = "llama",
    by: Runtime | None = None,
    drop: str = "",
    **config: Any,
) -> RopeSpec:
    whole = {
        **CONFIG,
        "model_type": of,
        **config,
        **({} if rope is None else {"rope_scaling": rope}),
    }
    whole.pop(drop, None)
    family = by_model_type()[of]
    check_config(whole, [whole], family)  # as where a config is opened
    return read_spec(whole, family, by or runtime())


# The text part, the base, and the dictionary


def test_the_text_part_of_a_config_counts_where_there_is_one() -> None:
    """LLaVA over Llama has its language model's keys in text_config; a text_config of another model
    is not read.
    """
    inner = {**CONFIG, "rope_theta": 500.0, "max_position_embeddings": 4096}
    family = by_model_type()["llama"]
    whole = {
        "model_type": "llava",
        "text_config": inner,
        "rope_theta": 7.0,
        "max_position_embeddings": 7,
    }
    spec = read_spec(whole, family, runtime())
    assert (spec.rope_theta, spec.context) == (500.0, 4096)
    unnamed = {
        **CONFIG,
        "text_config": {key: value for key, value in inner.items() if key != "model_type"},
    }
    assert read_spec(unnamed, family, runtime()).rope_theta == 500.0
    other = {**CONFIG, "text_config": {**inner, "model_type": "another"}}
    assert read_spec(other, family, runtime()).rope_theta == 10000.0


def test_an_absent_base_is_that_of_the_class_and_is_said() -> None:
    spec = read(drop="rope_theta")
    assert spec.rope_theta == 10000.0
    assert any("class default 10000" in note for note in spec.notes)
    assert not any("rope_theta" in note for note in read().notes)


def test_a_base_of_null_is_refused_unless_the_rope_settings_have_one() -> None:
    """The class of transformers raises a power of None."""
    with pytest.raises(BadSource, match=r"rope_theta = null; .* 10000"):
        read(rope_theta=None)
    both = runtime(schemas=BOTH, theta="dict")
    settings = {"rope_type": "default", "rope_theta": 500.0}
    assert read(rope_theta=None, rope_parameters=settings, by=both).rope_theta == 500.0
    assert read(rope_theta=None, rope_parameters=settings).rope_theta == 10000.0, (
        "a runtime that reads the top only"
    )
    assert read(by=runtime(theta="nested")).rope_theta == 10000.0, (
        "it ignores the number at the top level"
    )


@pytest.mark.parametrize(
    ("theta", "expected"),
    [("top", 10000.0), ("dict", 500.0), (777.0, 777.0)],
    ids=["top", "dict", "fixed"],
)
def test_where_the_base_is_read(theta: Any, expected: float) -> None:
    assert (
        read({"rope_type": "default", "rope_theta": 500.0}, by=runtime(theta=theta)).rope_theta
        == expected
    )
    assert read(by=runtime(theta=theta)).rope_theta == (777.0 if theta == 777.0 else 10000.0)


def test_the_base_of_dbrx_is_read_in_attn_config() -> None:
    part = {**CONFIG, "attn_config": {"rope_theta": 500.0}}
    assert (
        read_spec(part, by_model_type()["llama"], runtime(theta="attn_config")).rope_theta == 500.0
    )


def test_a_base_may_be_cut_to_a_whole_number() -> None:
    assert (
        read(rope_theta=10000.7, by=runtime({"default": {"whole_base": True}})).rope_theta
        == 10000.0
    )
    assert read(rope_theta=10000.7).rope_theta == 10000.7


def test_the_first_schema_that_is_present_counts() -> None:
    old = {"rope_type": "linear", "factor": 2.0}
    new = {"rope_type": "linear", "factor": 3.0}
    by = runtime(schemas=BOTH)
    assert read(old, rope_parameters=new, by=by).form == InterpolatedForm(10000.0, 3.0)
    assert read(old, rope_parameters={}, by=by).form == InterpolatedForm(10000.0, 2.0)
    assert read(old, rope_parameters=new).form == InterpolatedForm(10000.0, 2.0)
    assert read(rope_scaling=None).form == Plain(10000.0)


@pytest.mark.parametrize(
    ("rope", "prefer_type", "prefer_rope_type"),
    [
        ({"type": "yarn", "rope_type": "linear"}, "yarn", "linear"),
        ({"type": "yarn"}, "yarn", "yarn"),
        ({"rope_type": "linear"}, "linear", "linear"),
        ({}, "default", "default"),
        ({"type": "mrope"}, "default", "default"),
        ({"rope_type": "su"}, "longrope", "longrope"),
        ({"type": None, "rope_type": "x"}, "x", "x"),
    ],
)
def test_names_of_rope_types(rope: dict[str, Any], prefer_type: str, prefer_rope_type: str) -> None:
    assert rope_type(rope, runtime(type_key="type").rule_set("llama")) == prefer_type
    assert rope_type(rope, runtime().rule_set("llama")) == prefer_rope_type


# Formulas


def test_llama3_and_what_it_needs() -> None:
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 5.0,
        "original_max_position_embeddings": 256,
    }
    spec = read(rope)
    assert spec.form == Llama3(10000.0, 8.0, 256, 1.5, 5.0)
    assert (spec.original_context, spec.original_context_source, spec.attention_factor) == (
        256,
        "config",
        1.0,
    )
    for key in ("low_freq_factor", "high_freq_factor"):
        with pytest.raises(BadSource, match=key):
            read({name: value for name, value in rope.items() if name != key})


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "truncate": False,
}
FORMULA = 0.1 * math.log(4) + 1


def test_yarn_with_every_rule() -> None:
    assert read(YARN).form == Yarn(10000.0, 4.0, 256, 16.0, 2.0, False)
    for rules, expected in (
        ({"betas": False}, Yarn(10000.0, 4.0, 256, 32.0, 1.0, False)),
        ({"truncate": "ignored"}, Yarn(10000.0, 4.0, 256, 16.0, 2.0, True)),
        ({"truncate": "read-flat"}, Yarn(10000.0, 4.0, 256, 16.0, 2.0, False)),
        ({"times_original": 4}, Yarn(10000.0, 4.0, 1024, 16.0, 2.0, False)),
        ({"original": "max"}, Yarn(10000.0, 4.0, 1024, 16.0, 2.0, False)),
        ({"factor": "max/original"}, Yarn(10000.0, 4.0, 256, 16.0, 2.0, False)),
    ):
        assert read(YARN, by=runtime({"yarn": rules})).form == expected, rules
    bare = {"rope_type": "yarn", "factor": 4.0}
    assert read(bare).form == Yarn(10000.0, 4.0, 1024)
    assert read(bare, original_max_position_embeddings=512).form == Yarn(10000.0, 4.0, 512)
    assert read(YARN, original_max_position_embeddings=512).form == Yarn(
        10000.0, 4.0, 512, 16.0, 2.0, False
    )
    assert read({"rope_type": "yarn", "original_max_position_embeddings": 256}).form == Yarn(
        10000.0, 4.0, 256
    )
    by_lengths = runtime({"yarn": {"factor": "max/original"}})
    assert read({**YARN, "factor": 3.0, "truncate": None}, by=by_lengths).form == Yarn(
        10000.0, 4.0, 256, 16.0, 2.0, False
    )


@pytest.mark.parametrize(
    ("sources", "rope", "expected"),
    [
        (["1"], {"attention_factor": 1.3}, 1.0),
        (["formula"], {"attention_factor": 1.3}, FORMULA),
        (["attention_factor", "formula"], {"attention_factor": 1.3}, 1.3),
        (["attention_factor", "formula"], {}, FORMULA),
        (["attention_factor", "1", "formula"], {}, FORMULA),
        (
            ["mscale", "formula"],
            {"mscale": 2.0, "mscale_all_dim": 1.0},
            (0.2 * math.log(4) + 1) / FORMULA,
        ),
        (["mscale", "formula"], {"mscale": 2.0}, FORMULA),
        (["mscale", "formula"], {"mscale_all_dim": 2.0}, FORMULA),
        (["short_mscale", "formula"], {"long_mscale": 1.2, "short_mscale": 1.1}, 1.2),
        (["short_mscale", "formula"], {"short_mscale": 1.1}, FORMULA),
        (["formula", "attention_factor"], {"attention_factor": 1.3}, FORMULA),
    ],
)
def test_sources_of_the_attention_factor(
    sources: list[str], rope: dict[str, Any], expected: float
) -> None:
    plain = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "attn_factor": 2.0,
    }
    rules = {"attention_factor": sources}
    assert read({**plain, **rope}, by=runtime({"yarn": rules})).attention_factor == pytest.approx(
        expected
    )
    times = runtime({"yarn": {**rules, "times_attn_factor": True}})
    assert read({**plain, **rope}, by=times).attention_factor == pytest.approx(2 * expected)
    assert read({"rope_type": "linear", "factor": 4.0, **rope}, by=times).attention_factor == 1.0


SHORT = [1.0, 1.0, 1.5, 2.0]
LONG = [1.0, 2.0, 3.0, 4.0]
LISTS = {
    "rope_type": "longrope",
    "short_factor": SHORT,
    "long_factor": LONG,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("lists", "short", "long"),
    [
        ("trained", SHORT, LONG),
        ("mixed", SHORT, LONG),
        ("long", LONG, LONG),
        ("window", LONG, LONG),
        ("short", SHORT, SHORT),
    ],
)
def test_which_factor_list_is_read(lists: str, short: list[float], long: list[float]) -> None:
    rules = {"longrope": {"lists": lists, "attention_factor": ["formula"]}}
    spec = read(LISTS, by=runtime(rules))
    assert spec.form == LongRope(10000.0, tuple(short), tuple(long), 256)
    assert (spec.original_context, spec.original_context_source) == (256, "config")
    # from the lengths, without a factor: sqrt(1 + ln 4 / ln 256) with 4 = 1024 / 256
    assert spec.attention_factor == pytest.approx(math.sqrt(1.25))
    assert read({**LISTS, "factor": 16.0}, by=runtime(rules)).attention_factor == pytest.approx(
        math.sqrt(1.5)
    )
    at_one = read({**LISTS, "original_max_position_embeddings": 1}, by=runtime(rules))
    assert at_one.attention_factor == math.inf
    whole = read({**LISTS, "original_max_position_embeddings": 1024}, by=runtime(rules))
    assert (whole.original_context, whole.original_context_source, whole.attention_factor) == (
        1024,
        "declared",
        1.0,
    )


@pytest.mark.parametrize("key", ["short_factor", "long_factor"])
def test_factor_lists_of_another_length(key: str) -> None:
    for wrong, words in (
        ([1.0] * 3, "has 3 numbers in .*, and 4 pairs rotate; write 4 numbers"),
        ([1.0] * 5, "has 5"),
        (None, "has 0 numbers"),
        ("x", "write positive numbers below .* there"),
    ):
        with pytest.raises(BadSource, match=words):
            read({**LISTS, key: wrong})


def test_dynamic_and_hunyuans_alpha() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}
    assert read(rope).form == DynamicNtk(10000.0, 2.0, 1024)
    alpha = runtime({"dynamic": {"alpha": True}})
    spec = read(rope, by=alpha)
    assert spec.form.theta == pytest.approx(10000 * 1000 ** (8 / 6))
    assert any(re.match("alpha 1000 .* 100,000,000", note) for note in spec.notes)
    assert read({"rope_type": "dynamic", "factor": 2.0}, by=alpha).form == DynamicNtk(
        10000.0, 2.0, 1024
    )
    assert read({**rope, "alpha": 1}, by=alpha).form == Plain(10000.0)
    assert read({**rope, "alpha": 1e9}, by=alpha).form.theta > 1e9
    for wrong in (0.5, 1.1e9, -1):
        with pytest.raises(BadSource, match="has alpha"):
            read({**rope, "alpha": wrong}, by=alpha)
    with pytest.raises(BadSource, match="has alpha"):
        read(rope, by=alpha, head_dim=2)


@pytest.mark.parametrize(
    ("rope", "config", "expected"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {}, (256, "factor")),
        ({"rope_type": "linear", "factor": 3.0}, {}, (341, "factor")),
        ({"rope_type": "linear", "factor": 5000.0}, {}, (1, "factor")),
        (
            {"rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 128},
            {},
            (128, "config"),
        ),
        ({"rope_type": "linear", "factor": 4.0}, {"max_sequence_length": 4096}, (1024, "config")),
        ({"rope_type": "linear", "factor": 4.0}, {"max_sequence_length": 4095}, (256, "factor")),
        ({"rope_type": "yarn", "factor": 4.0}, {}, (1024, "declared")),
        (
            {"rope_type": "yarn", "factor": 4.0},
            {"original_max_position_embeddings": 512},
            (512, "config"),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
            {},
            (512, "config"),
        ),
        ({**LISTS, "original_max_position_embeddings": 1023}, {}, (1023, "config")),
        ({**LISTS, "original_max_position_embeddings": 1025}, {}, (1024, "declared")),
        (None, {}, (1024, "declared")),
        (
            None,
            {"max_position_embeddings": 2048},
            (2048, "declared"),
        ),  # facts of llama are in doubt
        (
            None,
            {"of": "qwen2", "max_position_embeddings": 131072},
            (131072, "declared"),
        ),  # and so is that of qwen2
        (
            None,
            {"of": "qwen3", "max_position_embeddings": 40960},
            (32768, "family"),
        ),  # 8192 more are for the answer
        (None, {"of": "qwen3", "max_position_embeddings": 40961}, (40961, "declared")),
    ],
)
def test_the_trained_length(
    rope: dict[str, Any] | None, config: dict[str, Any], expected: tuple[int, str]
) -> None:
    spec = read(rope, **config)
    assert (spec.original_context, spec.original_context_source) == expected
    assert spec.context == config.get("max_position_embeddings", 1024)
    assert spec.original_context_reference.startswith("https://huggingface.co/Qwen/") is (
        expected[1] == "family"
    )


# Window layers, softmax and query scaling


def gemma(local: str, nested: bool = True, **config: Any) -> Any:
    schemas = BOTH if nested else OLD
    by = runtime(schemas=schemas, local=local, theta="dict")
    return read(
        of="gemma3_text", by=by, **{"rope_theta": 1e6, "num_hidden_layers": 6, **config}
    ).local_form


def test_what_window_layers_and_sections_rotate_with() -> None:
    assert gemma("own") == Plain(10000.0)
    assert gemma("own", rope_local_base_freq=777.0) == Plain(777.0)
    assert gemma("own", rope_parameters={"sliding_attention": {"rope_theta": 555.0}}) == Plain(
        555.0
    )
    assert gemma("own", rope_parameters={"sliding_attention": {"rope_type": "default"}}) == Plain(
        10000.0
    )
    assert gemma(
        "own", False, rope_parameters={"sliding_attention": {"rope_theta": 555.0}}
    ) == Plain(10000.0)
    assert gemma("same-theta") == Plain(1e6)
    rope = {"rope_type": "linear", "factor": 4.0}
    assert gemma("same", rope_scaling=rope) == InterpolatedForm(1e6, 4.0)
    assert read().local_form is None
    assert read({"rope_type": "default", "mrope_section": [1, 1, 2]}).mrope_section == (1, 1, 2)


@pytest.mark.parametrize(
    ("rule", "rope", "scale"),
    [
        ("mscale_all_dim", {"mscale_all_dim": 0.5}, 0.5),
        ("mscale_all_dim", {}, 0),
        ("factor", {}, 1),
        ("factor", {"mscale_all_dim": 0.5}, 0.5),
        ("none", {"mscale_all_dim": 0.5}, 0),
        ("unless-one", {"mscale_all_dim": 0.5}, 0.5),
        ("unless-one", {"mscale_all_dim": 0.5, "attention_factor": 1}, 0),
        ("unless-one", {"mscale_all_dim": 0.5, "attention_factor": 1.1}, 0.5),
        ("mscale_all_dim", {"mscale_all_dim": 0.5, "attention_factor": 1}, 0.5),
        ("mscale_all_dim", {"mscale_all_dim": 0.5, "factor": None}, 0),
    ],
)
def test_the_softmax_scale_of_latent_attention(
    rule: str, rope: dict[str, Any], scale: float
) -> None:
    sizes = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 8}
    given = {"rope_type": "yarn", "factor": 4.0, **rope}
    spec = read(given, of="deepseek_v3", by=runtime(softmax_scale=rule), drop="head_dim", **sizes)
    assert spec.softmax_scale == pytest.approx((0.1 * scale * math.log(4) + 1) ** 2)
    assert read(given, by=runtime(softmax_scale=rule)).softmax_scale == 1.0, "Llama has none"


def test_query_scaling_of_ministral() -> None:
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "llama_4_scaling_beta": 0.1,
    }

    def scaling(
        rope: dict[str, Any] = rope, config: dict[str, Any] | None = None, **rules: Any
    ) -> QueryScaling | None:
        return read(rope, of="ministral3", by=runtime(**rules), **(config or {})).query_scaling

    assert scaling(query_beta="rope") == QueryScaling(0.1, 256)
    assert scaling() is None
    assert scaling({**rope, "llama_4_scaling_beta": 0}, query_beta="rope") is None
    unsaid = {
        key: value for key, value in rope.items() if key != "original_max_position_embeddings"
    }
    assert scaling(unsaid, query_beta="rope") == QueryScaling(0.1, 1024)
    assert scaling(query_beta="rope", types={"yarn": {"query_beta": False}}) is None
    assert scaling(query_beta="rope", query_length=64) == QueryScaling(0.1, 64)
    top = {"original_max_position_embeddings": 128}
    assert scaling(config=top, query_beta="rope", query_length=64) == QueryScaling(0.1, 128)
    assert scaling(query_beta="top") is None
    given = {"llama_4_scaling": {"beta": 0.2, "original_max_position_embeddings": 32}}
    assert scaling(config=given, query_beta="top") == QueryScaling(0.2, 32)
    assert read(rope, by=runtime(query_beta="rope")).query_scaling is None  # Llama has no such key
    assert read(rope, by=runtime(query_beta="top"), **given).query_scaling is None


# Families: bases per layer, queries scaled in layers that do not rotate, still pairs, other widths


def of(model_type: str, **config: Any) -> RopeSpec:
    whole = {**CONFIG, "model_type": model_type, "num_hidden_layers": 4, **config}
    return read_spec(whole, by_model_type()[model_type])


def test_layers_that_rotate_share_the_base_of_their_list() -> None:
    """Granite SWA: a base of 0 is a layer that does not rotate; the key of all layers does not
    count beside it.
    """
    spec = of("granite_swa", layer_rope_theta=[500.0, 0.0, 500.0, 500.0])
    assert (spec.rope_theta, spec.layers) == (500.0, ("global", "none", "global", "global"))
    with pytest.raises(
        BadSource,
        match="different bases .*, 500 and 700",
    ):
        of("granite_swa", layer_rope_theta=[700.0, 0.0, 500.0, 500.0])
    assert of("granite_swa", layer_rope_theta=[0.0] * 4).rope_theta == 10000.0
    assert of("granite_swa").rope_theta == 10000.0


def test_bases_by_layer_type_in_one_list() -> None:
    """Step 3.5: global layers and window layers each have theirs."""
    types = ["full_attention", "sliding_attention"] * 2
    spec = of("step3p5", rope_theta=[5e6, 1e4] * 2, layer_types=types)
    assert (spec.rope_theta, spec.local_form) == (5e6, Plain(1e4))
    with pytest.raises(BadSource, match="bases in rope_theta, 10000 and 20000"):
        of("step3p5", rope_theta=[5e6, 1e4, 5e6, 2e4], layer_types=types)


def test_queries_of_layers_that_do_not_rotate() -> None:
    """Llama 4: 1 + attn_scale ln(1 + floor((p + 1) / floor_scale)), unless it is turned off."""
    assert of("llama4_text").nope_query_scaling == QueryScaling(0.1, 8192)
    spec = of("llama4_text", attn_scale=0.2, floor_scale=4096)
    assert spec.nope_query_scaling == QueryScaling(0.2, 4096)
    assert of("llama4_text", attn_temperature_tuning=False).nope_query_scaling is None
    assert of("llama").nope_query_scaling is None
    assert (spec.chunked, of("llama").chunked) == (True, False)


def test_pairs_that_stand_still_are_a_share_of_the_head() -> None:
    rope = {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        }
    }
    gemma = {"num_hidden_layers": 6, "global_head_dim": 16, "head_dim": 8, "hidden_size": 64}
    spec = of("gemma4_text", rope_parameters=rope, **gemma)
    assert (spec.form, spec.rotating_share, spec.scaled) == (
        Proportional(1e6, 1.0, 0.25),
        0.25,
        False,
    )
    assert (spec.head_dim, spec.rotary_dim, spec.local_rotary_dim) == (16, 16, 8)
    default = of("gemma4_text", **gemma)
    assert default.rotating_share == 0.25
    assert any("class default proportional" in note for note in default.notes)
    rope = {"rope_type": "proportional", "factor": 0.5, "partial_rotary_factor": 0.5}
    taken = read(rope)
    assert (taken.form, taken.rotating_share, taken.scaled) == (
        Proportional(1e4, 0.5, 0.5),
        1.0,
        True,
    ), "a share of Llama"
    for key, wrong in (
        ("factor", 0),
        ("partial_rotary_factor", 1.1),
        ("partial_rotary_factor", -0.1),
    ):
        with pytest.raises(BadSource, match=f"has {key} = "):
            read({**rope, key: wrong})
