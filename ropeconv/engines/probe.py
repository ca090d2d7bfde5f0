"""Probe, which asks transformers in another process what it computes from a config, and a cache of
its answers.

The key of the cache covers the config and the code that loads it: the versions of transformers and
torch, the files of transformers with the model's RoPE, and the probe. The module is fast to import,
since the probe has to start first.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

import msgspec

from ..environment import without_secrets
from ..formats.drafts import write_file
from ..formats.jsontext import JsonObject
from ..rope.errors import RopeconvError
from .process import ProgramProcess


class Probe(ProgramProcess):
    """`probe_program.py`, which imports torch and transformers while its caller plans and copies.

    It starts when it is entered, or with the first question, and has the environment of its caller
    without secrets.
    """

    def __init__(self, python: str = sys.executable) -> None:
        script = Path(__file__).with_name("probe_program.py")
        super().__init__([python, "-P", "-W", "ignore", str(script)], without_secrets())

    @staticmethod
    def available() -> bool:
        """Whether transformers and torch are installed here."""
        return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))

    def prefetch(self, model_type: str) -> None:
        """Start the import of the code of a model, before `ask`."""
        self.send(json.dumps({"model_type": model_type}).encode())

    def ask(
        self, folder: Path, context: int, own_code: bool = False, stands_for: str = ""
    ) -> JsonObject:
        """The frequencies that transformers computes from a config: {"modules": ...}, or {"error":
        message}.

        A process that has ended is started again. folder: with config.json. context: in tokens; the
        frequencies are those at its last position. own_code: run the modelling file in the folder,
        which the caller trusts. stands_for: replaces a model type that transformers does not have.
        """
        if not self.is_running:
            self.start()
        question = {
            "path": str(folder.resolve()),
            "context": context,
            "own": own_code,
            "as": stands_for,
        }
        self.send(json.dumps(question).encode())
        return parsed(self.receive()) or {
            "error": "transformers ended without an answer that can be read"
        }


class SharedProbe(Probe):
    """A probe that starts with the first question, stays for the next output, and ends with its
    caller.
    """

    def prefetch(self, model_type: str) -> None:
        """Start nothing, since the process may run already."""

    def __enter__(self) -> Self:
        return self

    def stop(self) -> None:
        """Keep the process for the next output."""


class Module(msgspec.Struct, frozen=True):
    """A set of frequencies. inv_freq, short: radians per token, at the end of the context and at
    its beginning.
    """

    inv_freq: tuple[float, ...]
    short: tuple[float, ...]
    attention_factor: float


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The frequencies of "global" and "local" layers, or why there are none.

    transformers: its version. read_as: the model type that replaced one that it does not have.
    """

    modules: dict[str, Module] = {}
    error: str = ""
    transformers: str = ""
    read_as: str = ""


def parsed(text: str | bytes) -> JsonObject | None:
    """An answer as JSON-ready data; None for another text, such as one with NaN."""
    try:
        msgspec.json.decode(text, type=ProbeAnswer)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    data: JsonObject = json.loads(text)
    return data if {"modules", "error"} & data.keys() else None


class ProbeCache:
    """Answers by key, as files of a folder: `ropeconv/checks` in the user's cache. It can be
    deleted at any time.
    """

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.folder = Path(base) / "ropeconv" / "checks"

    @staticmethod
    def key(config_text: str, model_type: str, context: int, stands_for: str = "") -> str:
        """The key of the answer to a config; empty, so that nothing is cached, where transformers
        has no files on disk.

        config_text: the whole config.json. model_type: of the model whose code reads it. context:
        in tokens. stands_for: as for `Probe.ask`.
        """
        digest = hashlib.sha256(f"{context}\n{stands_for}\n{config_text}".encode())
        for path in (
            Path(__file__).with_name("probe_program.py"),
            Path(__file__).parents[1] / "loader.py",
        ):
            digest.update(path.read_bytes())
        try:
            for package in ("transformers", "torch"):
                digest.update(importlib.metadata.version(package).encode())
            spec = importlib.util.find_spec("transformers")
            root = Path(spec.origin).parent if spec and spec.origin else Path()
            models = sorted((root / "models" / model_type).glob("*.py"))
            for path in (root / "modeling_rope_utils.py", root / "configuration_utils.py", *models):
                status = path.stat()
                digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        except (OSError, importlib.metadata.PackageNotFoundError):
            return ""
        return digest.hexdigest()

    def answer(
        self,
        folder: Path,
        model_type: str,
        context: int,
        own_code: bool = False,
        stands_for: str = "",
        probe: Probe | None = None,
    ) -> JsonObject:
        """The answer of `Probe.ask`, which may be cached; not that of a modelling file of the
        folder.

        model_type: as for `key`. probe: a running one; None to start one. folder, context, own,
        stands_for: as for `Probe.ask`.
        """
        text = (folder / "config.json").read_bytes().decode(errors="replace")
        key = "" if own_code else self.key(text, model_type, context, stands_for)
        answer = self.get(key)
        if answer is None:
            with Probe() if probe is None else nullcontext(probe) as running:
                answer = running.ask(folder, context, own_code, stands_for)
            self.put(key, answer)
        return answer

    def get(self, key: str) -> JsonObject | None:
        """The cached answer of a key; None without one and for an empty key."""
        try:
            answer = parsed((self.folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return answer if answer is not None and "modules" in answer else None

    def put(self, key: str, answer: JsonObject) -> None:
        """Cache an answer, unless it is an error or the key is empty. A cache that cannot be
        written is ignored.
        """
        if not key or "error" in answer:
            return
        path = self.folder / f"{key}.json"
        with suppress(OSError, RopeconvError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(answer))
