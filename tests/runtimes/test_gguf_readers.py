"""Readers of GGUF other than llama.cpp: facts taken by hand from their sources, and what a planned file gets."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from ropeconv.encode.gguf.gguf_features import gguf_features
from ropeconv.encode.gguf.gguf_model import GgufModel
from ropeconv.errors import RecipeError
from ropeconv.formats.gguf import GgufFile
from ropeconv.runtimes import find
from ropeconv.runtimes.gguf_readers import (
    MARKS,
    WORDS,
    Feature,
    find_any,
    find_readers,
    gguf_readers,
    judge_reader,
    judge_readers,
    reader_names,
)
from ropeconv.runtimes.llamacpp.read_file import rope_tensors

from ..support.gguf_files import plain_tensors, write

IK_BEFORE, IK, OLLAMA_12, OLLAMA_30 = "ik-llama-cpp@2026.4", "ik-llama-cpp@2026.8", "ollama@0.12", "ollama@0.30"
YARN: tuple[Feature, ...] = ("theta", "yarn", "yarn_attention_factor")


def statuses(arch: str, *features: Feature) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in judge_readers(features, arch)}


def features_of(path: Path) -> set[str]:
    file = GgufFile.open(path)
    return set(gguf_features(GgufModel(file.header, file.tensors, rope_tensors(file), file.chunks)))


def test_every_feature_is_explained() -> None:
    assert set(WORDS) == set(get_args(Feature))
    assert set(WORDS) > MARKS


def test_every_statement_on_another_status_than_exact_says_why() -> None:
    for reader in gguf_readers():
        assert [one for one in reader.statements if one.status != "exact" and not one.reason] == []


def test_readers_are_no_runtimes_of_configs() -> None:
    for name in reader_names():
        with pytest.raises(RecipeError, match="no such runtime"):
            find(name)


@pytest.mark.parametrize(
    ("arch", "features", "runtime", "status"),
    [
        ("qwen3", ("theta",), OLLAMA_12, "exact"),
        ("qwen3", ("theta", "linear"), OLLAMA_12, "exact"),
        ("qwen3", ("theta", "yarn", "attention_factor_1"), OLLAMA_12, "exact"),
        ("qwen3", YARN, OLLAMA_12, "differs"),
        ("qwen3", ("theta", "yarn", "attn_factor"), OLLAMA_12, "differs"),
        ("qwen3", ("theta", "yarn", "attn_factor"), OLLAMA_30, "exact"),
        ("qwen3", ("theta", "yarn", "attn_factor"), IK, "exact"),
        ("llama", ("theta", "yarn", "attn_factor"), OLLAMA_12, "exact"),
        ("llama", YARN, "koboldcpp@1.76", "exact"),
        ("llama", ("theta", "yarn", "attn_factor"), "koboldcpp@1.76", "unknown"),
        ("gpt-oss", YARN, OLLAMA_12, "exact"),
        ("gpt-oss", ("theta", "linear"), OLLAMA_12, "differs"),
        ("gemma3", ("theta", "linear"), OLLAMA_12, "exact"),
        ("gemma3", ("theta", "linear", "gemma3_not_8"), OLLAMA_12, "differs"),
        ("gemma3", ("theta",), OLLAMA_30, "exact"),
        ("gemma3", ("theta", "no_scaling_keys"), OLLAMA_30, "differs"),
        ("llama", ("theta", "no_scaling_keys"), OLLAMA_30, "exact"),
        ("mistral3", ("theta", "rope_freqs"), OLLAMA_12, "ignored"),
        ("mistral3", ("theta", "rope_freqs"), OLLAMA_30, "exact"),
        ("mistral3", ("theta", "temperature_scale"), OLLAMA_30, "unknown"),
        ("llama", ("theta", "rope_freqs"), IK_BEFORE, "ignored"),
        ("llama", ("theta", "rope_freqs"), IK, "exact"),
        ("llama", ("theta", "rope_freqs", "rope_freqs_shape"), IK, "refused"),
        ("llama", ("theta", "factors"), IK, "refused"),
        ("phi3", ("theta", "factors"), IK, "exact"),
        ("minicpm", ("theta", "rope_freqs"), IK, "ignored"),
        ("mistral3", ("theta", "rope_freqs"), IK_BEFORE, "unknown"),
        ("arcee", ("theta",), IK, "refused"),
        ("granite_swa", ("theta", "rope_freqs"), IK, "refused"),
        ("granite_swa", ("theta", "rope_freqs"), OLLAMA_12, "unknown"),
        ("llama", ("theta",), "lm-studio", "unknown"),
    ],
)
def test_what_was_read(arch: str, features: tuple[Feature, ...], runtime: str, status: str) -> None:
    assert statuses(arch, *features)[runtime] == status


@pytest.mark.parametrize("feature", WORDS)
def test_an_unknown_architecture_is_unknown_everywhere(feature: Feature) -> None:
    assert set(statuses("nobody", "theta", feature).values()) == {"unknown"}


def test_a_file_without_features_is_unknown() -> None:
    assert set(statuses("llama").values()) == {"unknown"}


def test_reasons_name_the_feature_and_how_it_is_known() -> None:
    by_name = {one.runtime: one for one in judge_readers(("theta", "yarn", "attn_factor"), "qwen3")}
    assert by_name[OLLAMA_12].reason.startswith("rope.scaling.attn_factor: it does not read it")
    assert by_name[OLLAMA_12].display_name == "Ollama 0.12-0.29"
    assert by_name[OLLAMA_12].grade == "read"
    assert "nobody has looked at qwen3 in it" in by_name["koboldcpp@1.76"].reason
    assert "it ships llama.cpp and mlx-lm" in by_name["lm-studio"].reason
    assert by_name["lm-studio"].grade == ""


def test_what_nobody_has_looked_at_is_named_where_the_architecture_was() -> None:
    def reason(arch: str, *features: Feature) -> str:
        reader = find_readers("koboldcpp")[-1]
        return judge_reader(reader, ("theta", *features), arch).reason.partition(";")[0]

    assert reason("llama", "yarn", "attn_factor") == "nobody has looked at rope.scaling.attn_factor of llama in it"
    assert reason("llama", "temperature_scale", "window_norms") == (
        "nobody has looked at attention.temperature_scale, which scales queries by position and norms that take the "
        "attention factor back in window layers of llama in it"
    )
    assert reason("nobody", "yarn", "attn_factor") == "nobody has looked at nobody in it"


def test_statements_that_hold_for_some_versions_of_a_row() -> None:
    features: tuple[Feature, ...] = ("theta", "yarn", "attention_factor_1")

    def status(wanted: str, used: tuple[Feature, ...] = features, arch: str = "qwen3") -> str:
        return judge_reader(find_readers(wanted)[-1], used, arch).status

    assert status("ollama@0.12") == status("ollama@0.12.7") == status("ollama@0.20") == "exact"
    assert status("ollama@0.12.5") == "unknown"
    assert status("ollama@0.12.3", ("theta", "yarn")) == "differs"
    assert status("ollama@0.12.8", ("theta", "yarn")) == "exact"
    assert status("ollama@0.12", ("theta",), "deepseek2") == "unknown"
    assert status("ollama@0.13", ("theta",), "deepseek2") == "exact"


def test_names() -> None:
    assert [row.key for row in find_readers("ollama")] == [OLLAMA_12, OLLAMA_30]
    assert [row.key for row in find_readers("Ollama@0.31.2")] == ["ollama@0.31.2"]
    assert [row.key for row in find_readers("lm-studio")] == ["lm-studio"]
    assert find_readers("vllm") == find_readers("vllm@0.33") == ()
    assert find_any("vllm") == find("vllm")
    with pytest.raises(RecipeError, match=r"known: 0\.12-0\.29, 0\.30-0\.33"):
        find_readers("ollama@0.11")
    with pytest.raises(RecipeError, match=r"known: .*transformers.*ollama"):
        find_any("nope")


def test_features_of_a_file(tmp_path: Path) -> None:
    plain = features_of(write(tmp_path / "plain.gguf"))
    assert plain == {"theta", "stock_theta"}
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    assert features_of(write(tmp_path / "yarn.gguf", "qwen3", yarn)) == {"theta", "yarn", "yarn_attention_factor"}
    off = {**yarn, "rope.scaling.attn_factor": 1.5}
    assert features_of(write(tmp_path / "off.gguf", "qwen3", off)) == {"theta", "yarn", "attn_factor"}
    one = {**yarn, "rope.scaling.attn_factor": float(1 / (1 + 0.1 * np.log(4)))}
    assert features_of(write(tmp_path / "one.gguf", "qwen3", one)) == {"theta", "yarn", "attention_factor_1"}
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    assert features_of(write(tmp_path / "linear.gguf", "llama", linear)) == {"theta", "linear"}
    tuned = {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}
    assert features_of(write(tmp_path / "none.gguf", "llama", tuned)) == plain


@pytest.mark.parametrize(("divisors", "found"), [(4.0, True), (1.0, False)])
def test_a_tensor_counts_where_it_divides(tmp_path: Path, divisors: float, found: bool) -> None:
    tensors = {**plain_tensors(), "rope_freqs.weight": np.full(32, divisors, np.float32)}
    seen = features_of(write(tmp_path / "freqs.gguf", tensors=tensors))
    assert ("rope_freqs" in seen) is found
    assert "rope_freqs_shape" not in seen


def test_sizes_of_gemma_3_and_marks_of_ollamas(tmp_path: Path) -> None:
    window = {"attention.sliding_window": 32, "block_count": 34}
    eight = {**window, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert "gemma3_not_8" in features_of(write(tmp_path / "a.gguf", "gemma3", window))
    assert "gemma3_not_8" not in features_of(write(tmp_path / "b.gguf", "gemma3", eight))
    assert "gemma3_not_8" not in features_of(write(tmp_path / "c.gguf", "llama", {"block_count": 34}))
    long = write(tmp_path / "d.gguf", "gemma3", {"context_length": 131072, "attention.sliding_window": 32})
    assert "no_scaling_keys" in features_of(long)
