"""Small models that commands run on, made without torch."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ..support import plain_llama
from ..support.gguf_files import plain_tensors, write
from ..support.models import COMMON

CONFIG = {**plain_llama.CONFIG, **COMMON, "dtype": "float16"}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tokenizer() -> Any:
    """A byte-level tokenizer with one merge."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    numbers = {token: number for number, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(numbers, [("t", "h")], unk_token="<unk>"))
    bpe.add_special_tokens(tokens[:3])
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return bpe


def checkpoint(folder: Path) -> None:
    """A Llama in two shards in the folder `model`, with a tokenizer."""
    from safetensors.numpy import save_file

    model = folder / "model"
    places = {}
    tensors = {
        name: array.astype(np.float16)
        for name, array in plain_llama.weights(CONFIG, np.random.default_rng(0)).items()
    }
    model.mkdir()
    for first, shard in enumerate(SHARDS):
        part = {name: tensors[name] for name in list(tensors)[first::2]}
        save_file(part, model / shard, {"format": "pt"})
        places |= dict.fromkeys(part, shard)
    total = sum(tensor.nbytes for tensor in tensors.values())
    texts = {
        "model.safetensors.index.json": {"metadata": {"total_size": total}, "weight_map": places},
        "config.json": CONFIG,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": 64,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    for name, data in texts.items():
        (model / name).write_text(json.dumps(data, indent=2) + "\n")
    tokenizer().save(str(model / "tokenizer.json"))


def two_checkpoints(folder: Path) -> None:
    """The same Llama in the folders `model` and `second`."""
    checkpoint(folder)
    shutil.copytree(folder / "model", folder / "second")


def checkpoint_with_text(folder: Path) -> None:
    """A Llama in `model`, and a text of a few thousand tokens."""
    checkpoint(folder)
    words = np.random.default_rng(2).integers(97, 123, size=(1200, 5), dtype=np.uint8)
    (folder / "text.txt").write_text(" ".join(bytes(word).decode() for word in words))


def plan_file(folder: Path) -> None:
    """A Llama in `model`, and a plan that extends it."""
    checkpoint(folder)
    plan = 'sources = ["model"]\nrecipes = ["yarn:4"]\ntasks = ["apply"]\n'
    (folder / "plan.toml").write_text(plan)


def compiled_graph(folder: Path) -> None:
    """A graph in ONNX that only rotates, with its config.json, in the folder `graph`."""
    from ..support import graphs

    graphs.small_graph(folder / "graph")


def checkpoint_with_adapter(folder: Path) -> None:
    """A Llama in `model`, and in `adapter` a LoRA of rank 2 on its first query projection."""
    from safetensors.numpy import save_file

    checkpoint(folder)
    adapter = folder / "adapter"
    adapter.mkdir()
    config = {
        "base_model_name_or_path": "model",
        "lora_alpha": 2,
        "peft_type": "LORA",
        "r": 2,
        "target_modules": ["q_proj"],
        "task_type": "CAUSAL_LM",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    query = "base_model.model.model.layers.0.self_attn.q_proj"
    hidden = CONFIG["hidden_size"]
    matrices = {
        f"{query}.lora_A.weight": np.ones((2, hidden), np.float32),
        f"{query}.lora_B.weight": np.ones((hidden, 2), np.float32),
    }
    save_file(matrices, adapter / "adapter_model.safetensors")


def gguf_file(folder: Path) -> None:
    write(folder / "model.gguf")


def gguf_shards(folder: Path) -> None:
    """Two GGUF models in two shards each, `model` and `other`, whose weights differ in every
    tensor.
    """
    write(folder / "model.gguf", split=2)
    write(
        folder / "other.gguf",
        split=2,
        tensors={name: -tensor for name, tensor in plain_tensors().items()},
    )


def reordered_gguf(folder: Path) -> None:
    """A GGUF file whose rows a bake of `--mixed` reorders: tensors change."""
    write(folder / "model.gguf", "qwen2", extra={"feed_forward_length": 96})


def large_gguf(folder: Path, size: int) -> None:
    """The same of about `size` bytes, so that a change takes a while."""
    rows = size // (4 * 128)
    more = np.random.default_rng(1).standard_normal((rows, 128), dtype=np.float32)
    write(
        folder / "model.gguf",
        "qwen2",
        {"feed_forward_length": 96},
        {**plain_tensors(), "output.weight": more},
    )


def items(folder: Path) -> None:
    """Losses of eight texts with two rows, and an empty folder of a record."""
    (folder / "record").mkdir()
    lines = []
    for row, method, factor in (("base", "base", None), ("yarn:4", "yarn", 4.0)):
        for number in range(8):
            item = {
                "row": row,
                "measure": "growth",
                "metric": "loss",
                "length": 1024,
                "text": f"{number}.txt",
                "window": 0,
                "value": 3.0 + number + (method == "base"),
                "model": "Tiny",
                "trained": 256,
                "method": method,
                "factor": factor,
            }
            lines.append(json.dumps(item))
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n")
