"""The main example, `ropeconv apply meta-llama/Llama-2-7b --yarn 16`, on a Hub of this machine,
from plan to card.

The release is there as Meta has it and in the HF layout, in one file and in two. The tensors that
an output has to hold are made from torch.load of the .pth files alone.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ..models.test_meta import PARAMS, VOCABULARY, hf_tensors, meta_logits, release
from ..support.extent import sample
from ..support.hub_writing import WritingHub
from ..support.models import in_two_files
from .conftest import Push, card_of

REPOSITORY = "meta-llama/Llama-2-7b"
BAKE = f"apply {REPOSITORY} --yarn 16"
AGREES = "PASS: matches the reference at every position; without scaling, the source does not."
CARD = "---\nlicense: llama2\npipeline_tag: text-generation\n---\n# Llama 2\n"


def hf_folder(meta: Path, folder: Path, tensors: dict[str, Any], files: int) -> None:
    """The same model in the HF layout, saved by safetensors, with a config.json by hand."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": PARAMS["dim"],
        "intermediate_size": 352,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "LlamaTokenizer", "model_max_length": 4096}'
    )
    for name in ("tokenizer.model", "LICENSE.txt", "README.md"):
        (folder / name).write_bytes((meta / name).read_bytes())
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})
    if files > 1:
        in_two_files(folder)


def loaded(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {
        name: tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }


# Meta's layout is that of the main example, and runs every day
@pytest.mark.parametrize(
    ("layout", "parts"), [("meta", 2), *sample([("hf", 1), ("meta", 1), ("hf", 2)], 1)]
)
def test_from_plan_to_card(
    layout: str, parts: int, hub: WritingHub, push: Push, tmp_path: Path
) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    meta = tmp_path / "release"
    meta_tensors = release(meta, parts, dtype="bfloat16")
    (meta / "README.md").write_text(CARD)
    stored = [torch.load(path, weights_only=True) for path in sorted(meta.glob("*.pth"))]
    expected = hf_tensors(stored)
    if layout == "hf":
        hf_folder(meta, tmp_path / "hf", expected, parts)
    hub.repos[REPOSITORY] = meta if layout == "meta" else tmp_path / "hf"
    weights = [
        path for path in hub.repos[REPOSITORY].iterdir() if path.suffix in (".pth", ".safetensors")
    ]

    plan = json.loads(push(f"{BAKE} --dry-run --json").stdout)
    assert plan["schedule"]["context"] == 65536
    assert all(hub.sent.get(path.name, 0) < path.stat().st_size / 2 for path in weights)
    assert layout == "hf" or not any(path.name in hub.sent for path in weights)

    push(f"{BAKE} -o out -q")
    actual = loaded(tmp_path / "out")
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)

    assert AGREES in push(f"validate out --against {REPOSITORY} --device cpu --tokens 24").stdout
    assert all(hub.sent[path.name] < 2 * path.stat().st_size for path in weights)  # downloaded once

    push("restore out -o back -q")
    back = loaded(tmp_path / "back")
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], expected[name]) for name in expected)
    ids = torch.arange(40) * 7 % VOCABULARY
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)(
            ids[None]
        ).logits[0]
    reference = meta_logits(meta_tensors, PARAMS, ids, 10000.0)
    assert (logits - reference).abs().max() < 1e-3 * reference.std()

    push(f"{BAKE} --to gguf --outtype f32 -o out.gguf -q")
    tensors = {
        tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors
    }
    assert len(tensors) == len(expected)
    for layer in range(2):  # GGUF has the rows of q in Meta's order
        wq = torch.cat([part[f"layers.{layer}.attention.wq.weight"] for part in stored])
        assert (tensors[f"blk.{layer}.attn_q.weight"] == wq.float().numpy()).all()
    assert AGREES in push(f"validate out.gguf --against {REPOSITORY} --tokens 256").stdout

    push("push out me/Llama-2-7b-64k")
    pushed = hub.repos["me/Llama-2-7b-64k"]
    assert json.loads((pushed / "config.json").read_text())["max_position_embeddings"] == 65536
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded(pushed).items())
    assert not list(pushed.glob("*.pth"))
    for words in (f"base_model: {REPOSITORY}", "license: llama2", "to 65,536 tokens with [YaRN]"):
        assert words in card_of(hub, "me/Llama-2-7b-64k")

    name = weights[0].name
    other = bytearray(weights[0].read_bytes())
    other[len(other) // 2] ^= 64
    (hub.repos[REPOSITORY] / name).write_bytes(other)
    hub.version[REPOSITORY] = 1
    push(
        f"validate out --against {REPOSITORY} --device cpu",
        3,
        "is not what its recipe and source give",
    )
