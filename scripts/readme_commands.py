"""Runs the commands of ropeconv in README.md in the current folder, with an installed ropeconv and
small models.

python scripts/readme_commands.py README.md

Models that the page names are made here: checkpoints of two layers as `owner/name`, and GGUF files.
A command that needs something else is printed with what that is. Only what ropeconv depends on is
imported.
"""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

ALSO = (
    "list methods",
    "list families",
    "list runtimes",
    "list archs",
    "bound 128k",
    "apply --help",
    "--version",
)
"""Commands beside those of the page that need no model."""
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILLED = {"MODEL": "Qwen/Qwen2.5-7B-Instruct", "OUTPUT": "Qwen2.5-7B-128k"}
"""Words in capitals of the page, with what the reader may put in their place."""
WIDTH, LAYERS, HEADS, WORDS, CONTEXT = 64, 2, 2, 256, 32_768


def main(page: Path) -> int:
    """Run the commands of a page, and return the number of those that failed."""
    failed = 0
    for words in [line.split() for line in ALSO] + list(commands(page.read_text("utf-8"))):
        line = shlex.join(["ropeconv", *words])
        reason = needs(words)
        if reason:
            print(f"not run: {line} ({reason})")
            continue
        make_models(words)
        done = subprocess.run([*program(), *words], capture_output=True, text=True, check=False)
        print(f"{'failed' if done.returncode else 'ran'}: {line}")
        if done.returncode:
            print(done.stdout + done.stderr)
            failed += 1
    return failed


def program() -> list[str]:
    """The installed command, beside the interpreter."""
    return [str(Path(sys.executable).with_name("ropeconv"))]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `ropeconv` of the commands in blocks of shell, then of those in
    sentences.
    """
    for block in BLOCK.finditer(text):
        for line in block[1].replace("\\\n", " ").splitlines():
            if line.startswith("ropeconv "):
                yield shlex.split(line, comments=True)[1:]
    for line in re.findall(
        r"`(ropeconv [^`]+ [^`]+)`", BLOCK.sub("", text)
    ):  # not the name of a command alone
        yield [FILLED.get(word, word) for word in shlex.split(line)[1:]]


def needs(words: list[str]) -> str:
    """Return what a command needs that is not here; empty for one that runs."""
    if any(re.fullmatch(r"[A-Z]{3,}", word) for word in words):
        return "words of the reader"
    if "--server" in words:
        return "a running server"
    if words[:2] == ["probe", "vllm"] and importlib.util.find_spec("vllm") is None:
        return "vLLM"
    if "--push" in words or words[0] == "push":
        return "the Hub"
    if "--text" in words:
        return "a model with a tokenizer, and a text"
    if words[0] == "validate" and importlib.util.find_spec("torch") is None:
        return "torch"
    return ""


def make_models(words: list[str]) -> None:
    """Make the models that a command names and that are not there, by the forms of their names."""
    for word in words[1:]:
        path = Path(word)
        if path.exists() or words[words.index(word) - 1].startswith("-"):
            continue
        if word.endswith(".gguf"):
            make_gguf(path)
        elif re.fullmatch(r"[A-Za-z][\w.-]*/[\w.-]+", word):
            make_checkpoint(path)


def make_checkpoint(folder: Path) -> None:
    """Make a Qwen 2 of two layers that was trained with 32k tokens."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "intermediate_size": WIDTH,
        "vocab_size": WORDS,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))

    # matrices with random numbers, and norms and biases of ones
    of_layer = ("k_proj", "o_proj", "q_proj", "v_proj")
    matrices = {"model.embed_tokens": (WORDS, WIDTH), "lm_head": (WORDS, WIDTH)}
    vectors = ["model.norm.weight"]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in of_layer:
            matrices[f"{prefix}.self_attn.{name}"] = (WIDTH, WIDTH)
        for name in ("gate_proj", "up_proj", "down_proj"):
            matrices[f"{prefix}.mlp.{name}"] = (WIDTH, WIDTH)
        for name in ("input_layernorm", "post_attention_layernorm"):
            vectors.append(f"{prefix}.{name}.weight")
        for name in ("q_proj", "k_proj", "v_proj"):
            vectors.append(f"{prefix}.self_attn.{name}.bias")

    tensors = {}
    drawn = np.random.default_rng(0)
    for name, shape in matrices.items():
        tensors[f"{name}.weight"] = drawn.standard_normal(shape, np.float32)
    for name in vectors:
        tensors[name] = np.ones(WIDTH, np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_gguf(path: Path) -> None:
    """Make the GGUF file of a Llama of two layers that was trained with 32k tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    drawn = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", drawn.standard_normal((WORDS, WIDTH), np.float32))
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            writer.add_tensor(
                f"blk.{layer}.{name}.weight", drawn.standard_normal((WIDTH, WIDTH), np.float32)
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python scripts/readme_commands.py README.md")
    failures = main(Path(sys.argv[1]))
    if failures:
        sys.exit(f"{failures} of the commands failed")
