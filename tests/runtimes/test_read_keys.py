"""Config keys that the attention of a runtime reads: what nobody looked at is unknown, and never
exact.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.models.config import detect
from ropeconv.models.registry import by_model_type, config_keys, package_families
from ropeconv.runtimes.evidence import HARMLESS_VALUES, read_keys, unknown_key
from ropeconv.runtimes.read_config import read_spec
from ropeconv.runtimes.runtime import find, newest, runtimes
from ropeconv.runtimes.verdict import Verdict, judge, without_config
from scripts.laboratory.key_files import model_of
from scripts.laboratory.key_records import record
from scripts.laboratory.sources import tiny_configs

from ..conftest import CONFIGS
from ..support.extent import sample

QWEN: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
CHUNKS = {"dual_chunk_attention_config": {"chunk_size": 1024, "local_size": 128}}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "attention_factor": 1.13862944,
}


def judged(runtime: str, config: dict[str, Any]) -> Verdict:
    family = detect(config)
    spec = read_spec(config, family)
    return judge(config, family, spec.current(), spec, find(runtime)[-1])


@pytest.mark.parametrize(
    ("runtime", "model_type", "changes", "key"),
    [
        # mlx_lm/models/llama.py 0.32: pairs are neighbours where it is true
        ("mlx-lm", "llama", {"rope_traditional": True}, "rope_traditional"),
        # sglang/srt/layers/rotary_embedding/factory.py
        (
            "sglang",
            "llama",
            {"rope_scaling": {**YARN, "extrapolation_factor": 0.5}},
            "extrapolation_factor",
        ),
        (
            "vllm",
            "qwen2",
            {"rope_parameters": {"rope_type": "default", "use_fope": True}},
            "use_fope",
        ),
        # vllm/model_executor/models/llama.py makes window layers
        ("vllm", "llama", {"sliding_window": 512}, "sliding_window"),
        # transformers/models/deepseek_v3: pairs are halves where it is false
        ("transformers", "deepseek_v3", {"rope_interleave": False}, "rope_interleave"),
        # keys that change no verdict
        ("mlx-lm", "llama", {}, ""),
        ("mlx-lm", "llama", {"rope_traditional": False, "use_fope": True}, ""),
        ("sglang", "llama", {"sliding_window": None, "rope_is_neox_style": None}, ""),
        ("vllm", "qwen2", {"sliding_window": 512, "use_sliding_window": False}, ""),
        ("transformers", "deepseek_v3", {"rope_interleave": True}, ""),
        ("transformers", "llama", {"rope_traditional": True}, ""),
    ],
)
def test_only_a_key_that_nobody_looked_at_is_unknown(
    runtime: str, model_type: str, changes: dict[str, Any], key: str
) -> None:
    verdict = judged(runtime, {**QWEN, "model_type": model_type, **changes})
    assert verdict.status == ("unknown" if key else "exact"), verdict.reason
    assert key in verdict.reason


@pytest.mark.parametrize(
    ("runtime", "model_type", "status"),
    [
        ("vllm", "qwen2", "refused"),
        ("vllm@0.11", "qwen2", "refused"),
        ("sglang", "qwen2", "refused"),
        ("transformers", "qwen2", "exact"),
        ("mlx-lm", "qwen2", "exact"),
        ("vllm", "llama", "exact"),
    ],
)
def test_dual_chunk_attention(runtime: str, model_type: str, status: str) -> None:
    config = {**QWEN, "model_type": model_type}
    assert judged(runtime, config).status == "exact"
    verdict = judged(runtime, {**config, **CHUNKS})
    assert verdict.status == status
    assert ("dual_chunk_attention_config" in verdict.reason) is (status != "exact")


def test_the_trained_length_is_that_of_the_chunks() -> None:
    stated = {**CHUNKS["dual_chunk_attention_config"], "original_max_position_embeddings": 1024}
    config = {**QWEN, "dual_chunk_attention_config": stated}
    spec = read_spec(config, detect(config))
    assert (spec.original_context, spec.original_context_source) == (1024, "config")
    with pytest.raises(BadSource, match="in its dual_chunk_attention_config; write"):
        detect(
            {**config, "dual_chunk_attention_config": {"original_max_position_embeddings": "many"}}
        )


@pytest.mark.parametrize("path", sample(sorted(CONFIGS.glob("*.json"))), ids=lambda path: path.stem)
def test_published_configs_have_no_key_that_nobody_looked_at(path: Path) -> None:
    config = json.loads(path.read_text())
    try:
        family = detect(config)
    except BadSource:
        return
    spec = read_spec(config, family)
    verdicts = [judge(config, family, spec.current(), spec, row) for row in runtimes()]
    assert [
        item.reason
        for item in verdicts
        if item.status == "unknown" and "its attention reads" in item.reason
    ] == []


@pytest.mark.parametrize(
    ("value", "status"), [(None, "exact"), (False, "exact"), (True, "unknown")]
)
def test_a_switch_that_is_off_decides_nothing(value: bool | None, status: str) -> None:
    """Qwen3-Next is published with use_sliding_window: false, which exllamav3 reads."""
    config = {**dict(tiny_configs())["qwen3_next"], "use_sliding_window": value}
    family = detect(config)
    spec = read_spec(config, family)
    verdict = judge(config, family, spec.current(), spec, newest("exllamav3"))
    assert verdict.status == status
    assert ("use_sliding_window" in verdict.reason) is (value is True)


@pytest.mark.parametrize("family", sample(["llama", "deepseek_v3", "gemma3", "phi3"], 1))
def test_the_record_is_what_the_installed_transformers_reads(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    row = find(f"transformers@{transformers.__version__}")[0]
    stated = read_keys(row)
    keys = record(
        "transformers", Path(transformers.__file__).parents[1], [model_of(by_model_type()[family])]
    )
    assert sorted(keys.config) == sorted(
        key for key, names in stated.config.items() if family in names
    )
    assert keys.rope == stated.rope


def test_no_key_of_a_config_class_is_one_that_nobody_looked_at() -> None:
    unknown_keys = []
    for row in runtimes():
        for family in package_families():
            if without_config(row, family) is None:
                whole = dict.fromkeys(config_keys().get(family.name, ()), "set")
                rules = row.rule_set(family.name)
                key = unknown_key(whole, {}, family, row, rules)
                if key and key not in HARMLESS_VALUES:
                    unknown_keys.append((row.key, family.name, key))
    assert unknown_keys == []
