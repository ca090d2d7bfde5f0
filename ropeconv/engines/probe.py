"""Probe: the installed transformers in a process of its own. Fast to import, since it has to start first.

A cache of the answers of the probe, since asking takes longer than copying some gigabytes.

An answer is a function of the config's bytes and of the code that read them. The key covers both: the text, the
versions of transformers and torch, the files of transformers that hold the model's RoPE, and the probe itself.
Only the answer is cached; it is compared with the schedule each time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from types import TracebackType

import msgspec

from ..environment import without_secrets
from ..formats.jsontext import JsonObject


class Probe:
    """A running `probe_program.py`, which imports torch and transformers while its caller plans and copies.

    python: the interpreter. env: of the process, None for that of the caller without its secrets.
    """

    def __init__(self, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        script = Path(__file__).with_name("probe_program.py")
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

    def ask(self, folder: Path, context: int, own: bool = False, stands_for: str = "") -> JsonObject:
        """What transformers computes from the config of a folder: {"modules": ...}, or {"error": message}.

        folder: with config.json. context: in tokens, whose last position is asked. own: run the modelling file in the
        folder, which the caller has written or trusts. stands_for: the model type of a config whose own transformers
        does not have.
        """
        assert self.process.stdout is not None
        self._send({"path": str(folder.resolve()), "context": context, "own": own, "as": stands_for})
        line = self.process.stdout.readline()

        return parsed(line) or {"error": "transformers ended without an answer that can be read"}

    def _send(self, question: JsonObject) -> None:
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


class Module(msgspec.Struct, frozen=True):
    """A set of frequencies. inv_freq, short: radians per token, at the end of the context and at its beginning."""

    inv_freq: tuple[float, ...]
    short: tuple[float, ...]
    attention_factor: float


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What transformers computes, by "global" and "local".

    transformers: its version. read_as: the model type that was put in the place of one that it does not have.
    """

    modules: dict[str, Module]
    transformers: str = ""
    read_as: str = ""


class ProbeFailure(msgspec.Struct, frozen=True):
    """Why it computes nothing."""

    error: str


def parsed(text: str) -> JsonObject | None:
    """An answer as JSON-ready data; None for a text that is none, such as one with NaN among its numbers."""
    for kind in (ProbeFailure, ProbeAnswer):
        try:
            msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        found: JsonObject = json.loads(text)
        return found
    return None


class ProbeCache:
    """Answers by key, as files of a folder: `ropeconv/checks` in the user's cache. It can be deleted at any time."""

    def __init__(self, folder: Path | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = folder or Path(base) / "ropeconv" / "checks"

    @staticmethod
    def key(config_text: str, model_type: str, context: int, stands_for: str = "") -> str:
        """The key of the answer to a config; empty, so that nothing is cached, where transformers has no files on disk.

        config_text: the whole config.json. model_type: of the model whose code reads it. context: in tokens.
        stands_for: as for `Probe.ask`.
        """
        digest = hashlib.sha256(f"{context}\n{stands_for}\n{config_text}".encode())
        for ours in (Path(__file__).with_name("probe_program.py"), Path(__file__).parents[1] / "pretrained.py"):
            digest.update(ours.read_bytes())
        try:
            for package in ("transformers", "torch"):
                digest.update(importlib.metadata.version(package).encode())
            found = importlib.util.find_spec("transformers")
            root = Path(found.origin).parent if found and found.origin else Path()
            models = sorted((root / "models" / model_type).glob("*.py"))
            for path in (root / "modeling_rope_utils.py", root / "configuration_utils.py", *models):
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        except (OSError, importlib.metadata.PackageNotFoundError):
            return ""
        return digest.hexdigest()

    def get(self, key: str) -> JsonObject | None:
        """The cached answer of a key; None without one and for an empty key."""
        if not key:
            return None
        try:
            answer = parsed((self.folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return answer if answer is not None and "modules" in answer else None

    def put(self, key: str, answer: JsonObject) -> None:
        """Caches an answer, unless it is an error or the key is empty. A cache that cannot be written is ignored."""
        if not key or "error" in answer:
            return
        path = self.folder / f"{key}.json"
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(answer), "utf-8")
            draft.replace(path)
        except OSError:
            return


class SharedProbe(Probe):
    """A probe that outlives the outputs it is asked about. It ends with the process that holds it."""

    def __init__(self, python: str = sys.executable) -> None:
        self.python = python

    @cached_property
    def process(self) -> subprocess.Popen[str]:  # type: ignore[override]
        """The process, started on first use."""
        return Probe(self.python).process

    def ask(self, folder: Path, context: int, own: bool = False, stands_for: str = "") -> JsonObject:
        """As in `Probe`; a process that has ended is started anew. folder, context, own, stands_for: as there."""
        if "process" in self.__dict__ and self.process.poll() is not None:
            del self.process
        return super().ask(folder, context, own, stands_for)

    def prefetch(self, model_type: str) -> None:
        """Starts nothing ahead: the process may be there already."""

    def stop(self) -> None:
        """Leaves the process for the next output."""
