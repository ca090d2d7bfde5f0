"""`ropeconv train-config` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Run, hashes
from ..support.gguf_files import write


def test_of_an_output_and_of_its_plan(run: Run, llama: Path, tmp_path: Path) -> None:
    planned = run("train-config", "model", "--yarn", "4", "--for", "trl")
    assert "model-yarn4 is not there yet" in planned.stderr
    assert not (tmp_path / "model-yarn4").exists()
    assert run("apply", "model", "--yarn", "4", "-q").returncode == 0
    before = hashes(tmp_path)
    done = run("train-config", "model-yarn4", "--for", "trl")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", planned.stdout)
    compile(done.stdout, "train_trl.py", "exec")
    assert "max_length=256," in done.stdout
    assert hashes(tmp_path) == before
    told = json.loads(run("train-config", "model-yarn4", "--for", "trl", "--model", "me/long", "--json").stdout)
    assert (told["model"], told["context"], told["status"], told["file"]) == ("me/long", 256, "exact", "train_trl.py")
    assert '"me/long"' in told["text"]
    assert "is scaled already" in run("train-config", "model-yarn4", "--yarn", "8", "--for", "trl").stderr
    done = run("train-config", "model-yarn4", "--yarn", "8", "--replace", "--for", "trl")
    assert "max_length=512," in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("model", "--for", "trl"), 2, "add the method"),
        (("model", "-o", "out", "--for", "trl"), 2, "no method is given"),
        (("model", "--yarn", "4", "--to", "gguf", "--for", "trl"), 2, "leave --to gguf out"),
        (("small.gguf", "--yarn", "4", "--for", "trl"), 2, "add --to safetensors"),
        (("small.gguf", "--for", "trl"), 2, "give the checkpoint it was made from"),
        (("model", "--yarn", "4", "--for", "nanotron"), 2, "'axolotl'"),
        (("model", "--yarn", "4"), 2, "Missing option '--for'"),
        (("model", "--mixed", "4", "--log-n", "clamped", "--encoding", "buffers", "--for", "unsloth"), 1, "--for trl"),
    ],
)
def test_what_is_refused(run: Run, llama: Path, tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    write(tmp_path / "small.gguf")
    before = hashes(tmp_path)
    done = run("train-config", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert hashes(tmp_path) == before
