"""What families alone have: bases per layer, queries scaled in layers that do not rotate, still pairs, other widths."""

from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.registry import by_model_type
from ropeconv.rope.forms import Plain
from ropeconv.rope.schedule import QueryScaling
from ropeconv.rope.spec import Proportional, RopeSpec
from ropeconv.runtimes.read_config import read_spec

from .test_config_rules import read


def of(model_type: str, **config: Any) -> RopeSpec:
    sizes = {"head_dim": 8, "max_position_embeddings": 1024, "num_hidden_layers": 4, "rope_theta": 10000.0}
    return read_spec({"model_type": model_type, **sizes, **config}, by_model_type()[model_type])


def test_layers_that_rotate_share_the_base_of_their_list() -> None:
    """Granite SWA: a base of 0 is a layer that does not rotate; the key of all layers does not count beside it."""
    spec = of("granite_swa", layer_rope_theta=[500.0, 0.0, 500.0, 500.0])
    assert (spec.rope_theta, spec.layers) == (500.0, ("global", "none", "global", "global"))
    with pytest.raises(
        BadSource, match="different bases in layer_rope_theta, 500 and 700; a method extends only one base"
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
    rope = {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
    gemma = {"num_hidden_layers": 6, "global_head_dim": 16, "head_dim": 8, "hidden_size": 64}
    spec = of("gemma4_text", rope_parameters=rope, **gemma)
    assert (spec.form, spec.rotating_share, spec.scaled) == (Proportional(1e6, 1.0, 0.25), 0.25, False)
    assert (spec.head_dim, spec.rotary_dim, spec.local_rotary_dim) == (16, 16, 8)
    default = of("gemma4_text", **gemma)
    assert default.rotating_share == 0.25
    assert "rope_scaling is absent: the class default proportional holds" in default.notes
    rope = {"rope_type": "proportional", "factor": 0.5, "partial_rotary_factor": 0.5}
    taken = read(rope)
    assert (taken.form, taken.rotating_share, taken.scaled) == (Proportional(1e4, 0.5, 0.5), 1.0, True), (
        "a share of Llama"
    )
    for key, wrong in (("factor", 0), ("partial_rotary_factor", 1.1), ("partial_rotary_factor", -0.1)):
        with pytest.raises(BadSource, match=f"has {key} = "):
            read({**rope, key: wrong})
