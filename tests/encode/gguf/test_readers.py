"""Encodings for named readers of GGUF other than llama.cpp, and the choice that most of them read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.bake.plan import Plan
from ropeconv.encode.gguf import GgufModel
from ropeconv.encode.gguf.gguf_result import judge_edit
from ropeconv.errors import UnsupportedBake
from ropeconv.formats.gguf import Added, Edit, GgufFile
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp import find_arch

from ...support.baking import make_plan
from ...support.gguf_files import write

YARN, LINEAR, MIXED = (Recipe(METHODS[name](4.0)) for name in ("yarn", "linear", "mixed"))
FLAT = Recipe(METHODS["yarn"](4.0), attention_factor=1.0)


def plan_of(folder: Path, arch: str, recipe: Recipe = YARN, *runtimes: str, **options: str) -> Plan:
    source = folder / f"{arch}.gguf"
    if not source.exists():
        write(source, arch)
    return make_plan(source, recipe, folder / "out.gguf", runtimes=runtimes, **options)


def statuses(plan: Plan) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in plan.result.verdicts}


def test_llama_cpp_comes_first_and_every_reader_after_it(tmp_path: Path) -> None:
    found = statuses(plan_of(tmp_path, "llama"))
    assert next(iter(found)).startswith("llama-cpp-gguf@")
    assert set(found.values()) == {"exact", "unknown"}
    assert found["ollama@0.12"] == found["ik-llama-cpp@2026.4"] == "exact"
    assert found["lm-studio"] == "unknown"


def test_yarn_in_qwen3(tmp_path: Path) -> None:
    assert statuses(plan_of(tmp_path, "qwen3"))["ollama@0.12"] == "differs"
    assert statuses(plan_of(tmp_path, "qwen3", FLAT))["ollama@0.12"] == "exact"


def test_a_tensor_in_llama(tmp_path: Path) -> None:
    found = statuses(plan_of(tmp_path, "llama", MIXED))
    assert (found["ik-llama-cpp@2026.4"], found["ik-llama-cpp@2026.8"]) == ("ignored", "exact")


def test_auto_takes_what_most_readers_read(tmp_path: Path) -> None:
    keys = plan_of(tmp_path, "llama", LINEAR).result
    assert keys.encoding == "keys"
    reasons = {one.encoding: one.reason for one in keys.considered}
    assert "llama.cpp reads it exactly; exact in 6 of 6 runtimes" in reasons["keys"]
    assert "no more readers read it exactly; exact in 4 of 5 runtimes" in reasons["tensor"]
    assert [one.selected for one in keys.considered] == [True, False]


def test_auto_takes_the_tensor_where_more_readers_read_it(tmp_path: Path) -> None:
    """In mistral3, ik_llama.cpp 2026.8 reads the base and the tensor; nobody has looked at its yarn."""
    result = plan_of(tmp_path, "mistral3", FLAT).result
    reasons = {one.encoding: one.reason for one in result.considered if not one.selected}
    assert result.encoding == "tensor"
    assert list(reasons) == ["keys"]
    assert plan_of(tmp_path, "mistral3", YARN).result.encoding == "keys"  # Ollama 0.12 does not use the tensor


def test_a_named_reader_decides(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "llama", YARN, "ik-llama-cpp", "ollama").result.encoding == "keys"
    assert plan_of(tmp_path, "qwen3", YARN, "ollama").result.encoding == "keys"
    with pytest.raises(UnsupportedBake) as refusal:
        plan_of(tmp_path, "qwen3", YARN, "ollama@0.12")
    assert "Ollama 0.12: with keys: differs, yarn's own attention factor" in str(refusal.value)
    assert "with tensor: llama.cpp loads no rope_freqs for it" in str(refusal.value)
    assert "leave --runtime ollama out, or choose another method" in str(refusal.value)


def test_another_encoding_is_named_where_it_fits(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="with tensor: ignored.*with keys: exact; .*; take --encoding keys$"):
        plan_of(tmp_path, "llama", LINEAR, "ik-llama-cpp@2026.5", encoding="tensor")
    chosen = plan_of(tmp_path, "llama", LINEAR, "ik-llama-cpp@2026.8", encoding="tensor")
    assert chosen.result.encoding == "tensor"


@pytest.mark.parametrize("name", ["lm-studio", "koboldcpp"])
def test_nobody_looked(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedBake, match="nobody has looked at .*`ropeconv validate FILE --server URL`"):
        plan_of(tmp_path, "qwen3", YARN, name)


def test_versions_that_no_row_covers(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nobody has looked at that version; known: 0.12-0.29, 0.30-0.33"):
        plan_of(tmp_path, "llama", YARN, "ollama@0.9")


def test_an_added_tensor_that_the_architecture_refuses(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "smollm3", LINEAR)
    assert find_arch("smollm3").freqs == ""
    file = GgufFile.open(tmp_path / "smollm3.gguf")
    model = GgufModel(file.header, file.tensors, {}, file.chunks)
    assert judge_edit(plan.schedule, model, plan.result.edit, "keys").status == "exact"
    ones = Added.f32("rope_freqs.weight", np.ones(32, np.float32).tobytes())
    with pytest.raises(UnsupportedBake, match="does not load smollm3 with rope_freqs.weight"):
        judge_edit(plan.schedule, model, plan.result.edit.merged(Edit(added=(ones,))), "both")
