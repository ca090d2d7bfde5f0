"""The logits of an extended graph beside those of its checkpoint: a right graph agrees in ONNX
Runtime and OpenVINO, and a graph with another RoPE does not.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...support import graphs
from ...support.in_process import command
from ...support.models import make

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, its export, and the export extended by YaRN."""
    folder = tmp_path_factory.mktemp("graph")
    graphs.exported(folder)
    command(folder, "apply", "onnx/model.onnx", "--yarn", 4, "-o", "out", code=0)
    return folder


def validated(folder: Path, output: str, *more: object, code: int) -> dict[str, Any]:
    done = command(
        folder, "validate", output, "--against", "checkpoint", "--json", *more, code=code
    )
    return dict(json.loads(done.stdout))


def renew(folder: Path) -> None:
    """Write the digests of the files as they are into the receipt."""
    import hashlib

    path = folder / "ropeconv.json"
    receipt = json.loads(path.read_text())
    for file in receipt["files"]:
        data = (folder / file["name"]).read_bytes()
        file.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    path.write_text(json.dumps(receipt))


def test_a_right_graph_agrees_with_its_checkpoint(place: Path) -> None:
    result = validated(place, "out", code=0)
    assert result["agrees"]
    assert result["runtime"].startswith("onnxruntime ")
    assert result["reached"] == 256
    assert max(bucket["kl_95"] for bucket in result["buckets"]) < 1e-6
    assert min(bucket["control_kl"] for bucket in result["buckets"][1:]) > 0.1


def vector(alter: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    def change(model: Any, numpy_helper: Any) -> None:
        for constant in model.graph.initializer:
            if "inv_freq" in constant.name:
                array = alter(numpy_helper.to_array(constant).copy()).astype(np.float32)
                constant.CopyFrom(numpy_helper.from_array(array, constant.name))

    return change


WRONG = {
    "unscaled": lambda old: (10_000.0 ** (-np.arange(32) / 32)).reshape(old.shape),
    "factor 3 for 4": lambda old: np.maximum(old, 10_000.0 ** (-np.arange(32) / 32) / 3),
    "one frequency": lambda old: np.where(np.arange(32) == 9, 1.05 * old, old),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_graph_disagrees(wrong: str, place: Path, tmp_path: Path) -> None:
    from onnx import numpy_helper

    shutil.copytree(place, tmp_path / "place")
    path = tmp_path / "place" / "out" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    before = model.SerializeToString()
    vector(WRONG[wrong])(model, numpy_helper)
    assert model.SerializeToString() != before
    path.write_bytes(model.SerializeToString())
    renew(tmp_path / "place" / "out")
    result = validated(tmp_path / "place", "out", code=3)
    assert result["sentence"].startswith("FAIL")


def test_openvino_runs_its_own_format(place: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    shutil.copytree(place / "checkpoint", tmp_path / "checkpoint")
    (tmp_path / "xml").mkdir()
    model = openvino.convert_model(place / "onnx" / "model.onnx")
    openvino.save_model(model, tmp_path / "xml" / "openvino_model.xml", compress_to_fp16=False)
    shutil.copy(place / "onnx" / "config.json", tmp_path / "xml")
    command(tmp_path, "apply", "xml/openvino_model.xml", "--yarn", 4, "-o", "out", code=0)
    result = validated(tmp_path, "out", code=0)
    assert result["agrees"]
    assert result["runtime"].startswith("openvino ")


def test_the_checkpoint_of_another_length_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "out", tmp_path / "out")
    make("llama", tmp_path / "checkpoint", max_position_embeddings=128)
    done = command(tmp_path, "validate", "out", "--against", "checkpoint", code=1)
    assert "another schedule" in done.stderr
    refused = command(
        tmp_path, "validate", "out", "--against", "checkpoint", "--device", "cpu", code=2
    )
    assert "--device" in refused.stderr
