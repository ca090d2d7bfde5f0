"""ONNX graphs of packets: the model before the extension is exported, and the graph extended.

The extension of the model in a packet is undone by `restore`, and the recipe of its receipt applied
to the export, so the graph has the same weights and the same method.
"""

import shutil
from pathlib import Path
from typing import Any

import ropeconv
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.rope.recipe import Recipe
from ropeconv.verbs.apply import apply as apply_recipe

from .running import label


def export_graphs(packets: list[Path], work: Path) -> None:
    """Write the graph of each packet into a folder of its own, or why there is none."""
    for packet in packets:
        folder = work / label(packet)
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        try:
            export_graph(packet, folder)
        except Exception as problem:
            (folder / "why.txt").write_text(f"no graph: {type(problem).__name__}: {problem}")


def export_graph(packet: Path, folder: Path) -> None:
    """Write the extended graph of a packet into `folder/out`."""
    ropeconv.restore(packet / "model", out=folder / "source")
    export(folder / "source", folder / "graph")
    shutil.copyfile(folder / "source" / "config.json", folder / "graph" / "config.json")
    recipe = Recipe.from_dict(read_receipt(packet / "model").recipe)
    apply_recipe(folder / "graph" / "model.onnx", recipe=recipe, out=folder / "out")


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
