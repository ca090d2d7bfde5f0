"""Tiny checkpoints of models that transformers has no class for, in the form in which they are
published, and the logits that mlx-lm computes of them.

mlx-lm runs in an environment of its own (`MlxLm`).
"""

import copy
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch

from ropeconv.bake.plan import Plan

from .llamacpp import lively, sequence, tokenizer_json
from .models import TRAINED, VOCABULARY

MODELS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parents[1] / "data" / "mlx_models.toml").read_text()
)
PROGRAM = Path(__file__).parents[2] / "scripts" / "llamacpp" / "mlx_program.py"
SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": TRAINED,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
"""What a tiny config has unless its table in MODELS says otherwise."""
SPREAD = 0.35
"""The standard deviation of weights, with which attention matters."""


class MlxLm:
    """mlx-lm in a process of its own, in another environment."""

    def __init__(self, python: Path) -> None:
        """Start it. python: that of an environment with mlx-lm."""
        self.process = subprocess.Popen(
            [python, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version: str = self._read()["version"]
        """Its name and version."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer to a request; a RuntimeError where the model cannot be built or run."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"mlx-lm stops: {answer['error']}")
        return answer

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("mlx-lm ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a table in MODELS."""
    model = MODELS[name]
    config = {**SHARED, "model_type": name, **copy.deepcopy(model["config"])}
    config = {key: value for key, value in config.items() if key not in model.get("without", [])}
    # TOML has no null, which blocks of Nemotron NAS without attention have
    for block in config.get("block_configs", []):
        block["attention"].setdefault("n_heads_in_group", None)
        block["ffn"].setdefault("ffn_mult", None)
    if "nested" in model:
        config = {**model["outer"], model["nested"]: config}
    return config


def random_weights(shapes: dict[str, list[int]], spread: float = SPREAD) -> dict[str, torch.Tensor]:
    """Weights for mlx-lm's names and shapes; ones where a model begins with ones, as in norms."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in shapes.items():
        weights[name] = spread * torch.randn(shape, generator=generator)
        if len(shape) == 1 and ".bias" not in name:
            weights[name] = torch.ones(shape)
    return weights


def with_published_names(
    weights: dict[str, torch.Tensor], names: list[list[str]]
) -> dict[str, torch.Tensor]:
    """Weights of mlx-lm as a checkpoint names them, with each expert on its own."""
    tensors = {}
    for name, weight in weights.items():
        published = name
        for pattern, replacement in names:
            published = re.sub(pattern, replacement, published)
        if "{expert}" not in published:
            tensors[published] = weight
            continue
        for expert, part in enumerate(weight):
            tensors[published.format(expert=expert)] = part.clone()
    return tensors


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    """Write a checkpoint with a tokenizer; its norms get numbers that errors would not leave."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    lively(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())
    special = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(special))


def mlx_checkpoint(name: str, folder: Path, mlx: MlxLm) -> Path:
    """A tiny checkpoint of a table in MODELS, with random weights and a tokenizer."""
    folder.mkdir(parents=True)
    config = config_of(name)
    (folder / "config.json").write_text(json.dumps(config))
    model = MODELS[name]
    shapes = mlx.ask(shapes=str(folder))["shapes"]
    weights = random_weights(shapes, model.get("spread", SPREAD))
    tensors = with_published_names(weights, model.get("names", []))
    write_checkpoint(folder, config, tensors)
    return folder


def of_mlx(source: Path, mlx: MlxLm, out: Path, plan: Plan | None) -> torch.Tensor:
    """Logits of a checkpoint at every position, [LENGTH, vocabulary], as the plan's schedule says,
    or unscaled without a plan.

    out: a file that passes them on.
    """
    ropes = []
    if plan is not None:
        schedule = plan.schedule
        rope = {
            "base": plan.before.form.theta,
            "inv_freq": schedule.inv_freq.tolist(),
            "factor": schedule.attention_factor,
        }
        ropes.append(rope)
    answer = mlx.ask(logits=str(source), tokens=sequence(), ropes=ropes, out=str(out))
    if len(answer["bases"]) != len(ropes):
        raise RuntimeError(f"mlx-lm rotates nothing with the base {ropes[0]['base']}")
    return torch.from_numpy(np.load(out))
