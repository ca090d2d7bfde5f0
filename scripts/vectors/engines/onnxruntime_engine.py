"""Packets in ONNX Runtime on a CPU, in float32."""

import os
from pathlib import Path

import numpy as np
import onnxruntime
from answering import Logits, answer


def version() -> str:
    """Return names and versions."""
    return f"onnxruntime {onnxruntime.__version__}"


def open_model(packet: Path) -> Logits:
    """Return the logits of a packet's graph, which is in the folder GRAPHS."""
    graph = (
        Path(os.environ["GRAPHS"]) / f"{packet.parent.name}-{packet.name}" / "out" / "model.onnx"
    )
    if not graph.exists():
        raise FileNotFoundError((graph.parents[1] / "why.txt").read_text())
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])

    def logits(ids: list[int]) -> object:
        inputs = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        }
        names = {entry.name for entry in session.get_inputs()}
        (found,) = session.run(["logits"], {key: inputs[key] for key in names})
        return found[0]

    return logits


answer(version, open_model)
