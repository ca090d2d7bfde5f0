"""`ropeconv validate` compares the files of an output before anything runs, of folders, GGUF files and servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropeconv.verify.verified import Verified

from ..conftest import Run
from ..support.corruptions import renew, scale, tensor
from ..support.gguf_files import write
from ..support.hub_server import serving
from ..support.models import make

NOWHERE = ("--server", "http://127.0.0.1:9")


@pytest.fixture
def out(run: Run, tmp_path: Path) -> Path:
    make("llama", tmp_path / "model", initializer_range=0.15)
    assert run("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    return tmp_path / "out"


def test_wrong_weights_disagree_and_quick_leaves_them_out(run: Run, out: Path) -> None:
    """Logits do not show a row of embeddings that the text has not."""
    tensor("model.embed_tokens.weight", scale(319, 0.0))(out)
    done = run("validate", "out", "--against", "model", "--tokens", "16")
    assert done.returncode == 3
    assert "model.embed_tokens.weight of model.safetensors differs from byte" in done.stderr
    quick = run("validate", "out", "--against", "model", "--tokens", "16", "--quick")
    assert "The bytes of the weights were not compared (--quick)." in quick.stdout
    assert "--quick left out the bytes of the weights" in quick.stderr
    said = run("validate", "out", "--against", "model", "--tokens", "16", "--quick", "--json")
    files = json.loads(said.stdout)["files"]
    assert files == {"files": 3, "bytes": 0, "quick": True, "notes": [], "unverified": []}
    assert json.loads((out / "ropeconv.json").read_text())["validation"]["files"] == files


def test_what_was_compared_is_in_the_document(run: Run, out: Path) -> None:
    (out / "README.md").write_text("# Mine\n")
    done = run("validate", "out", "--against", "model", "--tokens", "16", "--json")
    files = json.loads(done.stdout)["files"]
    assert files["bytes"] == (out / "model.safetensors").stat().st_size
    assert files["notes"] == ["README.md is not among the files that ropeconv wrote"]
    assert "Note: README.md is not among the files that ropeconv wrote." in done.stderr


def test_files_are_compared_before_a_server_is_asked(run: Run, out: Path) -> None:
    right = run("validate", "out", "--against", "model", *NOWHERE)
    assert right.returncode == 1, "no server is there"
    tensor("model.norm.weight", scale(0, 2.0))(out)
    wrong = run("validate", "out", "--against", "model", *NOWHERE)
    assert (wrong.returncode, "model.norm.weight" in wrong.stderr) == (3, True)


def test_gguf_files_are_compared(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", extra={"general.name": "One"})
    assert run("apply", "model.gguf", "--yarn", "16", "-o", "out.gguf", "-q").returncode == 0
    path = tmp_path / "out.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    done = run("validate", "out.gguf", "--against", "model.gguf")
    assert (done.returncode, "of out.gguf differs from byte" in done.stderr) == (3, True)
    refused = run("validate", "out.gguf", "--against", "model.gguf", "--trust-remote-code")
    assert (refused.returncode, "brings no code" in refused.stderr) == (2, True)


PROGRAM = """
import sys, ropeconv
from ropeconv.verify import verify_output
print(verify_output(ropeconv.Comparison.open(sys.argv[1], "me/tiny")).sentence)
"""


def test_weights_on_the_hub_are_compared_by_the_hubs_own_hashes(run: Run, llama: Path, tmp_path: Path) -> None:
    """Nothing but texts and the header of the weights is fetched."""

    def verify(home: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, "out"]
        env = {**os.environ, **hub.environment(home)}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)

    with serving() as hub:
        hub.repos["me/tiny"] = llama
        done = run("apply", "me/tiny", "--yarn", "4", "-o", "out", "-q", env=hub.environment(tmp_path / "home"))
        assert done.returncode == 0, done.stderr
        hub.sent.clear()
        right = verify(tmp_path / "fresh")
        assert right.returncode == 0, right.stderr
        assert "3 files are what recipe and source give" in right.stdout
        size = (llama / "model.safetensors").stat().st_size
        assert hub.sent.get("model.safetensors", 0) < size
        assert not list((tmp_path / "fresh").rglob("model.safetensors"))
        tensor("model.norm.weight", scale(0, 2.0))(tmp_path / "out")
        renew(tmp_path / "out")
        wrong = verify(tmp_path / "fresh")
        assert "model.safetensors is another one" in wrong.stderr


def test_one_file_is_one() -> None:
    assert Verified(1, 5).sentence.startswith("1 file is what recipe and source give, 5 bytes")
    assert Verified(2, 5).sentence.startswith("2 files are what recipe and source give, 5 bytes")
