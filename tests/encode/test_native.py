"""What `native` refuses, with the way out, and the numbers that MLA and LongRoPE have in their own places."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropeconv.encode.checkpoint.encodings.native import native
from ropeconv.encode.checkpoint.rope_setting import RopeSetting
from ropeconv.errors import UnsupportedBake
from ropeconv.families import by_model_type
from ropeconv.rope.forms import Form, Interpolated, Llama3, LongRope, Plain, Yarn
from ropeconv.rope.log_n import QueryScaling
from ropeconv.rope.proportional import Proportional
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec

FORMULA = 0.1 * math.log(4) + 1
LISTS = LongRope(1e4, (1.0, 1.0, 1.5, 2.0), (1.0, 2.0, 3.0, 4.0), 64)
USUAL = math.sqrt(1 + math.log(4) / math.log(64))


def spec(**changes: Any) -> RopeSpec:
    given: dict[str, Any] = {"head_dim": 8, "rotary_dim": 8, "form": Plain(1e4), "original_context": 64, "context": 64}
    return RopeSpec(**{**given, **changes})


def of_form(form: Form | None, factor: float = 1.0, **more: Any) -> Schedule:
    vector = np.array([1.0, 0.1, 0.01, 0.001]) if form is None else form.inv_freq(8)
    return Schedule(vector, factor, 256, 64, form, **more)


def setting(schedule: Schedule, family: str = "llama", of: RopeSpec | None = None) -> RopeSetting:
    return native(schedule, of or spec(), by_model_type()[family])


@pytest.mark.parametrize(
    ("schedule", "family", "of", "words"),
    [
        (of_form(None), "llama", spec(), "no rope type has its formula; use --encoding factors"),
        (replace(of_form(None), inv_freq=np.array([1.0, 0.1, 0.0, 0.0])), "llama", spec(),
         "no rope type has its formula; use --encoding buffers, or --to gguf"),
        (of_form(Yarn(1e4, 4.0, 64), FORMULA), "phi3", spec(), "its class takes default, longrope; use"),
        (of_form(Interpolated(1e4, 4.0), 1.1), "llama", spec(), "attention_factor 1.1 .*rope_type linear.* no such"),
        (of_form(Proportional(1e4, 1.0, 0.5)), "llama", spec(rotary_dim=4), "another meaning there"),
        (of_form(Proportional(1e4, 1.0, 0.5)), "phi", spec(), "another meaning there"),
        (of_form(Yarn(1e4, 4.0, 64), FORMULA), "ministral3", spec(original_context=32), "has to stay 32"),
        (of_form(Llama3(1e4, 4.0, 64)), "ministral3", spec(original_context=32), "an original context of 64"),
        (of_form(Yarn(1e4, 4.0, 64), FORMULA), "ministral3", spec(query_scaling=QueryScaling(0.1, 16)),
         "has to stay 16; use --encoding factors"),
        (of_form(LongRope(1e4, (1.0,) * 4, (4.0,) * 4, 64), short_inv_freq=np.array([1.0, 0.1, 0.01, 0.001])),
         "ministral3", spec(query_scaling=QueryScaling(0.1, 16)), "has to stay 16; give one list"),
    ],
)  # fmt: skip
def test_what_no_rope_type_holds(schedule: Schedule, family: str, of: RopeSpec, words: str) -> None:
    with pytest.raises(UnsupportedBake) as refusal:
        setting(schedule, family, of)
    assert re.search(words, str(refusal.value)), str(refusal.value)


def test_what_the_same_types_do_hold() -> None:
    assert setting(of_form(Yarn(1e4, 4.0, 64), FORMULA), "ministral3").rope["original_max_position_embeddings"] == 64
    assert setting(of_form(Interpolated(1e4, 4.0)), "ministral3", spec(original_context=32)).rope["factor"] == 4.0
    half = setting(of_form(Proportional(1e4, 1.0, 0.5)))
    assert half.rope == {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    scaled = setting(of_form(Proportional(1e4, 2.0, 0.5)))
    assert scaled.rope == {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}
    assert (scaled.theta, scaled.context, scaled.top_original) == (1e4, 256, None)


def test_two_lists_that_a_class_does_not_take_are_to_be_one() -> None:
    with pytest.raises(UnsupportedBake, match="give one list: leave --keep-short out"):
        setting(of_form(Yarn(1e4, 4.0, 64), FORMULA, short_inv_freq=np.ones(4)), "phi3")


def mscale(factor: float, softmax: float, attention_factor: float) -> dict[str, Any]:
    schedule = of_form(Yarn(1e4, factor, 64), attention_factor, softmax_scale=softmax)
    return setting(schedule, "deepseek_v3", spec(mla=True)).rope


@pytest.mark.parametrize(("own", "everywhere"), [(1.0, 1.0), (0.707, 0.707), (0.5, 1.0), (1.0, 0.5)])
def test_the_pair_of_mla_gives_both_numbers_again(own: float, everywhere: float) -> None:
    """transformers: cos and sin times (0.1 m ln s + 1) / (0.1 m_all ln s + 1), and logits times the latter squared."""
    log = 0.1 * math.log(4)
    rope = mscale(4.0, (1 + everywhere * log) ** 2, (1 + own * log) / (1 + everywhere * log))
    assert rope["mscale"] == pytest.approx(own, abs=1e-11)
    assert rope["mscale_all_dim"] == pytest.approx(everywhere, abs=1e-11)
    assert "attention_factor" not in rope


def test_mla_without_a_softmax_scale_has_its_attention_factor_alone() -> None:
    rope = mscale(4.0, 1.0, 1.3)
    assert rope["attention_factor"] == 1.3
    assert not {"mscale", "mscale_all_dim"} & rope.keys()


def test_other_models_have_a_pair_for_readers_without_the_key() -> None:
    """Only where the factor is another than the formula's, and the context is longer."""
    for factor, attention_factor, there in ((4.0, FORMULA, False), (4.0, FORMULA + 1e-6, True), (1.0, 1.3, False)):
        rope = setting(of_form(Yarn(1e4, factor, 64), attention_factor)).rope
        assert ("mscale" in rope) is there
        assert rope["attention_factor"] == attention_factor


def test_two_lists_in_phi_3_declare_what_its_attention_factor_follows_from() -> None:
    both = of_form(LISTS, USUAL, short_inv_freq=LISTS.short_inv_freq(8))
    found = setting(both, "phi3")
    assert (found.context, found.top_original, found.notes) == (256, 64, ())
    assert found.rope == {"rope_type": "longrope", "short_factor": [1.0, 1.0, 1.5, 2.0], "long_factor": [1, 2, 3, 4]}
    assert setting(replace(both, attention_factor=USUAL + 5e-7), "phi3") == found
    with pytest.raises(UnsupportedBake, match=f"pass --attention-factor {USUAL:.9g}, which it derives, give one list"):
        setting(replace(both, attention_factor=USUAL + 2e-6), "phi3")
    one = setting(of_form(replace(LISTS, short_factor=LISTS.long_factor), 1.3), "phi3")
    assert one.top_original is not None
    derived = math.sqrt(1 + math.log(one.context / one.top_original) / math.log(one.top_original))
    assert derived == pytest.approx(1.3, abs=1e-6)
    assert len(one.notes) == 1
