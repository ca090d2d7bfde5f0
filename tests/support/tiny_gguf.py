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
    changes = SETTINGS["arch"].get(arch, {})
    keys = dict(SETTINGS["common"])
    count = changes.get("block_count", keys["block_count"])
    keys["attention.sliding_window_pattern"] = 2
    for name in ("experts", "latent"):
        if arch in SETTINGS["lists"][name].split():
            keys |= SETTINGS[name]
    if arch in SETTINGS["lists"]["hybrid"].split():
        keys["attention.head_count"] = keys["attention.head_count_kv"] = [
            0 if i == 1 else 2 for i in range(count)
        ]
    if arch in SETTINGS["lists"]["flags"].split():
        keys["attention.sliding_window_pattern"] = [i % 2 for i in range(count)]
    keys = {key: value for key, value in {**keys, **changes}.items() if value != ""}
    size = keys["vocab_size"]
    keys["tokenizer.ggml.model"] = "test"
    keys["tokenizer.ggml.tokens"] = [f"token {index}" for index in range(size)]
    keys["tokenizer.ggml.scores"] = [0.0] * size
    return keys


def make(arch: str, path: Path, **changes: Any) -> Path:
    """Writes the tiny file. changes: keys, with __ for a dot. Raises RuntimeError where llama.cpp
    refuses them.
    """
    keys = {**keys_of(arch), **{key.replace("__", "."): value for key, value in changes.items()}}
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
    requests = dict[str, Any]()
    for name, variant in variants.items():
        path, given = variant if isinstance(variant, tuple) else (variant, {})
        requests[name] = {
            "path": str(path),
            "overrides": {key: list(value) for key, value in given.items()},
        }
        requests[name] |= {
            "hidden": arch in SETTINGS["lists"]["encoders"].split(),
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
    """A copy by gguf-py of a file. added: tensors to put into it, by name. left_out: the key to
    leave out.
    """
    reader = gguf.GGUFReader(path)
    tensors = dict(added or {})
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in (
            "general.architecture",
            left_out,
        ):
            writer.add_key_value(
                field.name, field.contents(), field.types[0], (*field.types[1:], None)[0]
            )
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensors.pop(tensor.name, tensor.data))
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    close(writer)
    return out


def _program(job: dict[str, Any]) -> None:
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
