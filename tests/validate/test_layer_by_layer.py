"""Validation layer by layer: what the whole model gives, in less memory than the model takes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import DeviceSpec, load_stock
from ropeconv.rope.errors import RopeconvError

from ..support.baking import (
    YARN_16,
    apply,
    changed_weights,
    make_plan,
    recipe_of,
    stored_as,
    validate,
)
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import make

LAYER_KINDS = ("gemma3_text", "mixtral", "deepseek_v3", "modernbert")


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {"length": 256, "chunk": 100}),
        *sample([("qwen3", {"dtype": "bfloat16"}), *((name, {}) for name in LAYER_KINDS)], 1),
    ],
)
def test_the_result_is_that_of_the_whole_model(
    model_type: str, settings: dict[str, object], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    source = tiny(model_type)
    out = apply(make_plan(source, YARN_16, tmp_path / "out"))
    whole = validate(out, source, tokens=64, **settings)
    by_layer = validate(out, source, tokens=64, layer_by_layer=True, **settings)
    assert by_layer.agrees, by_layer.sentence
    assert by_layer.buckets == whole.buckets


def test_a_fold_is_rounded_in_every_layer_that_is_read(tmp_path: Path) -> None:
    """The noise floor of a fold rounds weights of the source, which are read again for every
    pass.
    """
    source = make("llama", tmp_path / "source", initializer_range=0.15)
    stored_as(source, "bfloat16")
    out = apply(make_plan(source, YARN_16, tmp_path / "out", encoding="weights"))
    whole, by_layer = (
        validate(out, source, tokens=64, layer_by_layer=layers) for layers in (False, True)
    )
    assert by_layer.buckets == whole.buckets
    assert by_layer.agrees, by_layer.sentence


def test_code_of_an_output_runs_layer_by_layer(llama: Path, tmp_path: Path) -> None:
    recipe = recipe_of("mixed", 16.0, log_n="full")
    out = apply(make_plan(llama, recipe, tmp_path / "out", encoding="buffers"))
    assert validate(out, llama, tokens=64, layer_by_layer=True).agrees


def test_a_wrong_bake_is_noticed(llama: Path, tmp_path: Path) -> None:
    apply(make_plan(llama, YARN_16, tmp_path / "out"))
    given = (
        "validate",
        "out",
        "--against",
        "model",
        "--tokens",
        64,
        "--layer-by-layer",
        "--ignore-receipt",
        "--quick",
    )
    assert "layer by layer" in command(tmp_path, *given, code=0).stderr
    assert "uses one device" in command(tmp_path, *given, "--device-map", "auto", code=2).stderr
    changed_weights(tmp_path / "out", "layers.1.self_attn.k_proj", 0.97)
    assert "FAIL" in command(tmp_path, *given, code=3).stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("out.gguf", "--layer-by-layer"), "is for checkpoints"),
        (("out.gguf", "--device-map", "auto"), "are for checkpoints"),
        (("out", "--server", "http://localhost:1", "--device-map", "auto"), "without --server"),
        (("out", "--dequantised"), "a GGUF file and its source in GGUF"),
    ],
)
def test_options_that_do_not_go_together(
    given: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in command(tmp_path, "validate", *given, "--against", "model", code=2).stderr


def test_models_that_cannot_run_layer_by_layer_are_refused(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(
        RopeconvError,
        match=r"shares model\..*layer by layer",
    ):
        load_stock(tiny("diffusion_gemma"), DeviceSpec("cpu", "float32", layer_by_layer=True))


def test_only_one_layer_is_in_memory(llama: Path) -> None:
    model = load_stock(llama, DeviceSpec("cpu", "float32", layer_by_layer=True))
    loaded = []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(
            lambda *call: loaded.append(
                [not block.mlp.up_proj.weight.is_meta for block in model.model.layers]
            )
        )
    TransformersEngine(model).hidden_states([1, 2, 3], range(3), range(3))
    assert loaded == [[True, False], [False, True]]
    assert all(weight.is_meta for weight in model.model.layers.parameters())


LIMITED = """
import json, resource, sys
from pathlib import Path
import ropeconv
from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers import load
from ropeconv.rope.errors import RopeconvError

source, out, checked, most = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "checked", int(sys.argv[4])
comparison = ropeconv.Comparison.open(out, source)
import torch, transformers
torch.set_num_threads(1)
sizes = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
most = int(sizes["VmData"].split()[0]) * 1024 + most
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
if not checked:
    load.fits = lambda source, at: True
notes = []
try:
    with load.advice_on_memory():
        result = ropeconv.validate_checkpoint(
            comparison, ropeconv.Settings(tokens=64),
            Progress(note=notes.append),
        )
    print(json.dumps({"agrees": result.agrees, "notes": notes}))
except RopeconvError as problem:
    print(json.dumps({"error": str(problem)}))
"""


@pytest.mark.nightly
def test_a_model_larger_than_the_memory_is_validated(tmp_path: Path) -> None:
    """64 layers of 13 MB within 700 MB: the whole model does not load, and is read layer by layer
    without an option.
    """
    shape = {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 64,
        "num_attention_heads": 8,
    }
    source = make(
        "llama", tmp_path / "source", num_key_value_heads=8, initializer_range=0.05, **shape
    )
    out = apply(make_plan(source, recipe_of("yarn", 4.0), tmp_path / "out"))

    def run(mode: str) -> dict[str, object]:
        given = [str(source), str(out), mode, str(700 << 20)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, *given], capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return answer

    assert "not enough" in str(run("unchecked")["error"])
    result = run("checked")
    assert result.get("agrees"), result
    assert "layer by layer" in str(result["notes"])
