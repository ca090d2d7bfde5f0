"""Bad input: one sentence, the right exit code, nothing left behind, the source untouched."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.cli.app import all_commands, find
from ropeconv.options import METHOD

from ..conftest import Run
from ..faults.inputs.folders import small_config
from ..faults.inputs.worker import run_command
from ..support.corruptions import Corruption, config, data
from ..support.extent import sample
from .conftest import Refuses


def index(**weight_map: str) -> Corruption:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )


def rename(name: str) -> Corruption:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def content(name: str, text: bytes) -> Corruption:
    return lambda folder: (folder / name).write_bytes(text)


def gptj(folder: Path) -> None:
    config(model_type="gptj", n_embd=128, n_head=2, rotary_dim=32)(folder)
    names = [
        f"transformer.h.{layer}.attn.{name}_proj.weight" for layer in range(2) for name in "qkv"
    ]
    save_file(dict.fromkeys(names, np.zeros((128, 128), np.float32)), folder / "model.safetensors")


SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--yarn", "4", "--linear", "4"), 2, "--linear and --yarn are two methods; choose one"),
        ((), 2, "give a method, such as --yarn 4, or a length"),
        (("--linear", "nan"), 2, "factor must be a number of at least 1"),
        (("--yarn", "four"), 2, "--yarn takes a factor such as 4, or a length such as 128k"),
        (
            ("--linear", "4", "--beta-fast", "16"),
            2,
            "--beta-fast goes with --yarn, not with --linear",
        ),
        (("--dynamic", "ntk:2"), 2, "say with --at TOKENS"),
        (("--yarn", "4", "--ollama"), 2, "Ollama runs GGUF files"),
        (
            ("--mixed", "4", "--encoding", "native"),
            1,
            "no rope type has its formula; use --encoding factors",
        ),
        (
            ("--mixed", "4", "--runtime", "llama-cpp"),
            1,
            "with factors: it computes other frequencies",
        ),
        (
            ("--yarn", "4", "--log-n", "clamped", "--runtime", "vllm"),
            1,
            "pass --allow-approximate to take that",
        ),
        (("--inv-freq", "missing.json"), 2, "missing.json does not exist"),
        (("--inv-freq", "list.json"), 2, "2 numbers and this model rotates 32 pairs"),
        (("--yarn", "4", "-o", "model/inside"), 1, "lie within each other"),
        (("--yarn", "4", "-o", "list.json/place"), 1, "list.json is not a folder"),
        (("--yarn", "4", "-o", "theirs"), 1, "choose another place with -o, or remove it"),
        (("--yarn", "4", "-o", "theirs", "--force"), 1, "has no receipt of ropeconv"),
    ],
)
def test_arguments(
    refuses: Refuses, llama: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "list.json").write_text("[1.0, 2.0]")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    refuses(code, words, "apply", "model", *arguments)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (config(rope_scaling=SCALED), "is scaled already"),
        (
            config(rope_scaling={"type": "ntk", "factor": 4.0}),
            "the rope_type ntk, unknown to transformers",
        ),
        (config(model_type="grok9"), "model_type 'grok9' is not supported"),
        (config(model_type="gpt2"), "does not use rotary position embeddings"),
        (
            content("config.json", b'{"model_type": "llama", "name": "\\ud800"}'),
            "half of a character",
        ),
        (gptj, "its class ignores every RoPE setting"),
        (content("config.json", b'{"model_type": '), "config.json is not valid JSON"),
        (
            rename("x-of-y.txt"),
            "no safetensors weights; give the complete folder, or only its config.json",
        ),
        (
            rename("model-00001-of-00001.safetensors"),
            "has shards and no model.safetensors.index.json",
        ),
        (index(a="../x.safetensors"), "which is not inside the folder"),
        (index(a="C:\\x.safetensors"), "which is not inside the folder"),
        (
            lambda folder: os.mkfifo(folder / "notes.txt"),
            "notes.txt is a FIFO, and a regular file is needed there",
        ),
        (
            lambda folder: (folder / "notes.txt").symlink_to("/etc/hostname"),
            "outside the checkpoint; replace the link",
        ),
        (data(lambda shard: shard.__delitem__(slice(-1000, None))), "is truncated"),
        (
            content("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
            "claims a header of 1152921504606846976 by",
        ),
    ],
)
def test_sources(refuses: Refuses, llama: Path, spoil: Corruption, words: str) -> None:
    spoil(llama)
    refuses(1, words, "apply", "model", "--yarn", "4")


@pytest.mark.parametrize(
    "reference", ["nowhere/at/all", "./missing", "model.gguf", "model/model.safetensors"]
)
def test_no_such_source(refuses: Refuses, llama: Path, reference: str) -> None:
    refuses(1, "give", "apply", reference, "--yarn", "4")


@pytest.mark.parametrize("name", ["nope-00001-of-00002.gguf", "nope.gguf", "nope"])
def test_no_such_output_to_publish(refuses: Refuses, name: str) -> None:
    refuses(1, f"{name} does not exist; give what `ropeconv apply` wrote", "push", name, "me/x")


def test_a_scaled_model_is_replaced_when_asked(run: Run, llama: Path) -> None:
    config(rope_scaling=SCALED, max_position_embeddings=64)(llama)
    done = run("apply", "model", "--linear", "4", "--replace", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert (plan["schedule"]["original_context"], plan["schedule"]["context"]) == (16, 64)


VALUES = ("nan", "-inf", "1e308", "1e999", "-1")
NUMBERS = {"S", "TOKENS", "B"}
BASE = {
    "apply": ["config.json", "--dry-run"],
    "advise": ["config.json", "--context", "256"],
    "plot": ["--head-dim", "16"],
    "bound": ["config.json"],
    "validate": ["config.json"],
}
YARN = ["--yarn", "4"]


def options() -> list[tuple[str, str, bool]]:
    """Every numeric option: its command, its flag, and whether it chooses a method."""
    entries = []
    for command in [name for name in BASE if name in all_commands()]:
        for option in find(command).options:
            numeric = option.type_descriptor.annotation in (int, float)
            if numeric or option.metavar in NUMBERS:
                entries.append((command, option.opts[0], option.rich_help_panel == METHOD))
    assert len({flag for _, flag, _ in entries}) > 25
    return entries


@pytest.mark.parametrize(("command", "flag", "method"), sample(options(), 10))
def test_no_number_is_taken_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, flag: str, method: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        beside = [] if method or command == "advise" else YARN
        done = run_command(0, [command, *BASE[command], *beside, f"{flag}={value}"], tmp_path)
        assert done.problem == "", (value, done)
        assert done.code in (1, 2), (value, done)
        assert done.message.count("\n") == 1
