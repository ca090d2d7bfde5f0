"""Packets in OpenVINO on a CPU, in float32."""

import os
from pathlib import Path

import numpy as np
import openvino
from answering import Logits, answer


def version() -> str:
    """Return names and versions."""
    return f"openvino {openvino.__version__.partition('-')[0]}"


def open_model(packet: Path) -> Logits:
    """Return the logits of a packet's graph, which is in the folder GRAPHS."""
    graph = (
        Path(os.environ["GRAPHS"]) / f"{packet.parent.name}-{packet.name}" / "out" / "model.onnx"
    )
    if not graph.exists():
        raise FileNotFoundError((graph.parents[1] / "why.txt").read_text())
    core = openvino.Core()
    model = core.compile_model(core.read_model(graph), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def logits(ids: list[int]) -> object:
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        }
        names = {name for entry in model.inputs for name in entry.get_names()}
        found = model({key: value for key, value in inputs.items() if key in names})
        return np.array(found["logits"][0])

    return logits


answer(version, open_model)
