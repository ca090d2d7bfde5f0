"""Which options go together: every rule stands in Target, and each names the option that is missing or too many."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.recipe import Recipe

from ..support.baking import AS_IS, YARN, make_plan, recipe_of

ON_TOP = recipe_of("yarn", 4.0, on_top=True)
LOG_N = recipe_of("yarn", 4.0, log_n="clamped")


@pytest.mark.parametrize(
    ("recipe", "from_gguf", "options", "words"),
    [
        (YARN, False, {"outtype": "f16"}, "--outtype goes with GGUF; add --to gguf"),
        (YARN, False, {"carrier": "llama"}, "--carrier goes with GGUF; add --to gguf"),
        (YARN, False, {"in_place": True}, "--in-place changes a GGUF file itself"),
        (YARN, False, {"allow_approximate": True}, "--allow-approximate needs --log-n"),
        (AS_IS, False, {"replace": True}, "--as-is keeps the scaling that --replace would take away"),
        (YARN, False, {"to": "gguf", "fold_into": "k"}, "--fold-into goes with a folder as output, and this is GGUF"),
        (YARN, False, {"fold_into": "v"}, "--fold-into v is not known; choose q, k, qk"),
        (YARN, False, {"out": Path("x.gguf")}, "-o x.gguf is not a name for a folder; add --to gguf"),
        (YARN, True, {"out": Path("folder")}, "-o folder is not a name for GGUF"),
        (YARN, True, {"dual_chunk": "drop"}, "--dual-chunk goes with a folder as output"),
        (YARN, True, {"to": "safetensors", "runtimes": ("ollama",)}, "--runtime ollama reads GGUF"),
        (ON_TOP, False, {"replace": True}, "--on-top keeps the scaling that --replace would take away"),
        (YARN, False, {"to": "gguf", "runtimes": ("vllm",)}, "--runtime vllm does not read GGUF"),
        (YARN, False, {"runtimes": ("ollama",)}, "--runtime ollama reads GGUF; add --to gguf"),
        (YARN, False, {"to": "gguf", "carrier": "llama", "encoding": "keys"}, "--carrier is an encoding of its own"),
        (LOG_N, False, {"to": "gguf", "encoding": "keys"}, "log-n needs a rope tensor"),
        (YARN, True, {"outtype": "q8_0"}, "keeps its quantisation, so --outtype has no effect"),
        (YARN, True, {"in_place": True, "out": Path("x.gguf")}, "leave -o out"),
        # options that go together
        (YARN, False, {}, ""),
        (YARN, False, {"encoding": "weights", "fold_into": "qk"}, ""),
        (YARN, False, {"to": "safetensors", "all_files": True, "runtimes": ("vllm", "gguf")}, ""),
        (YARN, False, {"to": "gguf", "outtype": "q8_0", "pre": "qwen2", "carrier": "llama"}, ""),
        (YARN, False, {"to": "gguf", "runtimes": ("llama.cpp",)}, ""),
        (YARN, True, {"runtimes": ("llama.cpp", "ollama", "ik-llama-cpp@2026.5", "lm-studio")}, ""),
        (LOG_N, False, {"allow_approximate": True}, ""),
        (YARN, True, {"in_place": True, "replace": True}, ""),
        (YARN, True, {"to": "gguf", "carrier": "llama", "runtimes": ("gguf", "llama-cpp", "llama.cpp@2026.10")}, ""),
    ],
)
def test_options_go_together_or_name_the_one_they_need(
    recipe: Recipe, from_gguf: bool, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) if words else nullcontext():
        Target(**options).check(recipe, from_gguf)


def test_unknown_architectures_are_of_gguf_files() -> None:
    assumed = Target(assume_arch_keys=True)
    assumed.check(YARN, from_gguf=True)
    with pytest.raises(UsageError, match="--assume-arch-keys goes with a GGUF file as SOURCE; leave it out"):
        replace(assumed, to="gguf").check(YARN, from_gguf=False)


@pytest.mark.parametrize("encoding", ["auto", "native", "factors"])
def test_folding_is_missed_where_nothing_is_folded(llama: Path, encoding: str) -> None:
    with pytest.raises(UsageError, match="--fold-into goes with folded weights; add --encoding weights"):
        make_plan(llama, YARN, encoding=encoding, fold_into="q")


@pytest.mark.parametrize("name", ["nope", "llama.cpp@b1", "vllm@0.1"])
def test_runtimes_that_are_not_known_are_said_before_anything_is_read(name: str) -> None:
    with pytest.raises(RecipeError, match=f"--runtime {name}"):
        Target(to="gguf", runtimes=(name,)).check(YARN, from_gguf=False)
