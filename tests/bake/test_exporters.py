"""Graphs of Optimum and of ONNX Runtime GenAI's model builder, which are installed for it, extended
and run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from scripts.laboratory.environment import ROOT, NotInstallable, installed

from ..support import graphs
from ..support.baking import YARN, apply, make_plan
from ..support.in_process import command
from ..support.llamacpp import checkpoint
from ..support.models import TRAINED, VOCABULARY

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'ropeconv[graphs]'")
TOKENS = np.random.default_rng(0).integers(3, VOCABULARY, (1, 4 * TRAINED))


class Exporter(NamedTuple):
    """Packages with their versions, and the program that exports a checkpoint, `sys.argv[1]`, to
    `sys.argv[2]`.

    ignores: whether it leaves the scaling of a config out.
    """

    packages: tuple[str, ...]
    program: str
    ignores: bool = False

    def export(self, source: Path, place: Path) -> None:
        try:
            folder = installed(
                ROOT / f"exporter-{self.packages[-1]}", *self.packages, requirements=False
            )
        except NotInstallable as problem:
            pytest.skip(str(problem))
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        line: list[str | Path] = [sys.executable, "-W", "ignore", "-c", self.program, source, place]
        done = subprocess.run(line, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        if not (place / "config.json").exists():
            shutil.copy(source / "config.json", place)  # as `apply` asks for it


HUB = ("transformers==4.57.6", "huggingface-hub==0.36.2", "tokenizers==0.22.2")
OPTIMUM = """
import sys
from optimum.exporters.{} import main_export
main_export(sys.argv[1], output=sys.argv[2], task="text-generation-with-past", device="cpu", {})
"""
BUILDER = """
import runpy, sys
sys.argv[1:] = ["-i", sys.argv[1], "-o", sys.argv[2], "-p", "fp32", "-e", "cpu", "-c", sys.argv[2] + "-cache"]
runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
"""
EXPORTERS = [
    Exporter(
        (*HUB, "optimum==2.1.0", "optimum-onnx==0.1.0"),
        OPTIMUM.format("onnx", "do_validation=False"),
    ),
    Exporter(
        (*HUB, "optimum==2.1.0", "optimum-onnx==0.1.0"),
        OPTIMUM.format("onnx", "do_validation=False, opset=14"),
    ),
    Exporter(
        (*HUB, "optimum==2.3.0", "optimum-intel==2.2.0"),
        OPTIMUM.format("openvino", "stateful=False"),
    ),
    Exporter(("onnxruntime-genai==0.18.0",), BUILDER, ignores=True),
]


def computed(folder: Path) -> np.ndarray:
    """The logits of an export at the positions of TOKENS, from an empty cache."""
    config = json.loads((folder / "config.json").read_text())
    path = folder / "openvino_model.xml"
    if not path.exists():
        names = [
            value.name
            for value in onnx.load(folder / "model.onnx", load_external_data=False).graph.input
        ]
        return graphs.run(folder / "model.onnx", **inputs(names, config))[0]
    import openvino

    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.asarray(
        model(inputs([value.get_any_name() for value in model.inputs], config))["logits"]
    )


def inputs(names: list[str], config: dict[str, int]) -> dict[str, np.ndarray]:
    """TOKENS for the inputs of a graph, with an empty cache."""
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_dim"]), np.float32)
    known = {
        "input_ids": TOKENS,
        "attention_mask": np.ones_like(TOKENS),
        "position_ids": np.arange(TOKENS.size)[None],
    }
    return {name: known.get(name, empty) for name in names}


@pytest.mark.nightly
@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda exporter: exporter.packages[-1])
def test_the_export_of_a_checkpoint_is_extended_as_the_checkpoint(
    exporter: Exporter, tmp_path: Path
) -> None:
    """Its logits beyond the trained length are those of transformers with the baked checkpoint."""
    if "openvino" in exporter.program:
        pytest.importorskip(
            "openvino", reason="openvino is not installed; pip install 'ropeconv[graphs]'"
        )
    source = checkpoint("llama", tmp_path / "source")
    baked = apply(make_plan(source, YARN, tmp_path / "baked"))
    exporter.export(source, tmp_path / "plain")
    assert (
        "They have the same RoPE." in command(tmp_path, "compare", "plain", "source", code=0).stdout
    )
    command(tmp_path, "apply", "plain", "--yarn", 4, "-o", "extended", code=0)
    expected = graphs.logits(baked, TOKENS)
    scale = np.abs(expected).max()
    assert np.abs(computed(tmp_path / "extended") - expected).max() < 1e-3 * scale
    exporter.export(baked, tmp_path / "of-baked")
    off = np.abs(computed(tmp_path / "of-baked") - expected).max() / scale
    assert bool(off > 0.01) is exporter.ignores
    if exporter.ignores:
        assert "They differ" in command(tmp_path, "compare", "of-baked", "baked", code=0).stdout
        command(tmp_path, "apply", "of-baked", "--as-is", "-o", "mended", code=0)
        assert np.abs(computed(tmp_path / "mended") - expected).max() < 1e-3 * scale
