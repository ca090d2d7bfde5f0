"""Models with an encoder and a decoder: one recipe is about both halves, which have to have the
same RoPE.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource

from ..faults.inputs.folders import small_config
from ..support.baking import YARN_16, inspected, make_plan
from ..support.models import TINY, part_at

MODELS = [model_type for model_type, tiny in TINY.items() if tiny.halves]


def refusal(config: dict[str, Any], folder: Path) -> str:
    """What is said of a config; empty where it is taken."""
    (folder / "config.json").write_text(json.dumps(config))
    try:
        inspected(folder / "config.json")
    except BadSource as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": 5e5}, "it computes other frequencies"),
        ({"max_position_embeddings": 128}, "the trained context is 128 there, not 64"),
        ({"head_dim": 32}, "the width of a head is 32 there, not 64"),
        ({"head_dim": "wide"}, "config.json has head_dim = 'wide'"),
    ],
)
def test_a_half_with_another_rope_is_refused(
    model_type: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = small_config(model_type)
    assert refusal(config, tmp_path) == ""
    part_at(config, list(TINY[model_type].halves)[1]).update(change)
    assert message in refusal(config, tmp_path)


@pytest.mark.parametrize(
    ("model_type", "path"), [(name, path) for name in MODELS for path in TINY[name].halves]
)
def test_a_half_that_is_absent_is_named_and_half_a_model_is_refused(
    model_type: str, path: str, tmp_path: Path
) -> None:
    config = small_config(model_type)
    assert "whole model" in refusal(part_at(config, path), tmp_path)
    outer, _, last = path.rpartition(".")
    del part_at(config, outer)[last]
    assert f"no {path};" in refusal(config, tmp_path)


@pytest.mark.parametrize("model_type", MODELS)
def test_both_halves_are_written_alike_and_nothing_else(
    model_type: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    plan = make_plan(tiny(model_type), YARN_16, tmp_path / "out")
    before = json.loads((tiny(model_type) / "config.json").read_text())
    after = json.loads(next(file.text for file in plan.files if file.name == "config.json") or "")
    parts = [part_at(after, path) for path in TINY[model_type].halves]
    keys = (
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "max_position_embeddings",
        "rope_local_base_freq",
    )
    assert len({json.dumps([part.get(key) for key in keys]) for part in parts}) == 1
    assert parts[0]["max_position_embeddings"] == 1024
    for path in TINY[model_type].halves:
        for config in (before, after):
            outer, _, last = path.rpartition(".")
            del part_at(config, outer)[last]
    assert before == after
