"""Probe: the installed transformers in a process of its own. Fast to import, since it has to start first."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from ...secrets import without_secrets


class Probe:
    """A running `program.py`, which imports torch and transformers while its caller plans and copies.

    python: the interpreter. env: of the process, None for that of the caller without its secrets.
    """

    def __init__(self, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        script = Path(__file__).with_name("program.py")
        self.process = subprocess.Popen(
            [python, "-P", "-W", "ignore", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=without_secrets() if env is None else env,
        )

    @staticmethod
    def available() -> bool:
        """Whether transformers and torch are installed here."""
        return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))

    def prefetch(self, model_type: str) -> None:
        """Starts the import of the code of a model, ahead of `ask`."""
        self._send({"model_type": model_type})

    def ask(self, folder: Path, context: int, own: bool = False, stands_for: str = "") -> dict[str, Any]:
        """What transformers computes from the config of a folder: {"modules": ...}, or {"error": message}.

        folder: with config.json. context: in tokens, whose last position is asked. own: run the modelling file in the
        folder, which the caller has written or trusts. stands_for: the model type of a config whose own transformers
        does not have.
        """
        assert self.process.stdout is not None
        self._send({"path": str(folder.resolve()), "context": context, "own": own, "as": stands_for})
        line = self.process.stdout.readline()
        from .answer import parsed

        return parsed(line) or {"error": "transformers ended without an answer that can be read"}

    def _send(self, question: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return  # its silence is the answer

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills the process. May be called again."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()
