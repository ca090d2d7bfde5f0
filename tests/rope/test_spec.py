"""RopeSpec: the RoPE of a model as its config describes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ropeconv.rope.forms import Plain
from ropeconv.rope.spec import RopeSpec

SPEC = RopeSpec(8, 8, Plain(1e6), 64, 64)


def local_inv_freq(spec: RopeSpec) -> np.ndarray:
    assert spec.local_inv_freq is not None
    return spec.local_inv_freq


def test_local_layers_have_a_base_and_a_width_of_their_own() -> None:
    assert SPEC.local_inv_freq is None
    local = replace(SPEC, local_form=Plain(1e4))
    np.testing.assert_allclose(local_inv_freq(local), [1, 0.1, 0.01, 0.001])
    np.testing.assert_allclose(local_inv_freq(replace(local, local_rotary_dim=4)), [1, 0.01])


def test_what_a_spec_is_without_more() -> None:
    """A dense model of half layout that is not scaled, whose layers see everything."""
    assert (SPEC.attention_factor, SPEC.softmax_scale, SPEC.rotating_share) == (1, 1, 1)
    assert not SPEC.chunked
    assert not SPEC.mla
    assert (SPEC.layout, SPEC.local_rotary_dim, SPEC.original_context_source) == ("half", 0, "declared")
    assert (SPEC.layers, SPEC.windows, SPEC.mrope_section, SPEC.notes) == ((), (), (), ())


def test_how_a_model_was_read_makes_it_no_other_model() -> None:
    """Notes tell which defaults were used; what they say is in the numbers."""
    assert replace(SPEC, notes=("rope_theta is 10,000 by default",)) == SPEC
    assert replace(SPEC, form=Plain(1e4)) != SPEC
