"""Runs `program` in a process, and turns failures of llama.cpp into errors with a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...errors import RopeconvError
from ...extras import require
from ...formats.scratch import scratch
from ...secrets import without_secrets

Override = tuple[str, int | float | str]


def run(path: Path, job: dict[str, Any]) -> Any:
    """The answer of llama.cpp to a job, as a numpy array.

    path: the GGUF file. job: as in `program`, without `path` and `out`. Raises RopeconvError with llama.cpp's own
    message where it does not run the file.
    """
    import numpy as np

    require("llama_cpp", "running a GGUF file")
    with scratch() as folder:
        out = folder / "answer.npy"
        command = [sys.executable, "-m", "ropeconv.engines.llamacpp.program"]
        asked = json.dumps({**job, "path": str(path), "out": str(out)})
        environment = without_secrets()
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            raise RopeconvError(f"llama.cpp cannot run {path.name}: {last_words(done.stderr, done.returncode)}")
        return np.load(out)


TELLING = ("ASSERT", "missing", "wrong", "invalid", "unknown", "RuntimeError", "error")


def _clue(line: str) -> int:
    return next(rank for rank, word in enumerate(TELLING) if word in line)


def last_words(stderr: str, code: int) -> str:
    """The line of llama.cpp's stderr that names the failure, with the signal where one ended the process.

    code: the return code of the process.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = sorted((line for line in lines if any(word in line for word in TELLING)), key=_clue)
    ended = f" (ended by signal {-code})" if code < 0 else ""
    return (telling or lines or ["it said nothing"])[0][:300] + ended
