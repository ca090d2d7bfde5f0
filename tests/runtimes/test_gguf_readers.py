"""Readers of GGUF other than llama.cpp: facts taken by hand from their sources, and their names."""

import json
from typing import get_args

import msgspec
import pytest

from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes.gguf_readers import (
    FEATURE_WORDS,
    Feature,
    Reader,
    ReaderStatement,
    find_any,
    find_readers,
    gguf_readers,
    judge_readers,
    reader_names,
)
from ropeconv.runtimes.runtime import find
from scripts.laboratory.reader_sources import OUT, contradictions, digest, fork, ollama

IK_BEFORE = "ik-llama-cpp@2026.4"
IK = "ik-llama-cpp@2026.8"
OLLAMA_12 = "ollama@0.12"
OLLAMA_30 = "ollama@0.30"
OLLAMA_13 = "ollama@0.13.4"
YARN: tuple[Feature, ...] = ("theta", "yarn", "yarn_attention_factor")


def statuses(arch: str, *features: Feature) -> dict[str, str]:
    return {verdict.runtime: verdict.status for verdict in judge_readers(features, arch)}


@pytest.mark.parametrize(
    ("arch", "features", "runtime", "status"),
    [
        ("qwen3", ("theta", "linear"), OLLAMA_12, "exact"),
        ("qwen3", ("theta", "yarn", "attention_factor_1"), OLLAMA_12, "exact"),
        ("qwen3", YARN, OLLAMA_12, "differs"),
        ("qwen3", ("theta", "yarn", "attn_factor"), OLLAMA_12, "differs"),
        ("llama", ("theta", "yarn", "attn_factor"), OLLAMA_12, "exact"),
        ("llama", YARN, "koboldcpp@1.76", "exact"),
        ("llama", ("theta", "yarn", "attn_factor"), "koboldcpp@1.76", "exact"),
        ("gpt-oss", ("theta", "linear"), OLLAMA_12, "differs"),
        ("gemma3", ("theta", "linear"), OLLAMA_13, "exact"),
        ("llama", ("theta", "rope_freqs"), "koboldcpp@1.76", "exact"),
        ("gemma4", ("theta",), OLLAMA_13, "exact"),
        ("minicpm", ("theta", "rope_freqs"), "koboldcpp@1.76", "unknown"),
        ("gemma4", ("theta", "linear"), OLLAMA_13, "ignored"),
        ("gemma3n", ("theta", "linear"), OLLAMA_13, "differs"),
        ("gemma3", ("theta", "linear"), OLLAMA_12, "ignored"),
        ("gemma3", ("theta",), OLLAMA_12, "ignored"),
        ("gemma3", ("theta",), "ollama@0.13.3", "exact"),
        ("gemma3", ("theta", "linear"), "ollama@0.13.3", "differs"),
        ("gemma3", ("theta", "linear", "gemma3_not_8"), OLLAMA_13, "differs"),
        ("mistral3", YARN, OLLAMA_12, "differs"),
        ("mistral3", YARN, OLLAMA_13, "differs"),
        ("gemma3", ("theta", "no_scaling_keys"), OLLAMA_30, "differs"),
        ("mistral3", ("theta", "rope_freqs"), OLLAMA_12, "ignored"),
        ("mistral3", ("theta", "temperature_scale"), OLLAMA_30, "unknown"),
        ("llama", ("theta", "rope_freqs"), IK_BEFORE, "ignored"),
        ("llama", ("theta", "rope_freqs"), IK, "exact"),
        ("llama", ("theta", "rope_freqs", "rope_freqs_shape"), IK, "refused"),
        ("llama", ("theta", "factors"), IK, "refused"),
        ("phi3", ("theta", "factors"), IK, "exact"),
        ("minicpm", ("theta", "rope_freqs"), IK, "ignored"),
        ("arcee", ("theta",), IK, "refused"),
        ("granite_swa", ("theta", "rope_freqs"), IK, "refused"),
        ("llama", ("theta",), "lm-studio", "unknown"),
    ],
)
def test_what_was_read(arch: str, features: tuple[Feature, ...], runtime: str, status: str) -> None:
    assert statuses(arch, *features)[runtime] == status


def test_an_unknown_architecture_and_a_file_without_features_are_unknown_everywhere() -> None:
    assert (
        set(statuses("nobody", *FEATURE_WORDS).values())
        == set(statuses("llama").values())
        == {"unknown"}
    )
    for arch, subject in (
        ("nobody", "nobody"),
        ("mistral3", f"{FEATURE_WORDS['temperature_scale']} of mistral3"),
    ):
        reasons = {
            entry.reason
            for entry in judge_readers(("temperature_scale",), arch)
            if entry.runtime == OLLAMA_12
        }
        assert reasons == {f"{subject} is untested"}


def test_every_feature_has_words_and_every_other_status_than_exact_a_reason() -> None:
    assert set(FEATURE_WORDS) == set(get_args(Feature))
    for reader in gguf_readers():
        assert [
            claim for claim in reader.statements if claim.status != "exact" and not claim.reason
        ] == []


def test_names() -> None:
    assert [row.key for row in find_readers("ollama")] == [OLLAMA_13, OLLAMA_30]
    assert [row.key for row in find_readers("Ollama@0.31.2")] == ["ollama@0.31.2"]
    assert find_readers("vllm") == find_readers("vllm@0.33") == ()
    assert find_any("vllm") == find("vllm")
    for name in reader_names():
        with pytest.raises(RecipeError, match="unknown runtime"):
            find(name)
    assert find_any("LM Studio") == find_any("lmstudio") == find_readers("lm-studio")
    with pytest.raises(
        RecipeError, match=r"tested: 0\.12-0\.13\.2, 0\.13\.3, 0\.13\.4-0\.29, 0\.30-0\.33"
    ):
        find_readers("ollama@0.11")
    with pytest.raises(RecipeError, match=r"supported: .*transformers.*ollama"):
        find_any("nope")


# What readers of GGUF load, as extracted from their sources, against the statements on them


EXTRACTED = json.loads(OUT.read_text("utf-8"))


def rows_of(name: str) -> list[Reader]:
    return [row for row in gguf_readers() if row.name == name]


@pytest.mark.parametrize("name", sorted(EXTRACTED))
def test_no_statement_contradicts_the_sources(name: str) -> None:
    assert list(contradictions(rows_of(name), EXTRACTED[name])) == []


@pytest.mark.parametrize(
    ("name", "statement", "problem"),
    [
        (
            "ollama",
            ReaderStatement(("gemma3",), ("theta",), "exact"),
            "0.12.0 does not read rope.freq_base",
        ),
        (
            "ollama",
            ReaderStatement(("gemma3",), ("linear",), "exact", since="0.12.1"),
            "0.12.1 does not read rope.scaling",
        ),
        (
            "ollama",
            ReaderStatement(("mistral3",), ("yarn",), "exact", until="0.13"),
            "0.12.0 does not read rope.scaling.orig",
        ),
        (
            "ik-llama-cpp",
            ReaderStatement(("qwen3",), ("rope_freqs",), "exact"),
            "2026.4 does not read rope_freqs",
        ),
        (
            "ik-llama-cpp",
            ReaderStatement(("llama",), ("rope_freqs",), "refused"),
            "2026.4 reads rope_freqs",
        ),
        (
            "ik-llama-cpp",
            ReaderStatement(("llama",), ("*",), "refused"),
            "2026.4 has the architecture",
        ),
        (
            "koboldcpp",
            ReaderStatement(("qwen2",), ("factors",), "exact"),
            "1.76 does not read rope_factors_long",
        ),
    ],
)
def test_a_wrong_statement_is_noticed(name: str, statement: ReaderStatement, problem: str) -> None:
    """The first three were in the table when it was typed by hand."""
    wrong = [msgspec.structs.replace(row, statements=(statement,)) for row in rows_of(name)]
    assert any(problem in sentence for sentence in contradictions(wrong, EXTRACTED[name]))


SERVER = "if envconfig.NewEngine() || f.KV().OllamaEngineRequired() {"
CONFIG = (
    'func (kv KV) OllamaEngineRequired() bool {\n\treturn slices.Contains([]string{\n\t\t"gemma3",'
    ' "llama4",\n\t}\n}\n'
)
GEMMA = """
\tmodel.Register("gemma3", New)
\tmodel.Register("gemma3_embed", newEmbedModel)
\t\t\tropeLocalBase:  c.Float("rope.local.freq_base", 10000.0),
\t\t\tropeGlobalBase: c.Float("rope.global.freq_base", 1000000.0),
\t\t\t// ropeScale:      c.Float("rope.scaling.factor", 1.0),
"""
LLAMA = '\tmodel.Register("llama4", New)\n\tRopeFactors ml.Tensor  `gguf:"rope_factors"`\n'


def test_ollama_reads_what_its_own_engine_names() -> None:
    files = {
        "llm/server.go": SERVER,
        "fs/ggml/ggml.go": CONFIG,
        "model/models/gemma3/model_text.go": GEMMA,
        "model/models/llama4/model_text.go": LLAMA,
        "model/models/llama4/model_vision.go": 'c.Float("rope.freq_base")',
        "model/models/qwen2/model.go": 'model.Register("qwen2", New)\nc.Float("rope.freq_base")',
    }
    assert ollama(files) == {
        "gemma3": ["rope.global.freq_base", "rope.local.freq_base"],
        "llama4": ["rope_factors"],
    }
    assert ollama({**files, "llm/server.go": "llama-server"}) == {}


NAMES = """static const std::map<llm_arch, const char *> LLM_ARCH_NAMES = {
    { LLM_ARCH_LLAMA, "llama" },
    { LLM_ARCH_GRANITE, "granite" },
    { LLM_ARCH_QWEN2, "qwen2" },
    { LLM_ARCH_UNKNOWN, "(unknown)" },
};
"""
SWITCH = """
        case LLM_ARCH_LLAMA:
        case LLM_ARCH_GRANITE:
            layer.rope_freqs = ml.create_tensor(ctx_layer, tn(LLM_TENSOR_ROPE_FREQS, "weight"), {n_rot/2});
            break;
        case LLM_ARCH_QWEN2:
            // layer.rope_freqs = ml.create_tensor(ctx_layer, tn(LLM_TENSOR_ROPE_FREQS, "weight"), {n_rot/2});
            break;
}
"""
FUNCTIONS = """
bool create_tensors_helper::create_llama_tensors(const LLM_TN & tn) {
    layer.rope_freqs = create_tensor(ctx_split, tn(LLM_TENSOR_ROPE_FREQS, "weight"), {n_embd/n_head/2});
}
        case LLM_ARCH_LLAMA:
        case LLM_ARCH_GRANITE:
            use_mmap_buffer = create_llama_tensors(tn); break;
        case LLM_ARCH_QWEN2:
            use_mmap_buffer = create_qwen2_tensors(tn); break;
}
"""


@pytest.mark.parametrize("loader", [SWITCH, FUNCTIONS])
def test_forks_of_llama_cpp_load_what_their_cases_create(loader: str) -> None:
    read = fork({"src/llama.cpp": NAMES + loader})
    assert read == {"granite": ["rope_freqs"], "llama": ["rope_freqs"], "qwen2": []}


def test_a_digest_has_the_versions_at_which_something_changes() -> None:
    read = {
        "1": {"a": ["x"]},
        "2": {"a": ["x"], "b": []},
        "3": {"a": ["x", "y"], "b": []},
        "4": {"b": []},
    }
    assert digest(read) == {"a": {"1": ["x"], "3": ["x", "y"], "4": None}, "b": {"2": []}}
