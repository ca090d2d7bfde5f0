"""What llama.cpp makes of each key of a header, by the lines of its source that read_header names;
no file is read.
"""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.rope.forms import NO_ROTATION, InterpolatedForm, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.schedule import QueryScaling
from ropeconv.rope.spec import Proportional
from ropeconv.runtimes.llamacpp.archs import (
    Arch,
    ArchWindow,
    arch_of_header,
    assumed_keys,
    find_arch,
)
from ropeconv.runtimes.llamacpp.layers import layer_kinds, layer_windows
from ropeconv.runtimes.llamacpp.read_header import ASSUMED, Reading, read, recognise_llama3
from ropeconv.runtimes.llamacpp.scaling import ArchKeys

PLAIN = Arch(pairs="norm", name="made", freqs="used", betas=True, log_multiplier=True)
BASE = {
    "context_length": 1024,
    "embedding_length": 16,
    "attention.head_count": 2,
    "block_count": 4,
    "rope.freq_base": 10000.0,
}


class Keys(dict[str, Any]):
    """Keys of an architecture by their short names; those with a slash are whole names."""

    def __init__(self, **keys: Any) -> None:
        named = {**BASE, **{key.replace("__", "."): value for key, value in keys.items()}}
        super().__init__(
            {f"made.{key}": value for key, value in named.items() if value is not None}
        )


def arch(**changes: Any) -> Arch:
    return msgspec.structs.replace(PLAIN, **changes)


def reading(
    of: Arch = PLAIN,
    vectors: dict[str, Any] | None = None,
    whole: dict[str, Any] | None = None,
    **keys: Any,
) -> Reading:
    header = Keys(**keys)
    header.update(whole or {})
    return read(header, {name: np.array(vector) for name, vector in (vectors or {}).items()}, of)


DEEPSEEK = arch(mla=True, softmax=True, same_mscale=True)
YARN: dict[str, Any] = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 256,
}
LOG = 0.1 * math.log(4)
SIZED: dict[str, Any] = {"attention__sliding_window": 32}


# Widths and formulas


@pytest.mark.parametrize(
    ("keys", "changes", "widths"),
    [
        ({}, {}, (8, 8)),
        ({"attention__key_length": 12}, {}, (12, 12)),
        ({"rope__dimension_count": 4}, {}, (8, 4)),
        ({"attention__head_count": [0, 2, 1]}, {}, (8, 8)),
        ({"rope__dimension_count": 8}, {"halved": True}, (8, 4)),
        ({"attention__key_length": 8}, {"full_rotation": True}, (8, 8)),
        ({"rope__dimension_count": 2}, {}, (8, 2)),
        ({"embedding_length": 17}, {}, (8, 8)),
        ({"attention__head_count": 1}, {}, (16, 16)),
    ],
)
def test_widths(keys: dict[str, Any], changes: dict[str, Any], widths: tuple[int, int]) -> None:
    spec = reading(arch(**changes), **keys).spec
    assert (spec.head_dim, spec.rotary_dim) == widths
    assert len(spec.form.inv_freq(spec.rotary_dim)) == widths[1] // 2


@pytest.mark.parametrize(
    ("keys", "changes", "words"),
    [
        ({"attention__head_count": 0}, {}, "without heads"),
        ({"attention__head_count": []}, {}, "without heads"),
        ({"attention__head_count": None}, {}, "without heads"),
        ({"rope__dimension_count": 10}, {}, "10 of 8"),
        ({"rope__dimension_count": 3}, {}, "3 of 8"),
        ({"rope__dimension_count": 0}, {}, "0 of 8"),
        (
            {"rope__dimension_count": 4},
            {"full_rotation": True},
            "only when all 8 dimensions rotate, not 4",
        ),
        ({"context_length": None}, {}, "no made.context_length"),
        ({"context_length": 0}, {}, "declares 0 tokens"),
        ({"rope__scaling__original_context_length": 0}, {}, "trained for 0"),
        ({"rope__scaling__type": "cubic"}, {}, "'cubic', on which llama.cpp aborts"),
        ({"rope__freq_base": 1.0}, {}, "freq_base 1 "),
        ({"rope__scaling__factor": -1.0}, {}, "factor -1"),
        ({"rope__freq_base": 10000}, {}, "a finite f32"),
        ({"rope__freq_base": math.inf}, {}, "a finite f32"),
        ({"context_length": True}, {}, "a whole number"),
        ({"context_length": -1}, {}, "a whole number"),
        ({"context_length": 4.0}, {}, "a whole number"),
    ],
)
def test_headers_that_are_refused(
    keys: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadSource, match=words):
        reading(arch(**changes), **keys)


def test_formulas_by_type_and_factor() -> None:
    assert reading(rope__freq_base=None).spec.form == Plain(10000.0)
    assert reading(rope__scaling__factor=4.0).spec.form == InterpolatedForm(10000.0, 4.0)
    assert reading(rope__scale_linear=3.0).spec.form == InterpolatedForm(10000.0, 3.0)
    assert reading(rope__scale_linear=3.0, rope__scaling__factor=4.0).spec.form == InterpolatedForm(
        10000.0, 4.0
    )
    assert reading(rope__scaling__type="none", rope__scaling__factor=4.0).spec.form == Plain(
        10000.0
    )
    assert reading(rope__scaling__factor=0.0).spec.form == Plain(10000.0)
    assert reading(**YARN).spec.form == Yarn(10000.0, 4.0, 256)
    assert reading(**{**YARN, "rope__scaling__factor": 1.0}).spec.form == Plain(10000.0)
    betas = {"rope__scaling__yarn_beta_fast": 16.0, "rope__scaling__yarn_beta_slow": 2.0}
    assert reading(**YARN, **betas).spec.form == Yarn(10000.0, 4.0, 256, 16.0, 2.0)
    assert reading(arch(betas=False), **YARN, **betas).spec.form == Yarn(
        10000.0, 4.0, 256, 32.0, 1.0
    )
    assert reading(arch(pairs="neox")).spec.layout == "half"
    assert reading().spec.layout == "interleaved"


def test_crossed_ends_of_a_ramp_are_a_step_in_llama_cpp() -> None:
    """With 1,048,576 tokens and the base 30, each pair rotates more than 5,000 times."""
    long = {**YARN, "rope__scaling__original_context_length": 1 << 20, "rope__freq_base": 30.0}
    assert reading(**long).spec.form == Plain(30.0)
    assert reading(**long).spec.attention_factor == pytest.approx(1 + LOG)

    # with 2 tokens, no pair rotates once: all but the first are divided
    short = {**YARN, "rope__scaling__original_context_length": 2, "rope__freq_base": 30.0}
    base = 30.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(
        reading(**short).spec.form.inv_freq(8), base / [1, 4, 4, 4], rtol=1e-12
    )
    tensor = reading(vectors={"rope_freqs.weight": [1.0, 2.0, 5.0, 3.0]}, **long)
    np.testing.assert_allclose(tensor.spec.form.inv_freq(8), base / [1, 2, 5, 3], rtol=1e-12)


# Rope tensors


def test_rope_tensors_divide_before_interpolation() -> None:
    base = 10000.0 ** (-np.arange(4) / 4)
    divisors = [1.0, 2.0, 5.0, 3.0]
    result = reading(vectors={"rope_freqs.weight": divisors})
    np.testing.assert_allclose(result.spec.form.inv_freq(8), base / divisors)
    linear = reading(vectors={"rope_freqs.weight": divisors}, rope__scaling__factor=4.0)
    np.testing.assert_allclose(linear.spec.form.inv_freq(8), base / divisors / 4)
    ramp = Yarn(10000.0, 4.0, 256).ramp(8)
    yarn = reading(vectors={"rope_freqs.weight": divisors}, **YARN)
    np.testing.assert_allclose(yarn.spec.form.inv_freq(8), base / divisors * (1 - ramp + ramp / 4))
    assert reading(vectors={"rope_freqs.weight": [1.0] * 4}).spec.form == Plain(10000.0)
    assert reading(
        arch(freqs="ignored"), vectors={"rope_freqs.weight": divisors}
    ).spec.form == Plain(10000.0)
    still = reading(vectors={"rope_freqs.weight": [1.0, 2.0, 1e30, 1e35]})
    np.testing.assert_allclose(still.spec.form.inv_freq(8), [1, 0.05, 0, 0])
    for length in (3, 5):
        with pytest.raises(BadSource, match=f"{length} numbers for 4"):
            reading(vectors={"rope_freqs.weight": [2.0] * length})


def test_two_lists_where_they_are_read() -> None:
    pair = {
        "rope_factors_long.weight": [2.0, 3.0, 4.0, 5.0],
        "rope_factors_short.weight": [1.0, 1.0, 2.0, 2.0],
    }
    long_rope = {"rope__scaling__type": "longrope", "rope__scaling__original_context_length": 256}
    for factors, keys, used in (
        ("always", {}, True),
        ("always", long_rope, True),
        ("longrope", {}, False),
        ("longrope", long_rope, True),
        ("ignored", long_rope, False),
        ("", long_rope, False),
    ):
        spec = reading(arch(freqs="", factors=factors), pair, **keys).spec
        assert isinstance(spec.form, LongRope) is used
        if isinstance(spec.form, LongRope):
            assert (spec.form.long_factor, spec.form.short_factor) == ((2, 3, 4, 5), (1, 1, 2, 2))
            length = 256 if keys else 1024
            assert spec.notes == (
                f"short factors hold in windows of up to {length} tokens, long ones in larger",
            )
    of = arch(freqs="", factors="always")
    for name in pair:
        assert reading(of, {name: [2.0] * 3}).spec.form == Plain(10000.0), "one alone is not read"
        with pytest.raises(BadSource, match="3 numbers for 4 pairs"):
            reading(of, {**pair, name: [2.0] * 3})
    assert reading(of, {name: [1.0, 1.0, 1.0, 2.0] for name in pair}).spec.notes == ()
    still = [1.0, 1.0, NO_ROTATION, NO_ROTATION]
    assert isinstance(reading(vectors={"rope_freqs.weight": still}).spec.form, Proportional)
    named = {**pair, "rope_factors_long.weight": still}
    assert isinstance(reading(of, named).spec.form, LongRope), "two lists have no such name"


@pytest.mark.parametrize("original", [64, 8192, 1 << 20])
def test_the_divisors_of_llama3_are_recognised(original: int) -> None:
    form = Llama3(500000.0, 8.0, original)
    divisors = Plain(500000.0).inv_freq(128) / form.inv_freq(128)
    noisy = divisors * (1 + 2e-6 * np.cos(np.arange(64)))
    assert recognise_llama3(Plain(500000.0), noisy, 128) == form
    assert recognise_llama3(InterpolatedForm(500000.0, 2.0), divisors, 128) is None
    far = Plain(500000.0).inv_freq(128) / Llama3(500000.0, 8.0, 1 << 21).inv_freq(128)
    for other in (divisors * (1 + 1e-5 * np.cos(np.arange(64))), np.ones(64), far):
        assert recognise_llama3(Plain(500000.0), other, 128) is None


# Attention factors: src/llama-context.cpp:178-214


@pytest.mark.parametrize(
    ("keys", "changes", "net", "local"),
    [
        ({}, {}, 1.0, 1.0),
        ({"rope__scaling__attn_factor": 1.5}, {}, 1.5, 1.5),
        (YARN, {}, 1 + LOG, 1.0),
        ({**YARN, "rope__scaling__attn_factor": 1.5}, {}, 1.5 * (1 + LOG), 1.5),
        (
            {**YARN, "rope__scaling__yarn_log_multiplier": 0.5},
            {},
            (1 + LOG) / (1 + LOG / 2),
            1 / (1 + LOG / 2),
        ),
        (
            {**YARN, "rope__scaling__yarn_log_multiplier": 0.5},
            {"log_multiplier": False},
            1 + LOG,
            1.0,
        ),
        ({**YARN, "rope__scaling__factor": 0.5}, {}, 1.0, 1.0),
        ({"rope__scaling__factor": 4.0, "rope__scaling__yarn_log_multiplier": 0.5}, {}, 1.0, 1.0),
    ],
)
def test_attention_factors(
    keys: dict[str, Any], changes: dict[str, Any], net: float, local: float
) -> None:
    result = reading(arch(**changes), **keys)
    assert result.spec.attention_factor == pytest.approx(net)
    assert result.local_attention_factor == pytest.approx(local)
    assert result.spec.softmax_scale == 1.0


def test_latent_attention_scales_logits_once_for_both_parts() -> None:
    """deepseek2.cpp: the multiplier is stored as 0.1 mscale_all_dim; mscale is taken as
    mscale_all_dim.
    """
    keys = {**YARN, "rope__scaling__yarn_log_multiplier": 0.0707}
    spec = reading(DEEPSEEK, **keys).spec
    everywhere = 1 + 0.707 * LOG
    assert spec.attention_factor == pytest.approx(1.0)
    assert spec.softmax_scale == pytest.approx(everywhere**2)
    unit_spec = reading(DEEPSEEK, **{**keys, "rope__scaling__yarn_log_multiplier": 0.1}).spec
    other = reading(arch(mla=True, softmax=True), **keys).spec
    assert other.attention_factor == pytest.approx((1 + LOG) / everywhere)
    assert (unit_spec.attention_factor, unit_spec.softmax_scale) == (
        pytest.approx(1.0),
        pytest.approx((1 + LOG) ** 2),
    )
    bare = reading(DEEPSEEK, **YARN).spec
    assert (bare.attention_factor, bare.softmax_scale) == (
        pytest.approx(1 + LOG),
        pytest.approx((1 + LOG) ** 2),
    )


def test_query_scaling_and_norms_of_window_layers() -> None:
    result = reading(whole={"ropeconv.window_norm_scale": 0.5}, rope__scaling__attn_factor=1.5)
    assert result.local_attention_factor == pytest.approx(0.75)
    of = arch(query_length="rope.scaling.original_context_length")
    scale = {"attention__temperature_scale": 0.1}
    assert reading(**scale).spec.query_scaling is None
    assert reading(of).spec.query_scaling is None
    assert reading(of, **scale).spec.query_scaling == QueryScaling(0.1, 1024)
    assert reading(of, **scale, **STATED).spec.query_scaling == QueryScaling(0.1, 256)


STATED = {"rope__scaling__original_context_length": 256}


@pytest.mark.parametrize(
    ("family", "keys", "expected"),
    [
        ("", {}, (1024, "declared")),
        ("", STATED, (256, "header")),
        ("", {"rope__scaling__original_context_length": 1024}, (1024, "declared")),
        ("", {**STATED, "attention__temperature_scale": 0.1}, (1024, "declared")),
        ("", {"rope__scaling__factor": 4.0}, (256, "factor")),
        ("", {"rope__scaling__factor": 5000.0}, (1, "factor")),
        (
            "",
            {"rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 1},
            (1, "header"),
        ),
        ("", {"rope__scaling__attn_factor": 1.5}, (1024, "declared")),
        ("", YARN, (256, "header")),
        ("", {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, (1024, "declared")),
        # Qwen3-8B declares 40,960 tokens: 32,768 trained ones and 8,192 for the answer
        ("qwen3", {"context_length": 40960}, (32768, "family")),
        ("", {"context_length": 40960}, (40960, "declared")),
        ("qwen3", {"context_length": 40961}, (40961, "declared")),
        (
            "qwen2",
            {"context_length": 131072},
            (131072, "declared"),
        ),  # some were trained at 32,768, as is not known
    ],
)
def test_the_trained_length(family: str, keys: dict[str, Any], expected: tuple[int, str]) -> None:
    spec = reading(arch(family=family), **keys).spec
    assert (spec.original_context, spec.original_context_source) == expected
    assert spec.original_context_reference.startswith("https://huggingface.co/Qwen/") is (
        expected[1] == "family"
    )


def test_keys_that_nobody_reads() -> None:
    prefix = "rope__scaling__"
    unread = {
        f"{prefix}yarn_attn_factor": 1.5,
        f"{prefix}yarn_ext_factor": 0.5,
        f"{prefix}yarn_beta_fast": 8.0,
        f"{prefix}yarn_beta_slow": 2.0,
        f"{prefix}yarn_log_multiplier": 0.1,
        f"{prefix}factor": 4.0,
    }
    assert reading(**unread).dead == ("yarn_ext_factor", "yarn_attn_factor")
    assert reading(
        arch(betas=False, log_multiplier=False), **unread, rope__scaling__type="none"
    ).dead == (
        "yarn_ext_factor",
        "yarn_attn_factor",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "yarn_log_multiplier",
        "factor",
    )
    usual = {
        "yarn_attn_factor": 1.0,
        "yarn_ext_factor": 1.0,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": 1.0,
    }
    assert (
        reading(arch(betas=False), **{prefix + key: value for key, value in usual.items()}).dead
        == ()
    )


# Layers


def kinds(of: Arch, **keys: Any) -> str:
    return "".join(kind[0] for kind in layer_kinds(ArchKeys(Keys(**keys), of)))


def windows(of: Arch, **keys: Any) -> tuple[int | None, ...]:
    return layer_windows(ArchKeys(Keys(**keys), of))


def test_which_layers_rotate() -> None:
    assert kinds(PLAIN) == "gggg"
    assert kinds(PLAIN, nextn_predict_layers=1) == "ggg"
    assert kinds(arch(nope_interval=2)) == "gngn"
    assert kinds(arch(pattern=True), attention__rope_pattern=[1, 0, 0, 1, 1]) == "gnng"
    assert kinds(PLAIN, attention__rope_pattern=[1, 0, 0, 1]) == "gggg"
    assert kinds(arch(only_layers=4)) == "gggg"
    for keys, of, words in (
        ({"block_count": 10_001}, PLAIN, "block_count 10001"),
        ({"nextn_predict_layers": 5}, PLAIN, "block_count -1"),
        ({}, arch(only_layers=5), "only with 5 layers, and this file has 4"),
    ):
        with pytest.raises(BadSource, match=words):
            kinds(of, **keys)
    with pytest.raises(BadSource, match="disables RoPE in made"):
        kinds(arch(finetuned=True), rope__scaling__finetuned=False)
    assert kinds(arch(finetuned=True), rope__scaling__finetuned=True) == "gggg"
    assert kinds(PLAIN, rope__scaling__finetuned=False) == "gggg"


def test_layers_without_attention_do_not_rotate() -> None:
    assert kinds(PLAIN, attention__head_count_kv=[1, 0, 2, 0]) == "gngn"
    linear = arch(full_attention_interval=4)
    assert kinds(linear) == "nnng"
    assert kinds(linear, full_attention_interval=2) == "ngng"
    assert kinds(linear, attention__recurrent_layers=[False, True, True, False]) == "gnng"
    assert kinds(linear, attention__recurrent_layers=[False, True]) == "gngg"
    assert kinds(linear, attention__recurrent_layers=True) == "nnnn"
    assert (
        kinds(linear, full_attention_interval=1)
        == kinds(linear, attention__recurrent_layers=False)
        == "gggg"
    )
    assert kinds(PLAIN, attention__recurrent_layers=[True] * 4) == "gggg"
    with pytest.raises(BadSource, match="full_attention_interval 0"):
        kinds(linear, full_attention_interval=0)


def test_a_fixed_rotation_reads_no_key() -> None:
    result = reading(arch(fixed=True), **YARN, rope__freq_base=5e5, rope__scaling__attn_factor=2.0)
    assert (result.spec.form, result.spec.attention_factor) == (Plain(10000.0), 1.0)
    assert result.dead == ("factor", "attn_factor")


def test_alpha_changes_the_base() -> None:
    """hunyuan-vl.cpp: base alpha^(d / (d - 2))."""
    of = arch(alpha=True)
    for alpha in (1000.0, 0.5):
        assert reading(of, rope__scaling__alpha=alpha).spec.rope_theta == pytest.approx(
            10000.0 * alpha ** (8 / 6)
        )
    assert reading(rope__scaling__alpha=1000.0).spec.form == reading(of).spec.form == Plain(10000.0)
    assert reading(of, rope__scaling__alpha=0.0).spec.form == Plain(10000.0)
    assert reading(of, rope__scaling__alpha=9.0, attention__key_length=2).spec.form == Plain(
        10000.0
    )
    narrow = reading(of, rope__scaling__alpha=2.0, attention__key_length=3, rope__dimension_count=2)
    assert narrow.spec.rope_theta == pytest.approx(80000)
    with pytest.raises(BadSource, match="freq_base 3.9685e-05 and factor 1"):
        reading(of, rope__scaling__alpha=1e-3, rope__freq_base=0.39685026299)


def test_yarn_keys_of_grok() -> None:
    of = arch(ext_factor=True, beta_fast=8.0)
    scaling = "rope__scaling__"
    assert reading(of, **YARN).spec.form == Yarn(10000.0, 4.0, 256, 8.0, 1.0)
    ramped = {
        f"{scaling}factor": 4.0,
        f"{scaling}yarn_ext_factor": 1.0,
        f"{scaling}original_context_length": 256,
    }
    assert isinstance(reading(of, **ramped).spec.form, Yarn)
    for keys in (ramped, YARN):
        assert isinstance(
            reading(of, **{**keys, f"{scaling}yarn_ext_factor": 0.0}).spec.form, InterpolatedForm
        )
    assert isinstance(reading(**ramped).spec.form, InterpolatedForm)
    attention = {f"{scaling}yarn_attn_factor": 1.5}
    assert reading(of, **attention).spec.attention_factor == 1.5
    assert reading(of, **attention, rope__scaling__attn_factor=2.0).spec.attention_factor == 3.0
    assert reading(of, **attention, **YARN).spec.attention_factor == pytest.approx(1 + LOG)
    assert reading(**attention).spec.attention_factor == 1.0
    with pytest.raises(BadSource, match="yarn_ext_factor 0.5; only 0 and 1"):
        reading(of, **{**ramped, f"{scaling}yarn_ext_factor": 0.5})


def test_sections_of_positions() -> None:
    sections = {"rope__dimension_sections": [1, 1, 2, 0]}
    required = arch(pairs="mrope", sections="required")
    spec = reading(required, **sections).spec
    assert (spec.mrope_section, spec.layout) == ((1, 1, 2), "half")
    fourth = reading(required, rope__dimension_sections=[1, 1, 1, 1]).spec
    assert fourth.mrope_section == (1, 1, 1, 1)
    assert fourth.notes == ("1 of 4 pairs rotate by a fourth position, which is 0 for text",)
    optional = arch(pairs="norm", sections="optional")
    assert (reading(optional).spec.layout, reading(optional, **sections).spec.layout) == (
        "interleaved",
        "half",
    )
    temporal = reading(optional, rope__dimension_sections=[4, 0, 0, 0]).spec
    assert (temporal.mrope_section, temporal.layout) == ((), "interleaved")
    assert reading(**sections).spec.mrope_section == ()
    for fewer, expected in (([2, 2], (2, 2)), ([0, 4], ()), ([4], ())):
        assert reading(optional, rope__dimension_sections=fewer).spec.mrope_section == expected
    for wrong in (None, [0, 0, 0, 0], [0, 0, 0, 4]):
        with pytest.raises(BadSource, match="has no made.rope.dimension_sections"):
            reading(required, rope__dimension_sections=wrong)
    for odd in ([1, 1, 1, 0, 0], [True, 1, 1, 1], [1.0, 1, 1, 1], ["1", 1, 1], [1, 1, -1, 0]):
        for of in (required, optional):
            with pytest.raises(BadSource, match="dimension_sections"):
                reading(of, rope__dimension_sections=odd)


def test_window_layers() -> None:
    windowed = arch(window=ArchWindow("key", 4, "base", theta=500.0))
    sized = {"attention__sliding_window": 32}
    assert (kinds(windowed), windows(windowed)) == ("gggg", (None,) * 4)
    assert (kinds(windowed, **sized), windows(windowed, **sized)) == ("lllg", (32, 32, 32, None))
    assert windows(windowed, **sized, attention__sliding_window_pattern=2) == (32, None, 32, None)
    assert windows(windowed, **sized, attention__sliding_window_pattern=0) == (32,) * 4
    assert windows(windowed, **sized, attention__sliding_window_pattern=1) == (None,) * 4
    assert windows(windowed, **sized, attention__sliding_window_pattern=[True, False]) == (
        32,
        None,
        None,
        None,
    )
    unread = arch(window=ArchWindow("key", 4, pattern="none"))
    assert windows(unread, **sized, attention__sliding_window_pattern=2) == (32, 32, 32, None)
    always = arch(window=ArchWindow("always", 2, "base"))
    assert windows(always) == (4096, None, 4096, None)
    counted = arch(window=ArchWindow("4", 2, "base"))
    assert (kinds(counted), kinds(counted, block_count=5)) == ("lglg", "ggggg")
    turning = arch(window=ArchWindow("key", 2, "base", rotates="window"))
    assert kinds(turning, **sized) == "gngn"
    dense = arch(
        window=ArchWindow("key", 2, "base", rotates="window", dense_first=True), leading_dense=True
    )
    assert (kinds(dense, **sized), kinds(dense, **sized, leading_dense_block_count=1)) == (
        "ngng",
        "ggng",
    )
    assert reading(turning, **sized, **YARN, rope__freq_base_swa=700.0).spec.form == Plain(700.0)
    same = arch(window=ArchWindow("key", 2, "same"))
    assert kinds(same, **sized) == "gggg"
    assert kinds(same, **sized, rope__freq_base_swa=10000.0) == "gggg"
    assert kinds(same, **sized, rope__freq_base_swa=500.0) == "lglg"
    assert reading(windowed, **sized).spec.windows == (32, 32, 32, None)


def test_what_window_layers_rotate_with() -> None:
    sized = {
        "attention__sliding_window": 32,
        "rope__scaling__factor": 4.0,
        "rope__scaling__attn_factor": 1.5,
    }

    def local(
        scaling: str, own_theta: bool = True, theta: float | None = 500.0, **keys: Any
    ) -> tuple[Any, float]:
        result = reading(
            arch(window=ArchWindow("key", 2, scaling, theta=theta, own_theta=own_theta)),
            **sized,
            **keys,
        )  # type: ignore[arg-type]
        return result.spec.local_form, result.local_attention_factor

    assert local("base") == (Plain(500.0), 1.5)
    assert local("plain") == (Plain(500.0), 1.0)
    assert local("base", rope__freq_base_swa=700.0) == (Plain(700.0), 1.5)
    assert local("base", own_theta=False, rope__freq_base_swa=700.0) == (Plain(10000.0), 1.5)
    assert local("base", theta=None) == (Plain(10000.0), 1.5)
    assert local("same", rope__freq_base_swa=700.0) == (InterpolatedForm(700.0, 4.0), 1.5)
    assert reading(arch(window=ArchWindow("key", 2, "base"))).spec.local_form is None


def test_names_of_architectures() -> None:
    assert find_arch("llama").name == "llama"
    for name, words in (
        ("cubic", "'cubic' is not in the table of .*; --assume-arch-keys writes theta"),
        ("quen3", r"is not in the table of .* \(the nearest name is qwen3\); --assume-arch-keys"),
        (None, "general.architecture is"),
        (5, "general.architecture is"),
        ("", "general.architecture is"),
        ("mamba2", "mamba2 uses state spaces instead of RoPE"),
        ("gemma4-assistant", r"draft model \(Gemma 4 assistant\)"),
    ):
        with pytest.raises(BadSource, match=words):
            find_arch(name)


def test_unknown_architectures_are_taken_where_that_is_allowed() -> None:
    with assumed_keys():
        assert find_arch("cubic") == Arch(pairs="neox", name="cubic", assumed=True)
        assert not find_arch("llama").assumed
        with pytest.raises(BadSource, match="instead of RoPE"):
            find_arch("mamba")
        with assumed_keys(False):
            assert find_arch("cubic").assumed
    with pytest.raises(BadSource, match="not in the table"), assumed_keys(False):
        find_arch("cubic")
    assumed = arch_of_header({"general.architecture": "cubic", "ropeconv.assumed_arch": True})
    assert assumed.assumed
    assert (
        reading(msgspec.structs.replace(assumed, name="made")).spec.notes,
        reading().spec.notes,
    ) == (ASSUMED, ())


# Keys at their limits, or absent


def test_chunks_and_queries_of_layers_that_do_not_rotate() -> None:
    chunks = ArchWindow("unless 0", 4, "same", size=8192, chunked=True)
    scale = QueryScaling(0.1, 8192)
    llama4 = arch(nope_interval=4, nope_with_window=True, window=chunks, nope_query_scaling=scale)
    with_chunks = reading(llama4).spec
    without = reading(llama4, attention__sliding_window=0).spec
    assert (with_chunks.chunked, with_chunks.nope_query_scaling) == (True, QueryScaling(0.1, 8192))
    assert (without.chunked, without.nope_query_scaling) == (False, None)
    every_other = arch(nope_interval=2, nope_with_window=True, window=chunks)
    assert kinds(every_other, attention__sliding_window=0) == "gggn", (
        "llama4.cpp: the last layer alone"
    )
    slides = reading(arch(window=ArchWindow("key", 2)), **SIZED).spec
    assert (slides.windows, slides.chunked, slides.nope_query_scaling) == (
        (32, None, 32, None),
        False,
        None,
    )


def test_a_factor_that_only_some_layers_would_ignore_is_refused() -> None:
    """llama.cpp's layers with a window keep the factor under the type none, where they have a copy."""
    copy = arch(window=ArchWindow("key", 2, own_factor=True))
    off: dict[str, Any] = {"rope__scaling__type": "none", "rope__scaling__factor": 4.0}
    with pytest.raises(BadSource, match="none and rope.scaling.factor 4"):
        reading(copy, **off, **SIZED)
    with pytest.raises(BadSource, match="factor 2"):
        reading(copy, rope__scaling__type="none", rope__scale_linear=2.0, **SIZED)

    # no layer has a window, or a copy, or the factor is 1, or the type is one with a factor
    assert not reading(copy, **off).spec.scaled
    assert not reading(arch(window=ArchWindow("key", 2)), **off, **SIZED).spec.scaled
    assert not reading(copy, **{**off, "rope__scaling__factor": 1.0}, **SIZED).spec.scaled
    linear = reading(copy, **{**off, "rope__scaling__type": "linear"}, **SIZED).spec
    assert linear.form == InterpolatedForm(10000.0, 4.0)
    still = arch(window=ArchWindow("key", 2, own_factor=True), nope_interval=2, nope_first=True)
    assert not reading(still, **off, **SIZED).spec.scaled
