"""Readers of GGUF other than llama.cpp: facts taken by hand from their sources, and their names."""

from __future__ import annotations

from typing import get_args

import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes.gguf_readers import (
    WORDS,
    Feature,
    find_any,
    find_readers,
    gguf_readers,
    judge_readers,
    reader_names,
)
from ropeconv.runtimes.runtime import find

IK_BEFORE, IK, OLLAMA_12, OLLAMA_30 = "ik-llama-cpp@2026.4", "ik-llama-cpp@2026.8", "ollama@0.12", "ollama@0.30"
OLLAMA_13 = "ollama@0.13.4"
YARN: tuple[Feature, ...] = ("theta", "yarn", "yarn_attention_factor")


def statuses(arch: str, *features: Feature) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in judge_readers(features, arch)}


@pytest.mark.parametrize(
    ("arch", "features", "runtime", "status"),
    [
        ("qwen3", ("theta", "linear"), OLLAMA_12, "exact"),
        ("qwen3", ("theta", "yarn", "attention_factor_1"), OLLAMA_12, "exact"), ("qwen3", YARN, OLLAMA_12, "differs"),
        ("qwen3", ("theta", "yarn", "attn_factor"), OLLAMA_12, "differs"),
        ("llama", ("theta", "yarn", "attn_factor"), OLLAMA_12, "exact"), ("llama", YARN, "koboldcpp@1.76", "exact"),
        ("llama", ("theta", "yarn", "attn_factor"), "koboldcpp@1.76", "exact"),
        ("gpt-oss", ("theta", "linear"), OLLAMA_12, "differs"), ("gemma3", ("theta", "linear"), OLLAMA_13, "exact"),
        ("llama", ("theta", "rope_freqs"), "koboldcpp@1.76", "exact"), ("gemma4", ("theta",), OLLAMA_13, "exact"),
        ("minicpm", ("theta", "rope_freqs"), "koboldcpp@1.76", "unknown"),
        ("gemma4", ("theta", "linear"), OLLAMA_13, "ignored"), ("gemma3n", ("theta", "linear"), OLLAMA_13, "differs"),
        ("gemma3", ("theta", "linear"), OLLAMA_12, "ignored"), ("gemma3", ("theta",), OLLAMA_12, "ignored"),
        ("gemma3", ("theta",), "ollama@0.13.3", "exact"), ("gemma3", ("theta", "linear"), "ollama@0.13.3", "differs"),
        ("gemma3", ("theta", "linear", "gemma3_not_8"), OLLAMA_13, "differs"),
        ("mistral3", YARN, OLLAMA_12, "differs"), ("mistral3", YARN, OLLAMA_13, "differs"),
        ("gemma3", ("theta", "no_scaling_keys"), OLLAMA_30, "differs"),
        ("mistral3", ("theta", "rope_freqs"), OLLAMA_12, "ignored"),
        ("mistral3", ("theta", "temperature_scale"), OLLAMA_30, "unknown"),
        ("llama", ("theta", "rope_freqs"), IK_BEFORE, "ignored"), ("llama", ("theta", "rope_freqs"), IK, "exact"),
        ("llama", ("theta", "rope_freqs", "rope_freqs_shape"), IK, "refused"),
        ("llama", ("theta", "factors"), IK, "refused"), ("phi3", ("theta", "factors"), IK, "exact"),
        ("minicpm", ("theta", "rope_freqs"), IK, "ignored"), ("arcee", ("theta",), IK, "refused"),
        ("granite_swa", ("theta", "rope_freqs"), IK, "refused"), ("llama", ("theta",), "lm-studio", "unknown"),
    ],
)  # fmt: skip
def test_what_was_read(arch: str, features: tuple[Feature, ...], runtime: str, status: str) -> None:
    assert statuses(arch, *features)[runtime] == status


def test_an_unknown_architecture_and_a_file_without_features_are_unknown_everywhere() -> None:
    assert set(statuses("nobody", *WORDS).values()) == set(statuses("llama").values()) == {"unknown"}
    for arch, said in (("nobody", "nobody"), ("mistral3", f"{WORDS['temperature_scale']} of mistral3")):
        reasons = {one.reason for one in judge_readers(("temperature_scale",), arch) if one.runtime == OLLAMA_12}
        assert reasons == {f"{said} is untested"}


def test_every_feature_has_words_and_every_other_status_than_exact_a_reason() -> None:
    assert set(WORDS) == set(get_args(Feature))
    for reader in gguf_readers():
        assert [one for one in reader.statements if one.status != "exact" and not one.reason] == []


def test_names() -> None:
    assert [row.key for row in find_readers("ollama")] == [OLLAMA_13, OLLAMA_30]
    assert [row.key for row in find_readers("Ollama@0.31.2")] == ["ollama@0.31.2"]
    assert find_readers("vllm") == find_readers("vllm@0.33") == ()
    assert find_any("vllm") == find("vllm")
    for name in reader_names():
        with pytest.raises(RecipeError, match="unknown runtime"):
            find(name)
    with pytest.raises(RecipeError, match=r"tested: 0\.12-0\.13\.2, 0\.13\.3, 0\.13\.4-0\.29, 0\.30-0\.33"):
        find_readers("ollama@0.11")
    with pytest.raises(RecipeError, match=r"supported: .*transformers.*ollama"):
        find_any("nope")
