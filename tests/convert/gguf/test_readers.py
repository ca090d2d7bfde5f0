"""Encodings for named readers of GGUF other than llama.cpp, and the choice that most of them read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropeconv.bake.plan import Plan
from ropeconv.errors import UnsupportedBake
from ropeconv.rope.recipe import Recipe

from ...support.baking import LINEAR, MIXED, YARN, make_plan, recipe_of
from ...support.gguf_files import write

FLAT = recipe_of("yarn", 4.0, attention_factor=1.0)


def plan_of(folder: Path, arch: str, recipe: Recipe = YARN, *runtimes: str, **options: str) -> Plan:
    source = folder / f"{arch}.gguf"
    if not source.exists():
        write(source, arch)
    return make_plan(source, recipe, folder / "out.gguf", runtimes=runtimes, **options)


def statuses(plan: Plan) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in plan.result.verdicts}


@pytest.mark.parametrize(
    ("arch", "recipe", "expected"),
    [
        ("llama", YARN, {"ollama@0.12": "exact", "ik-llama-cpp@2026.4": "exact", "lm-studio": "unknown"}),
        ("qwen3", YARN, {"ollama@0.12": "differs"}),
        ("qwen3", FLAT, {"ollama@0.12": "exact"}),
        ("llama", MIXED, {"ik-llama-cpp@2026.4": "ignored", "ik-llama-cpp@2026.8": "exact"}),
    ],
)
def test_what_each_reader_does(tmp_path: Path, arch: str, recipe: Recipe, expected: dict[str, str]) -> None:
    assert expected.items() <= statuses(plan_of(tmp_path, arch, recipe)).items()


def test_auto_takes_the_tensor_where_more_readers_read_it(tmp_path: Path) -> None:
    """In mistral3, ik_llama.cpp 2026.8 reads the base and the tensor; its yarn is untested."""
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


@pytest.mark.parametrize(
    ("arch", "recipe", "readers", "options", "words"),
    [
        ("llama", LINEAR, ("ik-llama-cpp@2026.5",), {"encoding": "tensor"},
         "with tensor: ignored.*with keys: exact; .*; take --encoding keys$"),
        ("qwen3", YARN, ("ollama@0.12", "lm-studio"), {},
         "with keys: Ollama 0.12 differs, .* and LM Studio .*; leave --runtime lm-studio out, and measure what"),
        ("qwen2", MIXED, ("ollama@0.12",), {"carrier": "mistral3"},
         "with carrier: ignored, .*; leave --runtime ollama out, or choose another method$"),
    ],
)  # fmt: skip
def test_the_way_out_where_a_named_reader_does_not_compute_it(
    tmp_path: Path, arch: str, recipe: Recipe, readers: tuple[str, ...], options: dict[str, str], words: str
) -> None:
    with pytest.raises(UnsupportedBake, match=words):
        plan_of(tmp_path, arch, recipe, *readers, **options)


def test_nobody_looked(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match="is untested.*`ropeconv validate FILE --server URL`"):
        plan_of(tmp_path, "qwen3", YARN, "lm-studio")
