"""Layers that llama.cpp computes otherwise than the checkpoint: windows, shared keys and heads, beside llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.convert.to_gguf import demands
from ropeconv.convert.to_gguf import export as exported
from ropeconv.convert.to_gguf.hparams import hparams, sizes_of
from ropeconv.engines import llamacpp as loading
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf.header import GgufHeader
from ropeconv.inspection.inspection import inspect_config
from ropeconv.models.open import open_checkpoint
from ropeconv.models.registry import by_model_type

from ...support.baking import AS_IS, make_plan
from ...support.extent import sample
from ...support.llamacpp import bake, beyond, checkpoint, of_llamacpp, of_transformers

S, F = "sliding_attention", "full_attention"


def gemma4(shared: int, *types: str) -> dict[str, Any]:
    return {
        "num_hidden_layers": 6, "use_double_wide_mlp": False, "num_kv_shared_layers": shared, "layer_types": [*types],
    }  # fmt: skip


def gpt_oss(*types: str) -> dict[str, Any]:
    return {"num_hidden_layers": 4, "layer_types": [*types], "sliding_window": 16}


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "keys of a layer of the other type": (
        "gemma4_text", gemma4(2, S, S, F, S, S, F),
        "num_kv_shared_layers = 2 with 6 layers .*llama.cpp uses the keys of layer 2 in layer 4, .* those of 3;",
    ),
    "keys of the layer before": ("gemma4_text", gemma4(2, S, S, S, F, F, F), ""),
    "keys of a window layer that is farther away": (
        "gemma4_text", gemma4(2, S, S, F, F, S, F),
        "llama.cpp uses the keys of layer 2 in layer 4, and the model those of 1;",
    ),
    "three of three": ("gemma4_text", gemma4(3, S, S, F, S, S, F), ""),
    "windows in turns": ("gpt_oss", gpt_oss(S, F, S, F), ""),
    "windows in other layers": (
        "gpt_oss", gpt_oss(S, S, S, F),
        r"layer_types = .*llama.cpp computes no window in layer 1 \(the first is 0\); keep safetensors",
    ),
    "no windows": ("gemma2", {"num_hidden_layers": 4, "layer_types": [F] * 4}, "stops without a layer that has a win"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_knows_what_llama_cpp_makes_of_the_layers(name: str, tmp_path: Path) -> None:
    model_type, changes, words = OTHERS[name]
    source = checkpoint(model_type, tmp_path / "source", **changes)
    if not words:
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
        return
    with pytest.raises(UnsupportedBake, match=words):
        make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")


@pytest.mark.parametrize("name", sample(list(OTHERS), 1))
def test_llama_cpp_stops_or_computes_something_else_with_what_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same layers, written without the check, and those that are not refused."""
    pytest.importorskip("llama_cpp")
    model_type, changes, words = OTHERS[name]
    source, out = checkpoint(model_type, tmp_path / "source", **changes), tmp_path / "out.gguf"
    monkeypatch.setattr(exported, "check_layers", lambda *_: None)
    bake(source, AS_IS, out)
    stops = loading.why_not_run(out)[0]
    assert bool(stops) is (bool(words) and name != "windows in other layers"), stops
    if not stops:
        far = max(figures.kl_max for figures in beyond(of_transformers(source, None), of_llamacpp(out)))
        assert (far > 1e-3) is bool(words), far


QWEN2 = {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None}


@pytest.mark.parametrize(
    ("model_type", "changes", "noted"),
    [("mistral", {}, True), ("phi3", {}, True), ("qwen2", QWEN2, True), ("qwen2", {}, False), ("gpt_oss", {}, False)],
)
def test_a_window_that_llama_cpp_ignores_is_noted(
    model_type: str, changes: dict[str, Any], noted: bool, tmp_path: Path
) -> None:
    source = checkpoint(model_type, tmp_path / "source", sliding_window=16, **changes)
    plan = make_plan(source, AS_IS, tmp_path / "out.gguf", to="gguf")
    assert any("llama.cpp ignores the sliding window" in line for line in plan.warnings) is noted


def exported_configs() -> list[Path]:
    """Published configs of families that become GGUF."""
    data, families = Path(__file__).parents[2] / "data", by_model_type()
    found = [*(data / "configs").glob("*.json"), *(data / "more_configs").glob("*.json")]
    types = {path: json.loads(path.read_text()).get("model_type") for path in sorted(found)}
    return [path for path, name in types.items() if name in families and families[name].gguf]


@pytest.mark.parametrize("config", exported_configs(), ids=lambda path: path.stem)
def test_the_layers_of_published_models_are_those_of_llama_cpp(config: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    source = open_checkpoint(str(tmp_path))
    seen = inspect_config(source)
    sizes = sizes_of(source.config(), seen.family, seen.spec)
    header = GgufHeader(3, hparams(sizes, seen.family, seen.spec.unscaled(), 1000), {}, 32, 0, 0)
    demands.check_layers(header, sizes, seen.family, seen.spec)
