"""Bad input: one sentence, the right exit code, nothing left behind, the source untouched."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropeconv.bake.writing import files, place
from ropeconv.errors import RopeconvError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe

from ..conftest import Run, hashes
from ..support.baking import apply, make_plan

Spoil = Callable[[Path], None]


def refuses(run: Run, tmp_path: Path, code: int, words: str, *arguments: object) -> None:
    before, entries = hashes(tmp_path), sorted(path.name for path in tmp_path.iterdir())
    done = run("apply", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("ropeconv: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert hashes(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == entries


def edit(**changes: object) -> Spoil:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def index(**weight_map: str) -> Spoil:
    def write(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return write


def truncate(folder: Path) -> None:
    shard = folder / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1000])


def huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def only_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def shards_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def broken_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def gptj(folder: Path) -> None:
    edit(model_type="gptj", n_embd=128, n_head=2, rotary_dim=32)(folder)
    names = [f"transformer.h.{layer}.attn.{name}_proj.weight" for layer in range(2) for name in "qkv"]
    save_file(dict.fromkeys(names, np.zeros((128, 128), np.float32)), folder / "model.safetensors")


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "notes.txt")


def link(folder: Path) -> None:
    (folder / "notes.txt").symlink_to("/etc/hostname")


SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--yarn", "4", "--linear", "4"), 2, "--linear and --yarn are two methods; choose one"),
        ((), 2, "no method is given"),
        (("--yarn", "0"), 2, "factor must be a number of at least 1"),
        (("--yarn", "-4"), 2, "factor must be a number of at least 1"),
        (("--linear", "nan"), 2, "factor must be a number of at least 1"),
        (("--mixed", "inf"), 2, "factor must be a number of at least 1"),
        (("--yarn", "four"), 2, "--yarn takes a factor such as 4, or a length such as 128k"),
        (("--linear", "4", "--beta-fast", "16"), 2, "--beta-fast goes with --yarn, not with --linear"),
        (("--yarn", "4", "--context", "many"), 2, "not a number of tokens"),
        (("--yarn", "4", "--attention-factor", "1", "--temperature-slope", "0.1"), 2, "both set the attention factor"),
        (("--dynamic", "ntk:2"), 2, "say with --at TOKENS"),
        (("--as-is", "--attention-factor", "1.2"), 2, "--as-is keeps the RoPE"),
        (("--yarn", "4", "--encoding", "tensor"), 2, "--encoding tensor goes with GGUF; add --to gguf"),
        (("--mixed", "4", "--encoding", "native"), 1, "no rope type has its formula; use --encoding factors"),
        (("--yarn", "4", "--runtime", "nosuch"), 2, "no such runtime is known; known: transformers"),
        (("--mixed", "4", "--runtime", "llama-cpp"), 1, "with factors: it computes other frequencies"),
        (("--yarn", "4", "--log-n", "clamped", "--runtime", "vllm"), 1, "pass --allow-approximate to take that"),
        (("--yarn", "4", "--log-n", "clamped", "--encoding", "weights"), 1, "or leave --log-n out"),
        (("--inv-freq", "missing.json"), 2, "missing.json does not exist"),
        (("--recipe", "missing.json"), 2, "missing.json cannot be read"),
        (("--yarn", "4", "-o", "model"), 1, "lie within each other"),
        (("--yarn", "4", "-o", "model/inside"), 1, "lie within each other"),
        (("--yarn", "4", "-o", "no/such/place"), 1, "does not exist; create it"),
    ],
)  # fmt: skip
def test_arguments(run: Run, llama: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    refuses(run, tmp_path, code, words, "model", *arguments)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (edit(rope_scaling={**SCALED, "factor": "4.0"}), "factor = '4.0' in its RoPE settings; write the number 4.0"),
        (edit(rope_scaling={**SCALED, "factor": -4.0}), "write a positive number"),
        (edit(rope_scaling=SCALED), "is scaled already"),
        (edit(rope_scaling={"type": "ntk", "factor": 4.0}), "the rope_type ntk, which transformers does not know"),
        (edit(rope_scaling=4.0), "write an object there, or null"),
        (edit(rope_scaling={"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}), "write 32 numbers"),
        (edit(rope_theta="10000"), "write the number 10000 without quotes"),
        (edit(max_position_embeddings=-1), "write a positive whole number there"),
        (edit(model_type="grok9"), "model_type 'grok9' is not known"),
        (edit(model_type="gpt2"), "has no rotary position embedding"),
        (edit(model_type="mamba"), "has no rotary position embedding"),
        (edit(model_type="falcon", alibi=True), "has alibi = True, so it has no rotary"),
        (gptj, "its class ignores every RoPE setting"),
        (edit(model_type=None), "has no model_type"),
        (broken_json, "config.json is not valid JSON"),
        (no_weights, "has no safetensors weights"),
        (shards_only, "has shards and no model.safetensors.index.json"),
        (index(a="../x.safetensors"), "which is not inside the folder"),
        (index(a="/etc/x.safetensors"), "which is not inside the folder"),
        (index(a="C:\\x.safetensors"), "which is not inside the folder"),
        (index(a="model-00002-of-00002.safetensors"), "which is not there"),
        (edit(num_hidden_layers=300_000_000), "write a positive whole number there, at most 10,000"),
        (edit(head_dim=400_000), "write a positive whole number there, at most 2,048"),
        (edit(rope_theta=[]), "rope_theta = []; write a number above 1 there"),
        (edit(model_type=[]), "model_type [] is not known"),
        (edit(name="\ud800"), "half of a character"),
        (fifo, "notes.txt is a FIFO, and a regular file is needed there"),
        (link, "outside the checkpoint, whose content would be copied"),
        (truncate, "is truncated"),
        (huge_header, "claims a header of 1152921504606846976 bytes"),
    ],
)  # fmt: skip
def test_sources(run: Run, llama: Path, tmp_path: Path, spoil: Spoil, words: str) -> None:
    spoil(llama)
    refuses(run, tmp_path, 1, words, "model", "--yarn", "4")


def test_pickled_weights_that_would_change(run: Run, llama: Path, tmp_path: Path) -> None:
    only_bin(llama)
    words = ("model", "--yarn", "4", "--encoding", "weights")
    refuses(run, tmp_path, 1, "save_pretrained it as safetensors", *words)


def test_factor_lists_of_the_wrong_length(run: Run, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1.0, 2.0]")
    refuses(run, tmp_path, 2, "2 numbers and this model rotates 32 pairs", "model", "--inv-freq", "list.json")


def test_an_output_that_exists(run: Run, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "model-yarn4").mkdir()
    (tmp_path / "model-yarn4" / "notes.txt").write_text("mine")
    refuses(run, tmp_path, 1, "replace it with --force", "model", "--yarn", "4")
    refuses(run, tmp_path, 1, "is not an output of ropeconv", "model", "--yarn", "4", "--force")


@pytest.mark.parametrize("reference", ["nowhere/at/all", "./missing", "model.gguf", "model/model.safetensors"])
def test_no_such_source(run: Run, llama: Path, tmp_path: Path, reference: str) -> None:
    refuses(run, tmp_path, 1, "give", reference, "--yarn", "4")


def test_too_little_space_is_noticed_before_writing(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(llama, Recipe(REGISTRY["yarn"](4.0)), tmp_path / "out")
    monkeypatch.setattr(place, "free_bytes", lambda folder: 1000)
    with pytest.raises(RopeconvError, match=r"has 1\.0 kB free and the output needs .* MB"):
        apply(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_disk_that_fills_up(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path, advance: object) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = make_plan(llama, Recipe(REGISTRY["yarn"](4.0)), tmp_path / "out")
    monkeypatch.setattr(files, "copy_file", copy)
    before = hashes(llama)
    with pytest.raises(RopeconvError, match="the disk is full"):
        apply(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert hashes(llama) == before


def test_an_unreadable_output_place(run: Run, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refuses(run, tmp_path, 1, "does not exist; create it", "model", "--yarn", "4", "-o", "file/out")


def test_a_scaled_model_is_replaced_when_asked(run: Run, llama: Path, tmp_path: Path) -> None:
    edit(rope_scaling=SCALED, max_position_embeddings=64)(llama)
    done = run("apply", "model", "--linear", "4", "--replace", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert plan["schedule"]["original_context"] == 16
    assert plan["schedule"]["context"] == 64


def test_the_traceback_comes_when_asked_for(run: Run, tmp_path: Path) -> None:
    done = run("inspect", "./missing", env={"ROPECONV_DEBUG": "1"})
    assert "Traceback" in done.stderr
