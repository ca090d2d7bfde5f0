"""The table of methods that four engines compute alike: cells that are known, and what would change
them.
"""

import pytest

from ropeconv.runtimes.verdict import Verdict
from scripts.pages import engine_tables
from scripts.pages.engine_tables import (
    ENGINES,
    MAIN,
    POPULAR,
    best_result,
    configs,
    is_for_text,
    obstacles,
    options,
)

LLAMA, QWEN = "meta-llama--Llama-2-7b-hf", "Qwen--Qwen3-8B"
SCOUT, VISION = "meta-llama--Llama-4-Scout-17B-16E-Instruct", "Qwen--Qwen3-VL-8B-Instruct"


def test_the_models_are_published_ones() -> None:
    assert len(set(POPULAR)) == 24
    assert set(POPULAR) <= set(configs())
    assert set(ENGINES) < set(MAIN)
    assert len(MAIN) == 8


@pytest.mark.parametrize(
    ("model", "method", "engines"),
    [
        (LLAMA, "mixed", set()),
        (QWEN, "yarn", set()),
        (QWEN, "llama3", {"llama.cpp"}),
        ("google--gemma-2-9b", "linear", {"SGLang"}),
        ("openai--gpt-oss-20b", "ntk", set()),  # vLLM with an option
        ("openai--gpt-oss-20b", "mixed", {"llama.cpp"}),
        ("deepseek-ai--DeepSeek-V3", "linear", set()),  # as YaRN
        ("deepseek-ai--DeepSeek-V3", "llama3", {"SGLang", "llama.cpp"}),
        ("Qwen--Qwen3.5-27B", "linear", set()),
        (SCOUT, "mixed", set()),
        (SCOUT, "yarn", {"llama.cpp"}),
        (VISION, "yarn", set()),
        (VISION, "llama3", {"llama.cpp"}),  # vLLM for text
    ],
)
def test_known_cells(model: str, method: str, engines: set[str]) -> None:
    """llama.cpp has keys for linear and yarn, and loads rope_freqs for llama and llama4, not for
    qwen3 and qwen3vl.
    """
    reasons = obstacles(model, method)
    assert set(reasons) == engines
    assert all(reasons.values())


def test_an_engine_that_computes_something_else_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        engine_tables,
        "_verdict",
        lambda result, name: Verdict(name, name, "differs", "it differs (a lot)", ""),
    )
    obstacles.cache_clear()
    try:
        assert obstacles(LLAMA, "linear") == dict.fromkeys(
            ("transformers", "vLLM", "SGLang"), "it differs"
        )
    finally:
        obstacles.cache_clear()


def test_cells_that_need_an_option_are_counted_and_say_so() -> None:
    needed = best_result("openai--gpt-oss-20b", "ntk")
    assert needed is not None
    assert options(needed) == {"vLLM": "--model-impl transformers"}
    assert not is_for_text(options(needed))
    for_text = best_result(VISION, "llama3")
    assert for_text is not None
    assert set(options(for_text)) == {"vLLM", "SGLang"}
    assert is_for_text(options(for_text))
    plain = best_result("openai--gpt-oss-20b", "yarn")
    assert plain is not None
    assert options(plain) == {}
