"""The table of llama.cpp's architectures: by the digest that
scripts/llamacpp/archs.py extracts, by the library, and by itself.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource
from ropeconv.runtimes.llamacpp.archs import Arch, arch_table

from ..support.baking import inspected
from ..support.extent import sample
from ..support.gguf_files import write

DIGEST = json.loads((Path(__file__).parents[1] / "data" / "llamacpp_archs.json").read_text("utf-8"))
ARCHS: dict[str, Any] = DIGEST["archs"]
TABLE = arch_table()
NO_MODEL = {"clip", "gptj"}
"""A projector, which is no language model, and a name without code."""
NORM_OFF = {"llama", "llama-embed"}
"""Their graph has the norms of llama4, which hparams.use_kq_norm turns on for that alone."""
LISTS = {"rope_factors_long", "rope_factors_short"}


def test_every_architecture_is_known() -> None:
    tables = (TABLE.arch, TABLE.without_rope, TABLE.drafts, TABLE.draft_arch)
    known = {*NO_MODEL, *(name for table in tables for name in table)}
    assert known == set(ARCHS)
    assert sum(map(len, tables)) == len(known) - len(NO_MODEL)


@pytest.mark.parametrize("arch", list(TABLE.draft_arch.values()), ids=lambda arch: arch.name)
def test_a_draft_rotates_as_the_sources_say(arch: Arch) -> None:
    """DFlash gives ggml_rope_ext no factors; the digest sees those of its backbone of DeepSeek
    V4.
    """
    entry = ARCHS[arch.name]
    assert entry["rotates"]
    assert arch.pairs == entry["rope"][-1]
    assert (arch.sections == "optional") is ("mrope" in entry["rope"])
    assert arch.freqs == ("used" if arch.name == "eagle3" else "")
    assert not arch.refused_with or arch.refused_with in entry["keys"]
    assert (arch.window is not None) is (entry["window"] is not None)
    if arch.window is not None:
        assert arch.window.own_theta is entry["window"]["own_base"] is False
        assert entry["window"]["inherits_scale"]


def test_those_without_rope_are_those_whose_graph_does_not_rotate() -> None:
    assert {name for name, entry in ARCHS.items() if not entry["rotates"]} - NO_MODEL - set(
        TABLE.without_rope
    ) == {
        "cogvlm"  # ggml_rope without settings
    }
    assert all(not ARCHS[name]["rotates"] for name in TABLE.without_rope)


@pytest.mark.parametrize("arch", sample(list(TABLE.arch.values()), 25), ids=lambda arch: arch.name)
def test_an_architecture_is_as_the_sources_say(arch: Arch) -> None:
    entry = ARCHS[arch.name]
    keys = set(entry["keys"])
    tensors = set(entry["tensors"])
    assert arch.pairs == ("neox" if arch.name == "deepseek2-ocr" else entry["rope"][-1])
    assert (arch.sections == "optional") is (len(entry["rope"]) > 1)
    if arch.sections:
        assert "rope.dimension_sections" in keys
    used = "used" if entry["divides"] or arch.name == "gemma4" else "ignored"
    assert arch.freqs == (used if "rope_freqs" in tensors else "")
    always = "longrope" if entry["longrope_only"] else "always"
    assert arch.factors == ((always if used == "used" else used) if tensors >= LISTS else "")
    assert arch.betas is ({"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"} <= keys)
    assert arch.ext_factor is ("rope.scaling.yarn_ext_factor" in keys)
    assert arch.log_multiplier is ("rope.scaling.yarn_log_multiplier" in keys)
    assert arch.softmax is entry["softmax"]
    assert arch.alpha is entry["base"]
    assert arch.norm_after_rope is (entry["norm_after_rope"] and arch.name not in NORM_OFF)
    assert arch.finetuned is ("rope.scaling.finetuned" in keys)
    assert arch.pattern is ("attention.rope_pattern" in keys)
    assert bool(arch.query_length) is ("attention.temperature_scale" in keys)
    assert arch.full_attention_interval == entry["full_attention_interval"]
    assert arch.heads_by_layer is entry["heads_by_layer"]
    assert (msgspec.to_builtins(arch.shared_kv) if arch.shared_kv else None) == entry["shared_kv"]
    assert bool(arch.shared_kv) is bool(arch.kv_layers)
    if (
        arch.theta_key == "rope.freq_base"
    ):  # in deepseek4 all layers have a window beside compressed keys
        windows(arch)


def windows(arch: Arch) -> None:
    entry = ARCHS[arch.name]["window"]
    window = arch.window
    assert (window is None) is (entry is None)
    if window is None or entry is None:
        return
    assert (window.pattern == "flags") is (
        "attention.sliding_window_pattern" in ARCHS[arch.name]["required_arrays"]
    )
    assert window.interval == (entry["interval"] or 0)
    assert window.dense_first is entry["dense_first"]
    assert window.own_theta is entry["own_base"]
    if window.own_theta:
        assert (window.theta is None) is entry["inherits_base"]
    assert window.own_factor is (entry["own_scale"] and entry["inherits_scale"])
    if window.scaling == "same":
        assert entry["inherits_scale"] or not entry["own_scale"]
    elif window.scaling == "base":
        assert entry["own_scale"]
        assert not entry["inherits_scale"]


def test_the_installed_library_has_these_architectures_and_no_others() -> None:
    """The names of LLM_ARCH_NAMES lie beside each other, but those that are a string elsewhere in
    the library too.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        pytest.skip("llama_cpp is not installed")
    data = next((Path(spec.origin).parent / "lib").glob("libllama.*")).read_bytes()
    end = data.index(b"\0(unknown)\0")
    listed = {
        name.decode() for name in data[data.rindex(b"\0clip\0", 0, end) : end].split(b"\0") if name
    }
    assert listed <= set(ARCHS), f"new in llama.cpp: {sorted(listed - set(ARCHS))}"
    assert len(listed) > 100
    assert all(name.encode() + b"\0" in data for name in set(ARCHS) - listed)


def test_every_carrier_uses_rope_freqs_and_its_pairs_can_be_made() -> None:
    table = arch_table().arch
    pairs = [(arch, table[to]) for arch in table.values() for to in arch.carriers]
    assert pairs
    assert all(to.freqs == "used" and to.pairs in ("norm", arch.pairs) for arch, to in pairs)


@pytest.mark.parametrize("arch", ["llama", "deci"])
def test_a_rotation_in_part_is_refused_where_the_table_says(tmp_path: Path, arch: str) -> None:
    assert arch_table().arch[arch].full_rotation
    path = write(tmp_path / "model.gguf", arch, {"rope.dimension_count": 32})
    with pytest.raises(BadSource, match="all 64 dimensions"):
        inspected(path)
