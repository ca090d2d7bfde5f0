"""How an output is run: the Modelfile for Ollama."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropeconv.bake.running import modelfile_of, run_commands, write_modelfile
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.families.registry import by_name
from ropeconv.families.sample import sample_config
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS
from ..support.baking import make_plan
from ..support.gguf_files import TRAINED, write

YARN = Recipe(REGISTRY["yarn"](4.0))


def test_a_modelfile_names_the_file_and_the_context(tmp_path: Path) -> None:
    plan = make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "long.gguf")
    path = write_modelfile(plan)
    assert path == tmp_path / "long.Modelfile"
    assert path.read_text().splitlines() == ["FROM ./long.gguf", f"PARAMETER num_ctx {4 * TRAINED}"]
    assert any(f"-f {path}" in line for line in run_commands(plan, plan.out, path))
    assert modelfile_of(plan) == path, "one with the same text is taken as it is"
    path.write_text("FROM ./other.gguf\n")
    with pytest.raises(RopeconvError, match=r"long\.Modelfile is there and is another one"):
        write_modelfile(plan)
    assert path.read_text() == "FROM ./other.gguf\n"


def test_commands_have_the_context_and_quoted_paths(tmp_path: Path, llama: Path) -> None:
    plan = make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "Long.gguf")
    serve = f"llama-server -m '/a b/Long.gguf' -c {4 * TRAINED}"
    assert run_commands(plan, Path("/a b/Long.gguf")) == [serve]
    assert run_commands(plan, Path("/a b/Long.gguf"), Path("x y")) == [serve, "ollama create long -f 'x y'"]
    folder = make_plan(llama, YARN)
    assert run_commands(folder, Path("/a b/out")) == ["vllm serve '/a b/out' --max-model-len 256"]


def test_no_command_for_a_folder_without_weights() -> None:
    plan = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN)
    assert run_commands(plan, plan.out) == []


def test_no_command_for_a_folder_that_vllm_is_not_known_to_compute(tmp_path: Path) -> None:
    """transformers does: only the verdicts of vLLM count for its command."""
    (tmp_path / "config.json").write_text(json.dumps(sample_config(by_name()["evolla"])))
    plan = make_plan(tmp_path / "config.json", YARN)
    plan.source.kind = "folder"
    assert plan.result.verdicts[0].runtime.startswith("transformers@")
    assert "exact" in {verdict.status for verdict in plan.result.verdicts}
    assert run_commands(plan, tmp_path / "out") == []


def test_a_folder_has_none() -> None:
    plan = make_plan(CONFIGS / "meta-llama--Llama-2-7b-hf.json", YARN)
    with pytest.raises(UsageError, match="--ollama goes with a GGUF file as output"):
        modelfile_of(plan)
