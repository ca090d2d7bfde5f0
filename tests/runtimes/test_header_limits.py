"""Keys of a GGUF header at their limits, and what is read where one is absent; test_header_rules has the rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.rope.forms import Interpolated, LongRope, Plain, Yarn
from ropeconv.rope.log_n import QueryScaling
from ropeconv.runtimes.llamacpp.archs import Arch, PositionScale, Window
from ropeconv.runtimes.llamacpp.cached_layers import cached_layers
from ropeconv.runtimes.llamacpp.keys import ArchKeys
from ropeconv.runtimes.llamacpp.read_header import ASSUMED

from .test_header_rules import LOG, PLAIN, YARN, Keys, arch, kinds, reading, windows

SIZED: dict[str, Any] = {"attention__sliding_window": 32}


def test_whole_numbers_and_finite_ones() -> None:
    file = ArchKeys({"made.zero": 0, "made.f": 0.5, "made.no": True, "made.odd": -1, "other": 2.0}, PLAIN)
    assert (file.whole("zero"), file.whole("zero", 5), file.whole("absent", 5)) == (0, 0, 5)
    assert (file.number("f", 1.0), file.number("absent", 1.0), file.number("other", 1.0, prefix="")) == (0.5, 1.0, 2.0)
    largest = float(np.finfo(np.float32).max)
    assert ArchKeys({"made.f": -largest}, PLAIN).number("f", 1.0) == -largest
    assert (file.text("absent", "x"), file.text("zero", "x")) == ("x", "0")
    with pytest.raises(BadSource, match="has no made.absent, which llama.cpp requires"):
        file.whole("absent")
    for key in ("no", "odd", "f"):
        with pytest.raises(BadSource, match=f"made.{key} = .*; a whole number belongs there"):
            file.whole(key, 5)
    for key in ("no", "zero"):
        with pytest.raises(BadSource, match=f"made.{key} = .*; a finite f32 belongs there"):
            file.number(key, 1.0)


def test_a_trained_length_of_one_token() -> None:
    spec = reading(rope__scaling__original_context_length=1).spec
    assert (spec.original_context, spec.original_context_source) == (1, "header")


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_the_attention_factor_of_yarn_grows_from_a_factor_of_1_on(factor: float) -> None:
    found = reading(**{**YARN, "rope__scaling__factor": factor}).spec
    assert found.attention_factor == pytest.approx(0.1 * math.log(factor) + 1)


def test_a_share_of_0_turns_the_ramp_off_whatever_the_type_is() -> None:
    off, negative = ({**YARN, "rope__scaling__yarn_ext_factor": value} for value in (0.0, -0.5))
    of = arch(ext_factor=True)
    assert reading(of, **off).spec.form == Interpolated(10000.0, 4.0)
    assert reading(of, **negative).spec.form == Yarn(10000.0, 4.0, 256)
    assert reading(of).spec.form == Plain(10000.0)


def test_keys_of_grok_multiply_what_all_read() -> None:
    of, twice = arch(ext_factor=True), {"rope__scaling__attn_factor": 2.0}
    assert reading(of, **twice).spec.attention_factor == 2.0
    assert reading(of, **twice, rope__scaling__yarn_attn_factor=1.5).spec.attention_factor == 3.0
    assert reading(of, rope__scaling__yarn_attn_factor=1.5, rope__scaling__yarn_ext_factor=0.0).dead == ()


def test_bases_by_alpha_at_the_limits() -> None:
    """base alpha^(d / (d - 2)), from an alpha above 0 and a head wider than 2."""
    of = arch(alpha=True)
    assert reading(of, rope__scaling__alpha=0.5).spec.rope_theta == pytest.approx(10000 * 0.5 ** (8 / 6))
    narrow = {"attention__key_length": 3, "rope__dimension_count": 2}
    assert reading(of, **narrow, rope__scaling__alpha=2.0).spec.rope_theta == pytest.approx(80000)
    assert reading(of).spec.rope_theta == reading(rope__scaling__alpha=2.0).spec.rope_theta == 10000
    with pytest.raises(BadSource, match="freq_base 3.9685e-05 and factor 1; download it again"):
        reading(of, rope__scaling__alpha=1e-3, rope__freq_base=0.39685026299)


@pytest.mark.parametrize("key", ["rope__scaling__alpha", "rope__freq_base", "rope__scaling__attn_factor"])
@pytest.mark.parametrize("value", [1e39, -1e39, 1e300, math.inf, math.nan])
def test_numbers_that_no_f32_holds(key: str, value: float) -> None:
    """llama.cpp reads these keys as f32, and a file may say f64."""
    with pytest.raises(BadSource, match="a finite f32 belongs there"):
        reading(arch(alpha=True), **{key: value})


def test_a_fixed_rotation_beside_a_softmax_scale() -> None:
    """The factors then count in the scale of all logits, so that they are read, and nowhere else."""
    found = reading(arch(fixed=True, softmax=True, mla=True), **YARN, rope__scaling__attn_factor=2.0)
    assert (found.spec.form, found.spec.attention_factor, found.local_attention_factor) == (Plain(10000.0), 1.0, 1.0)
    assert found.spec.softmax_scale == pytest.approx((2 * (1 + LOG)) ** 2)
    assert found.dead == ()
    alone = reading(arch(no_attention_factor=True), rope__scaling__attn_factor=2.0)
    assert (alone.spec.attention_factor, alone.dead) == (1.0, ("attn_factor",))


def test_chunks_and_queries_of_layers_that_do_not_rotate() -> None:
    chunks = Window("unless 0", 4, "same", size=8192, chunked=True)
    scale = PositionScale(0.1, 8192)
    llama4 = arch(nope_interval=4, nope_with_window=True, window=chunks, nope_query_scaling=scale)
    with_chunks, without = reading(llama4).spec, reading(llama4, attention__sliding_window=0).spec
    assert (with_chunks.chunked, with_chunks.nope_query_scaling) == (True, QueryScaling(0.1, 8192))
    assert (without.chunked, without.nope_query_scaling) == (False, None)
    slides = reading(arch(window=Window("key", 2)), **SIZED).spec
    assert (slides.windows, slides.chunked, slides.nope_query_scaling) == ((32, None, 32, None), False, None)


def test_an_assumed_architecture_is_said_to_be_one() -> None:
    assert reading().spec.notes == ()
    assert reading(Arch(pairs="neox", name="made", assumed=True)).spec.notes == ASSUMED
    assert len(ASSUMED) == 1


def test_bases_of_layers_where_the_key_is_absent() -> None:
    """llama.cpp takes 10000 for a header without rope.freq_base."""
    same = arch(window=Window("key", 2, "same"))
    assert kinds(same, **SIZED, rope__freq_base=None, rope__freq_base_swa=10000.0) == "gggg"
    assert kinds(same, **SIZED, rope__freq_base=None, rope__freq_base_swa=10001.0) == "lglg"
    own = arch(theta_key="attention.compress_rope_freq_base")
    keys = {"attention__compress_rope_freq_base": 160000.0, "attention__compress_ratios": [0, 4, 4, 4, 9]}
    spec = reading(own, **keys, rope__freq_base=None).spec
    assert (spec.form, spec.local_form, spec.layers[:2]) == (Plain(160000.0), Plain(10000.0), ("local", "global"))
    assert reading(own, **keys, rope__freq_base=777.0).spec.local_form == Plain(777.0)
    assert reading(arch(fixed=True), rope__freq_base=5e5).spec.form == Plain(10000.0)


def test_dense_layers_count_where_the_architecture_has_them() -> None:
    """Of layers that rotate inside their windows, the first dense ones rotate too in some architectures."""
    window = Window("always", 2, rotates="window", dense_first=True)
    for leading, rotating in ((False, "ngng"), (True, "gggg")):
        assert kinds(arch(leading_dense=leading, window=window), leading_dense_block_count=3) == rotating


def test_a_base_of_windows_that_is_not_read() -> None:
    for own, theta in ((True, 700.0), (False, 10000.0)):
        window = Window("key", 2, "base", own_theta=own)
        assert reading(arch(window=window), **SIZED, rope__freq_base_swa=700.0).spec.local_form == Plain(theta)


def test_every_layer_may_have_full_attention() -> None:
    assert kinds(arch(full_attention_interval=4), full_attention_interval=1) == "gggg"
    assert windows(arch(window=Window("key", 1)), **SIZED) == (None,) * 4
    assert windows(arch(window=Window("key", 1)), attention__sliding_window=1) == (None,) * 4
    assert windows(arch(window=Window("key", 0)), attention__sliding_window=1) == (1,) * 4


@pytest.mark.parametrize(
    "wrong", [[1, 1, 1, 0, 0], [True, 1, 1, 1], [1.0, 1, 1, 1], ["1", 1, 1], [1, 1, -1, 0]], ids=str
)
def test_sections_that_are_no_counts(wrong: list[Any]) -> None:
    for sections in ("required", "optional"):
        with pytest.raises(BadSource, match="made.rope.dimension_sections that are no counts; fetch the file again"):
            reading(arch(sections=sections), rope__dimension_sections=wrong)
    assert reading(rope__dimension_sections=wrong).spec.mrope_section == (), "nobody reads them"


def test_sections_of_fewer_positions() -> None:
    optional, required = arch(sections="optional"), arch(sections="required")
    assert reading(optional, rope__dimension_sections=[2, 2]).spec.mrope_section == (2, 2)
    assert reading(optional, rope__dimension_sections=[0, 4]).spec.mrope_section == ()
    assert reading(optional, rope__dimension_sections=[4]).spec.mrope_section == ()
    assert reading(required, rope__dimension_sections=[0, 0, 4]).spec.mrope_section == (0, 0, 4)
    with pytest.raises(BadSource, match="has no made.rope.dimension_sections, which llama.cpp requires"):
        reading(required, rope__dimension_sections=[0, 0, 0, 4])


def test_a_list_with_a_file_of_the_other_alone_is_not_read() -> None:
    """Neither is one of a length of its own, which is refused where both are there."""
    of = arch(freqs="", factors="always")
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        assert reading(of, {name: [2.0] * 3}).spec.form == Plain(10000.0)
    pair = {"rope_factors_long.weight": [2.0] * 4, "rope_factors_short.weight": [2.0] * 3}
    for short, long in ((3, 4), (4, 3)):
        pair = {"rope_factors_long.weight": [2.0] * long, "rope_factors_short.weight": [2.0] * short}
        with pytest.raises(BadSource, match="a rope tensor has 3 numbers for 4 pairs; fetch the file again"):
            reading(of, pair)
    one = {name: [1.0, 1.0, 1.0, 2.0] for name in pair}
    found = reading(of, one).spec.form
    assert isinstance(found, LongRope)
    np.testing.assert_allclose(found.long_factor, [1, 1, 1, 2])


def test_the_cache_of_heads_that_are_listed() -> None:
    def cached(**keys: Any) -> list[tuple[Any, ...]]:
        groups = cached_layers(Keys(**keys), PLAIN)
        return [tuple(getattr(group, name) for name in group.__dataclass_fields__) for group in groups]

    assert cached(attention__head_count=[2, 4, 2, 2]) == [(3, 8, 8, None), (1, 16, 16, None)]
    assert cached(attention__head_count=[0, 0, 0, 0], embedding_length=None) == []
    assert cached(attention__key_length_mla=8, attention__head_count_kv=1) == [(4, 8, 8, None)]
    assert cached(attention__value_length_mla=8, attention__head_count_kv=1) == [(4, 8, 8, None)]
    assert cached(attention__head_count_kv=1, nextn_predict_layers=1) == [(3, 8, 8, None)]
