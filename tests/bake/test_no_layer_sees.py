"""Models of which no layer sees the whole context: a method is refused in the plan, and only the
length is declared.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake.start import nothing_to_extend

from ..conftest import CONFIGS
from ..support.baking import inspected
from ..support.gguf_files import write
from ..support.in_process import command

MORE = CONFIGS.parent / "more_configs"
SLIDING = ["sliding_attention"] * 4
REFUSED: dict[str, tuple[Path, dict[str, Any]]] = {
    "Gemma 2": (CONFIGS / "google--gemma-2-9b.json", {"layer_types": SLIDING}),
    "Gemma 3": (CONFIGS / "google--gemma-3-1b-it.json", {"layer_types": SLIDING}),
    "Command R7B": (MORE / "CohereForAI--c4ai-command-r7b-12-2024.json", {"layer_types": SLIDING}),
    "Llama 4, every layer in chunks": (
        MORE / "meta-llama--Llama-4-Scout-17B-16E-Instruct.json",
        {"no_rope_layers": [1] * 4, "rope_scaling": None, "layer_types": ["chunked_attention"] * 4},
    ),
    "SmolLM3 without RoPE": (
        CONFIGS / "HuggingFaceTB--SmolLM3-3B.json",
        {"no_rope_layers": [0] * 4},
    ),
    "Qwen 3 with windows": (
        CONFIGS / "Qwen--Qwen3-8B.json",
        {"layer_types": SLIDING, "use_sliding_window": True, "sliding_window": 4096},
    ),
}
EXTENDED = {
    "one full layer": (
        CONFIGS / "google--gemma-2-9b.json",
        {"layer_types": [*SLIDING[:3], "full_attention"]},
    ),
    # a setting of the whole model, which llama.cpp ignores: a note
    "a window of the whole model": (CONFIGS / "mistralai--Mistral-7B-v0.1.json", {}),
    # the layers without RoPE see everything: a note
    "layers without RoPE": (MORE / "LGAI-EXAONE--EXAONE-4.0-32B.json", {"num_hidden_layers": 64}),
    "as published": (CONFIGS / "openai--gpt-oss-20b.json", {"num_hidden_layers": 24}),
}


def config(folder: Path, path: Path, changes: dict[str, Any]) -> Path:
    data = json.loads(path.read_text())
    data.get("text_config", data).update({"num_hidden_layers": 4} | changes)
    out = folder / "config.json"
    out.write_text(json.dumps(data))
    return out


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    model = config(tmp_path, *REFUSED[name])
    for more in ([], ["--dry-run"]):
        done = command(tmp_path, "apply", model, "--yarn", "4", *more, code=1)
        assert "of the 4 layers" in done.stderr
        assert "--as-is --context" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (
        "of the 4 layers" in command(tmp_path, "advise", model, "--context", "40M", code=1).stderr
    )
    screen = command(tmp_path, "inspect", model, code=0).stdout
    assert ("cannot be extended" in screen, "Next:" in screen) == (True, False)
    declared = command(
        tmp_path, "apply", model, "--as-is", "--context", "40M", "--dry-run", "--json", code=0
    )
    document = json.loads(declared.stdout)
    assert document["schedule"]["context"] == 40 << 20
    assert document["fine_tuning"]["level"] == ("recommended" if "without RoPE" in name else "none")


@pytest.mark.parametrize("name", EXTENDED)
def test_others_are_extended(name: str, tmp_path: Path) -> None:
    inspection = inspected(config(tmp_path, *EXTENDED[name]))
    assert nothing_to_extend(inspection, 4 * inspection.spec.context) == ""


def test_gguf_files_too(tmp_path: Path) -> None:
    """llama.cpp gives every sixth layer of Gemma 3 the whole context: of two layers none."""
    path = write(tmp_path / "sliding.gguf", "gemma3", {"attention.sliding_window": 16})
    assert "of the 2 layers" in command(tmp_path, "apply", path, "--yarn", "4", code=1).stderr


def test_what_is_written_as_it_is_passes_the_check_of_transformers(tmp_path: Path) -> None:
    """The probe sees one kind of frequencies, those of the windows, and they are compared with
    those.
    """
    model = config(tmp_path, *REFUSED["Gemma 3"])
    done = command(
        tmp_path, "apply", model, "--as-is", "--context", "64k", "--json", "-o", "out", code=0
    )
    check = json.loads(done.stdout)["check"]
    assert check is None or check["max_ulp"] <= 1
