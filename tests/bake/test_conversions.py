"""Plans of conversions to GGUF: sizes, bytes, what is read, and what is said; against gguf-py's reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.torch import load_file

from ropeconv.bake.export import ExportPlan
from ropeconv.receipts import read_receipt
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..support.baking import apply, make_plan
from ..support.llamacpp import checkpoint

MIXED, AS_IS = Recipe(REGISTRY["mixed"](4.0)), Recipe(REGISTRY["as-is"]())
NOTE = "llama.cpp ignores the sliding window of this model: there every layer sees the whole context"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("source") / "Tiny-Llama")


def planned(source: Path, recipe: Recipe = MIXED, out: Path | None = None, **options: Any) -> ExportPlan:
    made = make_plan(source, recipe, out, to="gguf", **options)
    assert isinstance(made, ExportPlan)
    return made


def arrays(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_a_file_has_the_planned_size_and_all_of_it_is_counted(model: Path, tmp_path: Path, outtype: str) -> None:
    plan, done = planned(model, out=tmp_path / "a.gguf", outtype=outtype), list[int]()
    (file,) = plan.files
    assert (file.name, file.action, file.estimated) == ("a.gguf", "convert", False)
    apply(plan, advance=done.append)
    assert (tmp_path / "a.gguf").stat().st_size == file.size == plan.bytes
    divisors = 4 * len(plan.schedule.inv_freq)
    assert file.size - sum(done) in range(divisors + 64)  # the few divisors of the method are not


def test_divisors_and_weights_are_where_gguf_py_reads_them(model: Path, tmp_path: Path) -> None:
    plan = planned(model, out=tmp_path / "a.gguf", outtype="f32")
    apply(plan)
    found, source = arrays(tmp_path / "a.gguf"), load_file(model / "model.safetensors")
    base = 10000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(found["rope_freqs.weight"], base / plan.schedule.inv_freq, rtol=1e-6)
    np.testing.assert_array_equal(found["output_norm.weight"], source["model.norm.weight"].float().numpy())
    np.testing.assert_array_equal(
        found["blk.1.attn_v.weight"], source["model.layers.1.self_attn.v_proj.weight"].numpy()
    )
    plain = planned(model, AS_IS, tmp_path / "b.gguf", outtype="f32")
    apply(plain)
    assert found.keys() - arrays(tmp_path / "b.gguf").keys() == {"rope_freqs.weight"}
    assert read_receipt(tmp_path / "a.gguf").recipe == MIXED.to_dict()


def test_a_quantised_file_is_estimated_and_leaves_nothing_else(model: Path, tmp_path: Path) -> None:
    plan = planned(model, out=tmp_path / "a.gguf", outtype="q4_k_m")
    (file,) = plan.files
    assert file.estimated
    apply(plan)
    size = (tmp_path / "a.gguf").stat().st_size
    assert 0.5 * size < file.size < 2 * size
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]
    elements = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    smaller = planned(model, out=tmp_path / "b.gguf", outtype="q2_k").files[0].size
    assert elements / 8 * 0.3 < file.size - smaller < elements / 8 * 4


def test_what_is_not_read_may_change_meanwhile(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "Tiny-Llama")
    (folder / "notes.txt").write_text("")
    plan = planned(folder)
    assert "notes.txt" in plan.unread
    assert not {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"} & set(plan.unread)
    assert {path.name for path in plan.seen} >= {"model.safetensors", "config.json"}
    assert "notes.txt" not in {path.name for path in plan.seen}


def test_a_vision_part_that_stays_behind_is_said(model: Path, tmp_path: Path) -> None:
    assert not any("vision" in one for one in planned(model).warnings)
    folder = shutil.copytree(model, tmp_path / "Tiny-Llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vision_config": {}}))
    assert any(one.startswith("only the language model is converted") for one in planned(folder).warnings)


@pytest.mark.parametrize(("window", "said"), [(None, False), (32, True), (1 << 20, False)])
def test_a_window_that_llama_cpp_ignores_is_said(tmp_path: Path, window: int | None, said: bool) -> None:
    folder = checkpoint("mistral", tmp_path / "Tiny", sliding_window=window)
    assert (NOTE in planned(folder, AS_IS).warnings) is said
