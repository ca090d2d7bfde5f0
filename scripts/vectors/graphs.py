"""ONNX graphs of packets: the model before the extension is exported, and the graph extended.

The extension of the model in a packet is undone by `restore`, and the recipe of its receipt applied
to the export, so the graph has the same weights and the same method. All packets of an architecture
have the same model before its extension, which is exported once.
"""

import hashlib
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
            extend_graph(packet, find_export(packet, work), folder)
        except Exception as problem:
            (folder / "why.txt").write_text(f"no graph: {type(problem).__name__}: {problem}")


def find_export(packet: Path, work: Path) -> Path:
    """Return the folder with the graph of a packet's model before the extension.

    It is named after what the model is made of, so that packets share it.
    """
    source = work / f"source-{label(packet)}"
    shutil.rmtree(source, ignore_errors=True)
    ropeconv.restore(packet / "model", out=source)
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors"):
        digest.update((source / name).read_bytes())

    graph = work / f"export-{digest.hexdigest()[:16]}"
    if not (graph / "config.json").exists():
        shutil.rmtree(graph, ignore_errors=True)
        export(source, graph)
        shutil.copyfile(source / "config.json", graph / "config.json")
    shutil.rmtree(source)
    return graph


def extend_graph(packet: Path, graph: Path, folder: Path) -> None:
    """Write the graph of a packet into `folder/out`: the export, extended as the packet is."""
    recipe = folder / "recipe.json"
    recipe.write_text(json.dumps(read_receipt(packet / "model").recipe), encoding="utf-8")
    words = ("apply", graph / "model.onnx", "--recipe", recipe, "-o", folder / "out")
    command = [sys.executable, "-m", "ropeconv", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        # the results are published, and where the graph is says nothing there
        raise RuntimeError(done.stderr.strip().replace(f"{graph}/", ""))


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
