"""What llama.cpp makes of a scaling in sections of positions (M-RoPE), on tiny files: docs/gguf.md has the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.engines.llamacpp.messages import Override
from ropeconv.errors import BadSource
from ropeconv.inspection import inspect_source
from ropeconv.rope.forms import Plain
from ropeconv.sources import open_source

from ..support.optional import MISSING, skip
from ..support.tiny_gguf import TOKENS, Answers, answers, make, rewritten

if "llama_cpp" in MISSING:
    skip("llama_cpp")

COUNT = len(TOKENS)
TEXT = list(range(COUNT))
HEIGHT, WIDTH = [7 * i % 24 for i in TEXT], [5 * i % 24 for i in TEXT]
STILL = [0] * COUNT
BLOCKS, INTERLEAVED = "qwen2vl", "qwen3vl"


def keys(arch: str, **values: Override) -> dict[str, Override]:
    return {f"{arch}.rope.scaling.{key}": value for key, value in values.items()}


def linear(arch: str) -> dict[str, Override]:
    return keys(arch, type=("str", "linear"), factor=("float", 4.0))


def apart(found: Answers, left: str, right: str) -> float:
    return float(np.abs(found[left] - found[right]).max() / found[right].std())


def at(arch: str, path: Path, positions: list[list[int]], **variants: dict[str, Override]) -> Answers:
    return answers(arch, path.parent, {name: (path, given) for name, given in variants.items()}, positions)


@pytest.mark.parametrize("arch", [BLOCKS, pytest.param(INTERLEAVED, marks=pytest.mark.nightly)])
def test_linear_divides_the_positions_of_all_sections(arch: str, tmp_path: Path) -> None:
    path, sections = make(arch, tmp_path / "tiny.gguf"), (TEXT, HEIGHT, WIDTH)
    once = at(arch, path, [*sections, STILL], plain={})
    four = at(
        arch, path, [*([4 * one for one in section] for section in sections), STILL], scaled=linear(arch), plain={}
    )
    together = {"once": once["plain"], "scaled": four["scaled"], "plain": four["plain"]}
    assert apart(together, "scaled", "once") == 0
    assert apart(together, "plain", "once") > 1


def test_the_ramp_of_yarn_counts_pairs_of_the_whole_head(tmp_path: Path) -> None:
    """Over 8192 tokens it begins behind pair 12, where the time section of 12 pairs ends."""
    path = make(BLOCKS, tmp_path / "tiny.gguf")
    yarn = keys(BLOCKS, type=("str", "yarn"), factor=("float", 4.0), original_context_length=("int", 8192),
                attn_factor=("float", 1 / (1 + 0.1 * float(np.log(4)))))  # fmt: skip
    for moving, differs in (([TEXT, STILL, STILL], False), ([STILL, TEXT, STILL], True), ([STILL, STILL, TEXT], True)):
        found = at(BLOCKS, path, [*moving, STILL], plain={}, scaled=yarn)
        assert (apart(found, "scaled", "plain") > 1e-3) is differs


def test_text_rotates_as_without_sections(tmp_path: Path) -> None:
    path = make(BLOCKS, tmp_path / "tiny.gguf")
    yarn = {name: keys(name, type=("str", "yarn"), factor=("float", 4.0)) for name in (BLOCKS, "qwen2")}
    unused = {"output.bias": np.zeros(128, np.float32)}  # loaded by both, added in qwen2 alone
    plain = rewritten(path, tmp_path / "qwen2.gguf", unused, arch="qwen2")
    sections = answers(BLOCKS, tmp_path, {"plain": path, "scaled": (path, yarn[BLOCKS])})
    without = answers("qwen2", tmp_path, {"plain": plain, "scaled": (plain, yarn["qwen2"])})
    together = {**sections, "other": without["scaled"]}
    assert apart(together, "scaled", "other") < 0.03
    assert apart(together, "plain", "other") > 1


def test_sections_are_shown_and_required(tmp_path: Path) -> None:
    path = make(INTERLEAVED, tmp_path / "tiny.gguf")
    spec = inspect_source(open_source(str(path))).spec
    assert (spec.mrope_section, spec.layout, spec.form) == ((12, 10, 10), "half", Plain(10000.0))
    bare = rewritten(path, tmp_path / "bare.gguf", left_out=f"{INTERLEAVED}.rope.dimension_sections")
    with pytest.raises(BadSource, match="has no qwen3vl.rope.dimension_sections, which llama.cpp requires"):
        inspect_source(open_source(str(bare)))
    assert set(answers(INTERLEAVED, tmp_path, {"tiny": path, "bare": bare})) == {"tiny"}
