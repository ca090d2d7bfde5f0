"""The table of llama.cpp's architectures against the real one: which files it loads, and what their tensors change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ropeconv.encode.gguf.carriers import CARRIERS
from ropeconv.engines.llamacpp import LlamaCppEngine
from ropeconv.errors import BadSource, RopeconvError
from ropeconv.formats.gguf import Added, Edit, GgufFile, f32, string, u32
from ropeconv.formats.gguf.write import write_new
from ropeconv.inspection import inspect_source
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.llamacpp import arch_table
from ropeconv.sources import open_source

from ..support.llamacpp import bake, checkpoint

# architectures whose files can be made here, each from a checkpoint of some family, under its own name or another's
MADE = {
    "llama": "llama", "mistral3": "ministral3", "arcee": "arcee", "qwen2": "qwen2", "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3",
    "stablelm": "stablelm", "gptneox": "gpt_neox", "olmo2": "olmo2", "command-r": "cohere", "cohere2": "cohere2",
    "smollm3": "smollm3", "granite": "granite", "deci": "llama", "nanbeige": "llama", "llada": "llama",
    "internlm2": "llama", "xverse": "llama", "ernie4_5": "llama", "exaone": "qwen2", "dream": "qwen2",
}  # fmt: skip
TOKENS = list(range(4, 100))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archs")


def _file(files: Path, arch: str) -> Path:
    path, model_type = files / f"{arch}.gguf", MADE[arch]
    if not path.exists():
        source = files / model_type
        if not source.exists():
            checkpoint(model_type, source)
            bake(source, Recipe(METHODS["as-is"]()), files / f"as-{model_type}.gguf")
        write_new(GgufFile.open(files / f"as-{model_type}.gguf"), 0, Edit(arch=arch), path)
    return path


def _logits(path: Path, edit: Edit, out: Path) -> np.ndarray | None:
    """Logits of an edited file, or None when llama.cpp does not load it."""
    write_new(GgufFile.open(path), 0, edit, out)
    try:
        return LlamaCppEngine(out).logits(TOKENS, [len(TOKENS) - 1])  # type: ignore[no-any-return]
    except RopeconvError as refusal:
        if "wrong number of tensors" not in str(refusal):
            raise
        return None


def _divisors(*names: str) -> tuple[Added, ...]:
    return tuple(Added.f32(name, np.full(32, 4, np.float32).tobytes()) for name in names)


@pytest.mark.parametrize("arch", MADE)
def test_what_becomes_of_rope_freqs(files: Path, tmp_path: Path, arch: str) -> None:
    path, rules = _file(files, arch), arch_table().arch[arch]
    pairs = GgufFile.open(path).header.whole(f"{arch}.rope.dimension_count", 64) // 2
    freqs = Added.f32("rope_freqs.weight", np.full(pairs, 4, np.float32).tobytes())
    plain, divided = (
        _logits(path, Edit(), tmp_path / "plain.gguf"),
        _logits(path, Edit(added=(freqs,)), tmp_path / "f.gguf"),
    )
    assert plain is not None
    if not rules.freqs:
        assert divided is None
        return
    assert divided is not None
    assert np.array_equal(plain, divided) is (rules.freqs == "ignored")
    if rules.freqs == "used":
        keys = {f"{arch}.rope.scaling.type": string("linear"), f"{arch}.rope.scaling.factor": f32(4)}
        linear = _logits(path, Edit(keys), tmp_path / "linear.gguf")
        assert linear is not None
        assert np.abs(linear - divided).max() < 1e-2 < np.abs(plain - divided).max()


@pytest.mark.parametrize("arch", ["llama", "granite", "mistral3", "deci", "phi3", "arcee", "qwen2"])
def test_what_becomes_of_the_pair_of_lists(files: Path, tmp_path: Path, arch: str) -> None:
    path, rules = _file(files, arch), arch_table().arch[arch]
    pair = _divisors("rope_factors_long.weight", "rope_factors_short.weight")
    longrope = {f"{arch}.rope.scaling.type": string("longrope")}
    without, under = (
        _logits(path, Edit(added=pair), tmp_path / "a.gguf"),
        _logits(path, Edit(longrope, added=pair), tmp_path / "b.gguf"),
    )
    plain = _logits(path, Edit(), tmp_path / "plain.gguf")
    assert plain is not None
    assert (without is not None) is (rules.factors == "always")
    assert (under is not None) is (rules.factors in ("always", "longrope"))
    for used in (without, under):
        assert used is None or not np.array_equal(used, plain)


@pytest.mark.parametrize("arch", ["llama", "mistral3", "qwen2", "gemma3", "phi3"])
def test_who_reads_the_betas_of_yarn(files: Path, tmp_path: Path, arch: str) -> None:
    path, rules = _file(files, arch), arch_table().arch[arch]
    prefix = f"{arch}.rope.scaling."
    yarn = {f"{prefix}type": string("yarn"), f"{prefix}factor": f32(4)}
    betas = {f"{prefix}yarn_beta_fast": f32(8), f"{prefix}yarn_beta_slow": f32(2)}
    usual, other = (
        _logits(path, Edit(yarn), tmp_path / "a.gguf"),
        _logits(path, Edit(yarn | betas), tmp_path / "b.gguf"),
    )
    assert usual is not None
    assert other is not None
    assert np.array_equal(usual, other) is not rules.betas


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma2", "stablelm", "command-r"])
def test_everybody_reads_attn_factor_and_nobody_yarn_attn_factor(files: Path, tmp_path: Path, arch: str) -> None:
    path = _file(files, arch)
    plain = _logits(path, Edit(), tmp_path / "plain.gguf")
    dead = _logits(path, Edit({f"{arch}.rope.scaling.yarn_attn_factor": f32(1.5)}), tmp_path / "dead.gguf")
    live = _logits(path, Edit({f"{arch}.rope.scaling.attn_factor": f32(1.5)}), tmp_path / "live.gguf")
    assert plain is not None
    assert dead is not None
    assert live is not None
    assert np.array_equal(plain, dead)
    assert not np.array_equal(plain, live)


@pytest.mark.parametrize("arch", ["llama", "deci"])
def test_a_rotation_in_part_is_refused_where_the_table_says(files: Path, tmp_path: Path, arch: str) -> None:
    out = tmp_path / "model.gguf"
    write_new(GgufFile.open(_file(files, arch)), 0, Edit({f"{arch}.rope.dimension_count": u32(32)}), out)
    assert arch_table().arch[arch].full_rotation
    with pytest.raises(RopeconvError, match="invalid n_rot"):
        LlamaCppEngine(out).logits(TOKENS, [0])
    with pytest.raises(BadSource, match="only when all 64 dimensions rotate"):
        inspect_source(open_source(str(out)))


def test_the_carriers_of_the_table_are_those_that_exist() -> None:
    listed = {(arch.name, to) for arch in arch_table().arch.values() for to in arch.carriers}
    assert listed == set(CARRIERS)
