"""Which encoding "auto" takes for the runtimes that are named, and what it says where none fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.encode import all_encodings
from ropeconv.encode.checkpoint import config_only
from ropeconv.encode.checkpoint.select import GOOD
from ropeconv.errors import UnsupportedBake
from ropeconv.families.registry import by_name
from ropeconv.families.sample import sample_config
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes import find, runtimes
from ropeconv.runtimes.verdict import without_config

from ..support.baking import make_plan

YARN, MIXED = Recipe(REGISTRY["yarn"](4.0)), Recipe(REGISTRY["mixed"](4.0))
LOUD = Recipe(REGISTRY["mixed"](4.0), attention_factor=1.2)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config.json of Llama."""
    return written(tmp_path, "llama")


def written(folder: Path, name: str) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(sample_config(by_name()[name])))
    return path


def test_several_runtimes_get_an_encoding_that_all_of_them_read(config: Path) -> None:
    plan = make_plan(config, MIXED, runtimes=("vllm", "mlx-lm", "exllamav3"))
    assert plan.result.encoding == "factors"
    assert all(plan.result.status_of(find(name)[-1]) == "exact" for name in ("vllm", "mlx-lm", "exllamav3"))


def test_what_one_of_them_does_not_read_is_refused_by_name(config: Path) -> None:
    with pytest.raises(
        UnsupportedBake, match=r"mlx-lm 0\.32 with factors: it uses the attention factor 1\.0000, not 1\.2"
    ):
        make_plan(config, LOUD, runtimes=("vllm", "mlx-lm"))


def test_a_named_encoding_that_transformers_computes_otherwise_is_refused(tmp_path: Path) -> None:
    """Without `runtimes` an output is for transformers; for others alone it may be written."""
    path = written(tmp_path, "phi4_multimodal")
    with pytest.raises(UnsupportedBake, match=r"transformers .* with factors: it uses the attention factor 1\.0000"):
        make_plan(path, YARN, encoding="factors")
    plan = make_plan(path, Recipe(REGISTRY["linear"](4.0)), encoding="factors")
    assert plan.result.status_of(find("transformers")[-1]) == "exact"


def test_a_conflict_says_what_each_alone_would_get(tmp_path: Path) -> None:
    """By-parts is llama3 by identity, which the stock converter drops, and factors are what it drops as well."""
    path = written(tmp_path, "qwen3_next")
    with pytest.raises(UnsupportedBake) as refusal:
        make_plan(path, Recipe(REGISTRY["yarn"](4.0, truncate=False)), runtimes=("vllm", "sglang"))
    assert "SGLang" in str(refusal.value)


def test_a_config_is_tried_wherever_it_stands_among_the_encodings(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = dict(reversed(all_encodings().items()))
    assert not next(iter(turned.values())).config_only
    monkeypatch.setattr(config_only, "all_encodings", lambda: turned)
    assert make_plan(config, MIXED).result.encoding == "factors"


def test_what_comes_behind_the_selected_encoding_is_not_needed(config: Path) -> None:
    reasons = {one.encoding: one.reason for one in make_plan(config, YARN).result.considered}
    assert {reasons[name] for name in ("weights", "ministral3", "buffers")} == {"not needed, a config says it all"}


def test_a_base_is_no_way_out_of_a_base(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake) as refusal:
        make_plan(written(tmp_path, "falcon"), Recipe(REGISTRY["ntk"](4.0)), runtimes=("mlx-lm",))
    assert refusal.value.alternatives == "name a runtime that reads it (--runtime transformers does)"


def test_unknown_is_refused_with_what_would_make_it_known(config: Path) -> None:
    with pytest.raises(
        UnsupportedBake, match=r"nobody has looked at llama in it.*ropeconv validate OUTPUT --server URL"
    ):
        make_plan(config, YARN, runtimes=("ktransformers",))


def test_a_runtime_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="it has no such model"):
        make_plan(written(tmp_path, "falcon"), YARN, runtimes=("mlx-lm",))


def test_a_named_encoding_does_not_outvote_a_named_runtime(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3_moe")
    assert make_plan(path, YARN, encoding="native").result.status_of(find("mlx-lm")[-1]) == "ignored"
    with pytest.raises(UnsupportedBake, match="it computes other frequencies"):
        make_plan(path, YARN, encoding="native", runtimes=("mlx-lm",))


def test_all_stands_for_every_runtime_that_has_the_model(tmp_path: Path) -> None:
    path = written(tmp_path, "qwen3_next")
    theta = Recipe(REGISTRY["ntk"](4.0))
    family = by_name()["qwen3_next"]
    plan = make_plan(path, theta, runtimes=("all",))
    having = [row for row in runtimes() if row.current and without_config(row, family) is None]
    assert len(having) > 5
    assert {plan.result.status_of(find(row.name)[-1]) for row in having} <= set(GOOD)
    with pytest.raises(UnsupportedBake):
        make_plan(path, YARN, runtimes=("all",))


def test_deepseek_gets_its_softmax_scale_in_vllm(tmp_path: Path) -> None:
    """attention_factor 1 beside the mscale pair would switch it off there (executed on 0.33)."""
    path = written(tmp_path, "deepseek_v3")
    recipe = Recipe(REGISTRY["yarn"](4.0, mscale=1.0, mscale_all_dim=1.0))
    plan = make_plan(path, recipe)
    assert plan.schedule.softmax_scale > 1
    assert "attention_factor" not in plan.result.config["rope_parameters"]
    assert plan.result.status_of(find("vllm")[-1]) == "exact"
