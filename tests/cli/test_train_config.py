"""`ropeconv train-config` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..conftest import Run, hashes
from ..support.gguf_files import write
from .conftest import Refuses


def test_of_an_output(run: Run, llama: Path, tmp_path: Path) -> None:
    assert run("apply", "model", "--yarn", "4", "-q").returncode == 0
    before = hashes(tmp_path)
    done = run("train-config", "model-yarn4", "--for", "trl")
    assert (done.returncode, done.stderr) == (0, "")
    compile(done.stdout, "train_trl.py", "exec")
    assert "max_length=256," in done.stdout
    assert hashes(tmp_path) == before
    told = json.loads(run("train-config", "model-yarn4", "--for", "trl", "--model", "me/long", "--json").stdout)
    assert (told["model"], told["context"], told["status"], told["file"]) == ("me/long", 256, "exact", "train_trl.py")
    assert '"me/long"' in told["text"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("model", "--for", "trl"), 2, "run `ropeconv apply` first"),
        (("small.gguf", "--for", "trl"), 2, "apply the method to the checkpoint"),
        (("model", "--for", "nanotron"), 2, "'axolotl'"),
        (("model",), 2, "Missing option '--for'"),
        (("own-code", "--for", "unsloth"), 1, "--for trl"),
    ],
)
def test_what_is_refused(
    run: Run, refuses: Refuses, llama: Path, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    write(tmp_path / "small.gguf")
    if "own-code" in words:
        run("apply", "model", "--mixed", "4", "--log-n", "clamped", "--encoding", "buffers", "-o", "own-code")
    refuses(code, said, "train-config", *words)
