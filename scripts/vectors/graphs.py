"""ONNX graphs of packets: the model before the extension is exported, and the graph extended.

The extension of the model in a packet is undone by `restore`, and the recipe of its receipt applied
to the export, so the graph has the same weights and the same method.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ropeconv
from ropeconv.inspection.receipts.storage import read_receipt

from .building import label


def export_graphs(packets: list[Path], work: Path) -> None:
    """Write the graph of each packet into a folder of its own, or why there is none."""
    for packet in packets:
        folder = work / label(packet)
        if (folder / "out").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            export_graph(packet, folder)
        except Exception as problem:
            (folder / "why.txt").write_text(f"no graph: {type(problem).__name__}: {problem}")


def export_graph(packet: Path, folder: Path) -> None:
    """Write the extended graph of a packet into `folder/out`."""
    if not (folder / "graph" / "config.json").exists():
        for name in ("source", "graph"):
            shutil.rmtree(folder / name, ignore_errors=True)
        ropeconv.restore(packet / "model", out=folder / "source")
        export(folder / "source", folder / "graph")
        shutil.copyfile(folder / "source" / "config.json", folder / "graph" / "config.json")

    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps(read_receipt(packet / "model").recipe), encoding="utf-8")
    words = ("apply", folder / "graph" / "model.onnx", "--recipe", recipe, "-o", folder / "out")
    command = [sys.executable, "-m", "ropeconv", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def export(checkpoint: Path, place: Path) -> None:
    """Write model.onnx with the inputs input_ids and position_ids."""
    import torch
    from transformers import AutoModelForCausalLM

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForCausalLM.from_pretrained(
                checkpoint, attn_implementation="eager", dtype=torch.float32
            )
            if hasattr(self.model, "set_experts_implementation"):
                self.model.set_experts_implementation("batched_mm")

        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> Any:
            given = {"input_ids": input_ids, "position_ids": position_ids}
            return self.model(**given, use_cache=False).logits

    place.mkdir()
    tokens = torch.ones(1, 12, dtype=torch.int64)
    positions = torch.arange(12)[None]
    dynamic = {}
    for name in ("input_ids", "position_ids"):
        dynamic[name] = {1: torch.export.Dim("length")}
    torch.onnx.export(
        Logits().eval(),
        (tokens, positions),
        place / "model.onnx",
        input_names=list(dynamic),
        output_names=["logits"],
        dynamic_shapes=dynamic,
        dynamo=True,
        external_data=True,
        verbose=False,
    )
