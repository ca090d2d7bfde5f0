"""Tiny checkpoints of EmbeddingGemma with the files of sentence-transformers, as published."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from .llamacpp import checkpoint

WIDTH = 128
"""The width of its states, and of its embeddings."""
MIDDLE = 192
"""The width between its projections."""
TYPE = "sentence_transformers.models.{}"


def add_modules(folder: Path, pooling: object, dense: tuple[str, ...] = ()) -> Path:
    """Write the files of sentence-transformers beside a checkpoint. dense: projections' folders."""
    names = {"": "Transformer", "1_Pooling": "Pooling"} | dict.fromkeys(dense, "Dense")
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": TYPE.format(kind)}
        for index, (path, kind) in enumerate(names.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def add_projection(folder: Path, name: str, weights: torch.Tensor, **changes: Any) -> None:
    """Write a module Dense: its config and its weights [outputs, inputs]."""
    outputs, inputs = weights.shape
    config = {"in_features": inputs, "out_features": outputs, "bias": False}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(config | changes))
    safetensors.torch.save_file(
        {"linear.weight": weights}, folder / name / "model.safetensors", {"format": "pt"}
    )


def embedding_gemma(folder: Path) -> Path:
    """A checkpoint without projections: Gemma 3 that reads in both directions."""
    layers = ["sliding_attention"] * 5 + ["full_attention"]
    both = {"use_bidirectional_attention": True}
    checkpoint("gemma3_text", folder, num_hidden_layers=6, layer_types=layers, **both)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    plain = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(plain, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["Gemma3TextModel"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_projections(folder: Path) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """A checkpoint with a pooling and two projections, and the weights of both."""
    embedding_gemma(folder)
    add_modules(folder, {"pooling_mode_mean_tokens": True}, ("2_Dense", "3_Dense"))
    generator = torch.Generator().manual_seed(3)
    second = torch.randn((MIDDLE, WIDTH), generator=generator) / 8
    third = torch.randn((WIDTH, MIDDLE), generator=generator) / 8
    add_projection(folder, "2_Dense", second)
    add_projection(folder, "3_Dense", third)
    return folder, second, third
