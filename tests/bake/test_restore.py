"""restore of folders: every file as it was before the first bake, judged by sha256 and by transformers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.bake.restore import restore, restore_plan
from ropeconv.engines.probe import Probe
from ropeconv.errors import BadSource, RopeconvError, UsageError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..baking import apply, make_plan
from ..conftest import hashes
from ..models import TRAINED

TOKENIZER = '{\r\n  "model_max_length": 64,\r\n  "unk_token": "<unk>"\r\n}\r\n'


def recipe(method: str, *values: Any, **modifiers: Any) -> Recipe:
    return Recipe(REGISTRY[method](*values), **modifiers)


YARN, NTK, MIXED = recipe("yarn", 4.0), recipe("ntk", 4.0), recipe("mixed", 4.0)


@pytest.fixture
def source(llama: Path) -> Path:
    """A tiny Llama with the files that a bake rewrites, one of them with the line ends of Windows."""
    (llama / "tokenizer_config.json").write_bytes(TOKENIZER.encode())
    (llama / "LICENSE").write_text("terms")
    return llama


def brought_back(baked: Path, out: Path, **options: Any) -> Path:
    return restore(restore_plan(ropeconv.open_source(str(baked)), out, **options))


@pytest.mark.parametrize(
    ("made", "encoding"),
    [
        (YARN, "native"),
        (NTK, "native"),
        (MIXED, "factors"),
        (MIXED, "buffers"),  # adds a shard, an index and code, and renames the weights
        (recipe("mixed", 4.0, log_n="full"), "ministral3"),  # multiplies queries by a power of two
        (recipe("as-is"), "native"),
    ],
)
def test_every_file_is_as_it_was(source: Path, tmp_path: Path, made: Recipe, encoding: str) -> None:
    out = apply(make_plan(source, made, tmp_path / "out", encoding=encoding, allow_approximate=bool(made.log_n)))
    assert hashes(out)["config.json"] != hashes(source)["config.json"]
    assert hashes(brought_back(out, tmp_path / "back")) == hashes(source)


def test_an_index_and_its_shards_are_as_they_were(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").rename(source / "model-00001-of-00001.safetensors")
    names = {"lm_head.weight": "model-00001-of-00001.safetensors"}
    index = {"metadata": {"total_size": 9}, "weight_map": names}
    (source / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    out = apply(make_plan(source, MIXED, tmp_path / "out", encoding="buffers"))
    assert "model-rope.safetensors" in (out / "model.safetensors.index.json").read_text()
    assert hashes(brought_back(out, tmp_path / "back")) == hashes(source)


def test_several_bakes_go_back_to_the_first_source(source: Path, tmp_path: Path) -> None:
    once = apply(make_plan(source, NTK, tmp_path / "once"))
    twice = apply(make_plan(once, MIXED, tmp_path / "twice", encoding="buffers", replace=True))
    thrice = apply(make_plan(twice, YARN, tmp_path / "thrice", replace=True))
    kept = apply(make_plan(thrice, recipe("as-is", context=512), tmp_path / "kept"))
    for baked in (twice, thrice, kept):
        assert hashes(brought_back(baked, tmp_path / f"{baked.name}-back")) == hashes(source)
    assert ropeconv.read_receipt(kept).original.source.name == "model"  # type: ignore[union-attr]


def test_a_second_method_starts_from_the_first_source(source: Path, tmp_path: Path) -> None:
    """ntk has no trace in its config but another theta and a longer context: only the receipt knows the old ones."""
    once = apply(make_plan(source, NTK, tmp_path / "once"))
    seen = ropeconv.inspect_source(ropeconv.open_source(str(once)))
    assert seen.spec.rope_theta == pytest.approx(10000 * 4 ** (64 / 62))
    assert (seen.spec.original_context, seen.spec.context) == (TRAINED, 4 * TRAINED)
    with pytest.raises(RopeconvError, match="pass --replace"):
        make_plan(once, YARN)
    twice = apply(make_plan(once, YARN, tmp_path / "twice", replace=True))
    fresh = apply(make_plan(source, YARN, tmp_path / "fresh"))
    same = hashes(twice).keys() - {"ropeconv.json"}
    assert {name: hashes(twice)[name] for name in same} == {name: hashes(fresh)[name] for name in same}


def test_transformers_computes_the_frequencies_of_the_source_again(source: Path, tmp_path: Path, probe: Probe) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    back = brought_back(out, tmp_path / "back")
    before, baked, after = (probe.ask(folder, TRAINED) for folder in (source, out, back))
    assert after == before
    assert baked != before
    slowest = max(value for value in _frequencies(after) if value < 1e-3)
    assert math.isclose(
        slowest, next(10000 ** (-2 * i / 64) for i in range(32) if 10000 ** (-2 * i / 64) < 1e-3), rel_tol=1e-6
    )


def _frequencies(answer: Any) -> list[float]:
    """All numbers in lists of an answer of the probe."""
    if isinstance(answer, dict):
        return [value for item in answer.values() for value in _frequencies(item)]
    if isinstance(answer, list):
        return [
            value for item in answer for value in (_frequencies(item) if isinstance(item, (list, dict)) else [item])
        ]
    return []


def test_rounded_weights_are_refused_by_the_name_of_the_source(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out", encoding="weights"))
    with pytest.raises(BadSource, match="multiplied and rounded.*take the source again, the local folder 'model'"):
        restore_plan(ropeconv.open_source(str(out)))
    with pytest.raises(BadSource, match="multiplied and rounded"):
        make_plan(out, NTK, replace=True)


def test_a_power_of_two_is_divided_back_only_where_no_bit_can_be_lost(source: Path, tmp_path: Path) -> None:
    import safetensors.torch

    tensors = safetensors.torch.load_file(source / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e-39  # subnormal
    safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
    made = recipe("mixed", 4.0, log_n="full")
    out = apply(make_plan(source, made, tmp_path / "out", encoding="ministral3", allow_approximate=True))
    with pytest.raises(BadSource, match="may have lost bits"):
        brought_back(out, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_file_that_was_changed_since_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    (out / name).write_text((out / name).read_text().replace("256", "128"))
    with pytest.raises(BadSource, match=f"{name} of .* was changed after .* or remove ropeconv.json"):
        restore_plan(ropeconv.open_source(str(out)))
    with pytest.raises(BadSource, match="was changed after"):
        make_plan(out, MIXED, replace=True)
    (out / "ropeconv.json").unlink()
    assert make_plan(out, MIXED, replace=True).before.original_context == TRAINED


def test_weights_that_were_changed_since_are_refused(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"), checksum=True)
    weights = out / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BadSource, match="model.safetensors of .* was changed after"):
        brought_back(out, tmp_path / "back")
    weights.write_bytes(data[:-1])
    with pytest.raises(BadSource, match="not as ropeconv wrote it"):
        restore_plan(ropeconv.open_source(str(out)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_an_altered_receipt_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    receipt = json.loads((out / "ropeconv.json").read_text())
    text = next(text for text in receipt["original"]["folder"]["texts"] if text["name"] == name)
    assert "64" in text["text"]
    text["text"] = text["text"].replace("64", "65")
    (out / "ropeconv.json").write_text(json.dumps(receipt))
    with pytest.raises(BadSource, match=f"no longer gives {name} as it was"):
        restore_plan(ropeconv.open_source(str(out)))


def test_a_receipt_that_leads_outside_is_not_trusted(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    receipt = json.loads((out / "ropeconv.json").read_text())
    receipt["original"]["folder"]["renamed"] = {"LICENSE": "../LICENSE"}
    (out / "ropeconv.json").write_text(json.dumps(receipt))
    with pytest.raises(BadSource, match="do not trust it"):
        restore_plan(ropeconv.open_source(str(out)))


def test_a_receipt_of_before_is_refused_with_the_source(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    receipt = json.loads((out / "ropeconv.json").read_text())
    del receipt["original"]
    receipt["source"] |= {"kind": "hub", "reference": "owner/name", "commit": "0" * 40}
    (out / "ropeconv.json").write_text(json.dumps(receipt))
    with pytest.raises(BadSource, match=f"made before .* take the source again, owner/name at commit {'0' * 40}"):
        restore_plan(ropeconv.open_source(str(out)))
    with pytest.raises(BadSource, match="has no ropeconv.json"):
        restore_plan(ropeconv.open_source(str(source)))


def test_what_is_not_of_the_source_stays_out_and_what_was_left_out_is_named(source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    (out / "README.md").write_text("mine")
    plan = restore_plan(ropeconv.open_source(str(out)), tmp_path / "back")
    assert (plan.skipped, plan.absent) == (("README.md",), ("pytorch_model.bin",))
    restore(plan)
    assert hashes(tmp_path / "back") == {k: v for k, v in hashes(source).items() if k != "pytorch_model.bin"}


def test_the_output_is_never_written_to(source: Path, tmp_path: Path) -> None:
    out = apply(make_plan(source, YARN, tmp_path / "out"))
    before = hashes(out)
    with pytest.raises(RopeconvError, match="lie within each other"):
        brought_back(out, out)
    with pytest.raises(UsageError, match="--in-place changes a GGUF file"):
        restore_plan(ropeconv.open_source(str(out)), in_place=True)
    brought_back(out, tmp_path / "back")
    with pytest.raises(RopeconvError, match="back exists"):
        brought_back(out, tmp_path / "back")
    assert hashes(out) == before


@pytest.mark.parametrize("model_type", ["qwen2", "gemma3_text", "phi3", "deepseek_v3", "gpt_neox"])
def test_families(tiny: Callable[[str], Path], tmp_path: Path, model_type: str) -> None:
    source = tmp_path / "model"
    shutil.copytree(tiny(model_type), source)
    out = apply(make_plan(source, recipe("linear", 2.0) if model_type != "phi3" else MIXED, tmp_path / "out"))
    assert hashes(brought_back(out, tmp_path / "back")) == hashes(source)
