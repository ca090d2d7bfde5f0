"""A patched GGUF file against the GGUF file it came from: right ones agree by every encoding, wrong
ones do not.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ropeconv.engines.engine import Progress
from ropeconv.errors import BadSource
from ropeconv.formats.gguf.edit import Edit, write_new
from ropeconv.formats.gguf.file import GgufFile
from ropeconv.formats.gguf.header import f32
from ropeconv.models.gguf import GgufSource
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.gguf import check_gguf, run_unscaled, unscaled_keys, validate_gguf
from ropeconv.validate.llamacpp_reference import run_with_divisors
from ropeconv.validate.sampling import TokenRun, affordable_length
from ropeconv.validate.validation import Validation

from ..support.baking import MIXED, recipe_of
from ..support.extent import sample
from ..support.llamacpp import bake, checkpoint
from ..support.tiny_gguf import make

pytest.importorskip("llama_cpp")
OUTTYPES = ("f32", "f16", "q8_0", "q4_k_m", "q4_0", "q4_1", "q2_k")
CALM = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "initializer_range": 0.12,
}
"""Widths that blocks of Q4_K fit, and weights with which quantisation is no larger than in
published models.
"""
YARN = recipe_of("yarn", 4.0, attention_factor=1.1)
LOG_N = recipe_of("linear", 4.0, log_n="full")
WAYS: dict[str, tuple[str, Recipe, dict[str, Any], str]] = {
    "keys": ("llama", YARN, {"encoding": "keys"}, "by_keys"),
    "tensor": ("llama", MIXED, {"encoding": "tensor"}, "by_divisors"),
    "yarn as a tensor": ("llama", YARN, {"encoding": "tensor"}, "by_divisors"),
    "carrier": ("qwen2", recipe_of("by-parts", 4.0), {}, "by_dequantising"),
    "carrier with log-n": ("llama", LOG_N, {"carrier": "mistral3"}, "by_dequantising"),
    "window norms": ("gemma3_text", YARN, {}, "by_dequantising"),
}
"""Family, recipe, options, and the reference that is the sharpest for them."""

Plain = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """A converted checkpoint of a family with weights of a type, made once."""
    paths: dict[tuple[str, str], Path] = {}

    def get(family: str, outtype: str) -> Path:
        if (family, outtype) not in paths:
            folder = tmp_path_factory.mktemp(family)
            calm = {**CALM, "initializer_range": 0.03} if family.startswith("gemma") else CALM
            source = checkpoint(family, folder / "source", **calm)
            bake(source, recipe_of("as-is"), folder / "plain.gguf", outtype=outtype)
            paths[family, outtype] = folder / "plain.gguf"
        return paths[family, outtype]

    return get


def compared(
    out: Path, source: Path, progress: Progress | None = None, **settings: Any
) -> Validation:
    return validate_gguf(
        Comparison.open(out, str(source)), Settings(**settings), progress or Progress()
    )


@pytest.mark.parametrize(
    ("way", "outtype"), sample([(way, outtype) for way in WAYS for outtype in OUTTYPES], 2, seed=3)
)
def test_a_right_bake_agrees_and_its_source_does_not(
    way: str, outtype: str, plain: Plain, tmp_path: Path
) -> None:
    family, recipe, options, reference = WAYS[way]
    source = plain(family, outtype)
    out = tmp_path / "out.gguf"
    bake(source, recipe, out, **options)
    chosen: Any = check_gguf(Comparison.open(out, str(source)), Settings()).logits
    assert chosen.func.__name__ == reference
    for dequantised in {False, reference != "by_dequantising"}:
        result = compared(out, source, dequantised=dequantised)
        assert result.agrees, result.sentence
        assert all(bucket.control_kl > 10 * bucket.compared_kl for bucket in result.buckets[1:])


@pytest.mark.parametrize("arch", ["granitehybrid", "falcon-h1", "deepseek4"])
def test_a_model_with_states_is_read_at_every_position(arch: str, tmp_path: Path) -> None:
    """llama.cpp aborts where a state is continued at a far position."""
    source = make(arch, tmp_path / "source.gguf", context_length=512)
    out = tmp_path / "out.gguf"
    bake(source, recipe_of("yarn", 4.0, attention_factor=1.0), out, encoding="keys")
    result = compared(out, source)
    assert result.agrees, result.sentence
    assert result.reached == 2048
    with_keys(out, tmp_path / "wrong.gguf", "scaling.factor", 2.5)
    wrong = compared(tmp_path / "wrong.gguf", source)
    assert wrong.sentence.startswith("FAIL"), wrong.sentence


def with_keys(out: Path, wrong: Path, end: str, value: float) -> None:
    """A copy of a file with another value of the metadata key with that end."""
    (key,) = (key for key in GgufFile.open(out).header.values if key.endswith(end))
    write_new(GgufFile.open(out), 0, Edit({key: f32(value)}), wrong)


def with_divisors(out: Path, wrong: Path, change: Callable[[Any], Any]) -> None:
    """A copy of a file with other numbers in rope_freqs, changed by gguf-py."""
    wrong.write_bytes(out.read_bytes())
    reader = gguf.GGUFReader(wrong, "r+")
    tensor = next(tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    before = tensor.data.copy()
    tensor.data[:] = change(before)
    assert not np.array_equal(before, tensor.data)
    reader.data.flush()


WRONG: dict[str, Callable[[Path, Path], None]] = {
    "factor 3.5 for 4": lambda out, wrong: with_divisors(
        out, wrong, lambda d: 1 + (d - 1) * 2.5 / 3
    ),
    "theta off by 10 %": lambda out, wrong: with_keys(out, wrong, "freq_base", 11000.0),
    "attention factor off by 5 %": lambda out, wrong: with_keys(out, wrong, "attn_factor", 1.05),
    "linear for mixed": lambda out, wrong: with_divisors(
        out, wrong, lambda d: np.full_like(d, 4.0)
    ),
    "no attention factor": lambda out, wrong: with_keys(out, wrong, "attn_factor", 1.0),
    "divisors inverted": lambda out, wrong: with_divisors(out, wrong, lambda d: 1 / d),
    "no method at all": lambda out, wrong: with_divisors(out, wrong, np.ones_like),
}
CASES = [
    (wrong, outtype, by) for wrong in WRONG for outtype in OUTTYPES[1:] for by in (False, True)
]


@pytest.mark.parametrize(("wrong", "outtype", "dequantised"), sample(CASES, 2, seed=1))
def test_a_wrong_bake_disagrees(
    wrong: str, outtype: str, dequantised: bool, plain: Plain, tmp_path: Path
) -> None:
    source = plain("llama", outtype)
    out = tmp_path / "out.gguf"
    other = tmp_path / "wrong.gguf"
    bake(source, recipe_of("mixed", 4.0, attention_factor=1.1), out)
    WRONG[wrong](out, other)
    result = compared(other, source, dequantised=dequantised)
    assert result.sentence.startswith("FAIL"), result.sentence


def test_the_default_reaches_the_new_context_in_a_few_tokens(tmp_path: Path) -> None:
    """A trained context longer than any run over every position: only gaps between positions go
    beyond it.
    """
    long = {**CALM, "max_position_embeddings": 4096}
    source = checkpoint("llama", tmp_path / "source", **long)
    bake(source, recipe_of("as-is"), tmp_path / "plain.gguf", outtype="q4_0")
    bake(tmp_path / "plain.gguf", MIXED, tmp_path / "out.gguf")
    notes: list[str] = []
    result = compared(tmp_path / "out.gguf", tmp_path / "plain.gguf", Progress(note=notes.append))
    assert result.agrees, result.sentence
    assert result.reached >= 16380
    assert result.to_dict()["reached"] == result.reached
    assert [bucket.name for bucket in result.buckets] == ["0-4,095", "4,096-8,191", "8,192-16,383"]
    assert "does not show" not in result.sentence
    assert (result.tokens, result.length) == (512, 0)
    assert any("spread over 16,384 positions" in note for note in notes)

    with_divisors(tmp_path / "out.gguf", tmp_path / "wrong.gguf", lambda d: 1 + (d - 1) * 2.5 / 3)
    wrong = compared(tmp_path / "wrong.gguf", tmp_path / "plain.gguf")
    assert wrong.sentence.startswith("FAIL"), wrong.sentence

    short = compared(tmp_path / "out.gguf", tmp_path / "plain.gguf", tokens=600)
    assert short.reached == short.length == 600
    assert re.search("600 tokens, .* 4,096", short.sentence)
    assert "--tokens" in short.sentence


@pytest.mark.parametrize("outtype", sample(OUTTYPES, 2, seed=5))
def test_an_export_is_compared_with_its_checkpoint_and_beyond_that_with_itself(
    outtype: str, tmp_path: Path
) -> None:
    source = checkpoint("llama", tmp_path / "source", **CALM)
    bake(source, MIXED, tmp_path / "out.gguf", outtype=outtype)
    result = compared(tmp_path / "out.gguf", source)
    assert result.agrees, result.sentence
    assert {bucket.run for bucket in result.buckets} == {"whole", "spread"}
    with_divisors(tmp_path / "out.gguf", tmp_path / "wrong.gguf", lambda d: 1 + (d - 1) * 2.5 / 3)
    wrong = compared(tmp_path / "wrong.gguf", source)
    assert wrong.sentence.startswith("FAIL"), wrong.sentence


def test_a_split_file_with_divisors_in_its_last_shard_is_a_reference(tmp_path: Path) -> None:
    """llama.cpp refuses a model whose shards have a tensor twice, and a wrong count of tensors."""
    source = checkpoint("llama", tmp_path / "source", **CALM)
    bake(source, MIXED, tmp_path / "out.gguf", outtype="f16", split_max_size="600K")
    bake(source, MIXED, tmp_path / "whole.gguf", outtype="f16")
    (first,) = tmp_path.glob("out-00001-of-*.gguf")
    file = GgufFile.open(first)
    whole = GgufFile.open(tmp_path / "whole.gguf")
    assert "rope_freqs.weight" in file.headers[-1].tensors
    assert len(file.paths) > 1

    comparison = Comparison.open(first, str(source))
    spec, schedule = comparison.spec, comparison.schedule
    runs = [TokenRun.blocks(0, 64, list(range(4, 68)), most=32)]
    divided = [run_with_divisors(one, spec, schedule, 8.0, runs) for one in (file, whole)]
    assert np.array_equal(*divided)

    unscaled = []
    for output in (GgufSource(first), GgufSource(tmp_path / "whole.gguf")):
        keys = unscaled_keys(comparison, output)
        assert keys is not None
        unscaled.append(run_unscaled(output, keys, runs, Progress()).numpy())
    assert np.array_equal(*unscaled)
    assert not np.allclose(unscaled[0], divided[0], atol=1e-3)


def test_an_export_of_llama_4_is_compared_with_itself_behind_its_first_chunk(
    tmp_path: Path,
) -> None:
    """Layers with chunks have a copy of the factor, and the others scale queries by position.

    With weights in bfloat16 there are two references, since a router may choose another expert.
    """
    source = checkpoint("llama4_text", tmp_path / "source", max_position_embeddings=4096)
    out = tmp_path / "out.gguf"
    bake(source, recipe_of("yarn", 4.0, attention_factor=1.0), out, outtype="bf16")
    result = compared(out, source)
    assert result.agrees, result.sentence
    spread = [bucket for bucket in result.buckets if bucket.run == "spread"]
    names = [bucket.name for bucket in spread]
    assert names == ["0-4,095", "4,096-8,191", "8,192-16,383"]
    for bucket in spread:
        assert bucket.control_kl > 1000 * bucket.compared_kl
    with_keys(out, tmp_path / "wrong.gguf", "scaling.factor", 3.5)
    wrong = compared(tmp_path / "wrong.gguf", source)
    assert not wrong.agrees
    assert wrong.sentence.startswith("FAIL"), wrong.sentence


@pytest.mark.parametrize(
    ("original", "context", "seconds", "needed", "expected"),
    [
        (2048, 8192, 1.0, 0, 8192),  # four times the trained context, and no estimate is made
        (8192, 131072, 1.0, 0, 10240),
        (8192, 131072, 60.0, 0, 8192),  # too slow
        (8192, 131072, 1.0, 60, 8192),  # no memory for the cache
        (131072, 1048576, 0.001, 0, 163840),  # a GPU
        (131072, 1048576, 1.0, 0, 8192),
        (8192, 9000, 1.0, 0, 9000),
        (8192, 8192, 1.0, 0, 8192),  # nothing is extended
    ],
)
def test_a_run_over_every_position_goes_beyond_the_trained_context_where_that_is_affordable(
    original: int, context: int, seconds: float, needed: int, expected: int
) -> None:
    assert affordable_length(original, context, lambda: seconds, needed, 100) == expected


def test_what_cannot_be_compared_is_refused_before_anything_runs(
    plain: Plain, tmp_path: Path
) -> None:
    source = plain("llama", "f32")
    strange = tmp_path / "strange.gguf"
    write_new(GgufFile.open(source), 0, Edit({"llama.some_switch": f32(2.0)}), strange)
    bake(strange, MIXED, tmp_path / "out.gguf")
    comparison = Comparison.open(tmp_path / "out.gguf", str(strange))
    check_gguf(comparison, Settings())  # llama.cpp against itself needs no such key
    with pytest.raises(BadSource, match=r"dequantised .*llama.some_switch.*--against"):
        check_gguf(comparison, Settings(dequantised=True))
