"""Tiny GGUF files of nearly every architecture of llama.cpp, with the tensors that llama.cpp itself
asks for.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ropeconv.environment import without_secrets
from ropeconv.runtimes.llamacpp.archs import arch_table

from .gguf_files import close

SETTINGS = tomllib.loads((Path(__file__).parents[1] / "data" / "tiny_gguf.toml").read_text("utf-8"))
ROOT = Path(__file__).parents[2]
TOKENS = [int(token) for token in np.random.default_rng(0).integers(5, 100, 96)]
NAMES = tuple(arch_table().arch)

Answers = dict[str, np.ndarray[Any, Any]]


def keys_of(arch: str) -> dict[str, Any]:
    """The keys of the tiny file of an architecture, without `ARCH.` before their names.

    They are put together from `data/tiny_gguf.toml`: keys of all files, those of groups such as the
    models with experts, and those of the architecture, of which an empty one removes a key.
    """
    changes = SETTINGS["arch"].get(arch, {})
    keys = dict(SETTINGS["common"])
    layers = range(changes.get("block_count", keys["block_count"]))
    keys["attention.sliding_window_pattern"] = 2

    # the groups that the architecture is in
    groups = {name for name, archs in SETTINGS["lists"].items() if arch in archs.split()}
    for name in ("experts", "latent"):
        if name in groups:
            keys |= SETTINGS[name]
    if "hybrid" in groups:  # the second layer is recurrent and has no heads
        heads = [0 if layer == 1 else 2 for layer in layers]
        keys["attention.head_count"] = heads
        keys["attention.head_count_kv"] = heads
    if "flags" in groups:  # whether each layer has a window
        keys["attention.sliding_window_pattern"] = [layer % 2 for layer in layers]

    keys |= changes
    keys = {key: value for key, value in keys.items() if value != ""}
    size = keys["vocab_size"]
    keys["tokenizer.ggml.model"] = "test"
    keys["tokenizer.ggml.tokens"] = [f"token {index}" for index in range(size)]
    keys["tokenizer.ggml.scores"] = [0.0] * size
    return keys


def make(arch: str, path: Path, **changes: Any) -> Path:
    """Writes the tiny file. changes: keys, with __ for a dot. Raises RuntimeError where llama.cpp
    refuses them.
    """
    keys = keys_of(arch)
    for key, value in changes.items():
        keys[key.replace("__", ".")] = value
    _program({"arch": arch, "path": str(path), "keys": keys})
    return path


def answers(
    arch: str, folder: Path, variants: dict[str, Any], positions: list[list[int]] | None = None
) -> Answers:
    """What llama.cpp computes for each variant that it loads, by its name; see `tiny_gguf_program`.

    arch: the architecture. folder: for a file between. variants: files, or pairs of a file and
    overrides as `LlamaCppEngine` takes them. positions: of the tokens in each of four sections
    (M-RoPE).
    """
    is_encoder = arch in SETTINGS["lists"]["encoders"].split()
    requests = dict[str, Any]()
    for name, variant in variants.items():
        path, overrides = variant if isinstance(variant, tuple) else (variant, {})
        requests[name] = {
            "path": str(path),
            "overrides": {key: list(value) for key, value in overrides.items()},
            "hidden": is_encoder,
            "positions": positions,
        }
    out = folder / "answers.npz"
    _program({"variants": requests, "tokens": TOKENS, "path": str(out)})
    with np.load(out) as archive:
        return dict(archive)


def hidden_states(path: Path, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The last hidden states that llama.cpp computes for all tokens, [tokens, width]."""
    out = path.with_suffix(".npz")
    variant = {"path": str(path), "hidden": True, "whole": True}
    _program({"variants": {"states": variant}, "tokens": tokens, "path": str(out)})
    with np.load(out) as archive:
        states = archive["states"]
    out.unlink()
    return states


def rewritten(
    path: Path, out: Path, added: dict[str, np.ndarray[Any, Any]] | None = None, left_out: str = ""
) -> Path:
    """Copy a file with gguf-py.

    Args:
        path: The file.
        out: The copy.
        added: Tensors to put into it, by name; one that the file has is replaced.
        left_out: The key to leave out.
    """
    arch = "general.architecture"
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields[arch].contents())
    for field in reader.fields.values():
        # the fields of the reader named GGUF.* are not keys; the writer adds the architecture
        if field.name.startswith("GGUF.") or field.name in (arch, left_out):
            continue
        kind = field.types[0]
        kind_of_items = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), kind, kind_of_items)

    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    tensors |= added or {}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    close(writer)
    return out


def _program(job: dict[str, Any]) -> None:
    """Run `tiny_gguf_program` in a process of its own. Raises RuntimeError where that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.tiny_gguf_program"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=without_secrets(),
    )
    if done.returncode != 0:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-5:]))
