"""`ropeconv validate` compares the files of an output before anything runs, of folders, GGUF files and servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..support.baking import YARN_16, apply, make_plan
from ..support.corruptions import data, renew, scale, tensor
from ..support.gguf_files import write
from ..support.hub_server import serving
from ..support.in_process import command
from ..support.models import make

VALIDATE = ("validate", "out", "--against", "model")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return apply(make_plan(make("llama", tmp_path / "model", initializer_range=0.15), YARN_16, tmp_path / "out"))


def test_wrong_weights_disagree_and_quick_leaves_them_out(out: Path) -> None:
    """Logits do not show a row of embeddings that the text has not."""
    pytest.importorskip("torch")
    tensor("model.embed_tokens.weight", scale(319, 0.0))(out)
    done = command(out.parent, *VALIDATE, "--tokens", 16, code=3)
    assert "model.embed_tokens.weight of model.safetensors differs from byte" in done.stderr
    quick = command(out.parent, *VALIDATE, "--tokens", 16, "--quick")
    assert "The weights were not compared (--quick)." in quick.stdout
    assert "--quick left out the weights" in quick.stderr
    said = command(out.parent, *VALIDATE, "--tokens", 16, "--quick", "--json")
    files = json.loads(said.stdout)["files"]
    assert files == {"files": 4, "bytes": 0, "quick": True, "notes": [], "unverified": []}
    assert json.loads((out / "ropeconv.json").read_text())["validation"]["files"] == files


def test_files_are_compared_before_a_server_is_asked(out: Path) -> None:
    nowhere = ("--server", "http://127.0.0.1:9")
    command(out.parent, *VALIDATE, *nowhere, code=1)
    tensor("model.norm.weight", scale(0, 2.0))(out)
    assert "model.norm.weight" in command(out.parent, *VALIDATE, *nowhere, code=3).stderr


def test_gguf_files_are_compared(tmp_path: Path) -> None:
    out = apply(make_plan(write(tmp_path / "model.gguf"), YARN_16, tmp_path / "out.gguf"))
    data(lambda found: found.__setitem__(-1, found[-1] ^ 1))(out)
    given = ("validate", "out.gguf", "--against", "model.gguf")
    assert "of out.gguf differs from byte" in command(tmp_path, *given, code=3).stderr
    assert "brings no code" in command(tmp_path, *given, "--trust-remote-code", code=2).stderr


APPLY = "ropeconv.apply(ropeconv.make_plan(source, recipe, ropeconv.Target(out=Path('out'))), check=False)"
VERIFY = "print(verify_output(ropeconv.Comparison.open('out', 'me/tiny')).sentence)"
PROGRAM = """
from pathlib import Path
import ropeconv
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.bake.verify import verify_output
source, recipe = ropeconv.open_source("me/tiny"), ropeconv.Recipe(REGISTRY["yarn"](4.0))
"""


def test_weights_on_the_hub_are_compared_by_the_hubs_own_hashes(llama: Path, tmp_path: Path) -> None:
    """Nothing but texts and the header of the weights is fetched."""

    def python(last: str, home: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **hub.environment(tmp_path / home)}
        run = [sys.executable, "-c", PROGRAM + last]
        return subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)

    with serving() as hub:
        hub.repos["me/tiny"] = llama
        assert python(APPLY, "home").returncode == 0
        hub.sent.clear()
        assert "4 files match the source and the recipe" in python(VERIFY, "fresh").stdout
        assert hub.sent.get("model.safetensors", 0) < (llama / "model.safetensors").stat().st_size
        assert not list((tmp_path / "fresh").rglob("model.safetensors"))
        tensor("model.norm.weight", scale(0, 2.0))(tmp_path / "out")
        renew(tmp_path / "out")
        assert "model.safetensors has other contents" in python(VERIFY, "fresh").stderr
